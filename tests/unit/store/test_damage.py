from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksPartition, RocksStore, list_quarantined
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreLockedError
from tests.support.damage import Damage, damage_file, flip_marks
from tests.support.marks import IDENTITY, digest, marks, progress, random_marks
from tests.support.surviving import copy_at_one_moment

WINDOW = Window(days=7)
FLUSHED = random_marks(1_000, 1)
STEPS = 10
CACHE_SIZES = itertools.count(2**20)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it.

    Begun, then 1,000 marks in a sorted file, then, opened again, ten steps in the log.
    """
    folder = tmp_path_factory.mktemp("damage")
    store = RocksStore(folder / "living")
    partition = store.open(IDENTITY, WINDOW)
    partition.reset(progress(0))
    partition.flush(progress(1_000), FLUSHED)
    partition.close()
    partition = store.open(IDENTITY, WINDOW)
    for number in range(STEPS):
        partition.append(progress(1_001 + number), marks((f"id{number}", 1_000 + number, 0)))
    # Closing it could move the ten steps from the log to a file.
    copy_at_one_moment(folder / "living", folder / "store")
    store.close()
    return folder / "store"


def copy_store(written: Path, root: Path) -> RocksStore:
    """A copy of its own.

    Blocks of the same file of another copy, which are cached for the process, are not its blocks.
    """
    shutil.copytree(written, root)
    return RocksStore(root, block_cache_bytes=next(CACHE_SIZES))


def files(root: Path, pattern: str) -> list[Path]:
    """The files of the only partition that are named so, relative to the store."""
    (entry,) = list_partitions(root)
    return sorted(path.relative_to(root) for path in entry.path.glob(pattern) if path.stat().st_size)


@pytest.mark.parametrize("kind", ["flip", "cut", "zero", "empty", "gone"])
@pytest.mark.parametrize(
    "pattern", ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "filters/g*", "filters/image", "OPTIONS-*"]
)
def test_damage_is_an_error_or_an_earlier_state_and_never_another_one(
    written: Path, tmp_path: Path, pattern: str, kind: Damage
) -> None:
    """Whatever happens to any file, the store says that it is damaged, or is whole at a state that it really had."""
    source = random.Random(f"{pattern} {kind}")
    names = files(written, pattern)
    for attempt in range(1 if kind in {"empty", "gone"} else 6):
        copy = tmp_path / str(attempt)
        store = copy_store(written, copy)
        damage_file(copy / names[attempt % len(names)], kind, source)
        try:
            partition = store.open(IDENTITY, WINDOW)
            loaded = partition.load()
            found = partition.find(FLUSHED.digests, FLUSHED.count).offsets
            scanned = sum(page.count for page in partition.scan())
        except StoreCorruptError:
            continue
        finally:
            store.close()
        assert loaded is not None
        high, recent = loaded.progress.high, loaded.recent.count
        assert (high, recent) in {(0, 0), *((1_000 + steps, steps) for steps in range(STEPS + 1))}
        assert high == 0 or found == FLUSHED.offsets.tolist()
        assert high == 0 or scanned == FLUSHED.count


def test_a_log_that_rocksdb_would_read_for_ever_is_damage(written: Path, tmp_path: Path) -> None:
    """A bit that makes a record one of a reused log is told at once; RocksDB itself never came to an end of it."""
    root = tmp_path / "store"
    store = copy_store(written, root)
    (name,) = files(root, "*.log")
    data = bytearray((root / name).read_bytes())
    second = 7 + int.from_bytes(data[4:6], "little")
    data[second + 6] ^= 4
    (root / name).write_bytes(data)
    with pytest.raises(StoreCorruptError, match=f"has a record of kind 5 at byte {second}"):
        store.open(IDENTITY, WINDOW)


def test_what_was_found_damaged_is_not_opened_again(written: Path, tmp_path: Path) -> None:
    """A damage that was found while reading is told again at the next opening, until the store is set aside.

    Then it is new.
    """
    root = tmp_path / "store"
    store = copy_store(written, root)
    flip_marks(root)
    partition = find_damage(store)
    with pytest.raises(StoreLockedError):
        store.set_aside(IDENTITY)
    partition.close()
    with pytest.raises(StoreCorruptError, match=str(root)):
        store.open(IDENTITY, WINDOW)
    kept = Path(store.set_aside(IDENTITY))
    assert kept.name == "3.damaged-1"
    assert list(kept.glob("*.sst"))
    assert store.open(IDENTITY, WINDOW).load() is None
    assert [entry.partition for entry in list_partitions(root)] == [3]
    store.close()


def find_damage(store: RocksStore) -> RocksPartition:
    """Open the store and read its damaged part."""
    partition = store.open(IDENTITY, WINDOW)
    with pytest.raises(StoreCorruptError):
        partition.find(FLUSHED.digests, FLUSHED.count)
    return partition


def test_a_folder_that_was_moved_away_by_hand_is_no_longer_damaged(written: Path, tmp_path: Path) -> None:
    """Whoever follows the error, while the consumer runs, gets a new store."""
    root = tmp_path / "store"
    store = copy_store(written, root)
    flip_marks(root)
    find_damage(store).close()
    (entry,) = list_partitions(root)
    entry.path.rename(tmp_path / "evidence")
    assert store.open(IDENTITY, WINDOW).load() is None
    store.close()


def test_the_newest_three_are_kept(tmp_path: Path) -> None:
    """Evidence does not fill the disk: of each partition three damaged stores stay, the newest.

    Other partitions have theirs.
    """
    store = RocksStore(tmp_path)
    other = dataclasses.replace(IDENTITY, partition=33)
    for identity in (IDENTITY, other):
        store.open(identity, WINDOW).close()
    store.set_aside(other)
    for number in range(1, 13):
        partition = store.open(IDENTITY, WINDOW)
        partition.append(progress(number), marks(("a", 0, 0)))
        partition.close()
        assert store.set_aside(IDENTITY).endswith(f"3.damaged-{number}")
    folder = next(iter(tmp_path.glob("*/*/*"))) / "3"
    assert [path.name for path in list_quarantined(folder)] == [
        f"3.damaged-{number}" for number in (10, 11, 12)
    ]
    assert [path.name for path in list_quarantined(folder.with_name("33"))] == ["33.damaged-1"]


def test_a_store_that_somebody_else_has_open_is_not_moved(tmp_path: Path) -> None:
    """A store that looks damaged may be one that its owner is just writing: it stays where it is."""
    owner = RocksStore(tmp_path).open(IDENTITY, WINDOW)
    owner.append(progress(1), marks(("a", 0, 0)))
    with pytest.raises(StoreLockedError):
        RocksStore(tmp_path).set_aside(IDENTITY)
    owner.append(progress(2), marks(("b", 1, 0)))
    owner.close()
    assert owner.closed
    loaded = RocksStore(tmp_path).open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.recent.digests == digest("a") + digest("b")


def test_a_store_that_cannot_be_moved_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder cannot be renamed the error names both names and the remedy."""
    store = RocksStore(tmp_path)
    store.open(IDENTITY, WINDOW).close()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreError, match=r"cannot be renamed to 3\.damaged-1 \(Permission denied\); move it"):
        store.set_aside(IDENTITY)


@pytest.mark.parametrize("call", ["find", "scan", "flush"])
def test_every_way_to_find_damage_is_remembered(tmp_path: Path, call: str) -> None:
    """Whatever was being done when the damage showed, the next opening tells of it."""
    store = RocksStore(tmp_path)
    partition = store.open(IDENTITY, WINDOW)
    partition.flush(progress(1_000), FLUSHED)
    partition.append(progress(1_001), marks(("a", 1_000, 0)))
    store.close()
    flip_marks(tmp_path)
    partition = store.open(IDENTITY, WINDOW)
    calls: dict[str, Callable[[], object]] = {
        "find": lambda: partition.find(FLUSHED.digests, FLUSHED.count),
        "scan": lambda: list(partition.scan()),
        "flush": lambda: partition.flush(progress(1_000), FLUSHED),
    }
    with pytest.raises(StoreCorruptError):
        calls[call]()
    partition.close()
    with pytest.raises(StoreCorruptError):
        store.open(IDENTITY, WINDOW)
