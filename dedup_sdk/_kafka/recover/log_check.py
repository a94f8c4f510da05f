"""Checks whether the log is still the one that the group read.

It is not after a truncation, an unclean leader election, a restore of the broker from a backup, or a re-creation of the
topic. Then the progress of the store goes back to the end of the common prefix of both logs.

Invariants:

- Nothing is lost: a record that is not proven to be a handled one is delivered again.
- Marks stay, because their IDs were handled, whatever happened to the log. Only ``high``, the completions above it and
  the committed offset go back.
- Coverage of a window by count begins anew: the number of its IDs in the removed part of the log is not known.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dedup_sdk._core.ranges import Range, before_offset
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Steps, Wait
from dedup_sdk._kafka.assign.start import LogChange, Start
from dedup_sdk._kafka.client.reader import Slice, TailReader
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._marks import NO_MARKS, Int64s, Witness, cut_digests, elsewhere
from dedup_sdk._store.protocol import Loaded
from dedup_sdk.errors import RecoveryError

logger = logging.getLogger("dedup_sdk")

UNDECIDED_LOOK_S = 0.5
"""Seconds between two checks whether a transaction has ended."""


def start_in_the_log(attempt: Attempt, start: Start, partition: Partition) -> Steps[Start]:
    """Return where to start; cut back the progress loaded in ``partition`` where the log lacks completed records.

    The progress is cut back in two cases:

    - The log ends below the offsets that the group or the store has completed.
    - The log is long enough, but has other records at the end of the range that only this store has completed. The
      broker shows this by the leader epoch that the store noted, or the last completed record is another one.

    Where another host has gone on in the new log, the store alone is cut back, and the start stays (`cut_store_back`).

    Where a transaction is open below the committed offset, its end is awaited first (`wait_until_decided`), at most
    until the attempt's time is over.

    Raises `RecoveryError` where the progress would be cut back, neither the broker nor the store gives the end of the
    common prefix, and ``auto.offset.reset=error``.
    """
    first, end = yield from _bounds_once_decided(attempt, start, partition)
    loaded = partition.loaded
    known = start.offset if loaded is None else max(start.offset, loaded.progress.high)
    completed = known if loaded is None else max(known, loaded.progress.completed_end)
    short = completed > end and completed > attempt.client.log_end(partition.topic, partition.partition)
    if not (
        short
        or start.log_change is not None
        or (yield from _is_ahead_in_other_log(attempt, start, partition, decided=end))
    ):
        return start
    same_until = yield from _same_until_in_range(attempt, start, first=first, end=end)
    if loaded is None:
        if same_until is None and attempt.settings.reset == "error":
            reason = f"the log ends at {end}" if known > end else "in a log that the broker no longer has"
            raise RecoveryError(
                f"{partition.topic}[{partition.partition}]: the group committed {start.offset}, but {reason}; the log "
                "was truncated or replaced. Reset the group's offsets"
            )
        common = first if same_until is None else same_until
    else:
        # If no later epoch began, other records in the places of lost ones have the same: a restored broker's.
        compared_from = None if short and same_until == end else same_until
        common = yield from _common_end(
            attempt, partition, loaded, first=first, end=min(end, known), same_until=compared_from,
            contradicted_at=None if start.log_change is None else start.log_change.contradicted_at,
        )  # fmt: skip
        kept = common
        if compared_from is not None and start.log_change is None:
            # The epoch of the commit speaks for the group: another host may have gone on in this log before.
            kept = yield from _end_of_store(attempt, partition, loaded, first=first, end=common)
        partition.begin_with(_cut_back(partition, loaded, kept))
    # An unknown log is read from its first record, even where that lies after the committed offset.
    offset = common if loaded is None and same_until is None else min(start.offset, common)
    detail = f"offset {known} was completed or committed, the log ends at {end}"
    if known <= end:
        detail = f"offset {known} was completed or committed in a log that the broker no longer has"
    attempt.engine.tell(attempt.event("log-truncated", detail, offset))
    metadata = None if start.metadata is None else replace(start.metadata, done=None)
    if metadata is not None and (metadata.low > offset or (loaded is None and same_until is None)):
        metadata = replace(metadata, low=offset, complete=False)
    if metadata is not None and (same_until is None or offset > same_until or same_until <= first):
        # The epoch of the records before the new offset is not known, or the log does not have the noted epoch.
        metadata = replace(metadata, epoch=None)
    acknowledged = None if start.acknowledged is None else min(start.acknowledged, offset)
    return replace(start, offset=offset, metadata=metadata, must_commit_first=True, acknowledged=acknowledged)


def _is_ahead_in_other_log(
    attempt: Attempt, start: Start, partition: Partition, *, decided: int
) -> Steps[bool]:
    """Whether a store has completed more than the group committed, and in another log.

    A store of another log that has not is cut back here, if it ends where the group stands: nothing is replayed then.
    Else the replay compares the last record that the store completed.
    """
    loaded = partition.loaded
    if loaded is None or start.reopened:
        return False
    if loaded.progress.completed_end > start.offset or start.by_reset:
        return (yield from _is_other_log(attempt, partition, loaded, decided=decided))
    if loaded.progress.high == start.offset and (
        yield from _is_other_log(attempt, partition, loaded, decided=decided)
    ):
        yield from cut_store_back(attempt, partition, loaded)
    return False


def cut_store_back(attempt: Attempt, partition: Partition, loaded: Loaded) -> Steps[None]:
    """Cut a store back to the records that the log still has; the group's commit is of this log, and stays.

    Another host has gone on in the log that took the other's place. What it has completed there is replayed, as on a
    host without a store.
    """
    progress = loaded.progress
    first, end = attempt.client.bounds(partition.topic, partition.partition)
    # The logs differ at the last completed record, or before it.
    last = progress.completed_end if progress.witness is None else progress.witness.offset
    end = max(first, min(end, progress.high, last))
    common = yield from _end_of_store(attempt, partition, loaded, first=first, end=end)
    partition.begin_with(_cut_back(partition, loaded, common))
    detail = (
        f"from {common} on this host has handled a log that the broker no longer has; another host went on"
    )
    attempt.engine.tell(attempt.event("log-truncated", detail))


def _end_of_store(
    attempt: Attempt, partition: Partition, loaded: Loaded, *, first: int, end: int
) -> Steps[int]:
    """Return up to which offset, at most ``end``, the log has the records that the store completed."""
    same_until = None
    if loaded.progress.epoch is not None:
        with attempt.reader() as reader:
            same_until = yield from reader.same_until(end, loaded.progress.epoch)
    return (
        yield from _common_end(
            attempt, partition, loaded, first=first, end=end, contradicted_at=None,
            # If no later epoch began, other records in the places of lost ones have the same: a restored broker's.
            same_until=None if same_until is None or same_until >= end else max(first, same_until),
        )
    )  # fmt: skip


def _bounds_once_decided(attempt: Attempt, start: Start, partition: Partition) -> Steps[tuple[int, int]]:
    bounds = attempt.client.bounds(partition.topic, partition.partition)
    if start.offset > bounds[1] and start.log_change is None:
        with attempt.reader() as reader:
            yield from wait_until_decided(attempt, partition, start.offset, reader)
        bounds = attempt.client.bounds(partition.topic, partition.partition)
    return bounds


def wait_until_decided(
    attempt: Attempt, partition: Partition, offset: int, reader: TailReader
) -> Steps[None]:
    """Wait until no transaction is open below ``offset``, or the attempt's time is over.

    The committed offset may lie above the last stable offset: a reset tool sets offsets up to the end of the log, and a
    member that reads at ``read_uncommitted`` commits up to there. At ``read_committed`` a plain client reads nothing
    until the transaction has ended: only then is it known which records the group has passed. Returns at once where
    ``offset`` lies beyond the end of the log.

    Raises `KafkaException` when the broker does not answer.
    """
    warned = False
    while not attempt.is_over:
        decided = reader.bounds()[1]
        if decided >= offset or reader.log_end() < offset:
            return
        if not warned:
            logger.warning(
                "%s[%d]: the group committed %d, but a transaction that began at %d is open; recovery waits for its "
                "end to know which records the group has passed. If it never ends, abort it (kafka-transactions.sh)",
                partition.topic, partition.partition, offset, decided,
                extra={"event": "open-transaction"},
            )  # fmt: skip
            warned = True
        yield Wait(UNDECIDED_LOOK_S, "transaction")


def _same_until_in_range(attempt: Attempt, start: Start, *, first: int, end: int) -> Steps[int | None]:
    """Return the offset up to which the log still has the completed records; None where the broker cannot tell."""
    same_until = None if start.log_change is None else start.log_change.same_until
    if same_until is None:
        # Above the log's end the client only reports that the offset does not exist.
        within = replace(start, offset=min(start.offset, end))
        same_until = yield from _ask_same_until(attempt, within)
    return None if same_until is None else max(first, min(same_until, start.offset, end))


def find_log_cut(attempt: Attempt, start: Start) -> Steps[LogChange | None]:
    """Return how the log differs from the one that the group committed in; None if it does not, or is not known to."""
    same_until = yield from _ask_same_until(attempt, start)
    return LogChange(same_until) if same_until is not None and same_until < start.offset else None


def _ask_same_until(attempt: Attempt, start: Start) -> Steps[int | None]:
    """Ask the broker up to which offset its log is the one that the group committed in; None where it cannot tell."""
    if start.leader_epoch is None:
        return None
    with attempt.reader() as reader:
        return (yield from reader.same_until(start.offset, start.leader_epoch))


def _cut_back(partition: Partition, loaded: Loaded, end: int) -> Loaded | None:
    """Return the loaded state without the completions from ``end`` on; None where no part of it can be kept."""
    progress = loaded.progress
    if not partition.marks_single_ids and progress.high > end:
        # The last IDs of sources and the ends of units cannot be rolled back: they are rebuilt from the log.
        return None
    done = before_offset(progress.done, end)
    high = max(min(progress.high, end), min(progress.low, end))
    progress = replace(
        progress,
        low=min(progress.low, end),
        high=high,
        done=done,
        committed=None,
        epoch=None,
        witness=None,
        delta=False,
    )
    if partition.window.count is not None and high < loaded.progress.high:
        # The number of accepted IDs after the cut is not known. Numbering goes on, so that earlier IDs look older.
        progress = replace(progress, known=progress.known.nothing_before())
    recent = loaded.recent
    if recent.count and int(recent.offsets.max()) >= end:
        # A recent mark at an offset that is read again would be mistaken for the mark of the record in flight there.
        partition.store.flush(progress, recent)
        recent = NO_MARKS
    return replace(loaded, progress=progress, recent=recent)


def _is_other_log(attempt: Attempt, partition: Partition, loaded: Loaded, *, decided: int) -> Steps[bool]:
    """Whether the log differs from the one in which the store has completed more records than the group committed.

    The broker shows this by the leader epoch. In the same epoch the last completed record shows it: a broker that was
    restored from a backup may have another record there. An equal record does not prove that the logs are equal: it may
    have been sent again, with its timestamp, after other records.
    """
    progress = loaded.progress
    if progress.epoch is not None:
        with attempt.reader() as reader:
            end = progress.completed_end
            same_until = yield from reader.same_until(end, progress.epoch)
        if same_until is not None and same_until < end:
            return True
    witness = progress.witness
    if witness is None:
        # It was cut away, and nothing was completed since: only the marks can show a difference. A store that has
        # completed nothing, e.g. after a seek, has nothing that could differ.
        return progress.completed_end > progress.low
    if witness.offset >= decided:
        return False
    return (yield from check_witness(attempt, witness, partition)).same is False


class WitnessCheck(NamedTuple):
    """The result of comparing a completed record with the log."""

    same: bool | None
    """Whether the log has the record at its offset; None: the log has no record there any more."""
    epoch: int | None = None
    """The leader epoch of the record at that offset; None where there is none, or it is not known."""


def check_witness(attempt: Attempt, witness: Witness, partition: Partition) -> Steps[WitnessCheck]:
    """Check whether the log still has a completed record at its offset."""
    with attempt.reader() as reader:
        first, end = reader.bounds()
        if not first <= witness.offset < end:
            return WitnessCheck(None if witness.offset < first else False)
        for batch in reader.slices(witness.offset, witness.offset + 1, attempt.engine.keys):
            if batch is not None and batch.offsets:
                return WitnessCheck(not is_contradicted(witness, batch, partition), batch.epoch)
            yield None
    return WitnessCheck(None)


def is_contradicted(witness: Witness, batch: Slice, partition: Partition) -> bool:
    """Whether a batch has another record than the completed one at its offset; False where it has none there."""
    row = bisect_left(batch.offsets, witness.offset)
    if batch.offsets[row : row + 1] != [witness.offset]:
        return False
    digest = partition.keys.digest_of(batch.digests[row])
    found = Witness.of(witness.offset, int(batch.timestamps[row]), digest)
    # A source does not store a timestamp from the future: -1 stands for any.
    return found.check != witness.check or witness.timestamp_ms not in (-1, found.timestamp_ms)


def read_witness(
    attempt: Attempt, completed: Range, partition: Partition
) -> Steps[tuple[Witness | None, int | None]]:
    """Return the last record in a range of offsets, and its leader epoch; None where the log has none there."""
    found: tuple[Witness | None, int | None] = None, None
    with attempt.reader() as reader:
        first, end = reader.bounds()
        for batch in reader.slices(max(first, completed[0]), min(end, completed[1]), attempt.engine.keys):
            if batch is not None and batch.offsets:
                digest = partition.keys.digest_of(batch.digests[-1])
                found = Witness.of(batch.offsets[-1], int(batch.timestamps[-1]), digest), batch.epoch
            yield None
    return found


def _common_end(
    attempt: Attempt,
    partition: Partition,
    loaded: Loaded,
    *,
    first: int,
    end: int,
    same_until: int | None,
    contradicted_at: int | None,
) -> Steps[int]:
    """Return the end of the common prefix: the first offset where the marks do not prove the log unchanged, or ``end``.

    Two logs diverge at one offset, so that everything before a proven record is common too. The search begins one
    window before the newest mark. Where it proves no record, it goes on from ``low``; where it proves none there
    either, the result is ``low``. ``same_until`` is the broker's answer and takes the place of ``low`` (it may lie
    before it): records before it are not compared. Where the marks contradict a record (``contradicted_at``), the logs
    diverge there.
    """
    if contradicted_at is not None:
        return min(max(contradicted_at, first), end)
    window_ms = partition.window.time_ms
    floor = begin = min(max(first, loaded.progress.low), end) if same_until is None else same_until
    search = _LogComparison(partition, loaded)
    with attempt.reader() as reader:
        if window_ms is not None:
            begin = min(
                max(begin, reader.first_at(loaded.progress.known.newest_ms - window_ms) or begin), end
            )
        for start, stop in ((begin, end), (floor, begin)):
            search.restart(start)
            for batch in reader.slices(start, stop, attempt.engine.keys):
                if batch is not None:
                    search.compare(batch)
                yield None
            if search.proven:
                return search.end if search.diverged else stop
    return floor


class _LogComparison:
    """Compares the records of a log with the marks, batch by batch.

    A record is *proven* when the mark of its ID has the record's offset and timestamp. It is *known* when the mark has
    that offset or a later one: it need not be handled, but proves nothing about the records before it. A record
    without an ID, or whose mark has been dropped, is neither.
    """

    def __init__(self, partition: Partition, loaded: Loaded) -> None:
        self._partition = partition
        recent = loaded.recent
        rows = zip(
            cut_digests(recent.digests), recent.offsets.tolist(), recent.timestamps.tolist(), strict=True
        )
        # A journal may have an ID several times, in the order of completion: the highest offset counts.
        self._recent = {
            digest: (offset, timestamp_ms)
            for digest, offset, timestamp_ms in sorted(rows, key=lambda row: row[1])
        }
        self.restart(0)

    def restart(self, begin: int) -> None:
        """Restart the comparison at an offset."""
        self.end = begin
        self.proven, self.diverged = False, False

    def compare(self, batch: Slice) -> int | None:
        """Move ``end`` after the proven records and the known ones that follow directly; return the last proven row."""
        offsets, timestamps = self._marks_of(batch)
        record_offsets = np.asarray(batch.offsets, np.int64)
        proven = np.flatnonzero((offsets == record_offsets) & (timestamps == batch.timestamps))
        last = int(proven[-1]) if proven.size else None
        if last is not None:
            self.proven, self.diverged = True, False
        begin = 0 if last is None else last + 1
        # The mark of a source or a unit proves its last record only.
        known = (
            (offsets == record_offsets) & (timestamps == batch.timestamps)
            if not self._partition.marks_single_ids
            else offsets >= record_offsets
        )
        if self._partition.window.time_ms is not None:
            known &= batch.timestamps - timestamps <= self._partition.window.time_ms
        unknown = np.flatnonzero(~known[begin:])
        if not self.diverged:
            self.diverged = bool(unknown.size)
            self.end = batch.offsets[begin + int(unknown[0])] if unknown.size else batch.end
        return last

    def _marks_of(self, batch: Slice) -> tuple[Int64s, Int64s]:
        """Return the offset and the timestamp of the mark of each record, -1 without one."""
        keyed = [row for row, digest in enumerate(batch.digests) if digest is not None]
        digests = [self._partition.keys.mark_of(digest) for digest in batch.digests if digest is not None]
        marks = np.full((len(batch.digests), 2), -1, np.int64)
        if not keyed:
            return marks[:, 0], marks[:, 1]
        marks[keyed] = [self._recent.get(digest, (-1, -1)) for digest in digests]
        found = self._partition.store.find(b"".join(digests), len(digests))
        for index, stored, timestamp_ms in zip(found.indexes, found.offsets, found.timestamps, strict=True):
            # A mark from another partition stands for all sightings in this one before its cut.
            offset = stored if stored >= 0 else elsewhere(stored) - 1
            if offset > marks[keyed[index], 0]:
                marks[keyed[index]] = offset, timestamp_ms
        return marks[:, 0], marks[:, 1]
