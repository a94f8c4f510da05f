"""Where a store lies, and who can read it."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

from dedup_sdk._store.paths import escape, list_partitions, unescape
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreError
from tests.support.marks import IDENTITY, marks, progress


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../../x", "%", "%2E", "a\0b", "ü" * 40, "a" * 249, "\n", "CON", "~", "-rf"],
)
def test_names_cannot_leave_their_folder(name: str) -> None:
    """Every name becomes one plain file name of at most 255 bytes, from which it can be read back."""
    escaped = escape(name)
    assert Path("root", escaped).name == escaped
    assert escaped not in ("", ".", "..")
    assert "/" not in escaped
    assert len(escaped.encode()) <= 255
    assert unescape(escaped) == name


def test_long_names_stay_different() -> None:
    """Names too long for a file system are cut, and still differ."""
    one, two = escape("ü" * 300 + "1"), escape("ü" * 300 + "2")
    assert one != two
    assert len(one) <= 255


def test_hostile_names_stay_inside_the_store(root: Path) -> None:
    """Clusters, groups and topics with path parts in their names lie inside the store.

    They are listed under their own names.
    """
    names = ["..", "", "a/../../b", "x" * 600]
    store = RocksStore(root)
    for name in names:
        identity = dataclasses.replace(IDENTITY, cluster=name, group=name, topic=name)
        partition = store.open(identity, Window(days=7))
        partition.append(progress(1), marks(("a", 0, 0)))
        partition.close()
    listed = list_partitions(root)
    assert len(listed) == 4
    for entry in listed:
        assert root.resolve() in entry.path.resolve().parents
        with read_partition(entry.path) as held:
            assert held.identity.topic in names
            assert held.identity.topic == entry.topic or len(held.identity.topic) > 255
    assert sorted(path.name for path in root.parent.iterdir()) == ["store"]


def test_folders_are_private(root: Path, store: RocksPartition) -> None:
    """Every folder of a store can be entered by its owner only."""
    store.flush(progress(1), marks(("a", 0, 0)))
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_are_private(root: Path, store: RocksPartition) -> None:
    """No file of a store can be read by others, whatever the process's umask says."""
    store.append(progress(1), marks(("a", 0, 0)))
    store.flush(progress(2), marks(("a", 0, 0), ("b", 1, 0)))
    store.close()
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_a_pipe_is_no_store(root: Path, store: RocksPartition) -> None:
    """Looking in does not wait for bytes that nobody writes."""
    store.close()
    folder = list_partitions(root)[0].path
    os.mkfifo(folder / "000099.log")
    with pytest.raises(StoreError, match="neither a file nor a folder"):
        read_partition(folder)
    (folder / "CURRENT").unlink()
    os.mkfifo(folder / "CURRENT")
    assert list(list_partitions(root)) == []
    with pytest.raises(StoreError, match="no partition store"):
        read_partition(folder)


def test_a_file_that_a_running_consumer_removes_hinders_nobody(root: Path, store: RocksPartition) -> None:
    """A name that was listed, and is gone when its kind is asked for, is no obstacle.

    A link to nothing is such a name.
    """
    store.flush(progress(1), marks(("a", 0, 0)))
    folder = list_partitions(root)[0].path
    (folder / "LOG.old.1").symlink_to(folder / "gone")
    with read_partition(folder) as held:
        assert held.progress == progress(1)
