"""One short text for a set of marks, however they are ordered, paged or spread over files.

Layout: each mark becomes one 64-bit word by folding its four columns (high and low word of the digest, offset,
timestamp, all as unsigned 64-bit) through the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014); the text is the sum of these words and the sum of their own mixes, both modulo 2^64, in
hexadecimal. Acceptance numbers are not part of it. It tells sets apart that differ by accident, not by design.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from dedup_sdk.marks import Marks
from dedup_sdk.store.words import Uint64s, digest_words

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_MASK: Final = 2**64 - 1


def fingerprint(pages: Iterable[Marks]) -> str:
    """Return 32 hexadecimal digits that depend only on which marks the pages hold; none at all give 32 zeros."""
    total = total_mixed = 0
    for page in pages:
        high, low = digest_words(page.digests)
        words = _mix(high)
        for column in (low, page.offsets.astype(np.uint64), page.timestamps.astype(np.uint64)):
            words = _mix(words ^ column)
        total += int(words.sum(dtype=np.uint64))
        total_mixed += int(_mix(words).sum(dtype=np.uint64))
    return f"{total & _MASK:016x}{total_mixed & _MASK:016x}"


def _mix(words: Uint64s) -> Uint64s:
    mixed = words + _GAMMA
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _FIRST
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _SECOND
    return mixed ^ (mixed >> _SHIFTS[2])
