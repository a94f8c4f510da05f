"""Whether a step reaches the disk, or the operating system only: by RocksDB's own count of flushes of its log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.database import database_options
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, marks, progress, random_marks

if TYPE_CHECKING:
    from pathlib import Path

    from rocksdict import Options

    from dedup_sdk._store.database import SharedMemory

STEPS = 5


class Counted:
    """The options of the databases that are opened, with statistics."""

    def __init__(self) -> None:
        self._seen: list[Options] = []

    def __call__(self, memory: SharedMemory | None, open_files: int = 24) -> Options:
        """Make them."""
        options = database_options(memory, open_files)
        options.enable_statistics()
        self._seen.append(options)
        return options

    @property
    def syncs(self) -> int:
        """How often a log was flushed to the disk."""
        texts = [options.get_statistics() or "" for options in self._seen]
        return sum(int(found) for text in texts for found in re.findall(r"wal\.synced COUNT : (\d+)", text))


@pytest.mark.parametrize("fsync", [True, False])
def test_every_step_is_flushed_to_the_disk_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fsync: bool
) -> None:
    """With fsync each write of marks, of flushed state and of an erased mark syncs the log before it returns.

    Without, none does.
    """
    counted = Counted()
    monkeypatch.setattr("dedup_sdk._store.database.database_options", counted)
    partition = RocksStore(tmp_path, fsync=fsync).open(IDENTITY, Window(days=7))
    before = counted.syncs
    for step in range(STEPS):
        partition.append(progress(step + 1), marks((f"id{step}", step, 0)))
        assert counted.syncs - before >= (step + 1 if fsync else 0)
    if not fsync:
        assert counted.syncs == before
    partition.flush(progress(1_000), random_marks(1_000, 1))
    flushed = counted.syncs
    partition.append(progress(1_001), marks(("a", 1_000, 0)))
    partition.flush(progress(1_001), marks(("a", 1_000, 0)))
    if fsync:
        assert flushed > before + STEPS
    partition.close()
