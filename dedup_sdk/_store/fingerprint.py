"""Fingerprints: one short text for a set of marks, independent of their order, pages and files.

Layout: each mark becomes one 64-bit word by folding its four columns (high and low word of the digest,
offset, timestamp, all as unsigned 64-bit) through the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast
splittable pseudorandom number generators", OOPSLA 2014). A payload is folded in as a fifth word,
`payload_word`. Acceptance numbers are not included. The text is the sum of these words and the sum of their
own mixes, both modulo 2^64, in hexadecimal. So the fingerprints of parts add up to that of the whole.

It detects accidental differences; it is no protection against deliberate ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import numpy as np

from dedup_sdk._marks import Marks, cut_marks
from dedup_sdk._store.pages import Uint64s, digest_words

FINGERPRINT_DIGITS: Final = 32
NO_FINGERPRINT: Final = "0" * FINGERPRINT_DIGITS

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_MASK: Final = 2**64 - 1
_HALF_DIGITS: Final = FINGERPRINT_DIGITS // 2
_CACHED_MARKS: Final = 2**13
"""Columns of this many marks stay in the processor's cache from one step to the next, which halves the time."""


def fingerprint(pages: Iterable[Marks]) -> str:
    """Return 32 hexadecimal digits that depend only on the set of marks; 32 zeros for no marks."""
    total = total_mixed = 0
    for page in pages:
        for start in range(0, page.count, _CACHED_MARKS):
            words = _words(cut_marks(page, start, min(start + _CACHED_MARKS, page.count)))
            total += int(words.sum(dtype=np.uint64))
            # A second sum, because two changes that cancel each other out in one do not in the other.
            total_mixed += int(_mixed(words).sum(dtype=np.uint64))
    return f"{total & _MASK:016x}{total_mixed & _MASK:016x}"


def sum_fingerprints(parts: Iterable[str]) -> str:
    """Return the fingerprint of the marks of all parts together; 32 zeros for no parts.

    Raises ValueError when one of them is not hexadecimal.
    """
    total = total_mixed = 0
    for part in parts:
        total += int(part[:_HALF_DIGITS], 16)
        total_mixed += int(part[_HALF_DIGITS:], 16)
    return f"{total & _MASK:016x}{total_mixed & _MASK:016x}"


def _words(marks: Marks) -> Uint64s:
    high, low = digest_words(marks.digests)
    words = _mixed(high)
    for column in (low, marks.offsets.astype(np.uint64), marks.timestamps.astype(np.uint64)):
        words ^= column
        words = _mixed(words)
    if marks.bear_payloads and marks.payloads is not None:
        # A mark without a payload counts as in a store where no mark has one.
        bearing = [index for index, payload in enumerate(marks.payloads) if payload]
        folded = np.array([payload_word(marks.payloads[index]) for index in bearing], np.uint64)
        words[bearing] = _mixed(words[bearing] ^ folded)
    return words


def payload_word(payload: bytes) -> int:
    """Return 64 bits for a payload: its BLAKE2b of 8 bytes, little-endian."""
    return int.from_bytes(blake2b(payload, digest_size=8).digest(), "little")


def _mixed(words: Uint64s) -> Uint64s:
    mixed = words + _GAMMA
    for shift, factor in zip(_SHIFTS[:2], (_FIRST, _SECOND), strict=True):
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _SHIFTS[2]
    return mixed
