"""The marks of a snapshot, file by file: no more than one of its files is copied at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from rocksdict import IngestExternalFileOptions, Rdict

from dedup_sdk.errors import SnapshotError, StoreCorruptError
from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.store.manifest import PartitionManifest
from dedup_sdk.store.options import database_options
from dedup_sdk.store.pages import decode_items, marks_in_page
from dedup_sdk.store.rocks_scan import PART_BYTES, PART_MARKS
from dedup_sdk.store.snapshot import read_file
from dedup_sdk.store.snapshot_source import Source
from dedup_sdk.store.sorted_file import SORTED_SUFFIX, SortedFile

Copy = Callable[[SortedFile, Path], object]
"""Checks a file of a snapshot by size and SHA-256, and puts it and its filter words into a folder."""


def read_snapshot(folder: str | Path, entry: PartitionManifest) -> Iterator[Marks]:
    """Yield the marks of one partition of a snapshot in pages, ascending; needs room for its largest file in the temporary folder.

    Raises `SnapshotError` when a file does not check, or holds other keys than its manifest says.
    """
    source = Path(folder) / str(entry.partition)
    return read_files(
        entry.files, lambda file, target: read_file(source, file, target), place=str(source), beside=None
    )


def read_source(source: Source, entry: PartitionManifest, *, beside: Path | None = None) -> Iterator[Marks]:
    """Do as `read_snapshot`, wherever the snapshot lies; a file is copied to a folder made in ``beside`` [the temporary folder]."""
    return read_files(
        entry.files,
        lambda file, target: source.copy(entry.partition, file, target),
        place=f"{source.place}/{entry.partition}",
        beside=beside,
    )


def read_files(
    files: Iterable[SortedFile], copy: Copy, *, place: str, beside: Path | None
) -> Iterator[Marks]:
    """Yield the marks of a partition's files in pages, ascending over all; ``copy`` puts each into a folder made in ``beside``.

    ``place`` is how messages name the partition. Raises `SnapshotError` as `read_snapshot` does.
    """
    for file in sorted(files, key=lambda file: file.smallest):
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-", dir=beside) as scratch:
            copy(file, Path(scratch))
            count, payloads, first, last = 0, 0, "", ""
            for page in read_sorted_file(Path(scratch), file, f"{place}/{file.name}{SORTED_SUFFIX}"):
                count += page.count
                payloads += sum(map(bool, page.payloads or ()))
                first, last = (
                    first or page.digests[:DIGEST_BYTES].hex(),
                    page.digests[-DIGEST_BYTES:].hex(),
                )
                yield page
        found = count, payloads, first, last
        expected = file.marks, file.payloads, file.smallest, file.largest
        if found != expected:
            message = (
                f"{place}/{file.name}{SORTED_SUFFIX} has (marks, payloads, smallest, largest) = {found}, the manifest says {expected}; "
                "make it again"
            )
            raise SnapshotError(message)


def read_sorted_file(folder: Path, file: SortedFile, place: str) -> Iterator[Marks]:
    """Yield the marks of a sorted file in pages, in its own order; the file, a copy in ``folder``, is used up.

    ``place`` is how messages name it. Raises `SnapshotError` when RocksDB cannot read it.
    """
    database = Rdict(str(folder / "db"), database_options(None))
    try:
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        database.ingest_external_file([str(folder / f"{file.name}{SORTED_SUFFIX}")], options)
        yield from _parts(database)
    except StoreCorruptError as error:
        message = f"{place}: {error}; make the snapshot again"
        raise SnapshotError(message) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        message = f"{place} cannot be read ({error}); make the snapshot again"
        raise SnapshotError(message) from error
    finally:
        # A file that RocksDB refused may be in the way of its closing too.
        with suppress(Exception):
            database.close()


def _parts(database: Rdict) -> Iterator[Marks]:
    items: list[tuple[bytes, bytes]] = []
    marks = size = 0
    last = b""
    for item in cast("Iterator[tuple[bytes, bytes]]", iter(database.items())):
        marks += marks_in_page(item[1])
        size += len(item[1])
        if items and (marks > PART_MARKS or size > PART_BYTES):
            yield decode_items(items)
            items, marks, size = [], marks_in_page(item[1]), len(item[1])
        items.append(item)
        last = item[0]
    if items:
        yield decode_items(items)
    # Such an iteration ends at an error as it does at the end. One that can be asked goes the last step again.
    cursor = database.iter()
    cursor.seek(last)
    if last and cursor.valid():
        cursor.next()
    cursor.status()
    if cursor.valid():
        message = f"reading stopped before key {cast('bytes', cursor.key()).hex()}"
        raise StoreCorruptError(message)
