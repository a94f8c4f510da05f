"""The digest of an ID: the 16 bytes that a store keeps of it.

Layout of the hashed message, for an ID of parts ``p1 .. pn``:

    +-----------------+----+-----+-------------------+--------+----+
    | len(p1), 4 B BE | p1 | ... | len(pn-1), 4 B BE | pn-1   | pn |
    +-----------------+----+-----+-------------------+--------+----+

    digest = first 16 bytes of SHA-256(message)

Every part but the last is preceded by its length, so that for one spec (which fixes the number of parts) two lists of
parts never give the same message: ``("a", "bc")`` is not ``("ab", "c")``. An ID of a single part, the usual case, is
hashed as it is. Spark SQL computes the same without Python:
``substring(unhex(sha2(concat(unhex(lpad(hex(octet_length(p1)), 8, '0')), p1, p2), 256)), 1, 16)``.

The parts of an ID may have 65,536 bytes together (lengths not counted); an ID above that is no ID (``oversized``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from dedup_sdk.marks import DIGEST_BYTES

MAX_ID_BYTES = 65_536

_length = struct.Struct(">I")
_PREFIX_BYTES = _length.size

# The interpreter's own SHA-256 has less overhead, OpenSSL's hashes faster: up to one block the former is faster.
_ONE_BLOCK_BYTES = 55


class _Hash(Protocol):
    def digest(self) -> bytes: ...


_Sha256 = Callable[[bytes], _Hash]


def _builtin_sha256() -> _Sha256:
    """Return the interpreter's own SHA-256 (``_sha2`` from Python 3.12, ``_sha256`` before), or hashlib's without it."""
    for module in ("_sha2", "_sha256"):
        try:
            return cast("_Sha256", import_module(module).sha256)
        except (ImportError, AttributeError):
            continue
    return hashlib.sha256


_short_sha256 = _builtin_sha256()


class Ids(NamedTuple):
    """The IDs of ``n`` records.

    ``digests`` has length ``n``: 16 bytes, or None for a record without an ID. ``missing`` has exactly the indexes of
    those, each with its reason:

    - ``absent``: the header, key, value or member is missing or null;
    - ``empty``: it is empty, where the spec takes that for no ID (``cloudevents``);
    - ``oversized``: the ID has more than 65,536 bytes;
    - ``malformed``: the value is not strict JSON in UTF-8, or the text has no UTF-8 form (a lone surrogate);
    - ``not-scalar``: neither a string nor an integer;
    - ``out-of-range``: an integer that needs more than 64 bits, sign included;
    - ``failed``: the callable of ``py:`` raised.
    """

    digests: list[bytes | None]
    missing: dict[int, str]


class Column(NamedTuple):
    """One part of the IDs of ``n`` records.

    ``values`` has length ``n``, None where the part is missing; ``reasons`` says why, by index, where that is not
    ``absent``.
    """

    values: Sequence[bytes | None]
    reasons: Mapping[int, str] = {}


def digest_one(part: bytes) -> bytes:
    """Return the digest (16 bytes) of an ID of one part."""
    return hashlib.sha256(part).digest()[:DIGEST_BYTES]


def digest_parts(parts: Sequence[bytes]) -> bytes:
    """Return the digest (16 bytes) of an ID of one or more parts; raises `ValueError` when there is none."""
    if not parts:
        raise ValueError("an ID has at least one part; give e.g. digest_parts([b'order-1'])")
    return digest_one(_message(parts))


def _message(parts: Sequence[bytes]) -> bytes:
    *leading, last = parts
    return b"".join(_length.pack(len(part)) + part for part in leading) + last


def digest_columns(columns: Sequence[Column]) -> Ids:
    """Return the IDs whose parts are ``columns``, one or more of the same length.

    A record that misses one part has no ID, for the reason of the first part that it misses.
    """
    if len(columns) == 1:
        return _digests(columns[0], MAX_ID_BYTES)
    limit = MAX_ID_BYTES + _PREFIX_BYTES * (len(columns) - 1)
    try:
        return _digests(_joined(columns), limit)
    except TypeError:
        return _digests(_joined_with_gaps(columns), limit)


def _joined(columns: Sequence[Column]) -> Column:
    """Return the messages to hash; raises `TypeError` when any part is missing."""
    messages = cast("Sequence[bytes]", columns[-1].values)
    pack = _length.pack
    for column in reversed(columns[:-1]):
        parts = cast("Sequence[bytes]", column.values)
        messages = [pack(len(part)) + part + rest for part, rest in zip(parts, messages, strict=True)]
    return Column(messages)


def _joined_with_gaps(columns: Sequence[Column]) -> Column:
    """Return the messages to hash, None (and the reason) where any part is missing."""
    messages: list[bytes | None] = []
    reasons: dict[int, str] = {}
    for index, parts in enumerate(zip(*(column.values for column in columns), strict=True)):
        present = [part for part in parts if part is not None]
        if len(present) == len(parts):
            messages.append(_message(present))
        else:
            messages.append(None)
            reasons[index] = columns[parts.index(None)].reasons.get(index, "absent")
    return Column(messages, reasons)


def _digests(messages: Column, limit: int) -> Ids:
    """Hash messages of at most ``limit`` bytes; the usual batch, without gaps, takes one pass."""
    size = DIGEST_BYTES
    try:
        values = cast("Sequence[bytes]", messages.values)
        longest = max(map(len, values), default=0)
    except TypeError:
        return _digests_with_gaps(messages, limit)
    if longest > limit:
        return _digests_with_gaps(messages, limit)
    sha256 = _quickest_sha256(longest)
    return Ids([sha256(value).digest()[:size] for value in values], {})


def _digests_with_gaps(messages: Column, limit: int) -> Ids:
    size = DIGEST_BYTES
    usable = [None if value is None or len(value) > limit else value for value in messages.values]
    missing = {
        index: messages.reasons.get(index, "absent") if messages.values[index] is None else "oversized"
        for index, value in enumerate(usable)
        if value is None
    }
    sha256 = _quickest_sha256(max((len(value) for value in usable if value is not None), default=0))
    return Ids([None if value is None else sha256(value).digest()[:size] for value in usable], missing)


def _quickest_sha256(longest: int) -> _Sha256:
    return _short_sha256 if longest <= _ONE_BLOCK_BYTES else hashlib.sha256
