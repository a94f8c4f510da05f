"""Which IDs two snapshots of one topic disagree about, by merging their sorted pages: bounded memory, whatever their size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import ne
from pathlib import Path

import numpy as np

from dedup_sdk.errors import SnapshotError
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Marks, cut_marks, join_marks, select_marks
from dedup_sdk.store.mark_text import mark_texts
from dedup_sdk.store.pages import digest_words
from dedup_sdk.store.snapshot_reader import read_source
from dedup_sdk.store.snapshot_source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs in one stretch of one partition's digests, each ascending: marks that only one side has, and pairs that differ.

    ``left`` and ``right`` are parallel: the same digests, with another offset, timestamp, acceptance number or payload. ``same``
    counts the marks that are equal.
    """

    partition: int
    only_left: Marks
    only_right: Marks
    left: Marks
    right: Marks
    same: int

    @property
    def differs(self) -> bool:
        """Whether there is any difference."""
        return bool(self.only_left.count or self.only_right.count or self.left.count)


def diff_snapshots(left: Source, right: Source, beside: Path | None = None) -> Iterator[Difference]:
    """Yield the differences of two snapshots, partition by partition, in pages.

    ``beside``: where a file of each is copied to meanwhile [the temporary folder]. Raises `SnapshotError` when they cannot be
    compared (another topic, ID spec or digest), or a file does not check.
    """
    for name in ("topic", "id_spec", "digest"):
        theirs, ours = getattr(left.manifest, name), getattr(right.manifest, name)
        if theirs != ours:
            raise SnapshotError(
                f"{left.place} is of {name}={theirs!r}, {right.place} of {ours!r}: their IDs cannot be compared"
            )
    numbers = {entry.partition for side in (left, right) for entry in side.manifest.partitions}
    for number in sorted(numbers):
        pages = [_pages(side, number, beside) for side in (left, right)]
        try:
            yield from _merged(number, *pages)
        finally:
            for side in pages:
                side.close()


def _pages(source: Source, number: int, beside: Path | None) -> _Pages:
    entry = source.manifest.partition(number)
    return _Pages(iter(()) if entry is None else read_source(source, entry, beside=beside))


class _Pages:
    """The marks of one side that were read and not compared yet."""

    def __init__(self, pages: Iterator[Marks]) -> None:
        self._pages = pages
        self.held = NO_MARKS

    def fill(self) -> bool:
        """Read a page when nothing is held; return whether something is."""
        while not self.held.count:
            page = next(self._pages, None)
            if page is None:
                return False
            self.held = page
        return True

    @property
    def last(self) -> bytes:
        return self.held.digests[-DIGEST_BYTES:]

    def take(self, last: bytes | None = None) -> Marks:
        """Take what is held, up to this digest."""
        if last is None:
            taken, self.held = self.held, NO_MARKS
            return taken
        high, low = digest_words(self.held.digests)
        wanted_high, wanted_low = (int(word[0]) for word in digest_words(last))
        end = int(np.count_nonzero((high < wanted_high) | ((high == wanted_high) & (low <= wanted_low))))
        taken, self.held = cut_marks(self.held, 0, end), cut_marks(self.held, end, self.held.count)
        return taken

    def close(self) -> None:
        close = getattr(self._pages, "close", None)
        if close is not None:
            close()


def _merged(number: int, left: _Pages, right: _Pages) -> Iterator[Difference]:
    while True:
        has_left, has_right = left.fill(), right.fill()
        if has_left and has_right:
            last = min(left.last, right.last)
            yield _compared(number, left.take(last), right.take(last))
        elif has_left or has_right:
            yield _compared(number, left.take(), right.take())
        else:
            return


def _compared(number: int, left: Marks, right: Marks) -> Difference:
    both = join_marks([left, right])
    high, low = digest_words(both.digests)
    # Stable: of two with one digest the left one comes first.
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    twin = np.zeros(len(order) + 1, dtype=np.bool_)
    twin[1:-1] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    lone = order[~twin[:-1] & ~twin[1:]]
    ours, theirs = select_marks(both, order[twin[1:]]), select_marks(both, order[twin[:-1]])
    differs = (ours.offsets != theirs.offsets) | (ours.timestamps != theirs.timestamps)
    if ours.numbers is not None and theirs.numbers is not None:
        differs |= ours.numbers != theirs.numbers
    if ours.payloads is not None and theirs.payloads is not None:
        differs |= np.fromiter(map(ne, ours.payloads, theirs.payloads), np.bool_, ours.count)
    at = np.flatnonzero(differs)
    return Difference(
        partition=number,
        only_left=select_marks(both, lone[lone < left.count]),
        only_right=select_marks(both, lone[lone >= left.count]),
        left=select_marks(ours, at),
        right=select_marks(theirs, at),
        same=ours.count - len(at),
    )


def lines(difference: Difference) -> Iterator[str]:
    """Yield one line a difference: ``<``, ``>`` or ``!``, partition, digest, then what each side that has it says (`mark_texts`)."""
    for sign, marks in (("<", difference.only_left), (">", difference.only_right)):
        for digest, text in mark_texts(marks):
            yield f"{sign} {difference.partition} {digest} {text}"
    for (digest, ours), (_, theirs) in zip(
        mark_texts(difference.left), mark_texts(difference.right), strict=True
    ):
        yield f"! {difference.partition} {digest} {ours} {theirs}"
