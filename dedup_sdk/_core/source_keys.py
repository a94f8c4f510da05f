"""The key of a record whose ID is compared: its source, and its ID as it came.

Both travel in one ``bytes``, the record's *source key*: the digest of its source (16 bytes), the digest of its
fallback lookup (16 bytes, zeros for none; absent where there is no fallback lookup), then the ID.

A redrive header (`dedup_sdk.ids._redrive`) belongs to the source, so that a redriven ID is the first of a source of
its own.

A source key travels where a digest travels, so that readers, replays and batches need not know the strategy. A batch
in which every record has one keeps both columns beside it (`Joined`), so that nothing has to be cut again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import ClassVar, Final, NamedTuple, cast
from urllib.parse import parse_qsl, quote, urlencode

from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk.ids import Fields, Ids, IdSpec
from dedup_sdk.ids._columns import Column, Need, ReadOnce, digest_columns, digest_one
from dedup_sdk.ids._redrive import redriven_digest

MAX_COMPARED_BYTES: Final = 4_096
"""An ID above that is none that is compared: a source keeps as many of them as it remembers."""

PARTITION_SOURCE: Final = bytes.fromhex("bca543f539bbf92f26b62cf97014b3f6")
"""The digest of the source that is the whole partition.

Stores and snapshots contain it: with another value their sources would be lost.
"""
_JOINT: Final = b":"
_HEAD: Final = "last?"
_NO_OTHER: Final = bytes(DIGEST_BYTES)
_SAFE: Final = ":/(),"
MOST_SOURCES_KNOWN: Final = 2**14
"""This many keys take some 3 MB. With many more, to look a key up takes as long as to make the key again."""
_WORTH_KNOWING: Final = 8


class SourceId(NamedTuple):
    """The source (16 bytes) and the ID of one record."""

    source: bytes
    id_bytes: bytes


class Joined(list[bytes | None]):
    """The source keys of records that all have one, and their parts: ``sources`` and ``ids``. Do not change it."""

    __slots__ = ("ids", "sources")

    def __init__(self, sources: Sequence[bytes | None], ids: list[bytes | None]) -> None:
        super().__init__(map(add, cast("Sequence[bytes]", sources), cast("list[bytes]", ids)))
        self.sources = sources
        self.ids = ids


class SourceDigests:
    """The digests of sources that came lately, by their names: unlike IDs they come again and again.

    To find one takes half the time of computing it. They are kept as long as names repeat. Where 16,384 names came
    less than eight times each, a digest is computed for each record, as for IDs.
    """

    __slots__ = ("_asked", "_known", "_pays")

    def __init__(self) -> None:
        self._known: dict[bytes | None, bytes] = {}
        self._asked = 0
        self._pays = True

    def digests(self, spec: IdSpec, fields: ReadOnce) -> Ids:
        """Return the sources of records as `dedup_sdk.ids.IdSpec.digests` does."""
        if len(spec.parts) > 1 or not self._pays:
            return spec.digests(fields)
        columns = spec.parts[0].columns(fields)
        names = columns[0].values
        found: list[bytes | None] = list(map(self._known.get, names))
        if len(columns) > 1 or (None in found and not self._learn(names, found)):
            return digest_columns(columns)
        self._asked += len(names)
        return Ids(found, {})

    def _learn(self, names: Sequence[bytes | None], found: list[bytes | None]) -> bool:
        """Find out the digests that are missing; False where a record has no source."""
        rows = [row for row, digest in enumerate(found) if digest is None]
        digests, missing = digest_columns([Column([names[row] for row in rows])])
        if missing:
            return False
        for row, digest in zip(rows, cast("list[bytes]", digests), strict=True):
            found[row] = self._known.setdefault(names[row], digest)
        if len(self._known) > MOST_SOURCES_KNOWN:
            # The memory pays only if each source comes again several times before the memory is full.
            self._pays = self._asked > _WORTH_KNOWING * MOST_SOURCES_KNOWN
            self._known.clear()
            self._asked = 0
        return True


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """Reads the source keys of records.

    ``id`` names the ID, ``source`` the source (None: the partition), ``order`` how IDs compare. ``other`` names the
    ID of the fallback lookup, None where there is none.

    The values of an ID spec of several parts are joined by a colon, so that ``header:epoch+header:sequence`` reads
    ``7:1042``. ``str`` gives the identity that a store keeps (`source_spec_of` reads it).
    """

    id: IdSpec
    source: IdSpec | None
    order: str
    other: IdSpec | None = None
    length_matters: ClassVar[bool] = False
    """Whether marks depend on the length of the window (`dedup_sdk._rule_fingerprint`)."""
    _sources: SourceDigests = field(default_factory=SourceDigests, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        more = {"source": self.source, "otherwise": self.other}
        fields = {
            "id": self.id,
            "order": self.order,
            **{name: spec for name, spec in more.items() if spec is not None},
        }
        return _HEAD + urlencode(
            {name: str(each) for name, each in fields.items()}, safe=_SAFE, quote_via=quote
        )

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        specs = (self.id, self.source, self.other)
        return frozenset(need for spec in specs if spec is not None for need in spec.needs)

    def digests(self, fields: Fields) -> Ids:
        """Return the source keys of ``fields.count`` records in the place of digests.

        A record without an ID or a source has None, and a reason.
        """
        shared = ReadOnce.of(fields)
        columns = [column for part in self.id.parts for column in part.columns(shared)]
        keys, missing = _values(columns)
        if self.other is not None:
            others = self.other.digests(shared).digests
            keys = [
                None if key is None else _turned(other or _NO_OTHER) + key
                for other, key in zip(others, keys, strict=True)
            ]
        if self.source is None:
            sources = Ids([PARTITION_SOURCE] * len(keys), {})
        else:
            sources = self._sources.digests(self.source, shared)
        for index, reason in sources.missing.items():
            missing.setdefault(index, f"source-{reason}")
        if not missing and self.other is None:
            return Ids(Joined(sources.digests, keys), missing)
        joined = [
            None if source is None or key is None else source + key
            for source, key in zip(sources.digests, keys, strict=True)
        ]
        return Ids(joined, missing)

    def mark_of(self, key: bytes) -> bytes:
        """Return the digest of the mark that a record with this source key leaves: that of its source."""
        return self.split(key).source

    def digest_of(self, key: bytes | None) -> bytes | None:
        """Return the digest that a record with this key has once it is admitted."""
        return key

    def name_of(self, key: bytes | None) -> bytes | None:
        """Return by which 16 bytes others know the ID of a record with this source key, None where it has none."""
        return None if key is None else digest_one(key)

    def redriven(self, key: bytes, header: bytes) -> bytes:
        """Return the source key of a record together with its redrive header.

        The source is then one of its own, and the fallback lookup takes both as the ID.
        """
        source, front = redriven_digest(key[:DIGEST_BYTES], header), self._front
        other = key[DIGEST_BYTES:front]
        # Zeros stand for `none`, and stay: a digest of zeros would be one ID of all records without one.
        if other and other != _NO_OTHER:
            other = _turned(redriven_digest(_turned(other), header))
        return source + other + key[front:]

    @property
    def _front(self) -> int:
        """How many bytes of a source key lie in front of the ID."""
        return DIGEST_BYTES * (1 + (self.other is not None))

    def ids_of(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return the ID in each source key, None where there is no key."""
        front = self._front
        if isinstance(keys, Joined):
            return keys.ids
        return [None if key is None else key[front:] for key in keys]

    def others_of(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return the digest (16 bytes) of each record's fallback lookup, None where it has none, or no key."""
        if self.other is None:
            return [None for _ in keys]
        end = self._front
        found = [None if key is None else key[end - DIGEST_BYTES : end] for key in keys]
        return [None if digest == _NO_OTHER else digest for digest in found]

    def sources_of(self, keys: Iterable[bytes | None]) -> Sequence[bytes | None]:
        """Return the source (16 bytes) in each source key, None where there is no key."""
        if isinstance(keys, Joined):
            return keys.sources
        return [None if key is None else key[:DIGEST_BYTES] for key in keys]

    def split(self, key: bytes) -> SourceId:
        """Take a source key apart."""
        return SourceId(key[:DIGEST_BYTES], key[self._front :])


def _turned(digest: bytes) -> bytes:
    """Return a digest that differs from a source's, even if both are made of the same text: its halves are swapped."""
    return digest[DIGEST_BYTES // 2 :] + digest[: DIGEST_BYTES // 2]


def source_spec_of(text: str) -> str | None:
    """Return the ID spec (its text) that names a source, "" where the partition is the source.

    None where no IDs are compared. ``text``: the ID spec as a store keeps it. It is only read, never resolved.
    """
    if not text.startswith(_HEAD):
        return None
    return dict(parse_qsl(text.removeprefix(_HEAD))).get("source", "")


def lacked_fallback(theirs: str, ours: str) -> str | None:
    """Return the ID spec (its text) of the fallback lookup of ``ours``, where only its marks are missing in ``theirs``.

    None elsewhere. ``theirs`` and ``ours`` are identities as a store keeps them.
    """
    if not (theirs.startswith(_HEAD) and ours.startswith(_HEAD)):
        return None
    known, wanted = (dict(parse_qsl(text.removeprefix(_HEAD))) for text in (theirs, ours))
    lacked = wanted.pop("otherwise", None)
    return lacked if known == wanted else None


def _values(columns: list[Column]) -> tuple[list[bytes | None], dict[int, str]]:
    """Return the IDs; the usual batch, one column without a gap, is looked at as a whole."""
    if len(columns) == 1:
        values = list(columns[0].values)
        if None not in values and max(map(len, cast("list[bytes]", values)), default=0) <= MAX_COMPARED_BYTES:
            return values, {}
    else:
        values = []
        for parts in zip(*(column.values for column in columns), strict=True):
            present = [part for part in parts if part is not None]
            values.append(_JOINT.join(present) if len(present) == len(parts) else None)
    missing: dict[int, str] = {}
    for index, value in enumerate(values):
        if value is None:
            missing[index] = next(
                column.reasons.get(index, "absent") for column in columns if column.values[index] is None
            )
        elif len(value) > MAX_COMPARED_BYTES:
            values[index] = None
            missing[index] = "oversized"
    return values, missing
