"""Marks and stores for tests, small enough to read."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dedup_sdk._marks import Known, Marks, Progress, cut_marks
from dedup_sdk._store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.snapshot import SortedFileWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = tuple[str, int, int]
NumberedRow = tuple[str, int, int, int]

IDENTITY = Identity(
    cluster="c1", group="billing", topic="orders", partition=3, topic_id="t1", id_spec="header:id"
)


def digest(name: str) -> bytes:
    """Return the digest of an ID."""
    return hashlib.sha256(name.encode()).digest()[:16]


def marks(*rows: Row | NumberedRow) -> Marks:
    """Return marks of (ID, offset, timestamp[, number])."""
    numbers = np.array([row[3] for row in rows if len(row) == 4], np.int64)
    return Marks(
        b"".join(digest(row[0]) for row in rows),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
        numbers if len(numbers) else None,
    )


def payloads(pages: Iterable[Marks]) -> dict[bytes, bytes]:
    """Return digest -> payload of all pages, b"" where there is none."""
    found: dict[bytes, bytes] = {}
    for page in pages:
        keys = [page.digests[at : at + 16] for at in range(0, 16 * page.count, 16)]
        found |= dict(zip(keys, page.payloads or [b""] * page.count, strict=True))
    return found


def rows(pages: Iterable[Marks]) -> dict[bytes, tuple[int, int]]:
    """Return digest -> (offset, timestamp) of all pages; every digest may come once."""
    found: dict[bytes, tuple[int, int]] = {}
    for page in pages:
        for index in range(page.count):
            key = page.digests[16 * index : 16 * index + 16]
            assert key not in found
            found[key] = (int(page.offsets[index]), int(page.timestamps[index]))
    return found


def random_marks(count: int, seed: int, *, offset: int = 0, step_ms: int = 10) -> Marks:
    """Return marks of random digests at consecutive offsets."""
    source = np.random.default_rng(seed)
    offsets = np.arange(offset, offset + count, dtype=np.int64)
    return Marks(source.bytes(16 * count), offsets, offsets * step_ms)


def progress(high: int, *, low: int = 0, committed: int | None = None) -> Progress:
    """Return the progress of a partition completed up to ``high``."""
    return Progress(low=low, high=high, committed=committed)


def write_snapshot(
    folder: Path,
    held: Marks,
    *,
    identity: Identity = IDENTITY,
    high: int = 1000,
    group: str | None = "billing",
    vouched: bool = False,
    window: str = "7d",
    cuts: Sequence[int] = (),
) -> Manifest:
    """Write a snapshot with one partition, its marks cut into files at the given positions."""
    ordered = newest_per_digest(held)
    (folder / str(identity.partition)).mkdir(parents=True)
    files = []
    bounds = [0, *cuts, ordered.count]
    for index, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        with SortedFileWriter(folder / str(identity.partition) / f"{index:04}.sst") as writer:
            writer.add(cut_marks(ordered, start, end))
            files.append(writer.finish())
    part = PartitionManifest(
        partition=identity.partition,
        low=0,
        high=high,
        known=Known(newest_ms=int(ordered.timestamps.max()) if ordered.count else -1),
        marks=ordered.count,
        files=tuple(files),
    )
    manifest = replace(
        Manifest.of_store(identity, window, 1_700_000_000_000, (part,)), group=group, vouched=vouched
    )
    write_manifest(folder, manifest)
    return manifest
