"""The engine against a model that keeps the whole log in a list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk import Deduplicator, Lookup, Record, Verdict, Window
from dedup_sdk.ids import key
from tests.support.logs import Act, Row, acts, logs
from tests.support.surviving import MemoryDisk, Survivor

WINDOWS = [
    Window(milliseconds=20),
    Window(milliseconds=400),
    Window(count=1),
    Window(count=2),
    Window(count=5),
    Window(milliseconds=60, count=3),
    Window(milliseconds=20, count=6),
]


def live(window: Window, log: list[Row], program: list[Act], recent_marks: int) -> Survivor:
    """Run a program of acts over a log in one life, then end whatever is open; check all verdicts."""
    survivor = Survivor(window, MemoryDisk(), recent_marks)
    survivor.produce(log)
    for act, number in [*program, ("admit", len(log))]:
        if act == "admit":
            survivor.admit(number)
        elif survivor.in_flight and act == "release":
            survivor.release(number)
        elif survivor.in_flight:
            survivor.end(number, dead_letter=act == "dead")
        survivor.check()
    while survivor.in_flight:
        survivor.end(len(survivor.in_flight) // 2)
        survivor.check()
    survivor.check_verdicts()
    return survivor


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(log=logs(), program=acts)
@settings(max_examples=150, deadline=None)
def test_verdicts_are_those_of_the_whole_log(window: Window, log: list[Row], program: list[Act]) -> None:
    """Whatever the batches, the order of completion and the dead letters, every verdict follows from the log alone."""
    assert not live(window, log, program, recent_marks=10**6).doubted


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(log=logs(), program=acts, recent_marks=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_forgetting_changes_no_verdict_but_to_doubt(
    window: Window, log: list[Row], program: list[Act], recent_marks: int
) -> None:
    """Marks that go to the store, and leave it, change no verdict.

    Only a record later than its peers may be doubted.
    """
    doubted = live(window, log, program, recent_marks).doubted
    assert window.time_ms is not None or not doubted


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(log=logs(), clocks_s=st.tuples(st.integers(0, 2), st.just(10**13)))
@settings(max_examples=60, deadline=None)
def test_no_clock_changes_a_verdict(window: Window, log: list[Row], clocks_s: tuple[int, int]) -> None:
    """Timestamps are compared as the log has them: a host far behind and one far ahead tell the same."""

    def told(clock_s: int) -> list[Verdict]:
        engine = Deduplicator(Lookup(id=key(), window=window), clock=lambda: clock_s)
        found = []
        for offset, ident, timestamp_ms in log:
            record = Record("t", 0, offset, timestamp_ms, key=ident.encode() if ident else None)
            found += engine.admit([record])
            engine.complete([record] if found[-1].deliver else [])
        return found

    behind, ahead = map(told, clocks_s)
    assert behind == ahead
