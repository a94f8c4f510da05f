from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup_sdk._marks import Marks
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.manifest import MANIFEST_NAME, Gap, read_manifest, write_manifest
from dedup_sdk._store.snapshot import SortedFileWriter, read_file, read_snapshot, verify_snapshot
from dedup_sdk._store.snapshot_copy import copy_snapshot
from dedup_sdk._store.snapshot_source import find_snapshots
from dedup_sdk.errors import SnapshotError, StoreError
from tests.support.marks import digest, marks, random_marks, rows, write_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "store" / "snapshot"

Content = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot of 40 marks in two files."""
    write_snapshot(tmp_path / "snapshot", random_marks(40, 1), cuts=(15,))
    return tmp_path / "snapshot"


def change(folder: Path, edit: Callable[[Content], object]) -> None:
    """Edit the manifest and give it a valid checksum again."""
    path = folder / MANIFEST_NAME
    content = json.loads(path.read_text())
    edit(content)
    content.pop("checksum", None)
    body = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "checksum": hashlib.sha256(body.encode()).hexdigest()}))


def test_a_manifest_comes_back_as_it_was(folder: Path) -> None:
    """Reading gives the same manifest, and the files check."""
    manifest = read_manifest(folder)
    write_manifest(folder, manifest)
    assert read_manifest(folder) == manifest
    assert verify_snapshot(folder) == manifest
    assert verify_snapshot(folder, 3) == manifest
    assert not list(folder.glob("*.partial"))


def test_the_fingerprint_does_not_depend_on_the_files(tmp_path: Path) -> None:
    """The same marks in one file and in three have one fingerprint, which the manifest states.

    Other marks have another.
    """
    held = random_marks(40, 1)
    whole = write_snapshot(tmp_path / "whole", held)
    pieces = write_snapshot(tmp_path / "pieces", held, cuts=(3, 30))
    assert whole.fingerprint == pieces.fingerprint == fingerprint([held])
    assert json.loads((tmp_path / "pieces" / MANIFEST_NAME).read_text())["fingerprint"] == whole.fingerprint
    assert write_snapshot(tmp_path / "less", random_marks(39, 1)).fingerprint != whole.fingerprint


def test_gaps_and_what_was_committed_are_kept(folder: Path) -> None:
    """A manifest says which offsets were gone when it was made, and the group's commits."""
    manifest = read_manifest(folder)
    (entry,) = manifest.partitions
    told = replace(entry, committed=900, gaps=(Gap(begin=0, end=7), Gap(begin=20, end=21)))
    write_manifest(folder, replace(manifest, partitions=(told,)))
    assert read_manifest(folder).partitions == (told,)


def test_the_first_version_of_the_format_is_still_read() -> None:
    """A snapshot written when the format was new verifies, and its marks are read."""
    manifest = verify_snapshot(GOLDEN)
    entry = manifest.partition(3)
    assert entry is not None
    expected = {digest(f"id{number}"): (number, 1_700_000_000_000 + number) for number in range(40)}
    assert rows(read_snapshot(GOLDEN, entry)) == expected


def partition(content: Content) -> Content:
    """The only partition of a manifest."""
    found: Content = content["partitions"][0]
    return found


def file(content: Content) -> Content:
    """The first file of its only partition."""
    found: Content = partition(content)["files"][0]
    return found


