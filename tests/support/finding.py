"""Looking IDs up by name."""

from __future__ import annotations

from dedup_sdk._store.protocol import PartitionStore
from tests.support.marks import digest


def find(store: PartitionStore, *names: str) -> dict[str, tuple[int, int]]:
    """Return ID -> (offset, timestamp) of those that are found."""
    found = store.find(b"".join(map(digest, names)), len(names))
    assert found.indexes == sorted(found.indexes)
    return {
        names[index]: (offset, timestamp)
        for index, offset, timestamp in zip(found.indexes, found.offsets, found.timestamps, strict=True)
    }
