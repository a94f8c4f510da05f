"""Closing a store while RocksDB has files of it, and of others, to merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from rocksdict import Env

from dedup_sdk._store import database
from dedup_sdk._store.database import GROWING_RUNS, MergeThreads
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, progress, random_marks

WINDOW = Window(days=8)
DAY_MS = 86_400_000
FILES = GROWING_RUNS
PATIENCE_S = 30.0


class Threads(MergeThreads):
    """None merges but while a store closes; notes how many there were."""

    def __init__(self) -> None:
        super().__init__(usual=0)
        self.limits: list[int] = []

    def _limit(self, threads: int) -> None:
        self.limits.append(threads)
        super()._limit(threads)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """The threads that merge, as the stores of a test have them."""
    made = Threads()
    monkeypatch.setattr(database, "MERGE_THREADS", made)
    yield made
    Env().set_low_priority_background_threads(1)


def opened(store: RocksStore, partition: int) -> RocksPartition:
    """Open a partition; from then on nothing merges."""
    held = store.open(dataclasses.replace(IDENTITY, partition=partition), WINDOW)
    # A database that opens sees to it that there is a thread.
    Env().set_low_priority_background_threads(0)
    return held


def leave_to_merge(held: RocksPartition) -> None:
    """Flush files of one day, as many as are to be merged."""
    for number in range(FILES):
        held.flush(progress(0), random_marks(100, number, offset=100 * number, step_ms=0))


def test_a_store_closes_while_its_merge_waits(tmp_path: Path, threads: Threads) -> None:
    """One whose merge waits for a thread closes at once all the same, and keeps all of its marks."""
    store = RocksStore(tmp_path, generation_marks=1)
    held = [opened(store, number) for number in (0, 1)]
    for each in held:
        leave_to_merge(each)
    closing = Thread(target=held[1].close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert threads.limits == [2, 0]
    again = opened(store, 1)
    assert sum(page.count for page in again.scan()) == 100 * FILES
    store.close()


def test_no_thread_is_started_where_nothing_is_to_be_merged(tmp_path: Path, threads: Threads) -> None:
    """Stores whose files are few close without another thread, whatever their number."""
    store = RocksStore(tmp_path, generation_marks=1)
    for number in range(3):
        opened(store, number).flush(progress(0), random_marks(100, number))
    store.close()
    assert threads.limits == []
