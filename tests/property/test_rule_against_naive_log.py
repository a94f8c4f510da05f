"""The engine against a model that keeps the whole log in a list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk.window import Window
from tests.support.lived import Lived
from tests.support.logs import Act, Row, acts, logs
from tests.support.naive_log import Entry

WINDOWS = [
    Window(milliseconds=20),
    Window(milliseconds=400),
    Window(count=1),
    Window(count=2),
    Window(count=5),
    Window(milliseconds=60, count=3),
    Window(milliseconds=20, count=6),
]


def live(lived: Lived, log: list[Row], program: list[Act]) -> None:
    """Run a program of acts over a log, then end whatever is open."""
    waiting = [Entry(*row) for row in log]
    for act, number in [*program, ("admit", len(log))]:
        if act == "admit":
            batch, waiting = waiting[:number], waiting[number:]
            if batch:
                lived.admit(batch)
        elif lived.in_flight and act == "release":
            lived.release(number)
        elif lived.in_flight:
            lived.end(number, dead_letter=act == "dead")
        if lived.entries:
            lived.check()
    while lived.in_flight:
        lived.end(len(lived.in_flight) // 2)
        lived.check()
    assert not lived.parked


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(log=logs(), program=acts)
@settings(max_examples=150, deadline=None)
def test_verdicts_are_those_of_the_whole_log(window: Window, log: list[Row], program: list[Act]) -> None:
    """Whatever the batches, the order of completion and the dead letters, every verdict follows from the log alone."""
    lived = Lived(window)
    live(lived, log, program)
    lived.check_verdicts()
    assert not lived.may_doubt


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(log=logs(), program=acts, recent_marks=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_forgetting_changes_no_verdict_but_to_doubt(
    window: Window, log: list[Row], program: list[Act], recent_marks: int
) -> None:
    """Marks that go to the store, and leave it, change no verdict; only a record later than its peers may be doubted."""
    lived = Lived(window, recent_marks)
    live(lived, log, program)
    lived.check_verdicts()
