"""Generations that take nothing in any more become one extent each, little by little."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from rocksdict import Rdict

from dedup_sdk._marks import join_marks
from dedup_sdk._store.filter_set import Filter
from dedup_sdk._store.generations import Generation, RocksGenerations
from dedup_sdk._store.read_only import read_partition
from dedup_sdk.errors import StoreCorruptError
from tests.support.damage import flip_marks
from tests.support.marks import digest, marks, progress, random_marks, rows, write_snapshot
from tests.support.steps import installing
from tests.support.stored import only_folder, open_store
from tests.support.surviving import copy_at_one_moment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dedup_sdk._marks import Marks
    from dedup_sdk._store.rocks import RocksPartition

DAY_MS = 86_400_000
EACH = 500


def of_day(day: int, seed: int, offset: int) -> Marks:
    """Marks of one day: half of their IDs come again in every flush of that day."""
    again, new = random_marks(EACH // 2, 1_000 + day).digests, random_marks(EACH // 2, seed).digests
    held = random_marks(EACH, seed, offset=offset)
    return dataclasses.replace(held, digests=again + new, timestamps=held.timestamps * 0 + DAY_MS * day)


def grown(
    root: Path, *, days: int = 3, flushes: int = 8
) -> tuple[RocksPartition, dict[bytes, tuple[int, int]]]:
    """A store with a generation a day, each of several flushes, and the marks it has to know."""
    store = open_store(root, generation_marks=flushes * EACH)
    expected: dict[bytes, tuple[int, int]] = {}
    for number in range(days * flushes):
        held = of_day(number // flushes, number, EACH * number)
        store.flush(progress(EACH * (number + 1)), held)
        expected |= rows([held])
    return store, expected


def knows(store: RocksPartition, expected: dict[bytes, tuple[int, int]]) -> bool:
    """Whether a scan, and a look-up of each ID, give exactly this."""
    found = store.find(b"".join(expected), len(expected))
    offsets = [offset for offset, _ in expected.values()]
    return rows(store.scan()) == expected and found.offsets == offsets and len(found.indexes) == len(expected)


def test_what_is_over_becomes_one_extent_with_each_id_once(root: Path) -> None:
    """Nothing is missed on the way, and IDs that came again count once afterwards.

    The disk has no more than the marks.
    """
    store, expected = grown(root)
    assert store.stats().details["generations"] == 3
    assert store.stats().marks == len(expected) + 7 * EACH // 2
    assert knows(store, expected)
    assert len(list((only_folder(root) / "filters").glob("*.filter"))) == 3
    store.close()
    with read_partition(only_folder(root)) as held:
        assert rows(held.scan_all()) == expected
    again = open_store(root)
    assert knows(again, expected)
    again.close()


def test_a_fold_goes_on_little_by_little_and_begins_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush folds twice as many marks as it takes in.

    A close on the way leaves nothing, and misses nothing.
    """
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 100)
    store, expected = grown(root, days=1)
    store.flush(progress(10**6), marks(("late", 10**5, 2 * DAY_MS)))
    expected[digest("late")] = 10**5, 2 * DAY_MS
    folder = only_folder(root)
    assert (folder / "incoming" / "fold.sst").exists()
    assert knows(store, expected)
    store.close()
    store = open_store(root, generation_marks=10**6)
    assert list((folder / "incoming").iterdir()) == []
    before = store.stats().marks
    for number in range(45):
        store.flush(progress(10**6), marks((f"id{number}", 10**5 + 1 + number, 2 * DAY_MS)))
        expected[digest(f"id{number}")] = 10**5 + 1 + number, 2 * DAY_MS
        assert knows(store, expected)
    assert store.stats().marks == before + 45 - 7 * EACH // 2
    store.close()


def test_what_is_dropped_while_it_is_folded_stays_dropped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an expiry nor a reset in the middle of a fold brings anything back."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 100)
    store, _ = grown(root, days=1)
    store.flush(progress(10**6), marks(("late", 10**5, 2 * DAY_MS)))
    assert store.expire(DAY_MS) == 0
    assert rows(store.scan()) == {digest("late"): (10**5, 2 * DAY_MS)}
    store.flush(progress(10**6), marks(("later", 10**5 + 1, 2 * DAY_MS)))
    assert store.stats().marks == 2
    store.reset(progress(0))
    assert rows(store.scan()) == {}
    store.close()


