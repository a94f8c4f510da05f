"""A snapshot of what a group handled, to be loaded into a store that consumers share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from dedup_sdk._marks import Marks
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk.ids import digest_one
from dedup_sdk.shared._scope import scope_name, scoped_ids
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.shared._scope import Scope

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BASE_MS: Final = 1_700_000_000_000
NEWEST_MS: Final = BASE_MS + 40 * HOUR_MS
HANDLED: Final = {b"a": 40, b"b": 30, b"c": 20, b"d": 39}
"""The IDs that the group handled within the last day of its history, and the hour of their last sighting."""
_PARTITIONS: Final = {
    0: {b"old": 3, b"b": 30, b"a": 40},
    1: {b"a": 19, b"c": 20, b"d": 39},
}


def write_history(folder: Path, *, group: str | None = "billing", window: str = "1d") -> Path:
    """Write the snapshot of a topic of two partitions, with an ID (``old``) that the window does not reach."""
    parts = {
        partition: Marks(
            b"".join(map(digest_one, seen)),
            np.arange(len(seen), dtype=np.int64),
            np.asarray([BASE_MS + hour * HOUR_MS for hour in seen.values()], np.int64),
        )
        for partition, seen in _PARTITIONS.items()
    }
    write_snapshot(folder, parts, group=group, window=window)
    write_manifest(folder, replace(read_manifest(folder), created_ms=NEWEST_MS))
    return folder


def keys(
    *names: bytes, partition: int = 0, scope: Scope = "topic", group: str = "billing", prefix: str = ""
) -> list[bytes]:
    """A store's names for IDs."""
    name = scope_name(
        scope,
        id_spec="header:dedup-id",
        cluster="c1",
        prefix=prefix,
        group=group,
        topic="orders",
        partition=partition,
    )
    return scoped_ids(name, map(digest_one, names))


def expected() -> dict[bytes, int | None]:
    """The marks that the store is to have: timestamps of last sightings."""
    return {name: BASE_MS + hour * HOUR_MS for name, hour in HANDLED.items()}
