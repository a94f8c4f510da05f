"""Verdicts of units against a list, and through crashes, other disks and dead letters; broken ones are caught.

The list is read again in the order of ends. Marks of units are in `test_rebuilt_equals_lived`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._core.flight import DONE
from dedup_sdk._units import memory as unit_memory
from dedup_sdk._units.doubt import Doubt
from dedup_sdk._units.memory import UnitMemory
from dedup_sdk._units.whole import CompleteUnit
from dedup_sdk._window import Window
from tests.support.naive_units import events_of, read_events
from tests.support.unit_logs import unit_log
from tests.support.unit_world import Action, UnitWorld

WINDOWS = [
    Window(milliseconds=15), Window(hours=1), Window(count=3), Window(milliseconds=40, count=4), Window(count=1),
]  # fmt: skip
CALM = ["admit", "admit", "handle", "handle", "release", "commit"]
FAULTS = [
    "admit", "admit", "admit", "handle", "handle", "handle", "give_up", "release", "commit", "commit", "crash",
    "move", "wait",
]  # fmt: skip
ROUGH = ["admit", "admit", "handle", "handle", "handle", "commit", "commit", "move", "wait"]
"""Disks that are lost more often than anything else goes wrong."""
MOVING = [
    "admit", "admit", "admit", "handle", "handle", "handle", "commit", "hand_over", "hand_over", "skip", "void",
    "retain", "wait",
]  # fmt: skip
"""Hosts that come and go in order, each with a disk of its own, and histories that are cut off."""
SEEDS = st.integers(0, 2**32)


def _world(draw: Random, *, mode: Any = "all-or-nothing", records: int = 100) -> UnitWorld:
    return UnitWorld(draw.choice(WINDOWS), mode=mode, recent_marks=draw.choice([1, 3, 1000]), records=records)


def _actions(draw: Random, names: list[str]) -> list[Action]:
    return [(draw.choice(names), draw.randrange(8), draw.randrange(6)) for _ in range(draw.randrange(40))]


def live_through_faults(seed: int, names: list[str], *, records: int = 100, ahead_ms: int = 0) -> None:
    """Read a log of units, some of which never become whole, with crashes, other disks and dead letters."""
    draw = Random(seed)
    world = _world(draw, mode=draw.choice(["all-or-nothing", "all-or-nothing", "members"]), records=records)
    log = unit_log(
        draw,
        count=draw.randrange(1, 40),
        idents=draw.randrange(1, 20),
        broken=draw.random() < 0.5,
        disorder_ms=draw.choice([0, 3]),
        ahead_ms=ahead_ms,
    )
    world.produce(log)
    world.play(_actions(draw, names))


@given(seed=SEEDS, names=st.sampled_from([FAULTS, ROUGH, MOVING]), ahead_ms=st.sampled_from([0, 15]))
@settings(max_examples=800, deadline=None)
def test_through_faults_nothing_is_lost_and_nothing_that_is_over_comes_again(
    seed: int, names: list[str], ahead_ms: int
) -> None:
    """The oracle of `UnitWorld` asks of each verdict, and of each commit."""
    live_through_faults(seed, names, ahead_ms=ahead_ms)


@given(seed=SEEDS, room=st.sampled_from([0, 2, 5, 12]))
@settings(max_examples=300, deadline=None)
def test_units_that_fail_for_want_of_room_lose_nothing(seed: int, room: int) -> None:
    """Live, where they go by arrivals, and in a fold, where they go by offsets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_memory, "MOST_OPEN", room)
        live_through_faults(seed, FAULTS, records=3)


def _lived(seed: int, *, mode: Any = "all-or-nothing", give_up: bool = False) -> UnitWorld:
    draw = Random(seed)
    world = _world(draw, mode=mode)
    # In order of time: a record later than the window reaches is in doubt, which a list is not.
    world.produce(unit_log(draw, count=draw.randrange(1, 40), idents=draw.randrange(1, 20)))
    world.play(_actions(draw, [*CALM, "give_up"] if give_up else CALM))
    return world


@given(seed=SEEDS, mode=st.sampled_from(["all-or-nothing", "members"]), give_up=st.booleans())
@settings(max_examples=300, deadline=None)
def test_verdicts_are_those_of_a_list_that_is_read_in_the_order_of_ends(
    seed: int, mode: Any, *, give_up: bool
) -> None:
    """However records are read, and in whatever order they are completed."""
    world = _lived(seed, mode=mode, give_up=give_up)
    window = world.strategy.window_of("t")
    told = read_events(
        events_of(world.log), time_ms=window.time_ms, count=window.count, members=mode == "members",
    )  # fmt: skip
    # A record that waited for longer than the window reaches is in doubt, and delivered.
    kinds = {
        offset: "fresh" if verdict.reason == "uncovered" else verdict.kind.value
        for offset, verdict in world.verdicts.items()
    }
    assert kinds == told.kinds
    assert all(world.handled[offset] <= 1 for offset in told.kinds)


# --- broken
# ------------------------------------------------------------------------------------------------------------


