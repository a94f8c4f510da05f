"""The fold of compared IDs: the state of each source once all its records are completed, one source after the other.

Where `LastId` has a second opinion, the last sighting of each looked-up ID is a mark, too; all marks are in the
order of their digests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

import numpy as np

from dedup_sdk._core.last_rule import NO_TIME_MS, LastRule, SourceState
from dedup_sdk._core.seen import Candidate
from dedup_sdk._marks import Marks
from spark_backfill.count_fold import later
from spark_backfill.duplicate_offsets import each_once
from spark_backfill.offset_range import OffsetRange
from spark_backfill.runs import Tally
from spark_backfill.slot_shuffle import TALLIES, WATCHED, read_tally

SIGHTED: Final = Candidate(b"", None)
"""In the place of an ID: the row is a sighting of an ID that a second opinion looks up."""

_PAGE_MARKS: Final = 100_000
_PAGE_BYTES: Final = 2**23


class ShuffledRow(NamedTuple):
    """A row of `spark_backfill.slot_shuffle`, its ID with its place in the order; `SIGHTED` where it has none."""

    slot: int
    fold_key: bytes
    offset: int
    timestamp_ms: int
    candidate: Candidate


class _Left(NamedTuple):
    """The mark of a source or of a looked-up ID; only that of a source has a payload."""

    offset: int
    timestamp_ms: int
    payload: bytes


class LastIdFold:
    """Folds the rows of one slot, sorted by fold key and offset.

    One source is in memory at a time, and a page of marks. ``tally``, ``malformed`` (records whose ID the order
    cannot read) and ``forgotten_ms`` (the newest timestamp of the marks that were left out for their age, None:
    none were) are known when all pages were taken.
    """

    def __init__(self, rule: LastRule, offset_range: OffsetRange) -> None:
        self.tally = Tally()
        self.malformed = 0
        self.forgotten_ms: int | None = None
        self._rule = rule
        self._offset_range = offset_range
        self._since_ms: int | None = None
        self._latest_ms = int(time.time() * 1000)

    def pages(self, rows: Iterable[ShuffledRow]) -> Iterator[Marks]:
        """Yield all marks, ascending by digest.

        The payload of a source's mark is its state; the mark of a looked-up ID has none.

        Raises:
            BackfillError: an offset comes with two IDs.
        """
        digests: list[bytes] = []
        marks: list[_Left] = []
        page_bytes = 0
        for fold_key, records in groupby(rows, key=itemgetter(1)):
            if fold_key == TALLIES:
                self._begin(records)
                continue
            if fold_key == WATCHED:
                for _ in self._once(records):
                    pass
                continue
            left = self._left_by(records)
            if left is None or self._is_old(left):
                continue
            digests.append(fold_key)
            marks.append(left)
            page_bytes += len(left.payload)
            if len(marks) >= _PAGE_MARKS or page_bytes >= _PAGE_BYTES:
                yield _page(digests, marks)
                digests, marks, page_bytes = [], [], 0
        if marks:
            yield _page(digests, marks)

    def _begin(self, tallies: Iterable[ShuffledRow]) -> None:
        for row in tallies:
            self.tally.add(read_tally(row.offset, row.timestamp_ms, row.candidate.id_bytes))
        self._since_ms = self._offset_range.since_ms(self.tally.begin_ms, None)

    def _left_by(self, records: Iterator[ShuffledRow]) -> _Left | None:
        """Return the marks that records of one digest leave behind."""
        first = next(records)
        if first.candidate is not SIGHTED:
            mark = self._folded(chain((first,), records))
            return None if mark is None else _Left(mark.offset, mark.timestamp_ms, mark.seen.encode())
        last = first
        for row in records:
            # Of rows of one offset the first counts.
            last = row if row.offset != last.offset else last
        return _Left(last.offset, last.timestamp_ms, b"")

    def _folded(self, records: Iterable[ShuffledRow]) -> SourceState | None:
        rule, since_ms = self._rule, self._since_ms
        window_ms = rule.window.time_ms or 0
        mark: SourceState | None = None
        for _, _, offset, timestamp_ms, candidate in self._once(records):
            if self._offset_range.gaps:
                self._doubt_past_gaps(mark, offset)
            known_ms = timestamp_ms if timestamp_ms <= self._latest_ms else NO_TIME_MS
            mark = rule.completed(
                mark,
                candidate,
                offset=offset,
                timestamp_ms=known_ms,
                covered=since_ms is None or since_ms <= known_ms - window_ms,
            )
            if mark is None or mark.offset != offset:
                self.malformed += 1
        self._doubt_past_gaps(mark, self._offset_range.high)
        return mark

    def _doubt_past_gaps(self, mark: SourceState | None, offset: int) -> None:
        """Doubt the state of a source where the history has a gap behind its last record.

        Completed records may be missing.
        """
        if mark is not None and any(mark.offset < begin < offset for begin, _ in self._offset_range.gaps):
            mark.seen.doubt()

    def _once(self, records: Iterable[ShuffledRow]) -> Iterator[ShuffledRow]:
        return each_once(records, self._offset_range.partition, attrgetter("candidate.id_bytes"))

    def _is_old(self, left: _Left) -> bool:
        keep_from_ms = self._offset_range.keep_from_ms
        if keep_from_ms is None or left.timestamp_ms >= keep_from_ms:
            return False
        self.forgotten_ms = later(self.forgotten_ms, left.timestamp_ms)
        return True


def _page(digests: list[bytes], marks: list[_Left]) -> Marks:
    return Marks(
        b"".join(digests),
        np.asarray([mark.offset for mark in marks], np.int64),
        np.asarray([mark.timestamp_ms for mark in marks], np.int64),
        payloads=[mark.payload for mark in marks],
    )
