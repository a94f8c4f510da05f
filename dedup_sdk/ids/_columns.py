"""The columns of records that an ID spec reads, and the digest of an ID: the 16 bytes that a store keeps of it.

Only the columns that a spec needs (`IdSpec.needs`) are read, each at most once a batch, because reading
the headers of a Kafka message costs about as much as reading the message.

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
from itertools import chain
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol, cast

import numpy as np

from dedup_sdk._marks import DIGEST_BYTES, Digests
from dedup_sdk._record import Record

Need = Literal["headers", "key", "value", "record"]
Headers = Sequence[tuple[str, bytes | None]]

_name_of = itemgetter(0)


class Fields(Protocol):
    """The fields of ``count`` records; each method returns a list of that length, in the order of the records."""

    @property
    def count(self) -> int:
        """The number of records."""

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record, in Kafka's order, with repetitions; None or empty where there are none."""

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record; None for a tombstone."""

    def records(self) -> list[Record]:
        """Return the records themselves."""


class HeaderColumns(Protocol):
    """The headers of records by name, where all of them need not be read for that."""

    def header(self, wanted: str) -> list[bytes | None]:
        """Return the value of each record's last header of exactly this name, None where there is none."""

    def has_header(self, wanted: str) -> bool:
        """Whether any record has a header of exactly this name."""


