from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.rate_limit import RateLimit, parse_rate
from dedup_sdk._store.snapshot_copy import copy_snapshot, copying_snapshot, publish_snapshot
from dedup_sdk._store.snapshot_source import RemoteFiles, find_snapshots
from dedup_sdk.errors import ConfigurationError
from tests.support.marks import random_marks, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CUTS = range(500, 4_000, 500)
BYTES_A_SECOND = 10_000


class Waits:
    """A clock that goes on only while somebody waits, or not at all, and the waits of all threads."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self.now, self.seconds, self._goes_on = 0.0, list[float](), goes_on

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def wait(self, _stop: Event, seconds: float) -> None:
        """Note it, at once."""
        self.seconds.append(seconds)
        if self._goes_on:
            self.now += seconds

    def limit(self, bytes_per_second: int = BYTES_A_SECOND) -> RateLimit:
        """Return a limit of this clock."""
        return RateLimit(bytes_per_second, clock=self.clock, wait=self.wait)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """A snapshot of eight files, also behind ``memory://rated``."""
    write_snapshot(tmp_path / "snapshot", random_marks(4_000, 1), cuts=CUTS)
    publish_snapshot(tmp_path / "snapshot", "memory://rated")
    yield tmp_path / "snapshot"
    MemoryFileSystem.store.clear()


def test_bytes_take_their_time() -> None:
    """The time is that of all bytes, whatever the size of the pieces."""
    waits = Waits(goes_on=True)
    limit = waits.limit(1_000)
    for size in (1, 999, 500, 3_000, 500):
        limit.take(size, Event())
    assert waits.now == pytest.approx(5.0)


def test_a_pause_is_not_made_up_for() -> None:
    """After an hour without bytes the rate is what it was; a quarter of a second is all that was saved."""
    waits = Waits(goes_on=True)
    limit = waits.limit(1_000)
    waits.now = 3_600.0
    limit.take(10_000, Event())
    assert waits.now == pytest.approx(3_609.75)


@pytest.mark.parametrize("place", ["folder", "memory://rated"])
@pytest.mark.parametrize("target", ["restored", "copied", "memory://copied"])
def test_all_threads_share_one_limit(folder: Path, tmp_path: Path, place: str, target: str) -> None:
    """On a clock that stands, the longest wait is the time of every byte of every file."""
    waits = Waits()
    found = str(folder) if place == "folder" else place
    if target == "restored":
        restore_snapshot(found, tmp_path / "store", limit=waits.limit())
    else:
        (source,), _ = find_snapshots([found])
        source = replace(source, limit=waits.limit())
        copy_snapshot(source, target if "://" in target else str(tmp_path / target))
    assert max(waits.seconds) == pytest.approx(read_manifest(folder).bytes / BYTES_A_SECOND)
    # Two waits a file: sorted file and filter.
    assert len(waits.seconds) >= 2 * (len(CUTS) + 1)


@pytest.mark.parametrize("place", ["folder", "memory://rated"])
@pytest.mark.parametrize("target", ["copied", "memory://copied"])
def test_a_wait_ends_with_the_copy(folder: Path, tmp_path: Path, place: str, target: str) -> None:
    """Who stops a slow copy does not wait for its rate, and no snapshot is left."""
    (source,), _ = find_snapshots([str(folder) if place == "folder" else place])
    source = replace(source, limit=RateLimit(4_000))
    steps = copying_snapshot(source, target if "://" in target else str(tmp_path / target))
    next(steps)
    begin = time.monotonic()
    steps.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begin < 2
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]
    assert not MemoryFileSystem().find("memory://copied")


def test_a_slow_download_asks_for_little_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All threads together request about the bytes of a second; without a limit blocks are large."""
    asked = list[int]()
    opens: Callable[..., object] = MemoryFileSystem.open
    (source,), _ = find_snapshots(["memory://rated"])
    (entry,) = source.manifest.partitions

    def opened(self: MemoryFileSystem, path: str, mode: str, block_size: int) -> object:
        asked.append(block_size)
        return opens(self, path, mode, block_size=block_size)

    monkeypatch.setattr(MemoryFileSystem, "open", opened)
    for rate in (None, 2_000_000, 1_000, 10**9):
        limit = None if rate is None else Waits().limit(rate)
        assert source.remote is not None
        fetch = partial(RemoteFiles.fetch_file, source.remote.files, limit=limit)
        fetch(entry.partition, entry.files[0], tmp_path)
    assert asked[::2] == asked[1::2] == [2**23, 500_000, 2**16, 2**23]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50MB/s", 50_000_000),
        ("50MB", 50_000_000),
        ("8 MiB/s", 8 * 2**20),
        ("1.5GB/s", 1_500_000_000),
        ("500kB/s", 500_000),
        ("500KB/s", 500_000),
        ("1000B/s", 1_000),
    ],
)
def test_a_rate_has_a_unit(text: str, expected: int) -> None:
    """Powers of ten, or of two where the unit says so."""
    assert parse_rate("rate", text) == expected


def test_a_rate_without_a_unit_is_refused() -> None:
    """Nobody knows whether 50 are bytes or megabytes."""
    with pytest.raises(
        ConfigurationError, match=r"rate '50': give bytes a second with their unit.*e\.g\. 50MB/s"
    ):
        parse_rate("rate", "50")
