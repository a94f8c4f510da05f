"""Reading the marks of a snapshot, which lie in sorted files of RocksDB's, through a database made for the purpose."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Rdict

from dedup_sdk.errors import SnapshotError, StoreCorruptError
from dedup_sdk.marks import Marks
from dedup_sdk.store.manifest import PartitionManifest
from dedup_sdk.store.options import database_options
from dedup_sdk.store.rocks_scan import scan_families
from dedup_sdk.store.snapshot import read_file
from dedup_sdk.store.sorted_file import SORTED_SUFFIX


def read_snapshot(folder: str | Path, entry: PartitionManifest) -> Iterator[Marks]:
    """Yield the marks of one partition of a snapshot in pages, ascending; needs room for a copy in the temporary folder.

    Raises `SnapshotError` when a file does not check, or holds other keys than its manifest says.
    """
    if not entry.files:
        return
    source = Path(folder) / str(entry.partition)
    with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
        incoming = Path(scratch) / "incoming"
        incoming.mkdir()
        for file in entry.files:
            read_file(source, file, incoming)
        database = Rdict(str(Path(scratch) / "db"), database_options(None))
        try:
            options = IngestExternalFileOptions()
            options.set_move_files(True)
            database.ingest_external_file(
                [str(incoming / f"{file.name}{SORTED_SUFFIX}") for file in entry.files], options
            )
            yield from _counted(source, database, entry)
        except StoreCorruptError as error:
            message = f"{source}: {error}; make the snapshot again"
            raise SnapshotError(message) from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            message = f"{source}: its sorted files cannot be read ({error}); make the snapshot again"
            raise SnapshotError(message) from error
        finally:
            database.close()


def _counted(source: Path, database: Rdict, entry: PartitionManifest) -> Iterator[Marks]:
    count = 0
    first = last = ""
    for page in scan_families([database], entry.marks):
        count += page.count
        first, last = first or page.digests[:16].hex(), page.digests[-16:].hex()
        yield page
    expected = (
        entry.marks,
        min(file.smallest for file in entry.files),
        max(file.largest for file in entry.files),
    )
    if (count, first, last) != expected:
        message = f"{source} has (marks, smallest, largest) = {(count, first, last)}, the manifest says {expected}; make it again"
        raise SnapshotError(message)
