"""The replay: the IDs of the records between the end of the marks and the committed offset are read from the topic.

Where records of this tail are gone from the log, coverage begins later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from dedup_sdk._core.reach import StartPlan
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Steps, Wait
from dedup_sdk._kafka.assign.start import LogChange
from dedup_sdk._kafka.client.reader import Slice, TailReader
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._kafka.recover.log_check import is_contradicted
from dedup_sdk._marks import Witness
from dedup_sdk._window import length_text

logger = logging.getLogger("dedup_sdk")

SILENT_S = 1.0
"""Seconds without a record after which a replay lets other recoveries go first."""
SILENT_RETRY_S = 0.1
"""Seconds between two attempts of such a replay to read."""
DISK_RETRY_S = 0.2
"""Seconds between two checks whether a full disk has room again."""
TELL_EVERY_S = 5.0
"""Seconds between two log lines about the progress of a replay."""


def replay(
    attempt: Attempt, partition: Partition, plan: StartPlan, reader: TailReader, witness: Witness | None
) -> Steps[LogChange | None]:
    """Fold the IDs of the tail into the marks.

    Return how the log was cut if it ends below the tail's end, has records of a later leader epoch in it, or has
    another record than ``witness``, the last one that the store completed; else None.
    """
    first, decided = reader.bounds()
    last = decided if plan.replay_to <= decided else reader.log_end()
    if plan.replay_to > last:
        return LogChange()
    if partition.ephemeral:
        partition.skip_to(plan.replay_to)
        return None
    if attempt.is_over or plan.replay_to > decided:
        _start_without_replay(attempt, partition, plan)
        return None
    begin = yield from _replay_begin(partition, plan, reader, first)
    attempt.begin(f"replaying offsets {begin} to {plan.replay_to}")
    if witness is not None and witness.offset < first:
        witness = None
    return (yield from _fold(attempt, partition, plan, reader, begin, witness))


def _fold(
    attempt: Attempt,
    partition: Partition,
    plan: StartPlan,
    reader: TailReader,
    begin: int,
    witness: Witness | None,
) -> Steps[LogChange | None]:
    watch = ReplayWatch(f"{partition.topic}[{partition.partition}]", begin, plan.replay_to, attempt.progress)
    recovering = attempt.recovering
    epoch, reached, heard = recovering.start.leader_epoch, begin, time.monotonic()
    recovering.reached = begin, plan.replay_to
    # The record before the tail comes with the first fetch, so that to compare it takes no request.
    read_from = begin if witness is None else min(begin, witness.offset)
    for batch in reader.slices(read_from, plan.replay_to, attempt.engine.keys):
        if attempt.is_over:
            _start_without_replay(attempt, partition, plan)
            return None
        if batch is None:
            # The broker is away, or the log has many aborted records here: other recoveries go first.
            yield Wait(SILENT_RETRY_S, "broker") if time.monotonic() - heard >= SILENT_S else None
            continue
        part = _part_to_fold(batch, begin, epoch, witness, partition)
        if isinstance(part, LogChange):
            return part
        partition.fold(part.offsets, part.timestamps, part.digests, part.end)
        reached, heard = part.end, time.monotonic()
        recovering.reached = reached, plan.replay_to
        if part.offsets:
            recovering.replayed += len(part.offsets)
            attempt.assigned.retry.silent_since = 0.0
        watch.note(part.end)
        attempt.engine.trim()
        yield None
        while partition.writer.disk_full and attempt.policy.on_full_disk == "pause":
            # Marks folded now could not be written.
            yield Wait(DISK_RETRY_S, "store")
    if reached < plan.replay_to:
        return LogChange()
    if partition.flight.high < plan.replay_to:
        partition.fold([], np.empty(0, np.int64), [], plan.replay_to)
    return None


def _part_to_fold(
    batch: Slice, begin: int, epoch: int | None, witness: Witness | None, partition: Partition
) -> Slice | LogChange:
    """Return the part of a batch from ``begin`` on, or how the log differs from that of the commit or the store."""
    if witness is not None and is_contradicted(witness, batch, partition):
        return LogChange(of_store=True)
    part = batch.beginning_at(begin)
    if epoch is not None and part.epoch is not None and part.epoch > epoch:
        # Stop before this batch is folded: later its records could not be told from handled ones.
        return LogChange(part.offsets[0])
    return part


def _start_without_replay(attempt: Attempt, partition: Partition, plan: StartPlan) -> None:
    """Start without the records that were not replayed within the timeout."""
    partition.skip_to(plan.replay_to)
    detail = "its timeout has passed; IDs that are not found are delivered as unverified until the window has filled"
    attempt.engine.tell(attempt.event("recovery-timeout", detail, plan.replay_to))


def _replay_begin(partition: Partition, plan: StartPlan, reader: TailReader, first: int) -> Steps[int]:
    """Return the first offset to replay; where relevant records are gone from the log, coverage begins later."""
    begin = earliest = min(max(plan.replay_from, first), plan.replay_to)
    if plan.whole and partition.window.time_ms is not None and not partition.depends_on_order:
        begin = yield from _one_window_back(partition, reader, earliest, plan.replay_to)
        # Retention may have deleted records meanwhile: then the window seems to begin at the first record of the log.
        first = max(first, reader.bounds()[0])
        earliest = min(max(plan.replay_from, first), plan.replay_to)
        begin = max(begin, earliest)
    if first > plan.replay_from and begin == earliest:
        # Deleted records matter only where the window does not begin after them.
        logger.warning(
            "%s[%d]: offsets %d to %d are gone from the log; IDs that are not found are delivered as unverified until "
            "the window has filled",
            partition.topic, partition.partition, plan.replay_from, first,
            extra={"event": "history-gone"},
        )  # fmt: skip
        partition.memory.pass_uncounted(first - plan.replay_from)
        partition.memory.forget_all()
    return begin


def _one_window_back(partition: Partition, reader: TailReader, low: int, end: int) -> Steps[int]:
    """Return where a replay must begin to rebuild all marks inside the window at ``end``; set when coverage begins."""
    newest_ms = yield from reader.newest_before(end, low)
    if newest_ms is None:
        return low
    # A record from the future counts as now: from its own timestamp the window would not reach back far enough.
    since_ms = partition.memory.reach.horizon_ms(min(newest_ms, int(time.time() * 1000)))
    first = reader.first_at(since_ms)
    if first is None or first <= low:
        return low
    partition.memory.reach.begin_at(since_ms)
    return min(first, end)


class ReplayWatch:
    """Reports the progress of one partition's replay of offsets ``[start, end)``.

    ``tell`` is called with the offset reached and each log line.
    """

    def __init__(
        self,
        name: str,
        start: int,
        end: int,
        tell: Callable[[int, str], object] = lambda _offset, _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._start, self._end, self._clock = name, start, end, clock
        self._report = tell
        self._began = self._last_logged = clock()

    def note(self, offset: int) -> None:
        """Report every `TELL_EVERY_S` seconds: the offset reached, the rate and the remaining time."""
        now = self._clock()
        if now - self._last_logged < TELL_EVERY_S:
            return
        self._last_logged = now
        rate = (offset - self._start) / (now - self._began)
        left = "nothing has come yet"
        if rate > 0:
            left_ms = round((self._end - offset) / rate) * 1_000
            left = f"{length_text(left_ms, most_units=2)} to go"
        line = f"replayed up to offset {offset} of {self._end}, {rate:.0f} offsets a second, {left}"
        logger.info("%s: %s", self._name, line, extra={"event": "recovery"})
        self._report(offset, line)
