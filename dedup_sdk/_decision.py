"""The rule: the verdict of a record, given the records that the group has completed before it.

A pure function of plain values: no Kafka, no RocksDB, no clock. Offsets that are watermarks (``low``,
``high``) are "the next one", as in Kafka.

mark
    the offset and timestamp of the last completed record of an ID, and the acceptance number that a count
    window needs. An offset below zero: the record lies in another partition (`dedup_sdk._marks.elsewhere`).
low, high
    every offset in ``[low, high)`` is completed by this group.
done
    the completed offsets at or above ``high``.
covered
    whether the store knows every completed record in the window of this record.

An age is the difference of two timestamps of the log, also where one lies in the future. If it were cut at the clock,
a live consumer, a replay and the backfill would give one log different verdicts; if it were cut at the newest timestamp
before, the first record after a silence would be a duplicate of an ID that has left the window, and its message lost.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s, elsewhere
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window

BelowFloor = Literal["deliver", "discard"]
"""What to do with a record below the IDs that `LastId` remembers."""
_FARTHEST_MS = 2**61
"""Timestamps are limited to this, so that their differences fit into 64 bits."""


class Mark(NamedTuple):
    """The last sighting of an ID: its offset and timestamp (ms), and the rank of its acceptance (0: none).

    All fields belong to one record. So a duplicate without a timestamp leaves a mark without one, and the
    next record with its ID is delivered. Keeping the timestamp of the sighting before would mix two
    records: where marks are merged by the larger offset (journal and files, generations, parts of a
    backfill), the result would differ from that of the live consumer. Counting an unknown age as inside the
    window would hide messages for good.
    """

    offset: int
    timestamp_ms: int
    number: int = 0


def decide(
    offset: int,
    timestamp_ms: int,
    mark: Mark | None,
    *,
    keyed: bool,
    low: int,
    high: int,
    done: Container[int],
    covered: bool,
    window: Window,
    accepted: int = 0,
    contradicted: bool = False,
) -> VerdictKind:
    """Return the verdict of the record at ``offset``; the first condition that applies decides.

    ``contradicted`` (see `is_contradicted`): the record completed at this offset was another one.

    ``accepted`` is the rank of the last record accepted before this one in its partition (count windows
    only). A mark at or after ``offset`` is no evidence of an earlier record, so it never makes a duplicate.
    A mark outside the window is the last sighting only if the store covers the window: else a later
    sighting may be missing. A mark of another partition does not count for a record before its cut, nor for
    one that is older than it by more than the window.
    """
    if (low <= offset < high or offset in done) and not contradicted:
        return VerdictKind.REDELIVERED
    if not keyed:
        return VerdictKind.UNKEYED
    if (
        mark is not None
        and (mark.offset < offset if mark.offset >= 0 else _counts_here(mark, offset, timestamp_ms, window))
        and window.holds(timestamp_ms - mark.timestamp_ms, accepted - mark.number)
    ):
        return VerdictKind.DUPLICATE
    return VerdictKind.FRESH if covered else VerdictKind.UNVERIFIED


def is_contradicted(
    offset: int, timestamp_ms: int, mark: Mark | None, *, newest_ms: int, since_ms: int | None, window_ms: int
) -> bool:
    """Whether a record with an ID differs from the one completed at its offset.

    It does if its ID was completed neither there nor later. That is known only inside the window (measured
    from the newest timestamp in the store), inside the coverage of the marks, and above all offsets of
    which a mark was dropped for its age (``Progress.dropped_to``): there each completed record with an ID
    has a mark. ``window_ms``: of a window by time alone.
    """
    remembered = timestamp_ms >= max(newest_ms - window_ms, 0 if since_ms is None else since_ms)
    return (
        remembered and (mark is None or mark.offset < offset) and not (mark is not None and mark.offset < 0)
    )


def _counts_here(mark: Mark, offset: int, timestamp_ms: int, window: Window) -> bool:
    """Whether a sighting in another partition counts for a record.

    Offsets of two partitions have no order, so that only the cut and the timestamps show which came first.
    """
    newer_ms = mark.timestamp_ms - timestamp_ms
    return offset >= elsewhere(mark.offset) and (window.time_ms is None or newer_ms <= window.time_ms)


def decide_marked(
    offsets: Int64s, timestamps_ms: Int64s, mark_offsets: Int64s, mark_timestamps_ms: Int64s, window: Window
) -> NDArray[np.bool_]:
    """Return which records are duplicates, for records with an ID and a mark that were not completed before.

    `decide` in columns of shape ``(n,)``, for a window by time alone and marks of this partition; the
    others are fresh.
    """
    ages_ms = _near(timestamps_ms) - _near(mark_timestamps_ms)
    inside = ages_ms <= (window.time_ms if window.time_ms is not None else 2 * _FARTHEST_MS)
    duplicates: NDArray[np.bool_] = inside & (mark_offsets < offsets)
    return duplicates


def _near(timestamps_ms: Int64s) -> Int64s:
    return np.minimum(np.maximum(timestamps_ms, -_FARTHEST_MS), _FARTHEST_MS)
