"""RocksStore when its process dies between any two of its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dedup_sdk._store.protocol import PartitionStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, digest, marks, progress, rows, write_snapshot
from tests.support.steps import finish, installing

WINDOW = Window(days=7)
DAY_MS = 86_400_000
DIED = 9

PRELUDE = """
import os, sys
from pathlib import Path
from dedup_sdk._store import filter_set, generations, rocks
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, marks, progress
from tests.support.steps import finish, installing

def die_after(owner, name):
    original = getattr(owner, name)
    def dying(*arguments, **options):
        original(*arguments, **options)
        os._exit(9)
    setattr(owner, name, dying)

def die_before(owner, name):
    setattr(owner, name, lambda *arguments, **options: os._exit(9))

folder = Path(sys.argv[1])
store = RocksStore(folder / "store", generation_marks=1).open(IDENTITY, Window(days=7))
loaded = store.load()
"""

GENERATIONS = "generations.RocksGenerations"
FLUSH_STEPS = {
    "file written": "die_after(generations.ExtentWriter, 'finish')",
    "words written": "die_after(filter_set.FilterSet, 'write')",
    "state widened": f"die_before({GENERATIONS}, 'ingest')",
    "file taken in": f"die_after({GENERATIONS}, 'ingest')",
    "valid": "die_after(rocks.RocksPartition, '_commit_state')",
}
INSTALL_STEPS = {
    "files copied": "die_after(rocks, '_read_words')",
    "family made": f"die_after({GENERATIONS}, 'create')",
    "files taken in": f"die_after({GENERATIONS}, 'ingest')",
    "words written": f"die_after({GENERATIONS}, 'write_words')",
    "valid": "die_after(rocks.RocksPartition, '_commit_state')",
    "family dropped": f"die_after({GENERATIONS}, 'clean')",
}


def run(folder: Path, body: str) -> int:
    """Run ``body`` on the store in a process of its own; return its exit status."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", f"{PRELUDE}\n{body}\n", str(folder)]
    return subprocess.run(command, cwd=root, check=False, timeout=60).returncode


def reopen(folder: Path) -> PartitionStore:
    """Open the store after the crash."""
    return RocksStore(folder / "store", generation_marks=1).open(IDENTITY, WINDOW)


def known(store: PartitionStore) -> dict[bytes, tuple[int, int]]:
    """Return the store's marks: flushed and recent marks, the highest offset of each ID."""
    loaded = store.load()
    assert loaded is not None
    found = rows(store.scan())
    for index, key in enumerate(digests(loaded.recent.digests)):
        mark = (int(loaded.recent.offsets[index]), int(loaded.recent.timestamps[index]))
        found[key] = max(mark, found.get(key, mark))
    for key, mark in rows(store.scan()).items():
        assert store.find(key, 1).offsets == [mark[0]]
    return found


def digests(joined: bytes) -> list[bytes]:
    """Cut joined digests."""
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


def test_a_step_outlives_the_process(tmp_path: Path) -> None:
    """Appended marks are there after the process died at once; nothing was closed."""
    body = """
for number in range(50):
    store.append(progress(number + 1), marks((f"id{number}", number, number)))
os._exit(9)"""
    assert run(tmp_path, body) == DIED
    loaded = reopen(tmp_path).load()
    assert loaded is not None
    assert loaded.progress.high == 50
    assert loaded.recent.offsets.tolist() == list(range(50))


@pytest.mark.parametrize("step", FLUSH_STEPS)
def test_a_crash_inside_a_flush_loses_no_mark(tmp_path: Path, step: str) -> None:
    """Whatever the last step of a flush was, all marks are known afterwards, and the next flush goes on."""
    prepare = """
store.flush(progress(1), marks(("first", 0, 0)))
store.append(progress(3), marks(("a", 1, 10), ("b", 2, 20)))
"""
    body = f"{prepare}\n{FLUSH_STEPS[step]}\nstore.flush(progress(3), marks(('a', 1, 10), ('b', 2, 20)))\nos._exit(0)"
    assert run(tmp_path, body) == DIED
    expected = {digest("first"): (0, 0), digest("a"): (1, 10), digest("b"): (2, 20)}
    store = reopen(tmp_path)
    loaded = store.load()
    assert loaded is not None
    assert loaded.progress.high == 3
    assert known(store) == expected
    store.flush(progress(5), marks(("a", 4, 40), ("b", 2, 20)))
    assert known(store) == {**expected, digest("a"): (4, 40)}
    store.close()
    assert known(reopen(tmp_path)) == {**expected, digest("a"): (4, 40)}


@pytest.mark.parametrize("step", INSTALL_STEPS)
def test_a_crash_inside_an_install_leaves_the_old_or_the_new(tmp_path: Path, step: str) -> None:
    """Whatever the last step of an install was, the store is wholly as before or wholly the snapshot."""
    write_snapshot(tmp_path / "snapshot", marks(("s", 500, 5000), ("t", 501, 5010)))
    body = f"""
store.flush(progress(1), marks(("old", 0, 0)))
store.append(progress(2), marks(("recent", 1, 10)))
{INSTALL_STEPS[step]}
finish(installing(store, folder / "snapshot", progress(1000)))
os._exit(0)"""
    assert run(tmp_path, body) == DIED
    store = reopen(tmp_path)
    before = {digest("old"): (0, 0), digest("recent"): (1, 10)}
    after = {digest("s"): (500, 5000), digest("t"): (501, 5010)}
    valid = step in ("valid", "family dropped")
    assert known(store) == (after if valid else before)
    loaded = store.load()
    assert loaded is not None
    assert loaded.progress.high == (1000 if valid else 2)
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert known(store) == after


@pytest.mark.parametrize(
    "step", [f"die_before({GENERATIONS}, 'activate_state')", f"die_after({GENERATIONS}, 'clean')"]
)
@pytest.mark.parametrize("call", [f"store.expire({DAY_MS})", "store.reset(progress(7))"])
def test_a_crash_inside_a_drop_leaves_nothing_behind(tmp_path: Path, step: str, call: str) -> None:
    """A crash while generations are dropped leaves neither their marks nor their files behind."""
    body = f"""
store.flush(progress(1), marks(("old", 0, 0)))
store.flush(progress(2), marks(("new", 1, {6 * DAY_MS})))
{step}
{call}
os._exit(0)"""
    assert run(tmp_path, body) == DIED
    store = reopen(tmp_path)
    left = known(store)
    expected = {digest("new"): (1, 6 * DAY_MS)} if "expire" in call else {}
    assert left == expected
    stats = store.stats()
    assert stats.details["generations"] == len(expected)
    folder = next((tmp_path / "store").glob("*/*/*/*"))
    assert len(list((folder / "filters").glob("*.filter"))) == len(expected)
    assert list((folder / "incoming").iterdir()) == []


def test_a_crash_at_the_very_first_opening_is_harmless(tmp_path: Path) -> None:
    """A process that dies while it makes the database leaves a folder that opens as a new store."""
    assert run(tmp_path, "os._exit(9)") == DIED
    store = reopen(tmp_path)
    assert store.load() is None
    store.append(progress(1), marks(("a", 0, 0)))


def test_files_of_an_interrupted_flush_are_removed(tmp_path: Path) -> None:
    """Entries of the folder for incoming files are removed when the store opens."""
    reopen(tmp_path).close()
    folder = next((tmp_path / "store").glob("*/*/*/*"))
    stray = folder / "incoming" / "g9.sst"
    stray.write_bytes(b"half a file")
    reopen(tmp_path).close()
    assert not stray.exists()
