"""Units whose records lie in several partitions: however they end there, all of them are told apart and delivered one by one."""

from __future__ import annotations

import pytest

from dedup_sdk import Unit
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
