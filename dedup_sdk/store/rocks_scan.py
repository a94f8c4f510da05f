"""Reading a partition's column families from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rocksdict import Rdict

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Marks, cut_marks, join_marks, select_marks
from dedup_sdk.progress import Progress, latest
from dedup_sdk.store.codec import decode_step, decode_values
from dedup_sdk.store.database import read_items, value_bytes
from dedup_sdk.store.mark_sort import newest_per_digest

PAGE_MARKS: Final = 50_000
PAGE_BYTES: Final = 2**24
"""Of values; those without payloads take a twentieth of it at most."""
_PREFIX_BYTES: Final = 4


def read_journal(
    journal: Rdict, first: int | None, before: Progress | None
) -> tuple[Progress | None, list[Marks], int, int]:
    """Return the whole progress after the last step, the marks of each, the sequence of the first and the one after the last.

    ``before`` is the progress before the first step. ``first`` is the sequence where the journal begins by what the store knows (None: it does not). Raises `StoreCorruptError` when a record does not
    check, or one is missing.
    """
    steps = [] if before is None else [before]
    marks: list[Marks] = []
    following = first
    for key, record in read_items(journal):
        sequence = int.from_bytes(key, "big")
        if following is None:
            first = following = sequence
        if sequence != following:
            message = f"the journal lacks step {following} before step {sequence}; move the store away and rebuild it"
            raise StoreCorruptError(message)
        progress, step = decode_step(record)
        steps.append(progress)
        marks.append(step)
        following = sequence + 1
    return latest(steps), marks, first or 0, following or 0


def scan_families(
    families: Sequence[Rdict], marks: int, more: Marks = NO_MARKS, *, below: int | None = None
) -> Iterator[Marks]:
    """Yield the marks of all families and ``more``, ascending, each ID once, in pages of about `PAGE_MARKS`; ``marks`` is their number.

    Where payloads make them large, a page has about `PAGE_BYTES`. ``below``: marks of this offset or a higher one do not count.
    """
    size = sum(map(value_bytes, families))
    slices = min(max(1, (marks + more.count) // PAGE_MARKS, size // PAGE_BYTES), 2**16)
    bounds = [(index * 2**32 // slices).to_bytes(_PREFIX_BYTES, "big") for index in range(slices)]
    later = newest_per_digest(_below(more, below))
    ranks = np.frombuffer(later.digests, dtype=">u4")[::4]
    cuts = [*np.searchsorted(ranks, [int.from_bytes(bound, "big") for bound in bounds]).tolist(), later.count]
    for index, bound in enumerate(bounds):
        upper = bounds[index + 1] if index + 1 < slices else None
        pages = [
            page
            for family in families
            for page in [_below(_slice(family, bound, upper), below)]
            if page.count
        ]
        start, end = cuts[index], cuts[index + 1]
        if end > start:
            pages.append(cut_marks(later, start, end))
        if pages:
            yield newest_per_digest(join_marks(pages))


def _below(marks: Marks, offset: int | None) -> Marks:
    return marks if offset is None else select_marks(marks, np.flatnonzero(marks.offsets < offset))


def _slice(family: Rdict, lower: bytes, upper: bytes | None) -> Marks:
    items = read_items(family, lower, upper)
    digests = b"".join([key for key, _ in items])
    if len(digests) != DIGEST_BYTES * len(items):
        message = f"{len(items)} marks have keys of {len(digests)} bytes, not {DIGEST_BYTES} each; rebuild the store"
        raise StoreCorruptError(message)
    return Marks(digests, *decode_values([value for _, value in items]))
