"""Marks as a dictionary, however they are spread over journals and files."""

from __future__ import annotations

from collections.abc import Iterable

from dedup_sdk.decision import Mark
from dedup_sdk.marks import Marks
from tests.support.naive_fold import as_dictionary


def newest_marks(pages: Iterable[Marks]) -> dict[bytes, Mark]:
    """Return the mark of the highest offset of each digest, with its number (0 where there is none)."""
    newest: dict[bytes, Mark] = {}
    for page in pages:
        for at in range(page.count):
            one = slice(at, at + 1)
            numbers = None if page.numbers is None else page.numbers[one]
            row = Marks(
                page.digests[16 * at : 16 * at + 16], page.offsets[one], page.timestamps[one], numbers
            )
            for digest, mark in as_dictionary(row).items():
                if digest not in newest or newest[digest].offset < mark.offset:
                    newest[digest] = mark
    return newest