def remember_rejected(patch: pytest.MonkeyPatch) -> None:
    """Rejected units are remembered, all of them."""
    reject = UnitMemory._reject

    def broken(memory: UnitMemory, unit: CompleteUnit, duplicates: Any) -> None:
        reject(memory, unit, duplicates)
        for digest in unit.digests:
            memory.lookup.recent.put(digest, unit.end, unit.end_ms)
        memory._remember(unit.digests, unit)

    patch.setattr(UnitMemory, "_reject", broken)


def remember_failed(patch: pytest.MonkeyPatch) -> None:
    """Handled records of a unit that is not whole are remembered, so that the unit is rejected when it comes again."""
    deliver = UnitMemory._deliver_each

    def broken(memory: UnitMemory, places: Any, reason: str) -> None:
        deliver(memory, places, reason)
        for chunk, row in places:
            if chunk.digests[row] is not None:
                chunk.unmarked.discard(row)
                memory.lookup.recent.put(chunk.digests[row], chunk.offsets[row], int(chunk.timestamps[row]))

    patch.setattr(UnitMemory, "_deliver_each", broken)


def complete_members_alone(patch: pytest.MonkeyPatch) -> None:
    """A record of a unit is over when it is completed, whatever becomes of the others."""

    def end_member(memory: UnitMemory, unit: CompleteUnit, chunk: Any, row: int) -> list[bytes]:
        chunk.finish(row)
        unit.left -= 1
        return [] if unit.left else memory._finish_unit(unit)

    def end_rows(memory: UnitMemory, unit: CompleteUnit) -> None:
        for chunk, row in unit.places:
            if chunk.states[row] != DONE:
                chunk.finish(row)
            memory.flight.note_dirty(chunk)
        memory.over._ranges.add(unit.first, unit.end)
        del memory.complete_units[unit.end]

    patch.setattr(UnitMemory, "_end_member", end_member)
    patch.setattr(UnitMemory, "_end_rows", end_rows)


def stop_between_members(patch: pytest.MonkeyPatch) -> None:
    """The watermark stops anywhere, and units open at the end of a fold count as completed."""
    patch.setattr(UnitMemory, "_outside_units", lambda _memory, high: high)

    def broken(memory: UnitMemory, unit: Any) -> None:
        for chunk, row in unit.items:
            chunk.finish(row)
            if chunk.digests[row] is not None:
                memory.lookup.recent.put(chunk.digests[row], chunk.offsets[row], int(chunk.timestamps[row]))

    patch.setattr(UnitMemory, "_pass_gathered", broken)


def believe_the_fold(patch: pytest.MonkeyPatch) -> None:
    """A fold takes a unit none of whose IDs it knows for accepted, also where it does not know earlier records."""
    patch.setattr(Doubt, "is_uncertain", lambda _doubt, _unit, *, covered: False)  # noqa: ARG005


def forget_what_tore(patch: pytest.MonkeyPatch) -> None:
    """Commits do not say from where on the log tells the verdicts."""
    patch.setattr(Doubt, "note_inexact_below", lambda _doubt, _offset: None)


def pass_by_what_waits(patch: pytest.MonkeyPatch) -> None:
    """A record does not wait for a unit that waits, if nobody else knows its ID."""
    patch.setattr(UnitMemory, "_stand_in_line", lambda _memory, _unit: None)


def judge_at_their_own_offsets(patch: pytest.MonkeyPatch) -> None:
    """Records of a unit are judged one by one where they lie."""
    patch.setattr(UnitMemory, "look_up", _look_up_alone)


def _look_up_alone(memory: UnitMemory, chunk: Any, missing: Any, find: Any, **more: Any) -> Any:
    memory.is_live = True
    chunk.digests = [memory.keys.name_of(key) for key in chunk.digests]
    absent = {row: "absent" for row, digest in enumerate(chunk.digests) if digest is None}
    return memory.lookup.look_up(chunk, {**missing, **absent}, find, **more)


BROKEN: list[Callable[[pytest.MonkeyPatch], None]] = [
    remember_rejected, remember_failed, complete_members_alone, stop_between_members, believe_the_fold,
    forget_what_tore,
    pass_by_what_waits, judge_at_their_own_offsets,
]  # fmt: skip
_SEEDS = 3_000
_FIRST = {"believe_the_fold": 20_290}
"""Where to begin: some histories are rare."""


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda each: each.__name__)
def test_what_is_broken_is_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the oracle of the worlds, or by the list."""
    break_it(monkeypatch)
    judged: Any = test_verdicts_are_those_of_a_list_that_is_read_in_the_order_of_ends
    check_list = judged.hypothesis.inner_test
    first = _FIRST.get(break_it.__name__, 0)
    for seed in range(first, first + _SEEDS):
        try:
            live_through_faults(seed, FAULTS)
            live_through_faults(seed, ROUGH)
            live_through_faults(seed, MOVING)
            check_list(seed, "all-or-nothing", give_up=seed % 2 == 0)
        except (AssertionError, KeyError):
            return
    pytest.fail("nothing noticed it")
