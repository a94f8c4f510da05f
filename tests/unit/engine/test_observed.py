"""What is observed only: a duplicate that is offered takes no mark along, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dedup_sdk import MemoryStore, Record, Window
from dedup_sdk.engine.deduplicator import Deduplicator
from tests.support.records import engine, kinds, record


def test_an_observed_duplicate_that_is_given_up_leaves_the_mark() -> None:
    """The ID was handled before."""
    deduplicator = engine()
    deduplicator.admit([record(0, "a")])
    deduplicator.complete([record(0, "a")])
    deduplicator.partitions["t", 0].lane.reveals = True
    assert kinds(deduplicator.admit([record(1, "a")])) == ["duplicate"]
    deduplicator.dead_letter([record(1, "a")])
    assert kinds(deduplicator.admit([record(2, "a")])) == ["duplicate"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("ending", ["given up", "in flight"])
def test_a_flush_writes_the_mark_behind_an_observed_duplicate(ending: str, *, together: bool) -> None:
    """Also where the duplicate is judged with others, and is in flight still."""
    store = MemoryStore()
    deduplicator = engine(store=store, recent_marks=2)
    deduplicator.open("t", 0, low=0)
    deduplicator.partitions["t", 0].lane.reveals = True
    deduplicator.admit([record(0, "a")])
    deduplicator.complete([record(0, "a")])
    more = [record(2, "b"), record(3, "c")] if together else []
    assert kinds(deduplicator.admit([record(1, "a"), *more]))[0] == "duplicate"
    if ending == "given up":
        deduplicator.dead_letter([record(1, "a")])
    for offset, name in enumerate("xyz", start=4):
        deduplicator.admit([record(offset, name)])
        deduplicator.complete([*more, record(offset, name)])
    deduplicator.shut()

    again = engine(store=store)
    again.open("t", 0)
    assert kinds(again.admit([record(1 if ending == "in flight" else 9, "a")])) == ["duplicate"]


def watching(**settings: Any) -> Deduplicator:
    """An engine that observes."""
    deduplicator = engine(**settings)
    deduplicator.open("t", 0, low=0)
    deduplicator.partitions["t", 0].lane.reveals = True
    return deduplicator


End = Callable[[Deduplicator, list[Record]], object]
HANDLED, GIVEN_UP = Deduplicator.complete, Deduplicator.dead_letter
ENDINGS = [
    pytest.param([(0, HANDLED), (1, GIVEN_UP)], id="leader handled, then twin given up"),
    pytest.param([(1, GIVEN_UP), (0, HANDLED)], id="twin given up, then leader handled"),
    pytest.param([(1, HANDLED), (0, GIVEN_UP)], id="twin handled, then leader given up"),
    pytest.param([(0, GIVEN_UP), (1, HANDLED)], id="leader given up, then twin handled"),
    pytest.param([(2, GIVEN_UP), (0, HANDLED), (1, GIVEN_UP)], id="the last twin first"),
    pytest.param([(1, GIVEN_UP), (0, HANDLED), (2, GIVEN_UP)], id="the middle twin first"),
    pytest.param([(0, GIVEN_UP), (1, HANDLED), (2, GIVEN_UP)], id="the middle one handled"),
]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("seen_before", [True, False])
@pytest.mark.parametrize("endings", ENDINGS)
@pytest.mark.parametrize("window", [Window(hours=1), Window(count=3)])
def test_twins_of_what_is_in_flight_end_apart(
    endings: list[tuple[int, End]], window: Window, *, together: bool, seen_before: bool
) -> None:
    """Each takes along its own sighting only: what was handled is remembered, and of what was given up nothing."""
    deduplicator = watching(window=window)
    before = [record(at) for at in range(6)] if not seen_before else [record(at, "a") for at in range(6)]
    deduplicator.admit(before)
    deduplicator.complete(before)
    twins = [record(6 + at, "a") for at in range(1 + max(at for at, _ in endings))]
    for batch in [twins] if together else [[twin] for twin in twins]:
        deduplicator.admit(batch)
    for at, end in endings:
        end(deduplicator, [twins[at]])
    other = record(10, "b")
    assert kinds(deduplicator.admit([other])) == ["fresh"]
    deduplicator.complete([other])
    assert kinds(deduplicator.admit([record(11, "a")])) == ["duplicate"]
    assert not deduplicator.partitions["t", 0].lane.recent.beneath


def test_twins_that_are_all_given_up_leave_nothing() -> None:
    """Whatever the order."""
    deduplicator = watching()
    twins = [record(at, "a") for at in range(4)]
    assert kinds(deduplicator.admit(twins)) == ["fresh", *["duplicate"] * 3]
    for at in (2, 0, 3, 1):
        deduplicator.dead_letter([twins[at]])
    assert kinds(deduplicator.admit([record(4, "a")])) == ["fresh"]


def test_a_flush_writes_the_handled_leader_of_a_twin_in_flight() -> None:
    """With the journal gone, nothing else knows of it after a crash."""
    store = MemoryStore()
    deduplicator = watching(store=store, recent_marks=2)
    leader, twin = record(0, "a"), record(1, "a")
    deduplicator.admit([leader, twin])
    deduplicator.complete([leader])
    for offset, name in enumerate("xyz", start=2):
        deduplicator.admit([record(offset, name)])
        deduplicator.complete([record(offset, name)])
    deduplicator.shut()

    again = engine(store=store)
    again.open("t", 0)
    assert kinds(again.admit([twin])) == ["duplicate"]
