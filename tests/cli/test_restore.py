from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._marks import NO_MARKS, Marks
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk.ids import digest_one
from tests.cli.conftest import NEWEST_MS
from tests.support.marks import random_marks
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup

IDS = [f"order-{number}".encode() for number in range(50)]
LOW, CUT = 100, 150


@pytest.fixture
def marks() -> Marks:
    """Fifty marks at the offsets from `LOW` to below `CUT`."""
    offsets = np.arange(LOW, CUT, dtype=np.int64)
    return Marks(b"".join(map(digest_one, IDS)), offsets, offsets + NEWEST_MS)


@pytest.fixture
def snapshot(tmp_path: Path, marks: Marks) -> Path:
    """A snapshot of two partitions (one of them empty) of group ``billing``, cut at its committed offset."""
    return write_snapshot(tmp_path / "snapshot", {0: marks, 1: NO_MARKS})


def test_a_restored_store_has_the_snapshot_and_its_progress(
    dedup: Dedup, snapshot: Path, tmp_path: Path
) -> None:
    """Every partition is there, with all marks, the cut as completed and committed offset, and the identity."""
    store = tmp_path / "var" / "dedup"
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(store), "--json")
    assert done.status == 0
    assert json.loads(done.stdout) == {
        "store": str(store),
        "topic": "orders",
        "group": "billing",
        "partitions": 2,
        "marks": 50,
    }
    first, last = list_partitions(store)
    with read_partition(first.path) as opened:
        assert (opened.identity.group, opened.identity.topic_id) == ("billing", "t1")
        assert opened.progress is not None
        assert (opened.progress.low, opened.progress.high, opened.progress.committed) == (LOW, CUT, CUT)
        # Which marks were left out for their age is not known.
        assert opened.progress.known.dropped_to == CUT
        assert sum(page.count for page in opened.scan_all()) == len(IDS)
        assert [mark.offset for mark in opened.find_all(digest_one(IDS[3]))] == [LOW + 3]
    with read_partition(last.path) as opened:
        assert opened.progress is not None
        assert (opened.progress.low, opened.progress.high) == (0, 0)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_restore_keeps_to_its_rate(dedup: Dedup, tmp_path: Path, form: str) -> None:
    """The same store is made from a folder and behind a URL, and not before the rate allows all bytes."""
    folder = write_snapshot(tmp_path / "many", {0: random_marks(4_000, 1), 1: random_marks(4_000, 2)})
    store, size = tmp_path / "store", read_manifest(folder).bytes
    begin = time.monotonic()
    done = dedup(
        "restore", "--snapshot", form.format(folder), "--store", str(store), "--rate-limit", f"{2 * size}B/s"
    )
    assert (done.status, time.monotonic() - begin > 0.2) == (0, True)
    for found in list_partitions(store):
        with read_partition(found.path) as opened:
            assert sum(page.count for page in opened.scan_all()) == 4_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "store"]


@pytest.mark.parametrize(
    "rate", ["50", "MB/s", "fast", "-1MB/s", "50Mb/s", "10B/s", "2000GB/s", "1e3kB/s", ""]
)
def test_a_wrong_rate_is_refused(dedup: Dedup, snapshot: Path, tmp_path: Path, rate: str) -> None:
    """One line, exit status 2, and nothing is read or written."""
    target = str(tmp_path / "target")
    for command in (
        ("restore", "--snapshot", str(snapshot), "--store", target),
        ("snapshots", "copy", str(snapshot), target),
    ):
        done = dedup(*command, "--rate-limit", rate)
        assert (done.status, done.stderr.count("\n")) == (2, 1)
        assert f"--rate-limit {rate!r}: give bytes a second with their unit" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_the_restored_store_answers_look_ups(dedup: Dedup, snapshot: Path, tmp_path: Path) -> None:
    """IDs of the snapshot are found by ``dedup lookup``."""
    store = str(tmp_path / "store")
    assert dedup("restore", "--snapshot", str(snapshot), "--store", store, "--quiet").stderr == ""
    done = dedup("lookup", "--store", store, "--topic", "orders", "order-49")
    assert done.status == 0
    assert done.stdout.startswith(f"orders[0] offset {CUT - 1}, ")


def test_a_folder_in_use_is_left_alone(dedup: Dedup, snapshot: Path, tmp_path: Path) -> None:
    """A folder with anything in it is refused and untouched; an empty one is taken."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "precious").write_text("kept")
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(store))
    assert (done.status, done.stdout) == (1, "")
    assert f"{store} is not empty" in done.stderr
    assert [path.name for path in store.iterdir()] == ["precious"]
    (store / "precious").unlink()
    assert dedup("restore", "--snapshot", str(snapshot), "--store", str(store)).status == 0


def test_a_damaged_snapshot_leaves_nothing_behind(dedup: Dedup, snapshot: Path, tmp_path: Path) -> None:
    """One flipped byte in a file is one line on stderr, and neither a store nor a partial one."""
    file = snapshot / "0" / "part.sst"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "store"))
    assert done.status == 1
    (line,) = done.stderr.splitlines()
    assert "part.sst" in line
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_another_group_cannot_have_it(dedup: Dedup, snapshot: Path, tmp_path: Path) -> None:
    """The processed messages of one group are not those of another."""
    done = dedup(
        "restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "store"), "--group", "audit"
    )
    assert done.status == 1
    assert "is of group 'billing', not 'audit'" in done.stderr


def test_a_snapshot_without_a_group_must_be_vouched_for(dedup: Dedup, marks: Marks, tmp_path: Path) -> None:
    """Without a known group, nothing counts as processed until the user says so."""
    snapshot = write_snapshot(tmp_path / "snapshot", {0: marks}, group=None)
    store = tmp_path / "store"
    command = ("restore", "--snapshot", str(snapshot), "--store", str(store))
    nobody = dedup(*command)
    assert (nobody.status, "--group" in nobody.stderr) == (2, True)
    unvouched = dedup(*command, "--group", "audit")
    assert (unvouched.status, "--assume-processed" in unvouched.stderr) == (2, True)
    assert not store.exists()
    assert dedup(*command, "--group", "audit", "--assume-processed").status == 0
    (only,) = list_partitions(store)
    with read_partition(only.path) as opened:
        assert (opened.identity.group, only.group) == ("audit", "audit")
        assert opened.progress is not None
        assert opened.progress.committed is None


def test_a_missing_snapshot_is_one_line(dedup: Dedup, tmp_path: Path) -> None:
    """A folder without a manifest is named, with status 1."""
    done = dedup("restore", "--snapshot", str(tmp_path / "no"), "--store", str(tmp_path / "store"))
    assert done.status == 1
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "no") in line
