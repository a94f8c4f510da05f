"""Producers as numbers, so that they travel as columns: the same name has the same code on every machine."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dedup_sdk._store.pages import Uint64s

NO_HEADER: Final = "no header"
_LONGEST: Final = 80


class Producers(NamedTuple):
    """Who sent ``n`` records: codes of shape ``(n,)``, and names by code."""

    codes: Uint64s
    names: dict[int, str]


def producer_codes(values: pa.Array) -> Producers:
    """Return the producers of ``n`` header values (binary, null where there is none, which is like an empty one).

    A code is 8 bytes of a digest of the value. A name is at most 80 characters.
    """
    encoded = values.fill_null(b"").dictionary_encode()
    names = {_code(value): _name(value) for value in encoded.dictionary.to_pylist()}
    return Producers(np.array(list(names), np.uint64)[encoded.indices.to_numpy()], names)


def _code(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _name(value: bytes) -> str:
    text = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in value[: 4 * _LONGEST].decode("utf-8", "replace")
    )
    return text[:_LONGEST] or NO_HEADER
