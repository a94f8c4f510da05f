"""The size of a key store on the disk, once recent marks lie in sorted files too and dead data is compacted away."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dedup_sdk._store.database import close_database, open_database, shared_memory
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksStore

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._window import Window

_CACHE_BYTES = 8 << 20


class StoreSize(NamedTuple):
    """All files below a store's folder, in bytes (logs, filters and manifests included), and the marks in them."""

    bytes: int
    marks: int


def compacted_size(folder: Path, window: Window) -> StoreSize:
    """Flush and compact every partition below `folder`, which nobody has open, and return the size then."""
    marks = 0
    store = RocksStore(folder)
    try:
        for entry in list_partitions(folder):
            with read_partition(entry.path) as reader:
                identity = reader.identity
            held = store.open(identity, window)
            loaded = held.load()
            if loaded is not None:
                held.flush(loaded.progress, newest_per_digest(loaded.recent))
            marks += held.stats().marks
            held.close()
            compact(entry.path)
    finally:
        store.close()
    return StoreSize(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), marks)


def compact(folder: Path) -> None:
    """Merge the sorted files of a partition that nobody has open."""
    database, names = open_database(folder, shared_memory(_CACHE_BYTES))
    families = [database.get_column_family(name) for name in names]
    for family in families:
        family.flush()
        family.compact_range(None, None)
    # A handle that lives on would keep the database open.
    del families, family
    close_database(database)
