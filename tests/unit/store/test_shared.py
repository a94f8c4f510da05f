"""The parts that all stores of a process share: cache, write buffers, and the files that they may open."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from dedup_sdk._store import rocks
from dedup_sdk._store.database import BLOCK_BYTES, MAX_OPEN_FILES, MIN_OPEN_FILES, OpenFiles, shared_memory
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, progress, random_marks

WINDOW = Window(days=7)
OTHERS = 7
"""Files of an open database that RocksDB does not count: its log, its manifest, its lock and the like."""


def open_below(root: Path) -> list[str]:
    """The files below a folder that this process has open, by the system's account."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115 - a file removed meanwhile has no path
        except FileNotFoundError:
            continue
        if target.startswith(f"{root}/"):
            found.append(target)
    return found


def test_the_files_of_a_process_are_shared_out() -> None:
    """The first databases get many, later ones fewer, all of them enough; those given back can be had again."""
    files = OpenFiles(2_000)
    shares = [files.take() for _ in range(200)]
    assert shares[0] == MAX_OPEN_FILES
    assert shares == sorted(shares, reverse=True)
    assert min(shares) == MIN_OPEN_FILES
    assert sum(shares) <= 2_000 + 200 * MIN_OPEN_FILES
    for share in shares:
        files.give_back(share)
    assert files.take() == MAX_OPEN_FILES


@pytest.mark.slow
def test_two_hundred_partitions_stay_under_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds its share of sorted files open and a handful of others, however many it has; closed ones hold none."""
    files = OpenFiles(MIN_OPEN_FILES)
    monkeypatch.setattr(rocks, "OPEN_FILES", files)
    store = RocksStore(tmp_path, generation_marks=1, block_cache_bytes=1)
    crowded = store.open(dataclasses.replace(IDENTITY, partition=1_000), Window(days=1))
    days = 40
    for day in range(days):
        # Each flush is of another day, so that it makes a generation with a file of its own.
        one = random_marks(1, day)
        one = dataclasses.replace(one, timestamps=one.timestamps * 0 + 86_400_000 * day)
        crowded.flush(progress(day + 1), one)
    assert len(open_below(tmp_path)) <= MIN_OPEN_FILES + OTHERS + days
    crowded.close()
    crowded = store.open(dataclasses.replace(IDENTITY, partition=1_000), Window(days=1))
    for _ in range(2):
        assert sum(page.count for page in crowded.scan()) == days
    assert crowded.stats().files >= days
    assert len(open_below(tmp_path)) <= MIN_OPEN_FILES + OTHERS

    many = [store.open(dataclasses.replace(IDENTITY, partition=number), WINDOW) for number in range(200)]
    for number, partition in enumerate(many):
        partition.flush(progress(1), random_marks(10, number))
    assert len(open_below(tmp_path)) <= 201 * (MIN_OPEN_FILES + OTHERS)
    for partition in many:
        partition.close()
    assert len(open_below(tmp_path)) <= MIN_OPEN_FILES + OTHERS
    store.close()
    assert open_below(tmp_path) == []


def test_stores_of_one_process_share_their_memory(tmp_path: Path) -> None:
    """Two stores with the same cache fill one, never beyond its size; the write buffers are one whatever the cache."""
    size = 64 * BLOCK_BYTES
    memory = shared_memory(size)
    assert shared_memory(size) is memory
    assert shared_memory(2 * size).buffers is memory.buffers
    stores = [RocksStore(tmp_path / name, block_cache_bytes=size) for name in ("one", "two")]
    marks = random_marks(20_000, 1)
    used = []
    for store in stores:
        partition = store.open(IDENTITY, WINDOW)
        partition.flush(progress(20_000), marks)
        before = memory.pages.nbytes
        partition.find(marks.digests[: 16 * 50], 50)
        used.append(memory.pages.nbytes - before)
        partition.find(marks.digests, 20_000)
        assert memory.pages.nbytes <= size
    assert used[0] > 0, "what the first store reads is in the cache of both"
    for store in stores:
        store.close()
