"""The fold of a log, as the naive log reads it, in the terms of a store: digests and marks.

Every other fold is compared with it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from dedup_sdk._decision import Mark
from tests.support.naive_log import Entry, read_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dedup_sdk._window import Window


class Row(NamedTuple):
    """A record of a log, as the fold sees it; ``digest`` None: no ID."""

    partition: int
    offset: int
    timestamp_ms: int
    digest: bytes | None


def digest_of(name: object) -> bytes:
    """Sixteen bytes that stand for an ID."""
    return hashlib.sha256(str(name).encode()).digest()[:16]


def naive_fold(rows: Iterable[Row], window: Window) -> tuple[dict[bytes, Mark], int]:
    """Read the records of one partition in offset order; return all marks and how many IDs were accepted."""
    log = (
        Entry(row.offset, None if row.digest is None else row.digest.hex(), row.timestamp_ms) for row in rows
    )
    reading = read_log(log, window.time_ms, window.count)
    marks = {
        bytes.fromhex(ident): Mark(seen.offset, seen.timestamp_ms, seen.number)
        for ident, seen in reading.seen.items()
    }
    return marks, reading.accepted
