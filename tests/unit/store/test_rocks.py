from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from benchmarks.store_size import compact
from dedup_sdk._store.generations import RocksGenerations
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import StoredMark, read_partition
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk.errors import (
    ConfigurationError,
    ForeignStoreError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
)
from tests.support.marks import IDENTITY, digest, marks, progress, random_marks, rows
from tests.support.stored import only_folder, open_store
from tests.support.surviving import copy_at_one_moment


def test_another_process_is_told_of_the_lock(root: Path, store: RocksPartition) -> None:
    """A second store object on the same folder is refused while the first has the partition open."""
    store.append(progress(1), marks(("a", 0, 0)))
    with pytest.raises(StoreLockedError, match=str(root)):
        open_store(root)


def test_looking_in_needs_no_lock(root: Path, store: RocksPartition) -> None:
    """A reader sees flushed and recent marks of a store that is open elsewhere, each ID once.

    So it does with a closed one.
    """
    store.flush(progress(2), marks(("a", 0, 10), ("b", 1, 11)))
    store.append(progress(6), marks(("a", 5, 50), ("c", 4, 40)))
    expected = {digest("a"): (5, 50), digest("b"): (1, 11), digest("c"): (4, 40)}
    for _ in range(2):
        with read_partition(only_folder(root)) as held:
            assert held.identity == IDENTITY
            assert held.progress == progress(6)
            assert rows(held.scan_all()) == expected
            assert held.find_all(digest("a")) == [StoredMark(5, 50), StoredMark(0, 10)]
            assert held.find_all(digest("x")) == []
        store.close()
    store = open_store(root)
    loaded = store.load()
    store.close()
    assert loaded is not None
    assert loaded.recent.count == 2


