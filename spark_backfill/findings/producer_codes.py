"""Producers as numbers, so that they travel as columns: the same name has the same code on every machine."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dedup_sdk._store.pages import Uint64s

_LONGEST: Final = 80


class Producers(NamedTuple):
    """Who sent ``n`` records: codes of shape ``(n,)``, and names by code."""

    codes: Uint64s
    names: dict[int, str]


def producer_codes(values: pa.Array) -> Producers:
    """Return the producers of ``n`` header values (binary, null where there is none).

    A code is 8 bytes of a digest of the value. A name is at most 80 characters, empty for a record without the header.
    """
    encoded = values.dictionary_encode()
    distinct = [b"" if value is None else value for value in encoded.dictionary.to_pylist()]
    hashed = [_code(value) for value in (*distinct, b"")]
    indexes = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    codes = np.asarray(hashed, np.uint64)[indexes]
    names = {code: _name(value) for code, value in zip(hashed, distinct, strict=False)}
    if encoded.null_count:
        names[hashed[-1]] = ""
    return Producers(codes, names)


def _code(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _name(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )[:_LONGEST]
