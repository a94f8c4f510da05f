"""XXH64, as its specification has it: of many equally long rows at once, or of one text.

RocksDB protects a block by the low 32 bits of the XXH64 (seed 0) of its bytes and its compression type. Rows are hashed side
by side: each step of the algorithm is one array operation over all of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes2d = NDArray[np.uint8]
Uint64s = NDArray[np.uint64]

_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
_MASK: Final = 2**64 - 1
_STRIPE: Final = 32
_AT_ONCE: Final = 1024
"""Rows hashed side by side: more do not stay in the processor's cache."""
_STARTS: Final = ((_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK)


def xxh64(text: bytes) -> int:
    """Return the XXH64 of ``text`` with seed 0: of one long text, faster than a row alone."""
    whole = len(text) // _STRIPE * _STRIPE
    if not whole:
        return int(xxh64_rows(np.frombuffer(text, np.uint8)[None, :])[0])
    lanes = []
    for lane, state in enumerate(_STARTS):
        for word in np.frombuffer(text, "<u8", whole // 8)[lane::4].tolist():
            state = (state + word * _P2) & _MASK  # noqa: PLW2901
            state = (((state << 31) | (state >> 33)) * _P1) & _MASK  # noqa: PLW2901
        lanes.append(np.array([state], np.uint64))
    tail = np.frombuffer(text, np.uint8)[None, whole:]
    return int(_finish(_merged(lanes) + np.uint64(len(text)), tail)[0])


def xxh64_rows(rows: Bytes2d) -> Uint64s:
    """Return the XXH64 of each row with seed 0; ``rows`` of shape ``(n, length)``, the result of shape ``(n,)``."""
    if len(rows) > _AT_ONCE:
        return np.concatenate([_rows(rows[at : at + _AT_ONCE]) for at in range(0, len(rows), _AT_ONCE)])
    return _rows(rows)


def _rows(rows: Bytes2d) -> Uint64s:
    count, length = rows.shape
    whole = length // _STRIPE * _STRIPE
    if whole:
        # Stripe by stripe, so that what one step reads lies together.
        words = np.ascontiguousarray(rows[:, :whole]).view("<u8").reshape(count, -1, 4)
        stripes = np.array(words.transpose(1, 2, 0), np.uint64, order="C")
        state = np.empty((4, count), np.uint64)
        state[:] = np.array(_STARTS, np.uint64)[:, None]
        stripes *= np.uint64(_P2)
        high = np.empty_like(state)
        for stripe in stripes:
            state += stripe
            np.right_shift(state, np.uint64(33), out=high)
            state <<= np.uint64(31)
            state |= high
            state *= np.uint64(_P1)
        start = _merged(list(state))
    else:
        start = np.full(count, _P5, np.uint64)
    return _finish(start + np.uint64(length), rows[:, whole:])


def _merged(lanes: list[Uint64s]) -> Uint64s:
    """Join the four lanes."""
    joined: Uint64s = (
        _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
    )
    for lane in lanes:
        joined = (joined ^ _round(lane)) * np.uint64(_P1) + np.uint64(_P4)
    return joined


def _finish(state: Uint64s, tail: Bytes2d) -> Uint64s:
    """Mix in what is left of each row, less than a stripe, and let every bit reach every other."""
    at, length = 0, tail.shape[1]
    while at + 8 <= length:
        word = _column(tail, at, "<u8")
        state = _rotated(state ^ _round(word), 27) * np.uint64(_P1) + np.uint64(_P4)
        at += 8
    if at + 4 <= length:
        word = _column(tail, at, "<u4") * np.uint64(_P1)
        state = _rotated(state ^ word, 23) * np.uint64(_P2) + np.uint64(_P3)
        at += 4
    for place in range(at, length):
        word = tail[:, place].astype(np.uint64) * np.uint64(_P5)
        state = _rotated(state ^ word, 11) * np.uint64(_P1)
    for shift, factor in ((33, _P2), (29, _P3)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(32))


def _round(word: Uint64s) -> Uint64s:
    mixed: Uint64s = _rotated(word * np.uint64(_P2), 31) * np.uint64(_P1)
    return mixed


def _rotated(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


def _column(rows: Bytes2d, at: int, kind: str) -> Uint64s:
    width = np.dtype(kind).itemsize
    words: Uint64s = np.ascontiguousarray(rows[:, at : at + width]).view(kind).ravel().astype(np.uint64)
    return words
