from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from rocksdict import Options, Rdict

from dedup_sdk._store import generations, rocks
from dedup_sdk._store.filter_set import FilterSet
from dedup_sdk._store.generations import RocksGenerations
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError
from tests.support.marks import IDENTITY, marks, progress, random_marks

WINDOW = Window(days=7)


def written(root: Path) -> Path:
    """Write a store with a sorted file and a journal, and return its partition's folder."""
    store = RocksStore(root)
    partition = store.open(IDENTITY, WINDOW)
    partition.flush(progress(1_000), random_marks(1_000, 1))
    for step in range(3):
        partition.append(progress(1_001 + step), marks((f"id{step}", 1_000 + step, 0)))
    store.close()
    (entry,) = list_partitions(root)
    return entry.path


def edit(folder: Path, family: str, key: bytes, value: bytes) -> None:
    """Change a value behind the store's back."""
    options = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder))}
    database = Rdict(str(folder), Options(raw_mode=True), column_families=options)
    database.get_column_family(family).put(key, value)
    database.close()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("default", b"state", b"{}"),
        ("default", b"identity", b"{}"),
        (
            "default",
            b"state",
            (
                b'{"format": 2, "next": 9, "top_offset": 9, "generations": [{"number": 8, "marks": 1, '
                b'"oldest_ms": 0, "newest_ms": 0, "newest_number": 0, "began_ms": 0, "began_number": 0, '
                b'"filter_bytes": 0, "sealed": false}]}'
            ),
        ),
        ("journal", (1).to_bytes(8, "big"), b"DJ nonsense"),
    ],
)
def test_a_store_that_did_not_open_is_not_locked(
    tmp_path: Path, family: str, key: bytes, value: bytes
) -> None:
    """While the error of a damaged store is still looked at, the next opening finds the same damage and no lock."""
    edit(written(tmp_path), family, key, value)
    errors: list[StoreError] = []
    for _ in range(2):
        try:
            partition = RocksStore(tmp_path).open(IDENTITY, WINDOW)
            try:
                partition.load()
            finally:
                partition.close()
        except StoreError as error:
            errors.append(error)
    assert [type(error) for error in errors] == [StoreCorruptError, StoreCorruptError]


def test_a_store_whose_reading_failed_is_free_when_closed(tmp_path: Path) -> None:
    """A look-up that found damage leaves nothing behind that keeps the lock."""
    folder = written(tmp_path)
    path = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    for place in range(100, len(data) // 2, 500):
        data[place] ^= 0xFF
    path.write_bytes(data)
    partition = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    with pytest.raises(StoreCorruptError) as found:
        partition.find(random_marks(1_000, 1).digests, 1_000)
    with pytest.raises(StoreCorruptError) as scanned:
        list(partition.scan())
    partition.close()
    RocksStore(tmp_path).open(IDENTITY, WINDOW).close()
    assert found.value.__cause__ is not scanned.value.__cause__


def test_a_store_whose_look_up_was_interrupted_is_free_when_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while somebody keeps the exception that interrupted it."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    written(tmp_path)
    partition = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "find_in_pages", interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:
            partition.find(random_marks(1_000, 1).digests, 1_000)
    partition.close()
    RocksStore(tmp_path).open(IDENTITY, WINDOW).close()
    assert kept.value.__traceback__ is not None


def fail(*_: object) -> NoReturn:
    """Fail as RocksDB does."""
    raise Exception("IO error: it went wrong")  # noqa: TRY002 (RocksDB raises nothing better)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (rocks, "has_tables"),
        (generations, "wants_merges"),
        (FilterSet, "save"),
        (RocksGenerations, "close"),
    ],
)
def test_a_store_that_fails_to_close_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, step: str
) -> None:
    """Whatever goes wrong while it closes is told, and neither its lock nor its share of open files stays."""
    written(tmp_path)
    partition = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, fail)
        with pytest.raises(StoreError, match="it went wrong"):
            partition.close()
    again = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    assert again.load() is not None
    again.close()


def interrupt(*_: object, **__: object) -> NoReturn:
    """Strike as Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (rocks, "has_tables"),
        (FilterSet, "save"),
        (RocksGenerations, "close"),
        (rocks, "close_database"),
    ],
)
def test_an_interrupted_close_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, step: str
) -> None:
    """After an interruption inside `close` a second `close` gives the lock back, and nothing of the store is lost."""
    written(tmp_path)
    partition = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            partition.close()
    partition.close()
    again = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    loaded = again.load()
    assert loaded is not None
    assert loaded.progress == progress(1_003)
    again.close()


def test_a_lock_that_fails_is_no_other_owner(tmp_path: Path) -> None:
    """Where the system cannot lock the file at all, nobody is told to stop another consumer: there is none."""
    lock = written(tmp_path) / "LOCK"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StoreUnavailableError, match="check the folder, its permissions and its disk"):
        RocksStore(tmp_path).open(IDENTITY, WINDOW)
    lock.rmdir()
    RocksStore(tmp_path).open(IDENTITY, WINDOW).close()
