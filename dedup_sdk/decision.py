"""The rule: what to say of a record, given what the group has completed before it.

A pure function of plain values: no Kafka, no RocksDB, no clock. Offsets that are watermarks (``low``, ``high``) are
"the next one", as in Kafka.

mark
    the offset and timestamp of the last completed record of an ID, and the acceptance number that a count window needs.
low, high
    every offset in ``[low, high)`` is completed by this group.
done
    the completed offsets at or above ``high``.
covered
    whether the store knows everything that the window of this record could hold.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from dedup_sdk.record import VerdictKind
from dedup_sdk.window import Window


class Mark(NamedTuple):
    """What is remembered of an ID: offset and timestamp (ms) of its last sighting, rank of its acceptance (0: none)."""

    offset: int
    timestamp_ms: int
    number: int = 0


def decide(  # noqa: PLR0913 (the rule has that many inputs; a bundle would hide them)
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
) -> VerdictKind:
    """Return the verdict of the record at ``offset``; the rows are read from the top.

    ``accepted`` is the rank of the last record accepted before this one in its lane (count windows only).
    A mark at or after ``offset`` says nothing about the past of this record, so it never makes a duplicate.
    """
    if low <= offset < high or offset in done:
        return VerdictKind.REDELIVERED
    if not keyed:
        return VerdictKind.UNKEYED
    if mark is None:
        return VerdictKind.FRESH if covered else VerdictKind.UNVERIFIED
    if mark.offset < offset and window.holds(timestamp_ms - mark.timestamp_ms, accepted - mark.number):
        return VerdictKind.DUPLICATE
    return VerdictKind.FRESH
