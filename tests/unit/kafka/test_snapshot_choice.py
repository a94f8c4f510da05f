from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest

from dedup_sdk import ConfigurationError, Deduplicator, Lookup, MemoryStore, Window, header
from dedup_sdk._core.reach import StartPlan, plan_start
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._marks import Marks
from dedup_sdk._masking import redacted_url
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.snapshot_source import snapshot_locations
from dedup_sdk.errors import SnapshotError
from dedup_sdk.ids import digest_one
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMITTED = 100
IDENTITY = Identity(
    cluster="c1", group="billing", topic="orders", partition=0, topic_id="t1", id_spec="header:dedup-id"
)


def marks_up_to(cut: int) -> Marks:
    """One mark an offset below the cut."""
    offsets = np.arange(cut, dtype=np.int64)
    return Marks(b"".join(digest_one(b"%d" % number) for number in range(cut)), offsets, offsets + 1000)


def snapshot(folder: Path, cut: int, *, created_ms: int = 0, group: str = "billing") -> Path:
    """A snapshot of partition 0 up to a cut."""
    write_snapshot(folder, {0: marks_up_to(cut)}, group=group)
    write_manifest(folder, replace(read_manifest(folder), created_ms=created_ms))
    return folder


def damage(folder: Path) -> None:
    """Change one byte of a snapshot's file."""
    (path,) = (folder / "0").glob("*.sst")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def start(*places: str | Path, beside: Path | None = None) -> tuple[StartPlan, str, int]:
    """Start a partition of a group that committed 100 records.

    Return the plan left, the note, and how many marks it has.
    """
    with Deduplicator(
        Lookup(id=header("dedup-id"), window=Window(days=7)), MemoryStore(), group="billing"
    ) as engine:
        held = engine.attach("orders", 0, topic_id="t1", cluster="c1")
        plan = plan_start(None, committed=COMMITTED, low=0, complete=True)
        going = start_from_snapshot(held, plan, snapshot_locations(places), IDENTITY, beside)
        while True:
            try:
                next(going)
            except StopIteration as ended:
                left, note = ended.value
                return left, note, sum(page.count for page in held.store.scan())


@pytest.fixture
def bucket() -> Iterator[str]:
    """A place behind a URL, empty before and after."""
    files = fsspec.filesystem("memory")
    yield "memory://bucket/snapshots"
    files.rm("/bucket", recursive=True)


def upload(folder: Path, url: str) -> None:
    """Put a snapshot behind a URL."""
    files = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def test_the_one_that_leaves_least_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a folder of several and another one: the longest that fits; one line says why others were passed over."""
    snapshot(tmp_path / "all" / "short", 20)
    snapshot(tmp_path / "all" / "long", 70)
    snapshot(tmp_path / "all" / "beyond", 120)
    other = snapshot(tmp_path / "other", 90, group="audit")
    with caplog.at_level(logging.INFO, "dedup_sdk._kafka"), caplog.at_level(logging.INFO, "dedup_sdk"):
        left, note, count = start(tmp_path / "all", other)
    assert (left.replay_from, left.replay_to, count) == (70, COMMITTED, 70)
    assert note == "snapshot of 70 marks"
    (line,) = [each.getMessage() for each in caplog.records if "passed over" in each.getMessage()]
    assert "long taken, which leaves 30 offsets" in line
    for why in ("short leaves 80 offsets", "reaches offset 120", "group='audit'"):
        assert why in line


def test_of_equals_the_newest_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two that leave the same: the one made later."""
    old = snapshot(tmp_path / "old", 50, created_ms=1)
    new = snapshot(tmp_path / "new", 50, created_ms=2)
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        start(old, new)
    assert f"snapshot {new} taken" in caplog.text


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    """Its files are checked before use: the next best stands in, and where none is left it is an error."""
    best, next_best = snapshot(tmp_path / "best", 70), snapshot(tmp_path / "next", 60)
    damage(best)
    left, _, count = start(best, next_best, tmp_path / "nowhere")
    assert (left.replay_from, count) == (60, 60)
    damage(next_best)
    with pytest.raises(SnapshotError, match="SHA-256"):
        start(best, next_best)


def test_nothing_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    """A place without a snapshot is never an empty store in silence."""
    with pytest.raises(SnapshotError, match="nowhere"):
        start(tmp_path / "nowhere")


def test_a_remote_one_is_fetched_and_checked(tmp_path: Path, bucket: str) -> None:
    """The best of several behind a URL is installed, and nothing of it is left beside the store."""
    upload(snapshot(tmp_path / "short", 20), f"{bucket}/short")
    upload(snapshot(tmp_path / "long", 70), f"{bucket}/long")
    store = tmp_path / "machine" / "store"
    left, _, count = start(bucket, beside=store)
    assert (left.replay_from, count) == (70, 70)
    assert list(store.parent.iterdir()) == []


def test_a_damaged_remote_one_is_an_error(tmp_path: Path, bucket: str) -> None:
    """Bytes that differ from the manifest are named by their URL, and nothing is left beside the store."""
    made = snapshot(tmp_path / "made", 70)
    damage(made)
    upload(made, bucket)
    store = tmp_path / "machine" / "store"
    with pytest.raises(SnapshotError, match=r"memory://bucket/snapshots/0/.*SHA-256"):
        start(bucket, beside=store)
    assert list(store.parent.iterdir()) == []


def test_a_url_with_nothing_behind_it_is_one_line(bucket: str) -> None:
    """It names the URL and says which files are wanted."""
    fsspec.filesystem("memory").pipe_file(f"{bucket}/other.txt", b"x")
    with pytest.raises(SnapshotError, match=r"manifest\.json") as caught:
        start(bucket)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_of_url_is_refused_at_once() -> None:
    """When the consumer is made, not when it needs the snapshot."""
    with pytest.raises(ConfigurationError, match="no driver for 'nowhere'"):
        snapshot_locations("nowhere://bucket/snapshot")
    with pytest.raises(ConfigurationError, match="is not a path; give"):
        snapshot_locations([""])


def test_secrets_of_a_url_are_not_shown() -> None:
    """Messages and the log name the place, not who may read it."""
    assert redacted_url("https://me:secret@host:1/path?token=secret") == "https://host:1/path"
