from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreCorruptError, StoreUnavailableError
from tests.support.marks import IDENTITY, marks, progress

if TYPE_CHECKING:
    from pathlib import Path


def test_a_store_that_does_not_open_again_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revival that fails half way says that the disk is full.

    So its owner opens it anew later, and it has everything.
    """
    key_store, window = RocksStore(tmp_path / "store"), Window(days=7)
    store = key_store.open(IDENTITY, window)
    assert isinstance(store, RocksPartition)
    store.append(progress(1), marks(("a", 0, 10)))

    def fails(*_: object) -> None:
        raise Exception("IO error: while open a file for appending: too many open files")  # noqa: TRY002 (as RocksDB's)

    with monkeypatch.context() as patched:
        patched.setattr("dedup_sdk._store.rocks.open_database", fails)
        with pytest.raises(StoreUnavailableError, match=r"could not be reopened .*too many open files"):
            store.reopen()
    assert store.closed

    loaded = key_store.open(IDENTITY, window).load()
    assert loaded is not None
    assert loaded.recent.offsets.tolist() == [0]
    key_store.close()


def test_a_store_that_was_removed_while_it_was_full_is_a_damaged_one(tmp_path: Path) -> None:
    """So its owner makes it again from the topic, instead of going on with one that knows nothing."""
    key_store = RocksStore(tmp_path / "store")
    store = key_store.open(IDENTITY, Window(days=7))
    store.append(progress(1), marks(("a", 0, 10)))
    # RocksDB deletes files, too: one may be gone before its turn.
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    with pytest.raises(StoreCorruptError, match="is damaged"):
        store.reopen()
    key_store.close()


def test_a_store_that_was_emptied_while_it_was_full_is_a_damaged_one(tmp_path: Path) -> None:
    """It would open as a new one, and the next step would claim marks that went with its files."""
    key_store, window = RocksStore(tmp_path / "store"), Window(days=7)
    store = key_store.open(IDENTITY, window)
    assert isinstance(store, RocksPartition)
    store.append(progress(1), marks(("a", 0, 10)))
    (entry,) = list_partitions(tmp_path / "store")
    for path in entry.path.iterdir():
        # RocksDB deletes files, too.
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with pytest.raises(StoreCorruptError, match="has lost its identity"):
        store.reopen()
    with pytest.raises(StoreCorruptError, match="has lost its identity"):
        key_store.open(IDENTITY, window)
    key_store.set_aside(IDENTITY)
    assert key_store.open(IDENTITY, window).load() is None
    key_store.close()
