"""What is observed only: a duplicate that is offered takes no mark along, whatever becomes of it."""

from __future__ import annotations

import pytest

from dedup_sdk import MemoryStore
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
