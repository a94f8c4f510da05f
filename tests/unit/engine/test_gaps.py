"""Thousands of gaps, as worker threads leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk import Deduplicator, Lookup, Record, RocksStore, Window
from dedup_sdk._store.memory import MemoryPartition, MemoryStore
from dedup_sdk._store.pages import encode_step
from dedup_sdk.ids import key

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from dedup_sdk._marks import Marks, Progress

GAPS = 8_000


def record(offset: int) -> Record:
    """A record with an ID of its own."""
    return Record("t", 0, offset, 1_700_000_000_000 + offset, key=b"%d" % offset)


def test_a_step_is_as_small_with_thousands_of_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of one completion's step does not grow with the completions out of order before it."""
    written: list[int] = []
    append = MemoryPartition.append

    def counted(self: MemoryPartition, progress: Progress, marks: Marks) -> None:
        written.append(len(encode_step(progress, marks)))
        append(self, progress, marks)

    monkeypatch.setattr(MemoryPartition, "append", counted)
    deduplicator = Deduplicator(Lookup(id=key(), window=Window(days=1)), MemoryStore())
    batch = [record(offset) for offset in range(2 * GAPS)]
    deduplicator.admit(batch)
    written.clear()
    for odd in batch[1::2]:
        deduplicator.complete([odd])
    assert len(written) == GAPS
    assert max(written) == written[0] <= 190


def test_every_gap_outlives_the_process(tmp_path: Path) -> None:
    """Opened again, exactly the completed records are redelivered, however many steps and flushes that took."""
    strategy = Lookup(id=key(), window=Window(days=1))
    first = Deduplicator(strategy, RocksStore(tmp_path, recent_marks=200))
    batch = [record(offset) for offset in range(1_000)]
    first.admit(batch)
    for odd in batch[1::2]:
        first.complete([odd])
    first.lose("t", 0)
    first.shut()
    again = Deduplicator(strategy, RocksStore(tmp_path))
    assert again.open("t", 0).high == 0
    verdicts = [verdict.kind.value for verdict in again.admit(batch)]
    assert verdicts == ["fresh", "redelivered"] * 500
    again.shut()
