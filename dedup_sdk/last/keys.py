"""What is read of a record where IDs are compared: which lane it belongs to, and its ID as it came.

Both travel in one ``bytes``, the record's *lane key*: the digest of its lane (16 bytes; none where the partition is the lane), then the ID.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from dedup_sdk.ids import Fields, Ids, IdSpec
from dedup_sdk.ids.digest import Column, digest_one
from dedup_sdk.ids.fields import Need, ReadOnce
from dedup_sdk.marks import DIGEST_BYTES

MAX_COMPARED_BYTES: Final = 4_096
"""An ID above that is none that is compared: a lane keeps as many of them as it remembers."""

_PREFIX: Final = b"\0dedup-sdk lane\0"
PARTITION_LANE: Final = digest_one(_PREFIX)
"""The digest of the lane that is the whole partition."""
_JOINT: Final = b":"
_HEAD: Final = "last?"
_SAFE: Final = ":/(),"


class LaneId(NamedTuple):
    """The lane (16 bytes) and the ID of one record."""

    lane: bytes
    id_bytes: bytes


@dataclass(frozen=True, slots=True)
class LaneKeys:
    """Reads the lane keys of records: ``id`` names the ID, ``lane`` the lane (None: the partition), ``order`` how IDs compare.

    The values of an ID spec of several parts are joined by a colon, so that ``header:epoch+header:sequence`` reads ``7:1042``.
    ``str`` is what a store keeps as its identity (`spec_of_lanes` reads it).
    """

    id: IdSpec
    lane: IdSpec | None
    order: str

    def __str__(self) -> str:
        lane = {} if self.lane is None else {"lane": str(self.lane)}
        return _HEAD + urlencode(
            {"id": str(self.id), "order": self.order, **lane}, safe=_SAFE, quote_via=quote
        )

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.id.needs if self.lane is None else self.id.needs | self.lane.needs

    def digests(self, fields: Fields) -> Ids:
        """Return the lane keys of ``fields.count`` records in the place of digests, None (and a reason) where there is no ID or no lane."""
        shared = ReadOnce(fields)
        columns = [column for part in self.id.parts for column in part.columns(shared)]
        keys, missing = _values(columns)
        if self.lane is None:
            return Ids(keys, missing)
        lanes = self.lane.digests(shared)
        for index, reason in lanes.missing.items():
            missing.setdefault(index, f"lane-{reason}")
        joined = [
            None if lane is None or id_bytes is None else lane + id_bytes
            for lane, id_bytes in zip(lanes.digests, keys, strict=True)
        ]
        return Ids(joined, missing)

    def mark_of(self, key: bytes) -> bytes:
        """Return the digest of the mark that a record with this lane key leaves: that of its lane."""
        return self.split(key).lane

    def name_of(self, key: bytes | None) -> bytes | None:
        """Return by which 16 bytes others know the ID of a record with this lane key, None where it has none."""
        return None if key is None else digest_one(key)

    def ids_of(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return the ID in each lane key, None where there is no key."""
        if self.lane is None:
            return list(keys)
        return [None if key is None else key[DIGEST_BYTES:] for key in keys]

    def lanes_of(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return the lane (16 bytes) in each lane key, None where there is no key."""
        if self.lane is None:
            return [None if key is None else PARTITION_LANE for key in keys]
        return [None if key is None else key[:DIGEST_BYTES] for key in keys]

    def split(self, key: bytes) -> LaneId:
        """Take a lane key apart."""
        if self.lane is None:
            return LaneId(PARTITION_LANE, key)
        return LaneId(key[:DIGEST_BYTES], key[DIGEST_BYTES:])


def spec_of_lanes(text: str) -> str | None:
    """Return the ID spec (its text) that names a lane, "" where the partition is the lane; None where no IDs are compared.

    ``text``: what a store keeps as its ID spec. It is only read, never resolved.
    """
    if not text.startswith(_HEAD):
        return None
    return dict(parse_qsl(text.removeprefix(_HEAD))).get("lane", "")


def _values(columns: list[Column]) -> tuple[list[bytes | None], dict[int, str]]:
    missing: dict[int, str] = {}
    if len(columns) == 1:
        values = list(columns[0].values)
    else:
        values = []
        for parts in zip(*(column.values for column in columns), strict=True):
            present = [part for part in parts if part is not None]
            values.append(_JOINT.join(present) if len(present) == len(parts) else None)
    for index, value in enumerate(values):
        if value is None:
            missing[index] = next(
                column.reasons.get(index, "absent") for column in columns if column.values[index] is None
            )
        elif len(value) > MAX_COMPARED_BYTES:
            values[index] = None
            missing[index] = "oversized"
    return values, missing
