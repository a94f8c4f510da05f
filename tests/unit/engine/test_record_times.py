"""Ages lie between the timestamps of records; a record older than the window is in doubt under a name of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dedup_sdk import Deduplicator, MemoryStore, Record, Unit, Verdict, Window
from dedup_sdk.ids import Ids, digest_one
from tests.support.disks import keeping
from tests.support.records import DAY_MS, engine, kinds, record
from tests.support.unit_records import engine as unit_engine
from tests.support.unit_records import record as unit_record

HOUR_MS = 3_600_000
NOW_MS = 20 * DAY_MS
OLD_MS = NOW_MS - 10 * DAY_MS
WEEK = Window(days=7)


def clock() -> float:
    """The time of the host: now."""
    return NOW_MS / 1000


def told(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    """Kinds and reasons."""
    return [(verdict.kind.value, verdict.reason) for verdict in verdicts]


def handled(deduplicator: Deduplicator, *records: Record) -> list[str]:
    """Admit and complete records one by one; return the kinds of their verdicts."""
    found = []
    for each in records:
        verdicts = deduplicator.admit([each])
        found += kinds(verdicts)
        if verdicts[0].deliver:
            deduplicator.complete([each])
    return found


@pytest.mark.parametrize("host_ms", [0, DAY_MS, DAY_MS + 10 * HOUR_MS, 10**15])
def test_a_producer_whose_clock_is_ahead_is_believed(host_ms: int) -> None:
    """Its copy is outside of the window by its timestamp, whatever the time is here.

    Its ID is remembered from there.
    """
    deduplicator = engine(clock=lambda: host_ms / 1000)
    ahead_ms = DAY_MS + 2 * HOUR_MS
    sent = [record(0, "a", DAY_MS), record(1, "a", ahead_ms), record(2, "a", DAY_MS + 1)]
    assert handled(deduplicator, *sent) == ["fresh", "fresh", "duplicate"]
    more = [record(3, "b", ahead_ms), record(4, "b", ahead_ms + HOUR_MS), record(5, "c", ahead_ms + HOUR_MS)]
    assert handled(deduplicator, *more) == ["fresh", "duplicate", "fresh"]


@pytest.mark.parametrize("window", [WEEK, Window(days=7, count=1_000)], ids=str)
def test_a_record_older_than_the_window_is_named_so(window: Window) -> None:
    """A device sends ten days of data twice.

    Their marks left the store for their age, so that the second copies are in doubt, and not for lack of a history.
    """
    deduplicator = engine(window, store=keeping(2), clock=clock)
    late = [record(1, "a", OLD_MS), record(2, "b", OLD_MS)]
    assert handled(deduplicator, record(0, timestamp_ms=NOW_MS), *late) == ["fresh"] * 3
    handled(deduplicator, *(record(offset, timestamp_ms=NOW_MS) for offset in range(3, 9)))
    again = [record(9, "a", OLD_MS), record(10, "b", OLD_MS), record(11, "c", NOW_MS - 7 * DAY_MS - 1)]
    assert told(deduplicator.admit(again)) == [("unverified", "older-than-window")] * 3
    counted = deduplicator.counters.as_dict()
    assert (counted["unverified"], counted["unverified.older-than-window"]) == (3, 3)
    deduplicator.complete(again)
    # Of a younger one only a part of its window is gone.
    assert told(deduplicator.admit([record(12, "d", NOW_MS - 7 * DAY_MS)])) == [("unverified", "uncovered")]
    assert told(deduplicator.admit([record(13, "e", NOW_MS)])) == [("fresh", "")]


def test_one_that_waited_is_named_so_too() -> None:
    """It is judged when the record before it, which is more than a window older, has ended."""
    deduplicator = engine(WEEK, clock=clock)
    deduplicator.open("t", 0, committed=1, low=1)
    handled(deduplicator, record(1, timestamp_ms=NOW_MS))
    first, second = record(2, "a", OLD_MS - 8 * DAY_MS), record(3, "a", OLD_MS)
    assert told(deduplicator.admit([first, second])) == [
        ("unverified", "older-than-window"),
        ("parked", "in-flight"),
    ]
    [settled] = deduplicator.complete([first])
    assert told([settled.verdict]) == [("unverified", "older-than-window")]


def test_a_record_without_a_timestamp_is_not_old() -> None:
    """Nobody knows its age; and no timestamp from the future makes a record old."""
    deduplicator = engine(WEEK, clock=clock)
    deduplicator.open("t", 0, committed=1, low=1)
    handled(deduplicator, record(1, timestamp_ms=NOW_MS), record(2, timestamp_ms=10**15))
    untimed, present = record(3, timestamp_ms=-1), record(4, timestamp_ms=NOW_MS)
    assert told(deduplicator.admit([untimed, present])) == [("unverified", "uncovered")] * 2


def test_an_old_unit_is_named_so() -> None:
    """Its end has the time of the unit."""
    deduplicator = unit_engine(unit=Unit(), window=WEEK, clock=clock, store=MemoryStore())
    deduplicator.open("t", 0, committed=1, low=1)
    handled(deduplicator, replace(unit_record(1, "x", "T", end=True), timestamp_ms=NOW_MS))
    old = replace(unit_record(2, "y", "U", end=True), timestamp_ms=OLD_MS)
    assert told(deduplicator.admit([old])) == [("unverified", "older-than-window")]


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
def test_a_file_of_late_records_leaves_before_older_files(*, restarted: bool) -> None:
    """The store knows nothing of their offsets then: a record there without a mark is no sign of another log.

    The mark of the ID went with its last sighting, which was late; the one before was in time.
    """
    store = keeping(2)

    def live(*more: Record) -> list[str]:
        deduplicator = engine(Window(milliseconds=160), store=store)
        deduplicator.admit([record(0, "open", 1000)])
        found = []
        for each in more:
            digests: list[bytes | None] = [digest_one(each.key or b"")]
            other = deduplicator.partitions["t", 0].another_log(
                [each.offset], np.array([each.timestamp_ms]), Ids(digests, {}), lambda: [None]
            )
            found += handled(deduplicator, each) if other is None else ["another log"]
        deduplicator.lose("t", 0)
        return found

    before = [record(1, "b", 1000), record(2, "c", 1000)]
    late = [record(3, "a", 1000), record(4, "d", 900), record(5, "a", 900), record(6, "h", 900)]
    after = [record(offset, timestamp_ms=1075) for offset in (7, 8, 9)]
    known = ["fresh"] * 4 + ["duplicate", "fresh"]
    if restarted:
        assert live(*before, *late) == known
        known = ["redelivered"] * 6
    assert live(*before, *late, *after) == [*known, "fresh", "fresh", "fresh"]
    assert live(*before, *late, *after) == ["redelivered"] * 9
