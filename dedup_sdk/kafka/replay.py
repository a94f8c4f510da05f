"""The tail of a topic folded into a partition's marks: what the group completed, and its store does not have."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.reader import Slice, TailReader
from dedup_sdk.kafka.recovery_news import RecoveryNews
from dedup_sdk.kafka.replay_watch import ReplayWatch
from dedup_sdk.lane.plan import StartPlan
from dedup_sdk.observe import PartitionEvent

logger = logging.getLogger("dedup_sdk")

SILENT_S = 1.0
"""Seconds without a record after which a replay lets others go first."""
LOOK_S = 0.1
"""Seconds between two looks of such a replay."""
ROOM_LOOK_S = 0.2
"""Seconds between two looks whether a full disk has room again."""


class Cut(NamedTuple):
    """The log is not the one that the group committed; ``same_until`` is up to where it is, None where that is to be asked yet."""

    same_until: int | None = None


def replay(
    assigned: Assigned,
    held: Partition,
    plan: StartPlan,
    *,
    reader: TailReader,
    engine: Deduplicator,
    until: float | None,
    waits_for_room: bool,
    news: RecoveryNews,
) -> Generator[None, None, Cut | None]:
    """Fold what is missing; return how the log was cut if it no longer goes as far, or has records of a later epoch there."""
    first, decided = reader.bounds()
    last = decided if plan.replay_to <= decided else reader.log_end()
    if plan.replay_to > last:
        return Cut()
    if _starts_without(held, plan, engine, until):
        return None
    if plan.replay_to > decided:
        _give_up_waiting(held, plan, engine)
        return None
    begin = yield from _where_to_begin(held, plan, reader, first)
    news.begin(f"replaying offsets {begin} to {plan.replay_to}")
    watch = ReplayWatch(f"{held.topic}[{held.partition}]", begin, plan.replay_to, until, news.progress)
    return (
        yield from _fold(
            assigned, held, plan, reader=reader, engine=engine, begin=begin, watch=watch,
            waits_for_room=waits_for_room,
        )
    )  # fmt: skip


def _fold(
    assigned: Assigned,
    held: Partition,
    plan: StartPlan,
    *,
    reader: TailReader,
    engine: Deduplicator,
    begin: int,
    watch: ReplayWatch,
    waits_for_room: bool,
) -> Generator[None, None, Cut | None]:
    epoch = None if assigned.start is None else assigned.start.leader_epoch
    reached, heard = begin, time.monotonic()
    for piece in reader.slices(begin, plan.replay_to, engine.keys):
        if watch.is_over:
            _give_up_waiting(held, plan, engine)
            return None
        if piece is not None and epoch is not None and piece.epoch is not None and piece.epoch > epoch:
            # Before it is written: nobody would tell it from what was handled any more.
            return Cut(piece.offsets[0])
        if piece is not None:
            held.fold(piece.offsets, piece.timestamps, piece.digests, piece.end)
            reached = piece.end
            assigned.replayed += len(piece.offsets)
            watch.note(piece.end)
            engine.trim()
        heard = _heard(assigned, piece, heard)
        yield
        while held.choked and waits_for_room:
            # What is folded now could not be kept; meanwhile others recover.
            assigned.ask_at = time.monotonic() + ROOM_LOOK_S
            yield
    if reached < plan.replay_to:
        return Cut()
    if held.lane.high < plan.replay_to:
        held.fold([], np.empty(0, np.int64), [], plan.replay_to)
    return None


def _give_up_waiting(held: Partition, plan: StartPlan, engine: Deduplicator) -> None:
    """Start without what was not replayed in time."""
    held.skip_to(plan.replay_to)
    detail = "recovery_timeout is over; what hangs on the rest is unverified until the window has filled"
    engine.tell(PartitionEvent("recovery-timeout", held.topic, held.partition, plan.replay_to, detail))


def _starts_without(held: Partition, plan: StartPlan, engine: Deduplicator, until: float | None) -> bool:
    """Start without any of it, if nothing of it is wanted, or there is no time left."""
    if held.forgets:
        held.skip_to(plan.replay_to)
        return True
    if until is not None and time.monotonic() >= until:
        _give_up_waiting(held, plan, engine)
        return True
    return False


def _heard(assigned: Assigned, piece: Slice | None, heard: float) -> float:
    """Return when something came last; let others recover while nothing comes: the broker is away, or has much that is left out."""
    now = time.monotonic()
    assigned.silent = piece is None and now - heard >= SILENT_S
    if assigned.silent:
        assigned.ask_at = now + LOOK_S
    return heard if piece is None else now


def _where_to_begin(
    held: Partition, plan: StartPlan, reader: TailReader, first: int
) -> Generator[None, None, int]:
    """Return the offset of the first record to fold; what is gone from the log before it, and could matter, is not covered."""
    begin = there = min(max(plan.replay_from, first), plan.replay_to)
    if plan.whole and held.window.time_ms is not None and not held.hangs_on_order:
        begin = yield from _one_window_back(held, reader, there, plan.replay_to)
        # Asked again, because retention may have taken records since: then the window seems to begin where the log does.
        first = max(first, reader.bounds()[0])
        there = min(max(plan.replay_from, first), plan.replay_to)
        begin = max(begin, there)
    if first > plan.replay_from and begin == there:
        # Had the window begun behind it, nothing that is gone could matter.
        logger.warning(
            "%s[%d]: offsets %d to %d are gone from the log; what hangs on them is unverified until the window has filled",
            held.topic, held.partition, plan.replay_from, first,
        )  # fmt: skip
        held.lane.pass_uncounted(first - plan.replay_from)
        held.lane.forget_all()
    return begin


def _one_window_back(held: Partition, reader: TailReader, low: int, end: int) -> Generator[None, None, int]:
    """Return where a fold may begin that gives every mark alive at ``end``, and note from when the marks are known."""
    newest_ms = yield from reader.newest_before(end, low)
    if newest_ms is None:
        return low
    # A record from the future counts as now: what the window reaches from there is not all that it reaches.
    since_ms = held.lane.horizon_ms(min(newest_ms, int(time.time() * 1000)))
    first = reader.first_at(since_ms)
    if first is None or first <= low:
        return low
    held.lane.since_ms = since_ms
    return min(first, end)