class RecordFields:
    """The fields of `Record` objects."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._records)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        return [record.headers for record in self._records]

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return [record.key for record in self._records]

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return [record.value for record in self._records]

    def records(self) -> list[Record]:
        """Return the records themselves."""
        return list(self._records)


class FailedCall(NamedTuple):
    """A call of a user's function that raised; all are text of one line.

    ``place`` is the record, ``orders[0]@12``; ``function`` the function's name and the line in it, ``order_id
    (shop.py:7)``; ``error`` the exception's type and text.
    """

    place: str
    function: str
    error: str


class ReadOnce:
    """Fields shared by several parts of a spec: each column is read at most once.

    ``columns`` has the headers by name, where the source does. ``failures`` has, by topic, the first call of a user's
    function that raised.
    """

    @classmethod
    def of(cls, fields: Fields) -> ReadOnce:
        """Return the fields shared; unchanged if they already are."""
        return fields if isinstance(fields, cls) else cls(fields)

    def __init__(self, source: Fields, columns: HeaderColumns | None = None) -> None:
        self._source = source
        self._columns = columns
        self._only: tuple[str, list[bytes | None]] | None = None
        self._by_name: list[dict[str, bytes | None]] | None = None
        self._headers: list[Headers | None] | None = None
        self._keys: list[bytes | None] | None = None
        self._values: list[bytes | None] | None = None
        self._records: list[Record] | None = None
        self.failures: dict[str, FailedCall] = {}

    @property
    def count(self) -> int:
        """The number of records."""
        return self._source.count

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        if self._headers is None:
            self._headers = self._source.headers()
        return self._headers

    def header(self, wanted: str) -> list[bytes | None]:
        """Return the value of each record's last header of exactly this name, None where there is none.

        Most records have a single header: that case is tried first, because it is the cheapest. Else a
        dictionary is made for each record, in which the last of several headers wins as well.
        """
        if self._columns is not None:
            return self._columns.header(wanted)
        if self._only is not None and self._only[0] == wanted:
            return self._only[1]
        if self._by_name is None:
            headers = self._headers
            if headers is None:
                headers = self._headers = self._source.headers()
            try:
                values = [value for [(name, value)] in cast("list[Headers]", headers) if name == wanted]
            except (TypeError, ValueError):
                values = []
            if len(values) == len(headers):
                self._only = wanted, values
                return values
            self._by_name = [dict(pairs or ()) for pairs in headers]
        return [each.get(wanted) for each in self._by_name]

    def has_header(self, wanted: str) -> bool:
        """Whether any record has a header of exactly this name; uses the columns read before."""
        if self._columns is not None:
            return self._columns.has_header(wanted)
        if self._only is not None:
            return wanted == self._only[0] and self.count > 0
        if self._by_name is not None:
            return any([wanted in each for each in self._by_name])  # noqa: C419 (half the time of a generator)
        return wanted in map(_name_of, chain.from_iterable(filter(None, self.headers())))

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        if self._keys is None:
            self._keys = self._source.keys()
        return self._keys

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        if self._values is None:
            self._values = self._source.values()
        return self._values

    def records(self) -> list[Record]:
        """Return the records themselves."""
        if self._records is None:
            self._records = self._source.records()
        return self._records

    def note_failure(self, topic: str, failure: FailedCall) -> None:
        """Keep the first failure of a topic."""
        self.failures.setdefault(topic, failure)


MAX_ID_BYTES = 65_536

_HASH_BYTES = 32
_FEW = 8
"""So many digests are cut one by one: numpy takes longer."""
_DIGEST = np.dtype(f"V{DIGEST_BYTES}")
_length = struct.Struct(">I")
_PREFIX_BYTES = _length.size

# The interpreter's own SHA-256 has less overhead, OpenSSL's hashes faster: up to one block the former is faster.
_ONE_BLOCK_BYTES = 55


class _Hash(Protocol):
    def digest(self) -> bytes: ...


_Sha256 = Callable[[bytes], _Hash]


def builtin_sha256() -> _Sha256:
    """Return the interpreter's own SHA-256 (``_sha2`` from Python 3.12, ``_sha256`` before), else hashlib's."""
    for module in ("_sha2", "_sha256"):
        try:
            return cast("_Sha256", import_module(module).sha256)
        except (ImportError, AttributeError):
            continue
    return hashlib.sha256


_short_sha256 = builtin_sha256()


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
    - ``failed``: the callable of ``py:``, or the function, raised.
    """

    digests: Sequence[bytes | None]
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
    sha256 = _short_sha256 if len(part) <= _ONE_BLOCK_BYTES else hashlib.sha256
    return sha256(part).digest()[:DIGEST_BYTES]


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

    A record that misses one part has no ID, for the reason of the first part that it misses. The usual
    batch, without gaps, takes one pass.
    """
    limit = MAX_ID_BYTES + _PREFIX_BYTES * (len(columns) - 1)
    try:
        values = cast("Sequence[bytes]", columns[0].values if len(columns) == 1 else _joined(columns))
        longest = max(map(len, values), default=0)
    except TypeError:
        return _digests_with_gaps(columns, limit)
    if longest > limit:
        return _digests_with_gaps(columns, limit)
    sha256 = _short_sha256 if longest <= _ONE_BLOCK_BYTES else hashlib.sha256
    hashes = [sha256(value).digest() for value in values]
    if len(hashes) < _FEW:
        return Ids([each[:DIGEST_BYTES] for each in hashes], {})
    joined = b"".join(hashes)
    return Ids(Digests(np.ndarray(len(values), _DIGEST, joined, 0, (_HASH_BYTES,)).tobytes()), {})


def _joined(columns: Sequence[Column]) -> Sequence[bytes]:
    """Return the messages to hash; raises `TypeError` when any part is missing."""
    messages = cast("Sequence[bytes]", columns[-1].values)
    pack = _length.pack
    for column in reversed(columns[:-1]):
        parts = cast("Sequence[bytes]", column.values)
        messages = [pack(len(part)) + part + rest for part, rest in zip(parts, messages, strict=True)]
    return messages


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


def _digests_with_gaps(columns: Sequence[Column], limit: int) -> Ids:
    """Hash messages of at most ``limit`` bytes, where some are missing or longer."""
    messages = columns[0] if len(columns) == 1 else _joined_with_gaps(columns)
    usable = [None if value is None or len(value) > limit else value for value in messages.values]
    missing = {
        index: messages.reasons.get(index, "absent") if messages.values[index] is None else "oversized"
        for index, value in enumerate(usable)
        if value is None
    }
    return Ids([None if value is None else digest_one(value) for value in usable], missing)