HOSTILE: dict[str, tuple[Callable[[Content], object], str]] = {
    "negative offset": (lambda c: partition(c).update(low=-1), r"partitions\[0\]\.low=-1"),
    "cut below low": (lambda c: partition(c).update(high=-5), r"partitions\[0\]\.high=-5"),
    "partition that no topic has": (
        lambda c: partition(c).update(partition=2**31),
        r"partitions\[0\]\.partition=2147483648: must be a 64-bit integer, at least 0, at most 2147483647",
    ),
    "offset as text": (lambda c: partition(c).update(high="7"), r"partitions\[0\]\.high='7'"),
    "offset as float": (lambda c: partition(c).update(high=7.0), r"high=7\.0"),
    "offset as truth": (lambda c: partition(c).update(high=True), r"high=True"),
    "offset beyond 64 bits": (lambda c: partition(c).update(high=2**63), r"high=9223372036854775808"),
    "partition negative": (lambda c: partition(c).update(partition=-1), r"partition=-1"),
    "partition as path": (lambda c: partition(c).update(partition="../3"), r"partition='\.\./3'"),
    "partition twice": (lambda c: c["partitions"].append(partition(c)), r"partitions=\[3, 3\]"),
    "no partitions": (lambda c: c.pop("partitions"), r"partitions is missing"),
    "partitions no list": (lambda c: c.update(partitions={}), r"partitions=\{\}"),
    "partition no object": (lambda c: c.update(partitions=[5]), r"partitions\[0\] is 5"),
    "no topic": (lambda c: c.pop("topic"), r"topic is missing"),
    "topic a number": (lambda c: c.update(topic=5), r"topic=5"),
    "topic endless": (lambda c: c.update(topic="x" * 5000), r"topic='xxx"),
    "vouched as text": (lambda c: c.update(vouched="yes"), r"vouched='yes'"),
    "newer format": (lambda c: c.update(format=6), r"format=6: this version reads format 5; use the"),
    "older format": (lambda c: c.update(format=4), r"format=4: this version reads format 5; make"),
    "fingerprint of a file": (
        lambda c: file(c).update(fingerprint="0" * 32),
        r"partitions\[0\]\.fingerprint='[0-9a-f]{32}': it is not the sum over the files",
    ),
    "fingerprint of the whole": (
        lambda c: c.update(fingerprint="0" * 32),
        r"manifest.json: fingerprint='0{32}': it is not the sum over the partitions",
    ),
    "count of the whole": (lambda c: c.update(marks=41), r"marks=41: it is not the sum over the partitions"),
    "gap beyond the cut": (
        lambda c: partition(c).update(gaps=[{"begin": 5, "end": 10**6}]),
        r"partitions\[0\]\.gaps=\[0, 5, 1000000, 1000\]: they do not ascend",
    ),
    "name leaves the folder": (
        lambda c: file(c).update(name="../../etc/passwd"),
        r"name='\.\./\.\./etc/passwd'",
    ),
    "name with dots": (lambda c: file(c).update(name="a..b"), r"name='a\.\.b'"),
    "name absolute": (lambda c: file(c).update(name="/etc/passwd"), r"name='/etc/passwd'"),
    "name with a zero": (lambda c: file(c).update(name="a\0b"), r"name='a\\x00b'"),
    "name empty": (lambda c: file(c).update(name=""), r"name=''"),
    "name twice": (lambda c: partition(c)["files"][1].update(name="0000"), r"files=\['0000', '0000'\]"),
    "marks do not add up": (lambda c: partition(c).update(marks=41), r"marks=41"),
    "no marks in a file": (lambda c: file(c).update(marks=0), r"files\[0\]\.marks=0"),
    "sorted file larger than its marks can be": (
        lambda c: file(c).update(bytes=2**40),
        r"bytes=1099511627776: must be a 64-bit integer, at least 1, at most 1052416",
    ),
    "filter words larger than its marks need": (
        lambda c: file(c).update(filter_bytes=2**40),
        r"filter_bytes=1099511627776: must be a 64-bit integer, at least 80, at most 660",
    ),
    "filter words smaller than its marks need": (
        lambda c: file(c).update(filter_bytes=79),
        r"filter_bytes=79",
    ),
    "more payloads than marks": (
        lambda c: file(c).update(payloads=16),
        r"payloads=16: must be a 64-bit integer, at least 0, at most 15",
    ),
    "checksum not hexadecimal": (lambda c: file(c).update(sha256="z" * 64), r"sha256='zzz"),
    "digest too short": (lambda c: file(c).update(smallest="00"), r"smallest='00'"),
    "range upside down": (lambda c: file(c).update(largest="0" * 32), r"largest='000"),
    "ranges overlap": (lambda c: file(c).update(largest="f" * 32), r"ranges overlap"),
    "ranges share a rank": (
        lambda c: file(c).update(largest=partition(c)["files"][1]["smallest"][:8] + "0" * 24),
        r"ranges overlap",
    ),
    "newest before oldest": (lambda c: file(c).update(newest_ms=-10), r"newest_ms=-10"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused_in_one_line(folder: Path, name: str) -> None:
    """Whatever a manifest's maker put into a field, the error is one line with the file, the field and its value."""
    edit, told = HOSTILE[name]
    change(folder, edit)
    with pytest.raises(SnapshotError, match=told) as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value)
    assert str(folder / MANIFEST_NAME) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(folder: Path, data: bytes) -> None:
    """Bytes that are not a JSON object are refused in one line that names the file."""
    (folder / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(SnapshotError, match=MANIFEST_NAME) as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value)


def test_an_edited_manifest_is_noticed(folder: Path) -> None:
    """A manifest that was changed without its checksum is refused."""
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().replace('"topic": "orders"', '"topic": "others"'))
    with pytest.raises(SnapshotError, match="changed after it was written"):
        read_manifest(folder)


