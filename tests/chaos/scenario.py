"""A scenario of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.options import PROTOCOLS, MemoryKind, Mode, Protocol
from tests.chaos.sender import Recipe, plain
from tests.chaos.stage import Disks, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of trouble.

    Attributes:
        name: for the command line.
        summary: the fault in one line.
        play: does it, until the stage's time is up; leaves everything mended.
        broken: the protection it is about (see `sabotage`): without it the oracle has to find a broken promise.
        also_broken: further ones, of which the same holds.
        disks: whether hosts share a disk; None: by the seed.
        per_second: new messages a second.
        work_ms: the average time of handling; with three workers about as much as is sent, so that there is a queue.
        short_s: seconds that a short run gives it.
        protocols: where it applies.
        small_disks: whether each host's disk is a small one of its own, mounted where that is allowed.
        bad_disks: whether disks may fail.
        on_full_disk: as of `Recovery`.
        skew_ms: how far the timestamps of resends may be off.
        outbox: whether messages go through the outbox of a producer in a process of its own.
        bridged: whether bridges copy the messages from another topic.
        database: whether the work is rows of a database (mode ``inbox``): then each message is handled exactly once.
        kept_offsets: whether the offsets are there, too.
        unit_span: how many offsets a unit reaches over, at most; 0: no record belongs to one.
        memory: where workers share a memory, and resends go to any partition; empty: nowhere.
        by_key: whether workers take the key for the ID at first; messages have both.
        enduring: whether no worker may end by itself.
        topic_config: settings of the topic.
        output: whether the work is records of another topic, written in transactions (mode ``transactions``): then each
            message is there exactly once.
        copies_the_disk: whether the broker's disk is copied, which is out of reach in a container.
    """

    name: str
    summary: str
    play: Callable[[Stage], None]
    broken: str
    disks: Disks | None = "own"
    mode: Mode = "iterate"
    proxied: bool = False
    hosts: int = 3
    partitions: int = 6
    per_second: float = 300.0
    work_ms: float = 8.0
    slow_s: float = 0.0
    max_poll_ms: int = 60_000
    recent_marks: int = 2_000
    window: str = "7d"
    recipe: Recipe = plain
    short_s: float = 10.0
    protocols: tuple[Protocol, ...] = PROTOCOLS
    small_disks: bool = False
    bad_disks: bool = False
    on_full_disk: Literal["pause", "unverified"] = "pause"
    skew_ms: int = 0
    outbox: bool = False
    bridged: bool = False
    memory: MemoryKind = ""
    database: bool = False
    kept_offsets: bool = False
    unit_span: int = 0
    by_key: bool = False
    enduring: bool = False
    topic_config: Mapping[str, str] = field(default_factory=dict)
    copies_the_disk: bool = False
    also_broken: tuple[str, ...] = ()
    output: bool = False
