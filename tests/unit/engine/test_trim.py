"""When recent marks go to sorted files."""

from __future__ import annotations

import pytest

from dedup_sdk._engine import partition
from dedup_sdk._engine.partition import Partition
from dedup_sdk._window import Window
from tests.support.disks import keeping
from tests.support.records import DAY_MS, HOUR, engine, kinds, record


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were flushed, in order."""
    flushes: list[int] = []
    real = Partition.flush_step

    def flush_step(self: Partition) -> None:
        flushes.append(self.partition)
        real(self)

    monkeypatch.setattr(Partition, "flush_step", flush_step)
    return flushes


@pytest.mark.parametrize("window", [HOUR, Window(count=1000)])
def test_records_in_flight_are_no_reason_to_flush(flushed: list[int], window: Window) -> None:
    """However many are in flight, each flush is worth it: it takes as many completed marks as may be in memory."""
    deduplicator = engine(window, store=keeping(50))
    records = [record(offset) for offset in range(300)]
    deduplicator.admit(records)
    assert flushed == []
    for each in records[:200]:
        deduplicator.complete([each])
    assert 2 <= len(flushed) <= 4


def test_the_fullest_partition_is_flushed(flushed: list[int]) -> None:
    """The marks that a flush takes away count, not records in flight."""
    deduplicator = engine(store=keeping(50))
    deduplicator.admit([record(offset, partition=1) for offset in range(100)])
    records = [record(offset, partition=0) for offset in range(60)]
    deduplicator.admit(records)
    deduplicator.complete(records)
    assert flushed == [0]
    assert kinds(deduplicator.admit([record(60, "#3", partition=0)])) == ["duplicate"]


def test_what_spans_a_share_of_the_window_is_flushed(
    flushed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of an eighth of the window become a file, as soon as they are worth one, however much room memory has."""
    monkeypatch.setattr(partition, "WORTH_A_FILE", 10)
    deduplicator = engine(Window(seconds=80), clock=lambda: 2 * DAY_MS / 1000)
    reached = []
    for offset in range(100):
        each = record(offset, timestamp_ms=DAY_MS + 500 * offset)
        deduplicator.admit([each])
        deduplicator.complete([each])
        reached.append(len(flushed))
    # Half a second a record: ten seconds are twenty, counted from the first that was worth it.
    assert reached.index(1) in range(28, 33)
    assert [reached.index(number + 1) - reached.index(number) for number in (1, 2)] == [21, 21]


def test_what_spans_a_share_of_the_count_is_flushed(
    flushed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where the window is a number of IDs."""
    monkeypatch.setattr(partition, "WORTH_A_FILE", 10)
    deduplicator = engine(Window(count=160))
    for offset in range(100):
        each = record(offset)
        deduplicator.admit([each])
        deduplicator.complete([each])
    assert len(flushed) == 4


def test_few_marks_are_no_file(flushed: list[int]) -> None:
    """However long they took to come: a file each would be many small ones."""
    deduplicator = engine(Window(seconds=80), clock=lambda: 2 * DAY_MS / 1000)
    for offset in range(200):
        each = record(offset, timestamp_ms=DAY_MS + 60_000 * offset)
        deduplicator.admit([each])
        deduplicator.complete([each])
    assert flushed == []
