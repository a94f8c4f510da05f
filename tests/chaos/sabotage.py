"""Broken twins: in this process only, one protection of the package is taken away.

Each is what a naive consumer does. The oracle has to notice; a check that cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import numpy as np
from confluent_kafka import TopicPartition

from dedup_sdk import DedupConsumer
from dedup_sdk.engine.partition import Partition
from dedup_sdk.ids import spec
from dedup_sdk.ids.digest import Column
from dedup_sdk.kafka import commits, readers, recovery
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.holdings import Holdings
from dedup_sdk.kafka.placement import Placement


def _replace(owner: object, name: str, make: Callable[[Any], Any]) -> None:
    """Put what ``make`` makes of an attribute in its place; one that is not there any more is an error."""
    setattr(owner, name, make(getattr(owner, name)))


def _mark_before_complete() -> None:
    """What is handed out counts as done."""

    def make(poll: Any) -> Any:
        def eager(self: DedupConsumer, timeout: float = -1) -> Any:
            message = poll(self, timeout)
            if message is not None and message.error() is None:
                self.complete(message)
            return message

        return eager

    _replace(DedupConsumer, "poll", make)


def _commit_past_a_gap() -> None:
    """The position is committed, whatever is unfinished before it: what a plain client does by default."""

    def make(prefix: Any) -> Any:
        def position(assigned: Any) -> TopicPartition | None:
            ready: TopicPartition | None = prefix(assigned)
            if ready is not None:
                ready.offset = assigned.held.lane.position
            return ready

        return position

    _replace(commits, "_completed_prefix", make)


def _skip_tail_replay() -> None:
    """A store that is behind, or new, is taken for complete."""

    def make(_: Any) -> Any:
        def nothing(
            _assigned: Any, held: Any, plan: Any, *_others: Any, **_named: Any
        ) -> Generator[None, None, None]:
            held.fold([], np.empty(0, np.int64), [], plan.replay_to)
            yield

        return nothing

    _replace(recovery, "_replay", make)


def _ignore_lost() -> None:
    """A member that was thrown out goes on with what it has."""
    _replace(Placement, "_lose", lambda _: lambda _self, _partitions: None)


def _revoke_without_commit() -> None:
    """Partitions that go in order are let go as if they were lost."""
    _replace(Holdings, "give_back", lambda _: Holdings.lose)


def _start_at_the_end() -> None:
    """A partition without a committed offset is read from its end on."""
    _replace(
        Client, "edge", lambda _: lambda self, topic, partition, _reset: self.bounds(topic, partition)[1]
    )


def _replay_uncommitted() -> None:
    """The replay also takes what was aborted for seen."""

    def make(settings: Any) -> Any:
        return lambda chosen: {**settings(chosen), "isolation.level": "read_uncommitted"}

    _replace(readers, "reader_settings", make)


def _believe_the_future() -> None:
    """One record from the future makes all others look old."""
    _replace(Partition, "_now_ms", lambda _: lambda _self: 2**52)


def _shorten_ids() -> None:
    """IDs are told apart by their first bytes, and a missing one is one too."""

    def make(digest_columns: Any) -> Any:
        def shortened(columns: list[Column]) -> Any:
            return digest_columns([Column([(v or b"")[:16] for v in column.values]) for column in columns])

        return shortened

    _replace(spec, "digest_columns", make)


def _low_never_rises() -> None:
    """What was jumped over counts as processed."""

    def make(plan: Any) -> Any:
        def planned(stored: Any, *, low: int, **others: Any) -> Any:
            return plan(stored, low=low if stored is None else min(low, stored.low), **others)

        return planned

    _replace(recovery, "plan_start", make)


def _remember_what_was_given_up() -> None:
    """A dead letter counts as handled, so that its message is a duplicate when it is sent again."""
    _replace(Partition, "bury", lambda _: Partition.complete)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    "mark-before-complete": _mark_before_complete,
    "commit-past-a-gap": _commit_past_a_gap,
    "skip-tail-replay": _skip_tail_replay,
    "ignore-lost": _ignore_lost,
    "revoke-without-commit": _revoke_without_commit,
    "start-at-the-end": _start_at_the_end,
    "replay-uncommitted": _replay_uncommitted,
    "believe-the-future": _believe_the_future,
    "shorten-ids": _shorten_ids,
    "low-never-rises": _low_never_rises,
    "remember-what-was-given-up": _remember_what_was_given_up,
}
"""Every way to break a worker, by name."""


def sabotage(name: str) -> None:
    """Take one protection away; an empty name takes none."""
    if name:
        BROKEN[name]()
