"""Records that are named twice in one call, and those settling while the disk is full."""

from __future__ import annotations

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.errors import StoreUnavailableError
from tests.support.records import engine, kinds, record


def test_a_record_that_is_named_twice_ends_once() -> None:
    """The watermark stays before the record that nobody ended, also for a restart."""
    store = MemoryStore()
    deduplicator = engine(store=store)
    first, second = record(0), record(1)
    deduplicator.admit([first, second])
    deduplicator.complete([first, first])
    assert deduplicator.next_offset("t", 0) == 1
    deduplicator.close("t", 0)
    again = engine(store=store)
    assert [verdict.deliver for verdict in again.admit([first, second])] == [False, True]


def test_an_offset_that_was_admitted_twice_ends_once() -> None:
    """The second is parked behind the first, and is the same record."""
    deduplicator = engine()
    assert kinds(deduplicator.admit([record(0), record(0)])) == ["fresh", "parked"]
    deduplicator.complete([record(0), record(0)])
    assert deduplicator.next_offset("t", 0) == 1


def test_a_record_that_is_released_twice_is_one_attempt() -> None:
    """It is to be delivered once."""
    deduplicator = engine()
    deduplicator.admit([record(0)])
    [again] = deduplicator.release([record(0), record(0)])
    assert again.verdict.attempt == 2


def test_a_twin_that_a_full_disk_met_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settled records are returned, and the error raised by the next call.

    Without anything to return it is raised at once.
    """
    deduplicator = engine()
    first, twin = record(0, "a"), record(1, "a")
    assert kinds(deduplicator.admit([first, twin])) == ["fresh", "parked"]

    def full(*_: object) -> None:
        raise StoreUnavailableError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryPartition, "append", full)
        settled = deduplicator.dead_letter([first])
        assert [each.record.offset for each in settled] == [1]
        with pytest.raises(StoreUnavailableError):
            deduplicator.complete([twin])
        with pytest.raises(StoreUnavailableError):
            deduplicator.admit([record(2)])
    assert kinds(deduplicator.admit([record(2, "a")])) == ["duplicate"]
