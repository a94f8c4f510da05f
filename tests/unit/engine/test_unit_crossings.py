"""Units whose records lie in several partitions.

However they end there, all of them are told apart and delivered one by one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dedup_sdk import MemoryStore, Record, Unit
from dedup_sdk._core.reach import plan_start
from dedup_sdk.ids import RecordFields
from tests.support.unit_records import engine, record


def test_units_of_two_topics_are_one_that_crosses() -> None:
    """Both fail, and the event names both."""
    dedup = engine()
    dedup.admit([record(5, "a", "U")])
    [verdict] = dedup.admit([record(7, "b", "U", topic="s")])
    assert (verdict.deliver, verdict.reason) == (True, "unit-crosses")
    assert [(each.record.topic, each.verdict.reason) for each in dedup.settle_units()] == [
        ("t", "unit-crosses")
    ]
    assert dedup.settle_units() == []
    assert dedup.counters.as_dict()["unverified.unit-crosses"] == 2
    assert dedup.counters.events == {"unit-crosses": 1}


def test_the_second_half_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is no unit of its own: nothing of it is remembered, so that the unit may come again, whole."""
    dedup = engine()
    halves = [record(0, "x", "U"), record(0, "y", "U", partition=1, end=True)]
    dedup.admit(halves[:1])
    [verdict] = dedup.admit(halves[1:])
    assert (verdict.kind.value, verdict.reason) == ("unverified", "unit-crosses")
    assert [each.verdict.reason for each in dedup.settle_units()] == ["unit-crosses"]
    dedup.complete(halves)
    [line] = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert line.startswith("unit 'U' has records in t[1] from offset 0 and in t[0] from offset 0: ")
    again = [record(1, "x", "V", partition=1), record(2, "y", "V", partition=1, end=True)]
    assert [each.kind.value for each in dedup.admit(again)] == ["fresh", "fresh"]


def test_one_that_failed_begins_anew_in_a_third_partition() -> None:
    """It is not waited for, nor taken for whole; after as long as a unit takes the name is free again."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "x", "U"), record(0, "y", "U", partition=1)])
    assert len(dedup.settle_units()) == 1
    [verdict] = dedup.admit([record(0, "z", "U", partition=2, end=True)])
    assert (verdict.kind.value, verdict.reason) == ("unverified", "unit-crosses")
    assert dedup.counters.events == {"unit-crosses": 2}
    now[0] += 11
    assert dedup.settle_units() == []
    assert [each.reason for each in dedup.admit([record(1, "x", "U", partition=2)])] == ["unit"]


def sized(offset: int, ident: str, size: int, *, partition: int = 0, end: bool = False) -> Record:
    """A record of unit U that says how many it has."""
    plain = record(offset, ident, "U", partition=partition, end=end)
    return replace(plain, headers=[*plain.headers, ("dedup-unit-size", str(size).encode())])


def test_the_rest_of_one_that_was_late_is_no_unit_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Else its marks would hide the unit when it comes again, whole, with the record that never came."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    first, last = record(4, "x", "U"), record(7, "z", "U", partition=1, end=True)
    dedup.admit([first])
    now[0] += 11
    assert [each.verdict.reason for each in dedup.settle_units()] == ["unit-unfinished"]
    [verdict] = dedup.admit([last])
    assert (verdict.kind.value, verdict.reason) == ("unverified", "unit-crosses")
    [line] = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert line.startswith("unit 'U' has records in t[1] from offset 7 and in t[0] from offset 4: ")
    assert dedup.settle_units() == []
    dedup.complete([first, last])
    again = [record(8, name, "V", partition=1, end=name == "z") for name in "xyz"]
    again = [replace(each, offset=8 + row) for row, each in enumerate(again)]
    assert [each.kind.value for each in dedup.admit(again)] == ["fresh"] * 3


def test_one_that_ended_short_has_its_other_records_elsewhere() -> None:
    """Its last record was read before them; they are not waited for, but for as long as a unit takes, and no longer."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    [verdict] = dedup.admit([sized(0, "z", 3, end=True)])
    assert verdict.reason == "unit-malformed"
    assert [each.reason for each in dedup.admit([sized(0, "x", 3, partition=1)])] == ["unit-crosses"]
    assert [each.reason for each in dedup.admit([sized(1, "y", 3, partition=1)])] == ["unit-crosses"]
    assert dedup.counters.events == {"unit-crosses": 1}
    dedup.settle_units()
    now[0] += 11
    dedup.settle_units()
    assert [each.reason for each in dedup.admit([sized(0, "v", 3, partition=2)])] == ["unit"]


@pytest.mark.parametrize(
    "ended",
    [
        [record(0, "x", "U"), record(1, "y", "U", end=True)],
        [sized(0, "x", 2), sized(1, "y", 2)],
        [sized(0, "z", 3, end=True), sized(1, "x", 1)],
        [sized(0, "x", 3), sized(1, "y", 2, end=True)],
    ],
    ids=["end-mark", "size", "used-again", "contradicts-itself"],
)
def test_a_name_may_be_used_again_elsewhere_once_its_unit_has_ended(ended: list[Record]) -> None:
    """Where nothing says that records of it are missing."""
    dedup = engine()
    dedup.admit(ended)
    dedup.settle_units()
    told = dedup.admit([record(0, "v", "U", partition=1), record(1, "w", "U", partition=1, end=True)])
    assert [each.kind.value for each in told] == ["fresh", "fresh"]


def test_what_was_over_before_a_restart_claims_no_name() -> None:
    """It may have been whole."""
    store = MemoryStore()
    first = engine(store=store)
    first.admit([record(0, "a"), record(1, "x", "U"), record(2, "y", "U", end=True)])
    first.complete([record(1, "x", "U"), record(2, "y", "U")])
    first.shut()
    again = engine(store=store)
    told = again.admit([record(0, "a"), record(1, "x", "U")])
    assert [each.kind.value for each in told] == ["fresh", "redelivered"]
    assert [each.reason for each in again.admit([record(0, "v", "U", partition=1)])] == ["unit"]


@pytest.mark.parametrize("ended", [record(0, "x", "U"), sized(0, "x", 3, end=True)], ids=["open", "short"])
def test_what_failed_in_a_fold_claims_no_name(ended: Record) -> None:
    """It may have failed long ago; its records that come now are known as ever, and claim it."""
    dedup = engine()
    held = dedup.attach("t", 0)
    held.start(plan_start(None, committed=2, low=0, complete=True))
    keys = dedup.strategy.keys.digests(RecordFields([ended])).digests
    held.fold([0], np.asarray([1_000], np.int64), keys, 1)
    held.fold([], np.empty(0, np.int64), [], 2)
    dedup.admit([record(2, "y")])
    told = dedup.admit([record(0, "v", "U", partition=1), record(1, "w", "U", partition=1, end=True)])
    assert [each.kind.value for each in told] == ["fresh", "fresh"]
