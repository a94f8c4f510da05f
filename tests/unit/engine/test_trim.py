"""When recent marks go to sorted files."""

from __future__ import annotations

import pytest

from dedup_sdk.engine.partition import Partition
from dedup_sdk.window import Window
from tests.support.records import HOUR, engine, kinds, record


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were flushed, in order."""
    flushes: list[int] = []
    real = Partition.flush

    def flush(self: Partition) -> None:
        flushes.append(self.partition)
        real(self)

    monkeypatch.setattr(Partition, "flush", flush)
    return flushes


@pytest.mark.parametrize("window", [HOUR, Window(count=1000)])
def test_records_in_flight_are_no_reason_to_flush(flushed: list[int], window: Window) -> None:
    """However many are in flight, each flush is worth it: it takes as many completed marks as may be in memory."""
    deduplicator = engine(window, recent_marks=50)
    records = [record(offset) for offset in range(300)]
    deduplicator.admit(records)
    assert flushed == []
    for each in records[:200]:
        deduplicator.complete([each])
    assert 2 <= len(flushed) <= 4


def test_the_fullest_partition_is_flushed(flushed: list[int]) -> None:
    """What counts is what a flush takes away, not what is in flight."""
    deduplicator = engine(recent_marks=50)
    deduplicator.admit([record(offset, partition=1) for offset in range(100)])
    records = [record(offset, partition=0) for offset in range(60)]
    deduplicator.admit(records)
    deduplicator.complete(records)
    assert flushed == [0]
    assert kinds(deduplicator.admit([record(60, "#3", partition=0)])) == ["duplicate"]
