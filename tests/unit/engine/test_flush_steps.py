"""A flush of many marks goes on a step a call, while records come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup_sdk._engine import partition
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._store import generations
from dedup_sdk._store.generations import RocksGenerations
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.errors import StoreUnavailableError
from tests.support.records import HOUR, engine, kinds, record

MANY = 100


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "ADDED_AT_ONCE", 10)
    monkeypatch.setattr(partition, "MOST_FLUSHED", MANY)


@pytest.fixture
def deduplicator(tmp_path: Path) -> Iterator[Deduplicator]:
    """An engine with a store on the disk, and the first records completed: a flush has begun."""
    with engine(HOUR, store=RocksStore(tmp_path / "store"), bears_full_disk=True) as made:
        handle(made, range(MANY))
        yield made


def handle(deduplicator: Deduplicator, offsets: range) -> list[str]:
    """Admit and complete a batch; return the kinds of its verdicts."""
    records = [record(offset) for offset in offsets]
    found = kinds(deduplicator.admit(records))
    deduplicator.complete(records)
    return found


def only(deduplicator: Deduplicator) -> Partition:
    """Return the one partition."""
    (found,) = deduplicator.partitions.values()
    return found


def again(deduplicator: Deduplicator, at: int, offsets: range) -> list[str]:
    """Admit records from offset ``at`` on, with the IDs of some others."""
    return kinds(deduplicator.admit([record(at + offset, f"#{offset}") for offset in offsets]))


def test_a_flush_takes_several_calls_and_every_id_is_known_at_each(deduplicator: Deduplicator) -> None:
    """Marks that are on their way to a file make duplicates."""
    at, calls = MANY, 0
    while only(deduplicator).writer.is_flushing:
        assert again(deduplicator, at, range(MANY)) == ["duplicate"] * MANY
        at, calls = at + MANY, calls + 1
    assert calls > MANY / 10 / 2
    assert only(deduplicator).store.stats().marks == MANY
    assert again(deduplicator, at, range(MANY)) == ["duplicate"] * MANY


def test_what_is_completed_meanwhile_is_flushed_later(deduplicator: Deduplicator) -> None:
    """The journal keeps the steps that came after a flush began."""
    assert handle(deduplicator, range(MANY, MANY + 5)) == ["fresh"] * 5
    only(deduplicator).writer.finish_flush()
    stats = only(deduplicator).store.stats()
    assert (stats.marks, stats.recent) == (MANY, 5)


def test_a_flush_that_is_left_undone_loses_nothing(tmp_path: Path) -> None:
    """Whoever closes or dies in the middle finds all marks in the journal."""
    store = RocksStore(tmp_path / "store")
    first = engine(HOUR, store=store)
    handle(first, range(MANY))
    assert only(first).writer.is_flushing
    first.lose("t", 0)
    with engine(HOUR, store=store) as second:
        second.open("t", 0)
        assert again(second, MANY, range(MANY)) == ["duplicate"] * MANY


def test_a_flush_that_a_full_disk_refuses_puts_its_marks_back(
    deduplicator: Deduplicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recent again, and flushed when there is room."""

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(RocksGenerations, "ingest", refuse)
        only(deduplicator).writer.finish_flush()
    assert deduplicator.disk_full
    assert only(deduplicator).memory.recent_count == MANY
    assert again(deduplicator, MANY, range(MANY)) == ["duplicate"] * MANY
    assert deduplicator.write_again()
    only(deduplicator).flush()
    assert sum(marks.count for marks in only(deduplicator).store.scan()) == MANY
    assert again(deduplicator, 2 * MANY, range(MANY)) == ["duplicate"] * MANY


def test_a_fenced_partition_goes_on_with_no_flush(deduplicator: Deduplicator) -> None:
    """Another owner may have the store: nothing more is written."""
    only(deduplicator).fence()
    assert not only(deduplicator).writer.is_flushing
    deduplicator.trim()
    only(deduplicator).flush()
    assert only(deduplicator).store.stats().marks == 0


def test_marks_that_come_quicker_than_they_go_are_flushed_at_once(tmp_path: Path) -> None:
    """Memory is bounded by twice ``recent_marks``, however large a batch is."""
    with engine(HOUR, store=RocksStore(tmp_path / "store", recent_marks=30)) as deduplicator:
        for start in range(0, 1_000, 50):
            handle(deduplicator, range(start, start + 50))
            assert only(deduplicator).writer.recent <= 2 * 30 + 50