def test_looking_into_nothing_is_an_error(tmp_path: Path) -> None:
    """A folder without a store is refused, and nothing is made in it; a missing store has no partitions."""
    with pytest.raises(StoreError, match="has no partition store"):
        read_partition(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert list_partitions(tmp_path / "missing") == []


def test_a_lost_head_is_no_empty_store(root: Path) -> None:
    """A database whose CURRENT file is gone is refused as damaged, not made anew, and stays as evidence."""
    store = open_store(root)
    store.flush(progress(1), marks(("a", 0, 0)))
    store.close()
    folder = only_folder(root)
    (folder / "CURRENT").unlink()
    before = sorted(path.name for path in folder.glob("*.sst"))
    with pytest.raises(StoreCorruptError, match="no CURRENT"):
        open_store(root)
    assert sorted(path.name for path in folder.glob("*.sst")) == before


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_spoilt_files_are_no_empty_store(root: Path, pattern: str) -> None:
    """A store with a cut or emptied file opens with an error of this package.

    That names the folder; the store never opens as a new one.
    """
    store = open_store(root)
    store.flush(progress(20_000), random_marks(20_000, 1))
    store.close()
    folder = only_folder(root)
    target = max(folder.glob(pattern), key=lambda path: path.stat().st_size)
    target.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
    with pytest.raises(StoreCorruptError, match=str(folder)):
        open_store(root)


def test_changed_marks_are_an_error_not_another_answer(root: Path) -> None:
    """Marks that were changed on disk are noticed when they are read."""
    store = open_store(root)
    held = random_marks(20_000, 1)
    store.flush(progress(20_000), held)
    store.close()
    path = max(only_folder(root).glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    for place in range(1_000, len(data) // 2, 1_000):
        data[place] ^= 0xFF
    path.write_bytes(data)
    again = open_store(root)
    with pytest.raises(StoreCorruptError, match=str(root)):
        again.find(held.digests, held.count)
    with pytest.raises(StoreCorruptError):
        list(again.scan())
    again.close()


def test_a_damaged_log_goes_back_to_an_earlier_step_or_fails(root: Path, tmp_path: Path) -> None:
    """However the write-ahead log was changed, the store is at one of its steps, whole, or opens with an error."""
    store = open_store(root)
    steps = [marks((f"id{number}", number, 10 * number)) for number in range(6)]
    for number, step in enumerate(steps):
        store.append(progress(number + 1), step)
    # Closing it could move the steps from the log to a file.
    killed = tmp_path / "killed"
    copy_at_one_moment(root, killed)
    store.close()
    log = max(only_folder(killed).glob("*.log"), key=lambda path: path.stat().st_size)
    size = log.stat().st_size
    assert size
    for place in range(0, size, max(1, size // 40)):
        copy = tmp_path / f"copy{place}"
        shutil.copytree(killed, copy)
        target = copy / log.relative_to(killed)
        data = bytearray(target.read_bytes())
        data[place] ^= 0x55
        target.write_bytes(data)
        try:
            again = open_store(copy)
        except StoreCorruptError:
            continue
        loaded = again.load()
        if loaded is not None:
            assert loaded.recent.offsets.tolist() == list(range(loaded.progress.high))
        again.close()


def test_a_hole_in_the_journal_is_an_error(root: Path) -> None:
    """A step missing between others is damage."""
    store = open_store(root)
    for number in range(3):
        store.append(progress(number + 1), marks((f"id{number}", number, 0)))
    store.close()
    edit(root, "journal", lambda family: family.delete((1).to_bytes(8, "big")))
    again = open_store(root)
    with pytest.raises(StoreCorruptError, match="journal step 1 is missing before step 2"):
        again.load()
    again.close()


def edit(root: Path, family: str, change: object) -> None:
    """Change a column family behind the store's back."""
    folder = str(only_folder(root))
    names = Rdict.list_cf(folder)
    database = Rdict(
        folder,
        Options(raw_mode=True),
        column_families={name: Options(raw_mode=True) for name in names},
        access_type=AccessType.read_write(),
    )
    assert callable(change)
    change(database.get_column_family(family))
    database.close()


def test_what_does_not_fit_together_in_a_new_way_is_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody thought of names the store, so that it is made again.

    The folder is not locked afterwards.
    """
    partition = open_store(root)
    partition.flush(progress(1), marks(("a", 0, 0)))
    partition.close()
    with monkeypatch.context() as patch:
        patch.setattr(RocksGenerations, "count_with_bloom", lambda self: [][len(self._families)])
        with pytest.raises(StoreCorruptError, match=r"is inconsistent \(IndexError"):
            open_store(root)
    reopened = open_store(root)
    assert reopened.find(digest("a"), 1).offsets == [0]
    reopened.close()


def test_a_generation_without_keys_opens_without_its_filter(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the note of a generation and its file: without its filter words it is empty, and no error."""
    partition = open_store(root)
    with monkeypatch.context() as patch:
        patch.setattr(RocksGenerations, "ingest", lambda *_: None)
        partition.flush(progress(1), marks(("a", 0, 0)))
    partition.close()
    shutil.rmtree(only_folder(root) / "filters")
    reopened = open_store(root)
    assert reopened.find(digest("a"), 1).offsets == []
    reopened.flush(progress(2), marks(("b", 1, 0)))
    reopened.close()
    again = open_store(root)
    assert again.find(digest("b"), 1).offsets == [1]
    again.close()


def test_a_newer_store_is_refused(root: Path) -> None:
    """A store whose format is newer is refused with both numbers."""
    open_store(root).close()
    newer = {"format": 6, "something": "else"}
    edit(root, "default", lambda family: family.put(b"identity", json.dumps(newer).encode()))
    with pytest.raises(ForeignStoreError, match="has format 6, this version reads 5"):
        open_store(root)
    with pytest.raises(ForeignStoreError, match="has format 6"):
        read_partition(only_folder(root))


@pytest.mark.parametrize("key", [b"identity", b"state"])
def test_a_store_that_lost_its_identity_is_refused(root: Path, key: bytes) -> None:
    """Without identity or state a store is damaged, not new."""
    store = open_store(root)
    store.append(progress(1), marks(("a", 0, 0)))
    store.close()
    edit(root, "default", lambda family: family.delete(key))
    with pytest.raises(StoreCorruptError, match="lost its identity or its state"):
        open_store(root)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"format": 2, "generations": 5, "next": 1, "top_offset": 0}', b"\xff"]
)
def test_an_unreadable_state_is_damage(root: Path, value: bytes) -> None:
    """A state that is not the documented object is refused."""
    open_store(root).close()
    edit(root, "default", lambda family: family.put(b"state", value))
    with pytest.raises(StoreCorruptError, match="cannot be read"):
        open_store(root)


def test_generations_follow_the_window(root: Path) -> None:
    """A generation ends after an eighth of the window once it is large enough.

    One timestamp from the future does not end it.
    """
    store = open_store(root, generation_marks=4)
    day_ms = 86_400_000
    far_ms = 10**14
    for day in range(6):
        future = (f"future{day}", 100 + day, far_ms if day == 1 else day * day_ms)
        store.flush(
            progress(day + 1),
            marks((f"a{day}", day, day * day_ms), (f"b{day}", 50 + day, day * day_ms), future),
        )
    assert store.stats().details["generations"] == 3
    store.close()


def test_a_compaction_keeps_marks_and_disk_small(root: Path) -> None:
    """After compaction a store takes at most 40 bytes an ID, all in."""
    store = open_store(root)
    for part in range(10):
        store.flush(progress(10**6), random_marks(20_000, part, offset=10**9 + 20_000 * part, step_ms=37))
    store.close()
    compact(only_folder(root))
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert size <= 40 * 200_000
    again = open_store(root)
    assert sum(page.count for page in again.scan()) == 200_000
    again.close()


@pytest.mark.parametrize(
    "settings", [{"block_cache_bytes": 0}, {"block_cache_bytes": 2**46}, {"generation_marks": -1}]
)
def test_wrong_settings_are_refused(root: Path, settings: dict[str, int]) -> None:
    """A setting that is not positive, or beyond any machine, is refused by name and value."""
    (name, value) = next(iter(settings.items()))
    with pytest.raises(ConfigurationError, match=f"{name}={value}|{name}={value:,}"):
        RocksStore(root, **settings)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A store whose folder is a file is refused in one line with its name."""
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="cannot be created") as caught:
        open_store(tmp_path / "store")
    assert "\n" not in str(caught.value)


def test_closing_leaves_what_is_in_the_log_there(root: Path) -> None:
    """A partition that changes hands writes no sorted file of its journal, and its next owner has all of it."""
    new = open_store(root)
    new.append(progress(high=1), marks(("a", 0, 0)))
    new.close()
    store = open_store(root)
    folder = only_folder(root)
    before = set(folder.glob("*.sst"))
    store.append(progress(high=3), marks(("a", 1, 1), ("b", 2, 2)))
    store.close()
    assert set(folder.glob("*.sst")) <= before

    again = open_store(root)
    loaded = again.load()
    again.close()
    assert loaded is not None
    assert loaded.progress.high == 3
    assert loaded.recent.count == 3


def test_a_new_store_is_more_than_a_log_once_it_was_closed(root: Path) -> None:
    """A log that is torn back to nothing then does not make it pass for a new one."""
    store = open_store(root)
    store.append(progress(high=3), marks(("a", 1, 1)))
    store.close()
    for log in only_folder(root).glob("*.log"):
        log.write_bytes(b"")
    with pytest.raises(StoreCorruptError):
        open_store(root)