def test_a_folder_without_a_manifest_is_no_snapshot(tmp_path: Path) -> None:
    """Files without a manifest are the remains of an unfinished backfill: no snapshot."""
    with pytest.raises(SnapshotError, match="is not a snapshot"):
        read_manifest(tmp_path)


def test_files_are_checked(folder: Path) -> None:
    """A missing, cut, lengthened or changed file is refused by name."""
    spoilings: list[Callable[[Path], object]] = [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
    ]
    for spoil in spoilings:
        for name in ("0001.sst", "0001.filter"):
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            spoil(copy / "3" / name)
            with pytest.raises(SnapshotError, match=name):
                verify_snapshot(copy)
            shutil.rmtree(copy)


@pytest.mark.parametrize("field", ["bytes", "filter_bytes"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_manifest_that_lies_about_a_size_is_refused(folder: Path, field: str, by: int) -> None:
    """Also where the checksum is that of the file: by the folder, by its URL, and by a copy.

    The line says both sizes.
    """
    found = file(json.loads((folder / MANIFEST_NAME).read_text()))[field]
    change(folder, lambda content: file(content).update({field: found + by}))
    says = f"manifest says {found + by}|more than the {found + by} bytes"
    with pytest.raises(SnapshotError, match=says):
        verify_snapshot(folder)
    for number, place in enumerate((str(folder), f"file://{folder}")):
        ((source,), _) = find_snapshots([place])
        target = folder.with_name(f"copy-{number}")
        with pytest.raises(SnapshotError, match=says) as caught:
            copy_snapshot(source, str(target))
        assert "\n" not in str(caught.value)
        assert not target.exists()


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader stops at the size that the manifest says."""
    path = folder / "3" / "0000.sst"
    reads: list[int] = []

    class Growing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            reads.append(size)
            assert len(reads) < 10
            return b"x" * size

        def fileno(self) -> int:
            return descriptors[0]

    def opened(descriptor: int, _mode: str) -> Growing:
        descriptors.append(descriptor)
        return Growing()

    descriptors: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr("dedup_sdk._store.snapshot.os.fdopen", opened)
        with pytest.raises(SnapshotError, match=r"0000\.sst has .* bytes, its manifest says"):
            verify_snapshot(folder)
    [descriptor] = descriptors
    os.close(descriptor)
    assert sum(reads) == path.stat().st_size + 1


def test_a_snapshot_for_which_there_is_no_room_is_not_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declared sizes are compared with the disk before the first byte is fetched."""
    total = read_manifest(folder).bytes
    free = shutil.disk_usage(tmp_path)._replace(free=total - 1)
    monkeypatch.setattr("dedup_sdk._store.snapshot_source.shutil.disk_usage", lambda _: free)
    with pytest.raises(SnapshotError, match=f"needs {total} bytes, .* has room for {total - 1}"):
        restore_snapshot(f"file://{folder}", tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_links_and_pipes_are_not_followed(folder: Path) -> None:
    """A link or a pipe in place of a file is refused at once, whatever it leads to."""
    path = folder / "3" / "0000.sst"
    elsewhere = folder / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(SnapshotError, match=r"0000\.sst"):
        verify_snapshot(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SnapshotError, match=r"0000\.sst is not a regular file"):
        verify_snapshot(folder)


def test_an_unknown_partition_is_named(folder: Path) -> None:
    """Asking for a partition that is not there says which are."""
    with pytest.raises(SnapshotError, match=r"no partition 4; it has \[3\]"):
        verify_snapshot(folder, 4)


def test_a_manifest_that_lies_about_its_marks_is_caught_when_they_are_read(folder: Path) -> None:
    """Counts that add up but are not those of the files are found by reading them."""

    def shift(content: Content) -> None:
        file(content)["marks"] -= 1
        partition(content)["marks"] -= 1
        content["marks"] -= 1

    change(folder, shift)
    entry = verify_snapshot(folder).partition(3)
    assert entry is not None
    with pytest.raises(SnapshotError, match="the manifest says"):
        list(read_snapshot(folder, entry))


def test_a_writer_describes_what_it_wrote(tmp_path: Path) -> None:
    """A sorted file's description has its count, range, timestamps, numbers and checksums."""
    ordered = sorted([("a", 7, 50, 3), ("b", 9, 40, 4), ("c", 8, 60, 2)], key=lambda row: digest(row[0]))
    with SortedFileWriter(tmp_path / "x.sst") as writer:
        writer.add(marks(ordered[0]))
        writer.add(marks(*ordered[1:]))
        described = writer.finish()
    assert (described.name, described.marks) == ("x", 3)
    assert (described.smallest, described.largest) == (
        digest(ordered[0][0]).hex(),
        digest(ordered[2][0]).hex(),
    )
    assert (described.oldest_ms, described.newest_ms, described.newest_number) == (40, 60, 4)
    assert described.bytes == (tmp_path / "x.sst").stat().st_size
    assert described.sha256 == hashlib.sha256((tmp_path / "x.sst").read_bytes()).hexdigest()
    assert described.filter_sha256 == hashlib.sha256((tmp_path / "x.filter").read_bytes()).hexdigest()


def test_a_sorted_file_stays_within_its_size(tmp_path: Path) -> None:
    """A large file with its filter words takes at most 40 bytes a mark."""
    held = random_marks(50_000, 1, offset=10**9, step_ms=37)
    table = sorted(
        zip(
            [held.digests[at : at + 16] for at in range(0, len(held.digests), 16)], range(50_000), strict=True
        )
    )
    order = [index for _, index in table]
    ordered = Marks(b"".join(key for key, _ in table), held.offsets[order], held.timestamps[order])
    with SortedFileWriter(tmp_path / "x.sst") as writer:
        writer.add(ordered)
        writer.finish()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40 * 50_000


def test_what_does_not_ascend_is_refused(tmp_path: Path) -> None:
    """A digest at or below the one before it is refused, within a page and across pages, and nothing is left behind."""
    low, high = sorted([digest("a"), digest("b")])
    one = marks(("a", 1, 1))
    two = marks(("a", 1, 1), ("b", 1, 1))

    def write(*pages: bytes) -> None:
        with SortedFileWriter(tmp_path / "x.sst") as writer:
            for page in pages:
                columns = one if len(page) == 16 else two
                writer.add(Marks(page, columns.offsets, columns.timestamps))

    for pages, wrong in [
        ((high + low,), low),
        ((low + low,), low),
        ((high, low), low),
        ((low, high, high), high),
    ]:
        with pytest.raises(StoreError, match=f"digest {wrong.hex()} does not ascend"):
            write(*pages)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_or_unfinished_file_leaves_nothing(tmp_path: Path) -> None:
    """A writer that got nothing, or was left before it finished, leaves no file."""
    with pytest.raises(StoreError, match="has no marks"), SortedFileWriter(tmp_path / "x.sst") as writer:
        writer.finish()
    with SortedFileWriter(tmp_path / "x.sst") as writer:
        writer.add(marks(("a", 1, 1)))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match=r"\.sst"):
        SortedFileWriter(tmp_path / "x.txt")
    with pytest.raises(StoreError, match="missing"):
        SortedFileWriter(tmp_path / "missing" / "x.sst")


def test_a_full_disk_is_not_called_a_damaged_snapshot(folder: Path, tmp_path: Path) -> None:
    """The line names where a file cannot be copied to, not where it comes from."""
    file = read_manifest(folder).partitions[0].files[0]
    target = tmp_path / "full"
    target.mkdir()
    (target / f"{file.name}.sst").symlink_to("/dev/full")
    with pytest.raises(SnapshotError, match=r"/full/0000\.sst cannot be written: No space left on device"):
        read_file(folder / "3", file, target)
