"""Units that somebody reads again: marks are left only of those that are known to be accepted.

Each world is a history in which a unit was rejected, or failed, and the next reader cannot know that. Its other ID is
then sent again, and must be handled. The oracle of `UnitWorld` notices who breaks the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dedup_sdk._units import memory as unit_memory
from dedup_sdk._units.doubt import Doubt
from dedup_sdk._window import Window
from tests.support import unit_world
from tests.support.naive_units import Entry
from tests.support.unit_world import UnitWorld

HOUR = 3_600_000
NEW_DISK = 99


def _world() -> UnitWorld:
    world = UnitWorld(Window(hours=1))
    world.now_s = 1_000_000.0
    return world


class _Log:
    """Appends records to the log of a world, at a time in hours."""

    def __init__(self, world: UnitWorld) -> None:
        self.world = world

    def send(self, *idents: str, hours: float = 0.0, unit: str | None = None, ends: bool = True) -> None:
        """Send records; of a unit they are the last ones, if it ``ends``."""
        begin = len(self.world.log)
        self.world.produce(
            Entry(
                begin + row,
                int(hours * HOUR),
                ident,
                unit,
                is_end=bool(unit) and ends and ident == idents[-1],
            )
            for row, ident in enumerate(idents)
        )

    def handle(self, *idents: str, hours: float = 0.0, unit: str | None = None, ends: bool = True) -> None:
        """Send records, and have them read and handled."""
        self.send(*idents, hours=hours, unit=unit, ends=ends)
        self.read(len(idents))

    def read(self, count: int) -> None:
        """Have records read and handled, but for the one that is stuck."""
        self.world.admit(count)
        in_flight = self.world.in_flight
        while in_flight and self.world.log[in_flight[-1]].ident != "stuck":
            self.world.handle(len(in_flight) - 1)

    def fail(self, first: str, last: str, *, hours: float = 0.0) -> None:
        """Send a unit whose end comes too late."""
        self.handle(first, hours=hours, unit="late", ends=False)
        self.world.wait(unit_world.TIMEOUT_S + 1)
        self.read(0)
        self.handle(last, hours=hours, unit="late")


def _sent_again(world: UnitWorld, ident: str, hours: float) -> None:
    """An ID that nobody has handled comes once more: it is handled."""
    assert ident not in world.idents
    _Log(world).send(ident, hours=hours)
    world.rest()
    assert world.handled[world.log[-1].offset] == 1


def reported_without_its_past() -> None:
    """A commit reports a rejected unit as completed; who reads on lacks the record for which it was rejected."""
    world = _world()
    log = _Log(world)
    log.handle("x")
    world.commit_offset()
    log.send("stuck")
    world.retain(1)
    log.send("x", "s", unit="V")
    log.read(3)
    world.hand_over(NEW_DISK)
    log.read(3)
    _sent_again(world, "s", 0)


def reported_behind_a_failed_unit() -> None:
    """A unit failed above the committed offset, so that a later one was rejected; an earlier host knows the rest."""
    world = _world()
    log = _Log(world)
    log.handle("p")
    world.hand_over(NEW_DISK)
    log.handle("stuck")
    log.fail("a", "b")
    log.handle("a", "c", unit="V")
    log.handle("c", "s", unit="W")
    world.hand_over(0)
    log.read(7)
    _sent_again(world, "s", 0)


def folded_behind_a_clock_ahead() -> None:
    """A unit was rejected for a record that retention has taken, whose clock was ahead of the next one's."""
    world = _world()
    log = _Log(world)
    log.handle("x", hours=0.5)
    log.handle("m")
    log.handle("x", "s", hours=1.25, unit="V")
    world.commit_offset()
    world.retain(1)
    world.hand_over(NEW_DISK)
    _sent_again(world, "s", 1.5)


def rejected_for_what_lies_before_the_history() -> None:
    """The history began anew, but the owner's disk knows earlier records, one with a clock far ahead."""
    world = _world()
    log = _Log(world)
    log.handle("x", hours=2)
    world.commit_without_text()
    log.handle("m")
    log.handle("x", "s", hours=2.5, unit="V")
    world.hand_over(NEW_DISK)
    _sent_again(world, "s", 2.75)


def folded_by_who_knows_more() -> None:
    """A unit was accepted by a host that knew too little; an earlier host, who knows more, would have rejected it."""
    world = _world()
    log = _Log(world)
    log.handle("x", hours=2.5)
    log.fail("a", "b")
    world.hand_over(NEW_DISK)
    log.handle("m")
    log.handle("x", "s", hours=2.2, unit="V")
    log.handle("s", "q", hours=2.2, unit="W")
    world.hand_over(0)
    _sent_again(world, "q", 2.3)


# --- broken
# ------------------------------------------------------------------------------------------------------------


def believe_reports(patch: pytest.MonkeyPatch) -> None:
    """Reported units are accepted wherever none of their IDs is known."""
    patch.setattr(Doubt, "is_uncertain", lambda _doubt, _unit, *, covered: False)  # noqa: ARG005


def believe_texts(patch: pytest.MonkeyPatch) -> None:
    """A commit's text is taken for exact above its offset, too."""
    patch.setattr(unit_world.Commit, "is_exact_above", True)


def believe_clocks(patch: pytest.MonkeyPatch) -> None:
    """No record that is gone is taken to be later than the first that is left."""
    patch.setattr(unit_memory, "ahead_ms_of", lambda _window, _mode: 0)


def reject_for_any_mark(patch: pytest.MonkeyPatch) -> None:
    """It does not matter whether the mark lies before the history."""
    note = Doubt.note_rejected

    def broken(doubt: Doubt, unit: Any, duplicates: Any, *, low: int, **more: Any) -> None:
        del low
        note(doubt, unit, duplicates, low=-1, **more)

    patch.setattr(Doubt, "note_rejected", broken)


WORLDS: list[tuple[Callable[[], None], Callable[[pytest.MonkeyPatch], None]]] = [
    (reported_without_its_past, believe_reports),
    (reported_behind_a_failed_unit, believe_texts),
    (folded_behind_a_clock_ahead, believe_clocks),
    (rejected_for_what_lies_before_the_history, reject_for_any_mark),
    (folded_by_who_knows_more, reject_for_any_mark),
]


@pytest.mark.parametrize("live", [live for live, _ in WORLDS], ids=lambda each: each.__name__)
def test_what_nobody_handled_is_handled_when_it_comes_again(live: Callable[[], None]) -> None:
    """Its unit was read again, and left no mark."""
    live()


@pytest.mark.parametrize(("live", "break_it"), WORLDS, ids=lambda each: each.__name__)
def test_who_believes_more_is_caught(
    live: Callable[[], None], break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the oracle: it hides a message that nobody handled."""
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match="is lost"):
        live()
