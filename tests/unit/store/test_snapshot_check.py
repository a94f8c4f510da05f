from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup_sdk._store.filter_words import encode_words, filter_words
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.snapshot import file_sha256, read_snapshot
from dedup_sdk._store.snapshot_check import check_snapshot
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk.errors import SnapshotError
from tests.support.marks import random_marks, write_snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot of 3,000 marks in two files."""
    write_snapshot(tmp_path / "snapshot", random_marks(3_000, 1), cuts=(1_000,), high=3_000)
    return tmp_path / "snapshot"


def problems(folder: Path) -> list[str]:
    """The faults of a snapshot, line by line."""
    source = SnapshotSource(place=str(folder), manifest=read_manifest(folder))
    return [line for checked in check_snapshot(source) for line in checked.problems]


def describe(folder: Path, **changes: Any) -> None:
    """Say something else of the first file in a manifest that is otherwise right."""
    manifest = read_manifest(folder)
    (entry,) = manifest.partitions
    first = replace(entry.files[0], **changes)
    marks = entry.marks + first.marks - entry.files[0].marks
    part = replace(entry, marks=marks, files=(first, *entry.files[1:]))
    write_manifest(folder, replace(manifest, partitions=(part,)))


def test_a_snapshot_as_it_was_written_has_no_problems(folder: Path) -> None:
    """Every file is read from end to end, and agrees with the manifest."""
    checked = list(check_snapshot(SnapshotSource(place=str(folder), manifest=read_manifest(folder))))
    assert [(each.marks, each.problems) for each in checked] == [(1_000, ()), (2_000, ())]
    assert checked[0].path == f"{folder}/3/0000.sst"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"marks": 999}, "marks=1000, the manifest says 999"),
        ({"smallest": "0" * 32}, "smallest='"),
        ({"oldest_ms": -5}, "the manifest says -5"),
        ({"newest_ms": 10**9}, "the manifest says 1000000000"),
        ({"payloads": 3}, "payloads=0, the manifest says 3"),
        ({"newest_number": 7}, "newest_number=None, the manifest says 7"),
        ({"fingerprint": "1" * 32}, "fingerprint='"),
    ],
)
def test_what_a_manifest_says_of_a_file_is_read_from_it(
    folder: Path, changes: dict[str, Any], told: str
) -> None:
    """A manifest that is whole, but wrong about its file, is one line that names the file and both values."""
    describe(folder, **changes)
    (line,) = problems(folder)
    assert line.startswith(f"{folder}/3/0000.sst: ")
    assert told in line


def test_a_snapshot_with_payloads_is_checked_with_them(tmp_path: Path) -> None:
    """It has no problems as it was written; a manifest that knows of no payloads, or of others, is told."""
    held = replace(random_marks(300, 1), payloads=[b"123456789" * (at % 3) for at in range(300)])
    manifest = write_snapshot(tmp_path / "with", held)
    assert [file.payloads for entry in manifest.partitions for file in entry.files] == [200]
    assert read_manifest(tmp_path / "with") == manifest
    assert problems(tmp_path / "with") == []
    (file,) = write_snapshot(tmp_path / "plain", replace(held, payloads=None)).partitions[0].files
    describe(tmp_path / "with", payloads=0, fingerprint=file.fingerprint)
    told = problems(tmp_path / "with")
    assert len(told) == 2
    assert told[0].endswith("payloads=200, the manifest says 0")
    assert "fingerprint='" in told[1]
    (entry,) = read_manifest(tmp_path / "with").partitions
    with pytest.raises(SnapshotError, match="payloads"):
        list(read_snapshot(tmp_path / "with", entry))


def test_a_changed_byte_is_told_with_its_file(folder: Path) -> None:
    """A file whose SHA-256 differs is named; the other one is read all the same."""
    path = folder / "3" / "0001.sst"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    (line,) = problems(folder)
    assert line.startswith(f"{path} has SHA-256 ")


def test_offsets_beyond_the_cut_are_found(tmp_path: Path) -> None:
    """A mark at or above the cut would hide a record that nobody handled."""
    write_snapshot(tmp_path / "snapshot", random_marks(10, 1, offset=95), high=100)
    (line,) = problems(tmp_path / "snapshot")
    assert line.endswith("/3/0000.sst: offsets 95 to 104 are not inside [0, 100)")


def test_filter_words_of_other_ids_are_found(folder: Path) -> None:
    """Words that check by themselves, but are not those of the digests, would make look-ups miss IDs."""
    path = folder / "3" / "0000.filter"
    path.write_bytes(encode_words(filter_words(bytes(16_000))))
    describe(folder, filter_sha256=file_sha256(path), filter_bytes=path.stat().st_size)
    (line,) = problems(folder)
    assert line.startswith(f"{path}: its 1000 filter words are not those of the 1000 digests")
