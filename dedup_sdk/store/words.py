"""Digests as columns of words: the first and the second 8 bytes of each, as unsigned big-endian numbers.

Comparing ``(high, low)`` is comparing the digests byte by byte, unsigned: RocksDB's order, and Spark's order of binaries.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.marks import DIGEST_BYTES

Uint64s = NDArray[np.uint64]

BIG_ENDIAN_U64: Final = np.dtype(">u8")


def digest_words(digests: bytes) -> tuple[Uint64s, Uint64s]:
    """Return the high and the low words of ``n`` digests (``16 * n`` bytes), each of shape ``(n,)``.

    Raises ValueError when ``digests`` is not a whole number of digests.
    """
    if len(digests) % DIGEST_BYTES:
        message = f"{len(digests)} bytes are not a whole number of {DIGEST_BYTES}-byte digests"
        raise ValueError(message)
    words = np.frombuffer(digests, dtype=BIG_ENDIAN_U64).reshape(-1, 2)
    return words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)


def digest_list(digests: bytes) -> list[bytes]:
    """Cut ``16 * n`` bytes into ``n`` digests."""
    cut: list[bytes] = np.frombuffer(digests, dtype=f"V{DIGEST_BYTES}").tolist()
    return cut
