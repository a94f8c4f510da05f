"""Reading a partition's journal, and its generations from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
from rocksdict import Rdict

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.marks import NO_MARKS, Marks, cut_marks, join_marks, select_marks
from dedup_sdk.progress import Progress, latest
from dedup_sdk.store.database import read_items, value_bytes
from dedup_sdk.store.filter_words import FilterWords, filter_words
from dedup_sdk.store.journal import decode_step
from dedup_sdk.store.pages import (
    FoundMark,
    decode_items,
    digest_ranks,
    find_in_page,
    newest_per_digest,
    page_key,
    rank_of,
)

PART_MARKS: Final = 50_000
PART_BYTES: Final = 2**24
"""Of pages; those without payloads take a tenth of it at most."""


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


class Extents(NamedTuple):
    """A generation to be read: its column family, and how many ``extents`` it has."""

    family: Rdict
    extents: int


class _Reading:
    """The marks of one extent, read in the order of their ranks."""

    def __init__(self, family: Rdict, number: int) -> None:
        self._family = family
        self._number = number
        self._next = page_key(number, 0)
        self._held = NO_MARKS

    def below(self, rank: int | None) -> Marks:
        """Return the marks up to a rank that were not returned before, all of them where it is None; no cursor is left open."""
        end = page_key(self._number + 1, 0) if rank is None else page_key(self._number, rank)
        found = decode_items(read_items(self._family, self._next, end))
        self._next = end
        held = join_marks([self._held, found]) if self._held.count else found
        cut = held.count
        if rank is not None:
            # A page that begins below the rank may reach beyond it.
            cut = int(np.searchsorted(digest_ranks(held.digests), rank))
        self._held = cut_marks(held, cut, held.count)
        return cut_marks(held, 0, cut)


def scan_generations(
    generations: Sequence[Extents], marks: int, more: Marks = NO_MARKS, *, below: int | None = None
) -> Iterator[Marks]:
    """Yield the marks of all generations and ``more``, ascending, each ID once, in parts of about `PART_MARKS`; ``marks`` is their number.

    Where payloads make them large, a part has about `PART_BYTES`. None divides what has one rank. ``below``: marks of this offset or a higher
    one do not count.
    """
    size = sum(value_bytes(family) for family, _ in generations)
    slices = min(max(1, (marks + more.count) // PART_MARKS, size // PART_BYTES), 2**16)
    bounds = [*(index * 2**32 // slices for index in range(1, slices)), None]
    later = newest_per_digest(_below(more, below))
    ranks = digest_ranks(later.digests)
    readings = [_Reading(family, number) for family, count in generations for number in range(count)]
    start = 0
    for bound in bounds:
        end = later.count if bound is None else int(np.searchsorted(ranks, bound))
        parts = [_below(reading.below(bound), below) for reading in readings]
        found = [part for part in (*parts, cut_marks(later, start, end)) if part.count]
        start = end
        if found:
            yield newest_per_digest(join_marks(found))


def _below(marks: Marks, offset: int | None) -> Marks:
    return marks if offset is None else select_marks(marks, np.flatnonzero(marks.offsets < offset))


def find_in_generation(generation: Extents, digest: bytes) -> list[FoundMark]:
    """Return every mark that a generation has of a digest, without its filters."""
    found = []
    for number in range(generation.extents):
        cursor = generation.family.iter()
        cursor.seek_for_prev(page_key(number, rank_of(digest)))
        cursor.status()
        if cursor.valid() and cast("bytes", cursor.key()) >= page_key(number, 0):
            mark = find_in_page(cast("bytes", cursor.value()), digest)
            found += [] if mark is None else [mark]
    return found


def read_words(family: Rdict, number: int) -> Iterator[FilterWords]:
    """Yield the filter words of an extent's pages, one after the other."""
    for item in read_items(family, page_key(number, 0), page_key(number + 1, 0)):
        marks = decode_items([item])
        yield filter_words(marks.digests, [rank_of(marks.digests)])
