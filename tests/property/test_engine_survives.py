"""Engine and store through crashes: nothing is lost, and nothing that is durable is doubled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window
from tests.support.logs import Row, logs
from tests.support.surviving import Disk, MemoryDisk, RocksDisk, Survivor

WINDOWS = [Window(milliseconds=30), Window(hours=1), Window(count=3), Window(milliseconds=60, count=4)]


class Lives(RuleBasedStateMachine):
    """Any order of reading, completing, failing, committing, crashing and coming back."""

    window: Window
    in_memory: bool

    @initialize(recent_marks=st.sampled_from([1, 2, 3, 1000]), rows=logs(max_size=12))
    def begin(self, recent_marks: int, rows: list[Row]) -> None:
        """Start a new group on an empty disk."""
        self.folder = tempfile.TemporaryDirectory(prefix="dedup-lives-")
        disk: Disk = MemoryDisk() if self.in_memory else RocksDisk(Path(self.folder.name))
        self.survivor = Survivor(self.window, disk, recent_marks)
        self.survivor.produce(rows)

    @rule(rows=logs(max_size=10))
    def produce(self, rows: list[Row]) -> None:
        """More records come."""
        self.survivor.produce(rows)

    @rule(count=st.integers(1, 8))
    def admit(self, count: int) -> None:
        """The consumer reads on."""
        self.survivor.admit(count)

    @precondition(lambda self: self.survivor.in_flight)
    @rule(which=st.integers(0, 9))
    def complete(self, which: int) -> None:
        """A handler is done, not always the oldest one."""
        self.survivor.end(which)

    @precondition(lambda self: self.survivor.in_flight)
    @rule(which=st.integers(0, 9), count=st.integers(1, 6))
    def complete_some(self, which: int, count: int) -> None:
        """Several are done."""
        for _ in range(count):
            if self.survivor.in_flight:
                self.survivor.end(which)

    @precondition(lambda self: self.survivor.in_flight)
    @rule(which=st.integers(0, 9))
    def dead_letter(self, which: int) -> None:
        """A handler gives up."""
        self.survivor.end(which, dead_letter=True)

    @precondition(lambda self: self.survivor.in_flight)
    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        """A handler wants another try."""
        self.survivor.release(which)

    @rule()
    def commit(self) -> None:
        """Completed records are committed."""
        self.survivor.commit()

    @rule(tell_committed=st.booleans())
    def crash(self, *, tell_committed: bool) -> None:
        """The process is killed and starts again."""
        self.survivor.crash(tell_committed=tell_committed)

    @rule(tell_committed=st.booleans())
    def reopen(self, *, tell_committed: bool) -> None:
        """The process ends in order and starts again."""
        self.survivor.reopen(tell_committed=tell_committed)

    @invariant()
    def holds(self) -> None:
        """The invariants hold at every moment."""
        self.survivor.check()

    def teardown(self) -> None:
        """In the end everything is over, and every verdict follows from the log."""
        if not hasattr(self, "survivor"):
            return
        try:
            self.survivor.check_verdicts()
        finally:
            self.survivor.engine.shut()
            self.folder.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "rocks"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_no_life_loses_or_doubles(window: Window, *, in_memory: bool) -> None:
    """Through any order of crashes nothing is lost, and nothing durable is doubled.

    Verdicts are those of the whole log.
    """
    machine = type("LivesOf", (Lives,), {"window": window, "in_memory": in_memory})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100 if in_memory else 25,
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
        ),
    )


def test_what_left_for_its_number_leaves_no_doubt_behind() -> None:
    """In a window by both: sightings too old to be known, then one that is out for its number.

    The next of it is new, not in doubt.
    """
    survivor = Survivor(Window(milliseconds=60, count=4), MemoryDisk(), recent_marks=1)
    survivor.produce([(0, "b", 1000), (1, "d", 1000), (2, "a", -1), (3, "a", 1000)])
    survivor.admit(2)
    survivor.produce([(0, "b", 1000), (1, "c", 1000)])
    survivor.admit(4)
    survivor.produce([(0, "b", 1000)])
    while survivor.in_flight:
        survivor.end(0)
    survivor.admit(1)
    assert survivor.verdicts[6].kind is VerdictKind.FRESH
    survivor.check_verdicts()


def test_what_is_dropped_for_its_age_raises_no_doubt_about_what_left_for_its_number() -> None:
    """In a window by both: one ID is out for its number, another, without a timestamp, for its age.

    The next of the first is new.
    """
    survivor = Survivor(Window(milliseconds=60, count=4), MemoryDisk(), recent_marks=1)
    survivor.produce([(0, "b", 1000), (1, "d", 1000), (2, "a", -1), (3, "a", 1000), (4, "c", -1)])
    survivor.admit(5)
    while survivor.in_flight:
        survivor.end(1)
    survivor.produce([(0, "b", 1000)])
    survivor.admit(1)
    assert survivor.verdicts[5].kind is VerdictKind.FRESH
    survivor.check_verdicts()
