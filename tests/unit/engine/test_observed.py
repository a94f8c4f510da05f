"""Observed records: a duplicate that is offered takes no mark along, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dedup_sdk import MemoryStore, Record, Window
from dedup_sdk._engine.deduplicator import Deduplicator
from tests.support.disks import keeping
from tests.support.records import engine, kinds, record


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("ending", ["dead-lettered", "in flight"])
def test_a_flush_writes_the_mark_behind_an_observed_duplicate(ending: str, *, together: bool) -> None:
    """Also where the duplicate is judged with others, and is in flight still."""
    store = MemoryStore()
    deduplicator = engine(store=keeping(2, store))
    deduplicator.open("t", 0, low=0)
    deduplicator.partitions["t", 0].flight.show_duplicates()
    deduplicator.admit([record(0, "a")])
    deduplicator.complete([record(0, "a")])
    more = [record(2, "b"), record(3, "c")] if together else []
    assert kinds(deduplicator.admit([record(1, "a"), *more]))[0] == "duplicate"
    if ending == "dead-lettered":
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
    deduplicator.partitions["t", 0].flight.show_duplicates()
    return deduplicator


End = Callable[[Deduplicator, list[Record]], object]
HANDLED, DEAD_LETTERED = Deduplicator.complete, Deduplicator.dead_letter
ENDINGS = [
    pytest.param([(0, HANDLED), (1, DEAD_LETTERED)], id="leader handled, then its duplicate dead-lettered"),
    pytest.param([(1, DEAD_LETTERED), (0, HANDLED)], id="duplicate dead-lettered, then the leader handled"),
    pytest.param([(2, HANDLED), (0, DEAD_LETTERED), (1, HANDLED)], id="the last duplicate first"),
    pytest.param([(1, HANDLED), (0, HANDLED), (2, HANDLED)], id="the middle duplicate first"),
    pytest.param([(1, HANDLED)], id="the leader stays in flight"),
]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("seen_before", [True, False])
@pytest.mark.parametrize("endings", ENDINGS)
@pytest.mark.parametrize("window", [Window(hours=1), Window(count=3)])
def test_twins_of_what_is_in_flight_end_apart(
    endings: list[tuple[int, End]], window: Window, *, together: bool, seen_before: bool
) -> None:
    """In any order: ended records are remembered, and no others."""
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


def test_a_flush_writes_the_handled_leader_of_a_twin_in_flight() -> None:
    """With the journal gone, nothing else knows of it after a crash."""
    store = MemoryStore()
    deduplicator = watching(store=keeping(2, store))
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
