from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError
from tests.support.finding import find
from tests.support.marks import IDENTITY, marks, progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW = Window(days=7)


def fails(*_: object) -> None:
    """Behave like RocksDB without files to open."""
    raise Exception("IO error: while open a file for appending: too many open files")  # noqa: TRY002 (as RocksDB's)


@pytest.fixture
def key_store(tmp_path: Path) -> Iterator[RocksStore]:
    """A store that is closed at the end."""
    made = RocksStore(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def waiting(key_store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> RocksPartition:
    """A store with a flushed mark and a recent one, which could not be opened again."""
    store = key_store.open(IDENTITY, WINDOW)
    store.flush(progress(1), marks(("a", 0, 10)))
    store.append(progress(2), marks(("b", 1, 20)))
    with monkeypatch.context() as patched:
        patched.setattr("dedup_sdk._store.rocks.open_database", fails)
        assert not store.reopen()
        assert not store.reopen()
    return store


def test_a_store_that_does_not_open_again_is_tried_again(
    waiting: RocksPartition, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with all it had; until then it is not available, which is told once."""
    assert not waiting.closed
    for call in (lambda: find(waiting, "a"), lambda: waiting.append(progress(3), marks(("c", 2, 30)))):
        with pytest.raises(StoreUnavailableError, match="waits to be opened again"):
            call()
    assert waiting.reopen()
    assert find(waiting, "a") == {"a": (0, 10)}
    waiting.append(progress(3), marks(("c", 2, 30)))
    loaded = waiting.load()
    assert loaded is not None
    assert loaded.recent.offsets.tolist() == [1, 2]
    assert sum("too many open files" in each.getMessage() for each in caplog.get_records("setup")) == 1


def test_a_store_that_waits_can_be_closed(waiting: RocksPartition, key_store: RocksStore) -> None:
    """Then it is closed as any other, and whoever opens it finds all it had."""
    waiting.close()
    assert waiting.closed
    with pytest.raises(StoreError, match="is closed"):
        waiting.reopen()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.recent.offsets.tolist() == [1]


@pytest.mark.parametrize("still_open", [True, False])
def test_a_store_that_waited_too_long_is_not_written(
    waiting: RocksPartition, tmp_path: Path, *, still_open: bool
) -> None:
    """Another owner has opened it, and may have written what the one that waited does not know."""
    another = RocksStore(tmp_path / "store")
    taken = another.open(IDENTITY, WINDOW)
    taken.load()
    taken.append(progress(3), marks(("c", 2, 30)))
    if not still_open:
        another.close()
    with pytest.raises(StoreUnavailableError, match=r"open in another consumer|written meanwhile"):
        waiting.reopen()
    assert waiting.closed
    another.close()


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
