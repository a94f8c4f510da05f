"""Marks as a dictionary, however they are spread over journals and files: tests compare two memories by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from dedup_sdk._decision import Mark
from dedup_sdk._store.pages import decode_items

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dedup_sdk._marks import Marks


class Kept(NamedTuple):
    """A mark: offset, timestamp (ms), number (0 where there is none), payload (b"" where there is none)."""

    offset: int
    timestamp_ms: int
    number: int
    payload: bytes


def newest_of(pages: Iterable[Marks]) -> dict[bytes, Kept]:
    """Return the mark of the highest offset of each digest."""
    known: dict[bytes, Kept] = {}
    for page in pages:
        numbers = [0] * page.count if page.numbers is None else page.numbers.tolist()
        payloads = page.payloads or [b""] * page.count
        rows = zip(page.offsets.tolist(), page.timestamps.tolist(), numbers, payloads, strict=True)
        for at, mark in enumerate(map(Kept._make, rows)):
            digest = page.digests[16 * at : 16 * at + 16]
            if digest not in known or mark.offset >= known[digest].offset:
                known[digest] = mark
    return known


def newest_marks(pages: Iterable[Marks]) -> dict[bytes, Mark]:
    """Return the same without payloads, as the rule's oracles have them."""
    return {digest: Mark(*kept[:3]) for digest, kept in newest_of(pages).items()}


def read_sorted_file(path: Path) -> dict[bytes, Mark]:
    """Return the marks of a sorted file, in the order of the file, read by RocksDB itself."""
    from rocksdict import Options, Rdict

    folder = path.with_suffix(".db")
    database = Rdict(str(folder), Options(raw_mode=True))
    try:
        database.ingest_external_file([str(path)])
        entries = [(cast("bytes", key), cast("bytes", value)) for key, value in database.items()]
    finally:
        database.close()
    return newest_marks([decode_items(entries)])
