"""The cost of a unit that is open in front of many records, counted in lines of Python: no clock is asked."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dedup_sdk
from dedup_sdk import Deduplicator, Unit, Window
from dedup_sdk._units.gate import UnitGate
from tests.support.unit_records import engine, record

if TYPE_CHECKING:
    from collections.abc import Iterator

SDK = Path(dedup_sdk.__file__).parent
COUNTED = str(SDK / "_core"), str(SDK / "_units")
WINDOWS = [Window(days=1), Window(count=5_000)]


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Count the lines of `core` and `units` that run, those of a loop each time round."""
    count, before = [0], sys.gettrace()

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        count[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def take_unit(dedup: Deduplicator, first: int, size: int = 2) -> None:
    """Read and complete a unit of records from an offset on, one at a time."""
    unit = [
        record(offset, f"i{offset}", f"u{first}", end=offset == first + size - 1)
        for offset in range(first, first + size)
    ]
    for each in unit:
        dedup.admit([each])
    dedup.settle_units()
    dedup.complete(unit)


def cost_behind_an_open_unit(window: Window, units: int) -> int:
    """How many lines the next unit takes where so many are over, behind one that is open."""
    dedup = engine(window=window)
    dedup.admit([record(0, "z", "open")])
    for number in range(units):
        take_unit(dedup, 1 + 2 * number)
    with counted_lines() as lines:
        take_unit(dedup, 1 + 2 * units)
    dedup.admit([last := record(3 + 2 * units, "y", "open", end=True)])
    dedup.settle_units()
    dedup.complete([record(0, "z", "open"), last])
    assert dedup.next_offset("t", 0) == 4 + 2 * units
    return lines[0]


@pytest.mark.parametrize("window", WINDOWS, ids=["time", "count"])
def test_a_unit_behind_an_open_one_costs_the_same_however_many_lie_there(window: Window) -> None:
    """Neither ended records are looked through again, nor those that a window by count cannot write yet."""
    assert cost_behind_an_open_unit(window, 400) < 1.2 * cost_behind_an_open_unit(window, 40)


@pytest.mark.parametrize("window", WINDOWS, ids=["time", "count"])
def test_a_record_of_a_large_unit_costs_as_much_as_of_a_small_one(window: Window) -> None:
    """From its first record to the last that is completed."""
    costs = list[float]()
    for size in (50, 500):
        dedup = engine(window=window, unit=Unit(records=1_000))
        with counted_lines() as lines:
            take_unit(dedup, 0, size)
        costs.append(lines[0] / size)
        assert dedup.next_offset("t", 0) == size
    assert costs[1] < 1.2 * costs[0]


def cost_beside_open_units(units: int) -> int:
    """How many lines a record takes, and the look at the time, with so many units open, and as many failed."""
    now = [1_000.0]
    dedup = engine(clock=lambda: now[0])
    dedup.admit([record(offset, f"i{offset}", f"u{offset}") for offset in range(units)])
    now[0] += 61
    dedup.complete([each.record for each in dedup.settle_units()])
    dedup.admit([record(offset, f"i{offset}", f"u{offset}") for offset in range(units, 2 * units)])
    dedup.settle_units()
    now[0] += 1
    with counted_lines() as lines:
        dedup.admit([record(2 * units, "z")])
        dedup.settle_units()
    gate = dedup.partitions["t", 0].gate(UnitGate)
    assert gate is not None
    assert (len(gate.units.assembler.open), len(gate.units.assembler.failed)) == (units, units)
    return lines[0]


def test_a_look_at_the_time_costs_the_same_however_many_units_are_open() -> None:
    """They stand in the order of their time."""
    assert cost_beside_open_units(500) < 1.2 * cost_beside_open_units(50)
