"""The key of a record where records belong to units: its ID, its unit, and whether the unit ends with it.

All travel in one ``bytes``, the record's *unit key*. Of a record without a unit it is the digest of its ID (16
bytes), as ever; else the digest (zeros for none), a byte of flags, the size (8 bytes, big-endian), and the unit's
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk._units.unit import Unit, UnitMode
from dedup_sdk.ids import Fields, Ids, IdSpec, digest_one, header
from dedup_sdk.ids._columns import Need, ReadOnce
from dedup_sdk.ids._redrive import redriven_digest

_HEAD: Final = "unit?"
_SAFE: Final = ":/(),"
_NO_ID: Final = bytes(DIGEST_BYTES)
_HAS_ID, _IN_UNIT, _END, _SIZED, _MALFORMED = 1, 2, 4, 8, 16
_FLAGS_AT: Final = DIGEST_BYTES
_SIZE_AT: Final = _FLAGS_AT + 1
_NAME_AT: Final = _SIZE_AT + 8
_SIZE: Final = re.compile(rb"[0-9]{1,18}")
MOST_NAME_BYTES: Final = 256
"""A longer name is its digest: it is kept while its unit is open."""


class Member(NamedTuple):
    """The statement of one record on its unit.

    ``digest`` is that of its ID (16 bytes), None without one; ``name`` is empty where it belongs to no unit;
    ``size`` is None where it states none. ``malformed``: it states a size that is none.
    """

    digest: bytes | None
    name: bytes
    size: int | None
    is_end: bool
    malformed: bool


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """Reads the unit keys of records: ``id`` names the ID, ``unit`` the unit.

    ``wants_ids``: a record of a unit without an ID counts as one without an ID, as any other; else one record with
    an ID is enough for the unit. ``str`` gives the identity that a store keeps (`spec_in_units` reads it): marks of
    units differ from those of single records.
    """

    id: IdSpec
    unit: Unit
    mode: UnitMode
    wants_ids: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        fields = {
            "id": str(self.id), "unit": str(self.unit.id), "size": self.unit.size_header, "end": self.unit.end_header,
            "mode": self.mode, "repeats": self.unit.repeats,
        }  # fmt: skip
        return _HEAD + urlencode(fields, safe=_SAFE, quote_via=quote)

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.id.needs | self.unit.id.needs | {"headers"}

    def digests(self, fields: Fields) -> Ids:
        """Return the unit keys of ``fields.count`` records in the place of digests.

        A record with neither ID nor unit has None, and a reason.
        """
        shared = ReadOnce.of(fields)
        ids = self.id.digests(shared)
        names = _joined(self.unit.id, shared)
        rows = [row for row, name in enumerate(names) if name]
        if not rows:
            return ids
        sizes = header(self.unit.size_header).parts[0].columns(shared)[0].values
        ends = header(self.unit.end_header).parts[0].columns(shared)[0].values
        keys, missing = list(ids.digests), dict(ids.missing)
        for row in rows:
            if self.wants_ids and row in missing:
                continue
            keys[row] = _key(keys[row], names[row] or b"", sizes[row], is_end=ends[row] is not None)
            # One record with an ID is enough for its unit, so that this one is not missing.
            missing.pop(row, None)
        return Ids(keys, missing)

    def mark_of(self, key: bytes) -> bytes:
        """Return the digest of the mark that a record may leave, one that nothing has where it bears no ID."""
        return key[:DIGEST_BYTES]

    @property
    def length_matters(self) -> bool:
        """Whether marks depend on the length of the window: it decides which units were rejected as a whole."""
        return self.mode == "all-or-nothing"

    def digest_of(self, key: bytes | None) -> bytes | None:
        """Return the digest that a record with this key has once it is admitted."""
        return self.name_of(key)

    def name_of(self, key: bytes | None) -> bytes | None:
        """Return by which 16 bytes others know the ID of a record with this key, None where it has none."""
        if key is None or len(key) == DIGEST_BYTES:
            return key
        return key[:DIGEST_BYTES] if key[_FLAGS_AT] & _HAS_ID else None

    def redriven(self, key: bytes, header: bytes) -> bytes | None:
        """Return the digest of a record's ID together with its redrive header.

        It is a single record then, because the others of its unit are completed.
        """
        digest = self.name_of(key)
        return None if digest is None else redriven_digest(digest, header)

    def members_of(self, keys: Iterable[bytes | None]) -> dict[int, Member]:
        """Return, by row, the statements of records that belong to a unit, or state more than an ID."""
        return {
            row: self._member(key)
            for row, key in enumerate(keys)
            if key is not None and len(key) > DIGEST_BYTES
        }

    def _member(self, key: bytes) -> Member:
        flags = key[_FLAGS_AT]
        return Member(
            digest=key[:DIGEST_BYTES] if flags & _HAS_ID else None,
            name=key[_NAME_AT:] if flags & _IN_UNIT else b"",
            size=int.from_bytes(key[_SIZE_AT:_NAME_AT]) if flags & _SIZED else None,
            is_end=bool(flags & _END),
            malformed=bool(flags & _MALFORMED),
        )


def spec_in_units(text: str) -> str | None:
    """Return the ID spec (its text) of records that belong to units, None where there are none.

    ``text``: the ID spec as a store keeps it. It is only read, never resolved.
    """
    return dict(parse_qsl(text.removeprefix(_HEAD))).get("id", "") if text.startswith(_HEAD) else None


def _key(digest: bytes | None, name: bytes, size: bytes | None, *, is_end: bool) -> bytes:
    flags, number = _IN_UNIT | (_END if is_end else 0), 0
    if digest is not None:
        flags |= _HAS_ID
    if size is not None:
        number = int(size) if _SIZE.fullmatch(size) else 0
        flags |= _SIZED if number else _MALFORMED
    if len(name) > MOST_NAME_BYTES:
        name = digest_one(name).hex().encode()
    return (digest or _NO_ID) + bytes([flags]) + number.to_bytes(8) + name


def _joined(spec: IdSpec, fields: ReadOnce) -> list[bytes | None]:
    """Return the values that a spec reads; those of several parts are joined by a colon."""
    columns = [column.values for part in spec.parts for column in part.columns(fields)]
    if len(columns) == 1:
        return list(columns[0])
    return [
        b":".join(known) if len(known := [part for part in parts if part is not None]) == len(parts) else None
        for parts in zip(*columns, strict=True)
    ]
