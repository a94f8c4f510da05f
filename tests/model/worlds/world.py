"""The events of a world; everything that is not switched on does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dedup_sdk._kafka.deliver.write_policy import Durability
from dedup_sdk._kafka.recover.settings import OnFullDisk
from dedup_sdk._window import Window
from tests.model.worlds.compared import Compared

WALL_CLOCK_MS = 10_000_000
"""The time of every clock; timestamps beyond it lie in the future."""
FAR_FUTURE_MS = 10**15
BRIEFLY = Window(milliseconds=40)
LONG = Window(seconds=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world. Numbers between 0 and 1 are chances, of each step or each record.

    ``hosts``: machines with a disk of their own, on each of which every group has a consumer; with ``one_disk``
    there is one disk for all of them. ``in_time``: of each process, that the coordinator takes the last commits of its
    partitions; else their deadline has passed. ``parking`` is how many records of a partition may wait in memory (None:
    as in production). ``operators``: that a tool moves a group, or deletes its offsets; of these,
    ``seeks_by_operators`` are seeks of the owner instead, and ``deleted_at_once`` of the tool's moves are set-backs
    whose commit is deleted before a host starts with it. ``exactly_once``: members commit in transactions what they
    produce (`tests.model.worlds.exactly_once`).
    """

    window: Window = BRIEFLY
    compared: Compared | None = None
    partitions: int = 1
    groups: tuple[str, ...] = ("g",)
    hosts: int = 2
    one_disk: bool = False
    steps: int = 300
    recent_marks: tuple[int, ...] = (1, 3, 1000)
    durability: tuple[Durability, ...] = ("record", "batch", "commit")
    times: Literal["orderly", "wild"] = "orderly"
    repeats: float = 0.5
    rebalances: float = 0.04
    crashes: float = 0.02
    fuses: float = 0.0
    lost_disks: float = 0.1
    zombies: float = 0.0
    holes: float = 0.0
    truncations: float = 0.0
    backups: float = 0.0
    retention: float = 0.0
    poison: float = 0.03
    resends: float = 0.0
    full_disks: float = 0.0
    on_full_disk: OnFullDisk = "pause"
    impatience: float = 0.0
    operators: float = 0.0
    deleted_at_once: float = 0.0
    seeks_by_operators: float = 0.5
    seeks: float = 0.0
    in_time: float = 0.5
    parking: int | None = None
    exactly_once: bool = False

    @property
    def follows_the_watermark(self) -> bool:
        """Whether a store knows completed records only when the watermark passes them."""
        return self.window.count is not None or self.compared is not None

    @property
    def knows_everything(self) -> bool:
        """Whether no store ever misses something that its group has completed."""
        return not (self.impatience or self.retention or self.on_full_disk == "unverified")

    @property
    def orderly(self) -> bool:
        """Whether no process dies, and nobody loses a partition before hearing of it."""
        return not (self.crashes or self.fuses or self.zombies)

    @property
    def exact(self) -> bool:
        """Whether every verdict follows from the log alone, so that the oracle can predict it."""
        return not (self.truncations or self.backups or self.operators or self.seeks)


WORLDS = {
    "crashes": World(fuses=0.05),
    "zombies": World(zombies=0.6, crashes=0.03, hosts=3),
    "transactions": World(holes=0.3, fuses=0.02),
    "exactly-once": World(
        exactly_once=True, partitions=2, hosts=3, zombies=0.4, fuses=0.02, poison=0.0, holes=0.1
    ),
    "two-groups": World(groups=("g", "h"), one_disk=True, lost_disks=0.0, steps=400),
    "rings": World(window=Window(count=3), repeats=0.8, fuses=0.03, zombies=0.2),
    "ring-of-one": World(window=Window(count=1), repeats=0.9, fuses=0.03),
    "both-windows": World(window=Window(milliseconds=60, count=4), repeats=0.8, fuses=0.03),
    "parking": World(partitions=3, parking=6, repeats=0.8, crashes=0.005, steps=500),
    "dead-letters": World(poison=0.2, resends=0.7, fuses=0.03, repeats=0.6),
    "full-disk": World(full_disks=0.04, fuses=0.01),
    "full-disk-unverified": World(full_disks=0.04, on_full_disk="unverified", recent_marks=(1, 3)),
    "impatience": World(impatience=0.5, hosts=3, retention=0.01),
    "wild-times": World(times="wild", fuses=0.03, repeats=0.7),
    "wild-rings": World(times="wild", window=Window(milliseconds=60, count=3), fuses=0.03, repeats=0.7),
    "sources": World(window=LONG, compared=Compared(), fuses=0.03),
    "sources-alone": World(
        window=LONG, compared=Compared(reorder_depth=2, sources="x"), poison=0.0, fuses=0.03, zombies=0.2
    ),
    "idle-sources": World(window=BRIEFLY, compared=Compared(kind="sparse", sources="uvwxyz"), fuses=0.03),
    "origins": World(
        window=LONG,
        poison=0.0,
        fuses=0.03,
        compared=Compared(kind="sparse", reorder_depth=1, origins="AAAB", malformed=0.1),
    ),
    "high-water": World(
        window=LONG, compared=Compared(reorder_depth=0, below_floor="discard", origins="AAB"), fuses=0.03
    ),
    "second-opinion": World(
        window=LONG,
        poison=0.1,
        resends=0.5,
        fuses=0.03,
        compared=Compared(reorder_depth=1, origins="AAB", malformed=0.1, restamped=0.3, second=BRIEFLY),
    ),
    "wild-sources": World(
        times="wild", window=Window(milliseconds=60), fuses=0.03, compared=Compared(sources="xy")
    ),
    "wild-opinions": World(
        times="wild",
        window=Window(milliseconds=60),
        fuses=0.03,
        compared=Compared(reorder_depth=1, origins="AAB", restamped=0.3, second=BRIEFLY),
    ),
    "impatient-sources": World(
        window=Window(milliseconds=90),
        compared=Compared(reorder_depth=60, sources="x", reach=120),
        impatience=0.5,
        poison=0.0,
        hosts=2,
        lost_disks=0.0,
        retention=0.01,
    ),
    "sources-without-room": World(
        window=LONG,
        full_disks=0.04,
        on_full_disk="unverified",
        recent_marks=(1, 3),
        poison=0.0,
        compared=Compared(reorder_depth=1, second=BRIEFLY, origins="AAB"),
    ),
    "operators": World(operators=0.03, fuses=0.02),
    "deletions": World(
        hosts=3, operators=0.03, seeks_by_operators=0.0, deleted_at_once=0.7, rebalances=0.15, lost_disks=0.02
    ),
    "seeks": World(seeks=0.06, crashes=0.0, poison=0.0, in_time=1.0),
    "truncation": World(truncations=0.015, poison=0.0),
    "restored": World(backups=0.05, fuses=0.02),
    "restored-sources": World(backups=0.05, fuses=0.02, window=LONG, compared=Compared()),
}