def test_damage_that_a_fold_meets_is_damage_of_the_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that does not check is told by the flush that reads it, and never folded into something else."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 100)
    store, _ = grown(root, days=1)
    store.close()
    flip_marks(root)
    store = open_store(root, generation_marks=1, block_cache_bytes=2**20 + 17)
    with pytest.raises(StoreCorruptError):
        store.flush(progress(10**6), marks(("late", 10**5, 2 * DAY_MS)))
    store.close()


def test_an_id_that_comes_again_is_found_at_its_last_flush(root: Path) -> None:
    """Also where extents of one generation lie apart in memory, because another one was folded between them."""
    store = open_store(root, generation_marks=8 * EACH)
    for number in range(24):
        store.flush(progress(EACH * (number + 1)), of_day(number // 8, number, EACH * number))
        again = random_marks(EACH // 2, 1_000 + number // 8)
        newest = list(range(EACH * number, EACH * number + EACH // 2))
        assert store.find(again.digests, again.count).offsets == newest
    store.close()


def test_many_small_flushes_leave_few_extents(root: Path) -> None:
    """A generation that would take more than 64 is folded, however little it has."""
    store = open_store(root)
    for number in range(150):
        store.flush(progress(number + 1), marks((f"id{number}", number, 0)))
    assert store.stats().details["generations"] == 3
    assert store.stats().files <= 40
    assert len(rows(store.scan())) == 150
    store.close()


def test_each_step_of_a_flush_leaves_a_whole_store(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies between two steps, of the flush or of a fold in it, loses nothing that was flushed before."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 1_000)
    monkeypatch.setattr("dedup_sdk._store.generations.ADDED_AT_ONCE", 200)
    store, expected = grown(root, days=2)
    copies = 0
    for number in range(8):
        before = expected.copy()
        held = of_day(9 + number // 4, 100 + number, 10**5 + EACH * number)
        expected |= rows([held])
        for _ in store.flush_steps(progress(10**6), held):
            found = store.find(b"".join(expected), len(expected))
            assert found.offsets == [offset for offset, _ in expected.values()]
            copies += 1
            copy_at_one_moment(root, tmp_path / f"copy{copies}")
            left = open_store(tmp_path / f"copy{copies}", generation_marks=8 * EACH)
            assert rows(left.scan()).keys() >= before.keys()
            assert len(left.find(b"".join(before), len(before)).indexes) == len(before)
            left.flush(progress(10**6), held)
            assert knows(left, expected)
            left.close()
        assert knows(store, expected)
    assert copies > 8 * EACH / 200
    assert list((only_folder(root) / "incoming").glob("fold*")) == []
    store.close()


def test_a_close_in_the_middle_keeps_the_filters(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever step a flush, or a fold in it, has come to: the next open has an image of the filters."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 1_000)
    monkeypatch.setattr("dedup_sdk._store.generations.ADDED_AT_ONCE", 200)
    caplog.set_level("INFO", logger="dedup_sdk")
    store, expected = grown(root, days=2)
    for number in range(24):
        held = of_day(9, 100 + number, 10**5 + EACH * number)
        steps = store.flush_steps(progress(10**6), held)
        for _ in range(number):
            next(steps, None)
        store.close()
        store = open_store(root, generation_marks=8 * EACH)
        found = store.find(b"".join(expected), len(expected))
        assert len(found.indexes) == len(expected)
        store.flush(progress(10**6), held)
        expected |= rows([held])
        store.close()
        store = open_store(root, generation_marks=8 * EACH)
    assert "filter" not in caplog.text
    store.close()


def test_an_outdated_image_is_not_taken_for_the_store(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It lies beside other marks of the same number and size, as in a copy of a folder that nobody cleared."""
    caplog.set_level("INFO", logger="dedup_sdk")
    for seed in (1, 2):
        shutil.rmtree(root, ignore_errors=True)
        store = open_store(root)
        store.flush(progress(1 + seed), random_marks(1, seed, offset=seed))
        store.close()
        shutil.copy(only_folder(root) / "filters" / "image", tmp_path / f"image{seed}")
    assert "image" not in caplog.text
    shutil.copy(tmp_path / "image1", only_folder(root) / "filters" / "image")
    store = open_store(root)
    assert "belongs to other marks" in caplog.text
    assert store.find(random_marks(1, 2).digests, 1).offsets == [2]
    store.close()


def test_filters_that_lack_a_generation_leave_no_image(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load of an installed snapshot's words is interrupted: the next open makes the filters anew."""
    held = random_marks(EACH, 1)
    write_snapshot(root / "snapshot", held)
    store = open_store(root)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Filter, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in installing(store, root / "snapshot", progress(1_000)):
                pass
    store.close()
    store = open_store(root)
    assert len(store.find(held.digests, EACH).indexes) == EACH
    store.close()


def test_a_generation_that_begins_during_a_fold_is_another_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold has its number from the start, however many flushes it takes."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 500)
    store, expected = grown(root, days=1, flushes=24)
    store.close()
    store = open_store(root, generation_marks=1)
    for number in range(30):
        held = random_marks(100, 5_000 + number, offset=10**5 + 100 * number)
        held = dataclasses.replace(held, timestamps=held.timestamps * 0 + DAY_MS * (2 + number))
        store.flush(progress(10**6), held)
        expected |= rows([held])
        assert knows(store, expected)
    store.close()
    store = open_store(root, generation_marks=1)
    assert knows(store, expected)
    store.close()


def cut_after_ingest(patch: pytest.MonkeyPatch, root: Path, target: Path) -> None:
    """Copy a store as a power cut leaves it right after a file was ingested: the log lacks what came since now.

    RocksDB flushes its list of files at once, and its log when the system likes.
    """
    ingest = RocksGenerations.ingest
    logged = {path.name: path.stat().st_size for path in only_folder(root).glob("*.log")}

    def cut(self: RocksGenerations, generation: Generation, paths: Sequence[Path]) -> None:
        ingest(self, generation, paths)
        if not target.exists():
            shutil.copytree(root, target)
            for path in only_folder(target).glob("*.log"):
                with path.open("r+b") as file:
                    file.truncate(logged[path.name])

    patch.setattr(RocksGenerations, "ingest", cut)


def test_a_file_of_which_a_power_cut_left_no_state_is_gone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next flush gives its extent the same number, and a scan and a fold read the pages of both as one."""
    monkeypatch.setattr("dedup_sdk._store.database.PART_MARKS", 100)
    store = open_store(root, generation_marks=4 * EACH)
    held = [random_marks(EACH, number, offset=EACH * number) for number in range(6)]
    store.flush(progress(EACH), held[0])
    # Opened again, the store has one log, which nothing in the background replaces.
    store.close()
    store = open_store(root, generation_marks=4 * EACH)
    store.append(progress(2 * EACH), held[1])
    cut_after_ingest(monkeypatch, root, tmp_path / "cut")
    store.flush(progress(2 * EACH), held[1])
    store.close()

    store = open_store(tmp_path / "cut", generation_marks=4 * EACH)
    loaded = store.load()
    assert loaded is not None
    assert rows([loaded.recent]) == rows([held[1]])
    store.append(progress(3 * EACH), held[2])
    store.flush(progress(3 * EACH), join_marks([loaded.recent, held[2]]))
    assert knows(store, rows(held[:3]))
    for number in range(3, 6):
        day = dataclasses.replace(held[number], timestamps=held[number].timestamps * 0 + DAY_MS * number)
        held[number] = day
        store.flush(progress(EACH * (number + 1)), day)
    assert knows(store, rows(held))
    assert store.stats().marks == len(rows(held))
    store.close()


def test_a_generation_that_comes_while_a_store_is_opened_to_be_read_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The families are listed before the state is read: a flush in between may begin a generation."""
    store = open_store(root, generation_marks=1)
    held = [of_day(10 * number, number, EACH * number) for number in range(2)]
    store.flush(progress(EACH), held[0])
    left = held[1:]

    class Listing:
        """RocksDB, whose other user flushes just after its families were listed."""

        def __call__(self, *given: Any, **more: Any) -> Rdict:
            return Rdict(*given, **more)

        def list_cf(self, path: str) -> list[str]:
            names = Rdict.list_cf(path)
            while left:
                store.flush(progress(2 * EACH), left.pop())
            return names

    monkeypatch.setattr("dedup_sdk._store.database.Rdict", Listing())
    with read_partition(only_folder(root)) as opened:
        # It may also be the moment before: RocksDB writes that flush to its files in the background.
        assert opened.progress is not None
        assert rows(opened.scan_all()) == rows(held[: opened.progress.high // EACH])
    store.close()
