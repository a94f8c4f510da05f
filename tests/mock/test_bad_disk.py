"""A store that the system refuses, under a consumer.

Nothing ends, nothing is lost, and it goes on when the disk is well.
"""

from __future__ import annotations

import logging
import resource
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Recovery, RocksStore
from dedup_sdk._store import rocks
from dedup_sdk.errors import StoreUnavailableError
from tests.support.consuming import committed, poll_quiet, poll_some, values, wait_for
from tests.support.disks import FullPartition, FullStore, SmallDisk, small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from dedup_sdk._marks import Found
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

BEFORE = [f"before{number}" for number in range(200)]
DURING = [f"during{number}" for number in range(200)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of its own, which can be remounted."""
    with small_disk(tmp_path / "disk", 16) as disk:
        yield disk


def remount(disk: SmallDisk, how: str) -> None:
    """Have the system take no write any more (``ro``), or take them again (``rw``)."""
    mount = shutil.which("mount") or "/bin/false"
    subprocess.run([mount, "-o", f"remount,{how}", str(disk.path)], check=True)


def waits(consumer: DedupConsumer) -> Callable[[], bool]:
    """Whether some partition waits for its store."""
    return lambda: any("store" in status.hindrances for status in consumer.partition_statuses)


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no more files than it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_file_grows() -> Iterator[None]:
    """Let no file of this process grow: a write is cut short, and the next one refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fail(*_: object) -> bytes:
    """Raise the error of RocksDB where a disk fails."""
    raise Exception("IO error: While appending to file: 000012.log: Input/output error")  # noqa: TRY002 (as RocksDB's)


@pytest.mark.parametrize("going_on", [False, True], ids=["pause", "unverified"])
def test_a_disk_that_begins_to_fail(
    make: Make,
    send: Send,
    kafka: MockKafka,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    going_on: bool,
) -> None:
    """Completed messages wait in memory, one line says so, and each message is handled once."""
    consumer = make(
        "orders", store=tmp_path, recovery=Recovery(on_full_disk="unverified" if going_on else "pause")
    )
    send(*BEFORE)
    seen = values(poll_some(consumer, len(BEFORE)))
    seen += values(poll_quiet(consumer))
    with monkeypatch.context() as failing, caplog.at_level(logging.WARNING, "dedup_sdk"):
        # The key of the journal's next entry is the first that a write needs.
        failing.setattr(rocks, "sequence_key", fail)
        failing.setattr(rocks, "is_writable", lambda _: False)
        send(*DURING)
        if not going_on:
            seen += values(wait_for(consumer, waits(consumer), "the disk to refuse"))
        seen += values(poll_quiet(consumer))
        if going_on:
            assert seen == BEFORE + DURING
    seen += values(wait_for(consumer, lambda: not waits(consumer)(), "the disk"))
    seen += values(poll_quiet(consumer, 1.0))
    assert seen == BEFORE + DURING
    assert sum("stay in memory" in record.getMessage() for record in caplog.records) == 1
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == len(seen)
    send(*BEFORE, *DURING, "after")
    assert values(poll_quiet(make("orders", store=tmp_path))) == ["after"]


def test_a_disk_that_takes_a_part_of_a_write(
    make: Make, send: Send, kafka: MockKafka, tmp_path: Path
) -> None:
    """It is no disk that can be written again.

    Completed messages stay in memory, and are committed when the consumer ends.
    """
    consumer = make("orders", store=tmp_path)
    send(*BEFORE)
    seen = values(poll_some(consumer, len(BEFORE)))
    seen += values(poll_quiet(consumer))
    send(*DURING)
    with no_file_grows():
        seen += values(wait_for(consumer, waits(consumer), "the disk to refuse"))
        seen += values(poll_quiet(consumer, 2.0))
        consumer.close()
    assert len(seen) > len(BEFORE)
    assert committed(kafka.bootstrap, "g", "orders").offset == len(seen)


def test_a_consumer_that_starts_on_a_read_only_disk_waits(make: Make, send: Send, disk: SmallDisk) -> None:
    """Nothing is raised, nothing is delivered; it begins when the disk takes writes."""
    with make("orders", store=disk.path / "store") as first:
        send("a")
        assert values(poll_some(first, 1)) == ["a"]
    remount(disk, "ro")
    consumer = make("orders", store=disk.path / "store")
    send("a", "b")
    wait_for(consumer, waits(consumer), "the wait")
    assert consumer.poll(0.5) is None
    remount(disk, "rw")
    assert values(poll_some(consumer, 1)) == ["b"]


def test_a_store_folder_that_became_a_file(make: Make, send: Send, tmp_path: Path) -> None:
    """It is waited for: somebody may put the folder back, or take the file away."""
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with make("orders", store=root) as first:
        send("a")
        assert values(poll_some(first, 1)) == ["a"]
    [cluster] = [path for path in root.iterdir() if path.is_dir()]
    cluster.rename(elsewhere)
    cluster.write_text("no folder")
    consumer = make("orders", store=root)
    send("a", "b")
    wait_for(consumer, waits(consumer), "the wait")
    cluster.unlink()
    elsewhere.rename(cluster)
    assert values(poll_some(consumer, 1)) == ["b"]


def test_a_process_that_may_open_no_more_files(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is assigned then waits, and its store is not left locked by the attempt."""
    with make("orders", store=tmp_path) as first:
        send("a")
        assert values(poll_some(first, 1)) == ["a"]
    store = RocksStore(tmp_path)
    consumer = make(store=store)
    send("a", "b")
    open_store = store.open
    tries: list[bool] = []

    def refused(*given: object) -> object:
        with no_more_files():
            tries.append(True)
            return open_store(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "open", refused)
    consumer.subscribe(["orders"])
    wait_for(consumer, lambda: len(tries) > 1 and waits(consumer)(), "the wait")
    monkeypatch.undo()
    assert values(poll_some(consumer, 1)) == ["b"]


def test_a_store_that_cannot_be_read(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that the disk refuses judges nothing: the records are read again when it answers."""
    store = FullStore()
    consumer = make("orders", store=store, recent_marks=1)
    send(*BEFORE)
    assert values(poll_some(consumer, len(BEFORE))) == BEFORE
    failing = [True]
    find = FullPartition.find

    def refused(self: FullPartition, digests: bytes, count: int) -> Found:
        if failing[0]:
            raise StoreUnavailableError("input/output error")
        return find(self, digests, count)

    monkeypatch.setattr(FullPartition, "find", refused)
    send(*BEFORE, "after")
    assert values(poll_quiet(consumer)) == []
    failing[0] = False
    assert values(poll_some(consumer, 1)) == ["after"]
