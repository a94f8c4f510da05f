"""How the manifest of a snapshot is written by drivers of all kinds: created once, or said why not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dedup_sdk._marks import Known
from dedup_sdk._store import output_folder
from dedup_sdk._store.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    PartitionManifest,
    SortedFile,
    manifest_bytes,
)
from dedup_sdk._store.output_folder import OutputFolder, new_run
from dedup_sdk.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[OutputFolder]:
    """A place in this process' memory."""
    yield OutputFolder("memory://output/snapshot")
    MemoryFileSystem.store.clear()


def driver(monkeypatch: pytest.MonkeyPatch, folder: OutputFolder, error: Exception | None) -> None:
    """Have the driver take ``mode`` unnamed, and meet another snapshot, or this error, in exclusive writes."""
    real = MemoryFileSystem.pipe_file

    def pipe_file(self: MemoryFileSystem, path: str, value: bytes, **more: Any) -> None:
        if more.get("mode") == "create":
            if error is not None:
                raise error
            real(self, path, b"another")
            raise FileExistsError(path)
        real(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    assert folder.manifest() is None


def test_a_manifest_that_came_first_stays(folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with drivers that do not name the parameter."""
    driver(monkeypatch, folder, None)
    assert not folder.create_manifest(b"ours", new_run())
    assert folder.manifest() == b"another"


@pytest.mark.parametrize("text", ["503 Slow Down", "read timeout"])
def test_what_a_server_cannot_do_now_is_not_tried_without_a_condition(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Another snapshot could come meanwhile."""
    driver(monkeypatch, folder, OSError(text))
    with pytest.raises(SnapshotError, match=f"manifest.json cannot be written: OSError: {text}"):
        folder.create_manifest(b"ours", new_run())
    assert folder.manifest() is None


@pytest.mark.parametrize(
    "error",
    [
        TypeError("got an unexpected keyword argument 'mode'"),
        OSError(5, "A header you provided implies functionality that is not implemented"),
        ValueError('Parameter validation failed: Unknown parameter in input: "IfNoneMatch"'),
    ],
)
def test_without_exclusive_writes_one_looks_first(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Where the driver, the client or the server has none."""
    driver(monkeypatch, folder, error)
    assert folder.create_manifest(b"ours", new_run())
    assert not folder.create_manifest(b"another", new_run())
    assert folder.manifest() == b"ours"


def test_a_new_folder_is_flushed_with_all_that_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published snapshot is not lost with the name of its folder."""
    flushed: set[str] = set()
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        flushed.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    OutputFolder(str(tmp_path / "a" / "b" / "c")).make()
    assert flushed == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}


def test_what_cannot_be_looked_at_is_not_taken_for_missing(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was put is not taken back because a connection was lost."""
    folder.mark("0" * 16)

    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionError("reset")

    monkeypatch.setattr(MemoryFileSystem, "info", lost)
    monkeypatch.setattr(MemoryFileSystem, "exists", lambda *_: False)
    with pytest.raises(SnapshotError, match="cannot be read: ConnectionError: reset"):
        folder.has_mark("0" * 16)


@pytest.mark.parametrize("length", [1_000, 1_001, 10**6])
def test_a_text_without_an_end_is_read_no_further_than_one_can_be_long(
    folder: OutputFolder, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """A wrong or hostile URL may give any number of bytes, as a manifest or as the text of a part."""
    monkeypatch.setattr(output_folder, "MAX_MANIFEST_BYTES", 1_000)
    read = []

    def cat_file(_: object, path: str, start: int | None = None, end: int | None = None) -> bytes:
        found: bytes = MemoryFileSystem.store[path].getvalue()[start:end]
        read.append(len(found))
        return found

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    run = new_run()
    for name in (MANIFEST_NAME, f".run-{run}.part-0"):
        folder.write(name, b"x" * length, run)
    for name, text in (
        (MANIFEST_NAME, folder.manifest),
        ("part-0", lambda: folder.read(f".run-{run}.part-0")),
    ):
        if length == 1_000:
            assert text() == b"x" * length
            continue
        with pytest.raises(SnapshotError, match=f"{name} is larger than 1000 bytes.*check the path"):
            text()
    assert max(read) <= 1_001


def test_a_manifest_of_the_largest_snapshot_may_be_read() -> None:
    """Each of 30,000 partitions with 20 files, of numbers and names as long as they can be."""
    digest = "f" * 64
    file = SortedFile(
        name="00000-0123456789abcdef-01234567", marks=2**53, bytes=2**53, smallest=digest, largest=digest,
        oldest_ms=2**53, newest_ms=2**53, newest_number=2**53, fingerprint="f" * 32, sha256=digest,
        filter_bytes=2**53, filter_sha256=digest, payloads=2**53, layer=7,
    )  # fmt: skip
    entry = PartitionManifest(
        partition=29_999,
        low=2**53,
        high=2**53,
        known=Known(since_ms=2**53, accepted=2**53, since_number=2**53, newest_ms=2**53),
        marks=2**53,
        files=(file,) * 20,
        committed=2**53,
        era="e" * 32,
        epoch=2**31,
    )
    whole = Manifest(
        cluster="c" * 22, topic="t" * 249, topic_id="i" * 22, id_spec="key", digest="sha256",
        isolation="read_committed", window="30d", group="g", vouched=False, created_ms=2**53,
    )  # fmt: skip
    without, with_ten = (
        len(manifest_bytes(replace(whole, partitions=(entry,) * count))) for count in (0, 10)
    )
    assert without + (with_ten - without) * 3_000 < MAX_MANIFEST_BYTES
