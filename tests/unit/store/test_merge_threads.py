"""Closing a store while RocksDB merges files of it, and of others."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dedup_sdk.store import database
from dedup_sdk.store.merge_threads import MergeThreads
from dedup_sdk.store.options import GROWN_RUNS
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.rocks_partition import RocksPartition
from dedup_sdk.window import Window
from tests.support.marks import IDENTITY, progress, random_marks

WINDOW = Window(days=8)
DAY_MS = 86_400_000
PATIENCE_S = 30.0
BEGUN, ENDED = '"compaction_started"', '"compaction_finished"'


class Threads(MergeThreads):
    """Notes how many threads there were."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    def _limit(self, threads: int) -> None:
        self.limits.append(threads)
        super()._limit(threads)


FILES = GROWN_RUNS + 1


def opened(store: RocksStore, partition: int) -> RocksPartition:
    """Open a partition."""
    return store.open(dataclasses.replace(IDENTITY, partition=partition), WINDOW)


def to_be_merged(store: RocksStore, partition: int, marks_per_file: int) -> RocksPartition:
    """Open a partition and flush files of one day, which are merged from the first file of a later day on."""
    held = opened(store, partition)
    for number in range(FILES):
        marks = random_marks(marks_per_file, number, offset=number * marks_per_file, step_ms=0)
        held.flush(progress(0), marks)
    one = random_marks(1, FILES, offset=FILES * marks_per_file)
    held.flush(progress(0), dataclasses.replace(one, timestamps=one.timestamps * 0 + 2 * DAY_MS))
    return held


def logged(root: Path, partition: int) -> str:
    """Return what RocksDB has noted of a partition since it was opened."""
    (folder,) = (entry.path for entry in list_partitions(root) if entry.partition == partition)
    return (folder / "LOG").read_text()


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    until = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_store_closes_before_the_merges_of_others_end(tmp_path: Path) -> None:
    """One whose own merge waits for that of another store does not wait to be closed, and keeps all of its marks."""
    store = RocksStore(tmp_path, generation_marks=1)
    busy = to_be_merged(store, 0, 400_000)
    wait_for(lambda: BEGUN in logged(tmp_path, 0))
    waiting = to_be_merged(store, 1, 100)
    assert BEGUN not in logged(tmp_path, 1)
    waiting.close()
    assert ENDED not in logged(tmp_path, 0)
    busy.close()
    assert sum(page.count for page in opened(store, 1).scan()) == 100 * FILES + 1
    store.close()


def test_merges_have_more_threads_only_while_a_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One a store that is open while one with files to merge closes, else one; none is started where nothing is to be merged."""
    threads = Threads()
    monkeypatch.setattr(database, "MERGE_THREADS", threads)
    store = RocksStore(tmp_path, generation_marks=1)
    quiet = [opened(store, number) for number in (2, 3)]
    busy = to_be_merged(store, 0, 100_000)
    waiting = to_be_merged(store, 1, 100)
    for held in quiet:
        held.close()
    assert threads.limits == []
    waiting.close()
    assert threads.limits == [2, 1]
    busy.close()
    store.close()
