"""How much may come behind a unit that is not whole: all of it is in memory for it, and it could wait for ever."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Unit, Window
from dedup_sdk._units import memory as unit_memory
from tests.support.unit_records import engine, record

if TYPE_CHECKING:
    from dedup_sdk import Deduplicator, Record

WAITS_LONG = 1e6
"""Seconds that no test lasts, by no clock."""


def failed(dedup: Deduplicator, *records: Record) -> list[int]:
    """Admit records; return the offsets of those that were waited for and are delivered now."""
    dedup.admit(records)
    return [each.record.offset for each in dedup.settle_units(at_end=False) if each.verdict.deliver]


@pytest.mark.parametrize("settings", [{}, {"unit_mode": "members"}, {"window": Window(count=5)}])
def test_units_fail_one_after_the_other_behind_which_too_many_records_come(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, and none that has room; its later records are not waited for, and nothing is kept then."""
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 10)
    dedup = engine(unit=Unit(records=2, timeout=WAITS_LONG), **settings)
    assert failed(dedup, record(0, "x", "U")) == []
    first = [record(offset, f"i{offset}") for offset in range(1, 6)]
    assert failed(dedup, *first, record(6, "y", "V")) == []
    dedup.complete(first)
    later = [record(offset, f"i{offset}") for offset in range(7, 13)]
    assert failed(dedup, *later) == []
    dedup.complete(later)
    assert failed(dedup, record(13, "z")) == [0]
    assert [verdict.reason for verdict in dedup.admit([record(14, "x2", "U", end=True)])] == [
        "unit-unfinished"
    ]
    # The other one had room, and was whole in time.
    assert failed(dedup, record(15, "y2", "V", end=True)) == [6]
    dedup.complete(
        [record(0), record(6), *(record(offset) for offset in (13, 14, 15))],
    )
    assert dedup.next_offset("t", 0) == 16
    assert dedup.partitions["t", 0].flight.kept == 0


def test_holes_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was compacted, or has the markers of transactions, has more offsets than records."""
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 10)
    dedup = engine(unit=Unit(records=2, timeout=WAITS_LONG))
    assert failed(dedup, record(0, "x", "U")) == []
    assert failed(dedup, record(10_000, "a")) == []
    verdicts = dedup.admit([record(20_000, "y", "U", end=True)])
    assert [verdict.kind.value for verdict in verdicts] == ["fresh"]
    assert dedup.counters.verdicts["unverified"] == 0


def test_a_unit_fails_behind_which_too_many_bytes_come() -> None:
    """Values count, of whatever they are; those before it, and while no unit was open, do not."""
    dedup = engine(unit=Unit(megabytes=1, timeout=WAITS_LONG))

    def large(offset: int, unit: str = "", *, end: bool = False) -> Record:
        return replace(record(offset, f"i{offset}", unit, end=end), value=bytes(300_000))

    assert failed(dedup, *(large(offset) for offset in range(10))) == []
    assert failed(dedup, large(10, "U")) == []
    assert failed(dedup, *(large(offset) for offset in range(11, 14))) == []
    assert failed(dedup, record(14)) == [10]
    # Records of the first one are not the second one's burden.
    assert failed(dedup, large(15, "V"), large(16)) == []
    assert failed(dedup, large(17, "V", end=True)) == [15]
    assert dedup.counters.reasons == {"unverified.unit-unfinished": 1, "unkeyed.absent": 1}


def test_the_log_names_one_of_them_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that never ends its units has them by the thousand."""
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 10)
    now, offsets = [1_000.0], count()
    dedup = engine(unit=Unit(records=2, timeout=WAITS_LONG), clock=lambda: now[0])

    def lines() -> list[str]:
        with caplog.at_level(logging.WARNING, "dedup_sdk"):
            caplog.clear()
            for offset in islice(offsets, 30):
                dedup.admit([record(offset, f"i{offset}", f"U{offset}")])
                dedup.complete(settled.record for settled in dedup.settle_units(at_end=False))
        return [logged.getMessage() for logged in caplog.records]

    [said] = lines()
    assert said.startswith(
        "t[0]: unit 'U0', begun at offset 0, is no longer waited for: more than 12 records, or 256 MB, came since"
    )
    assert lines() == []
    now[0] += 61
    [said] = lines()
    assert "is no longer waited for (one of " in said
