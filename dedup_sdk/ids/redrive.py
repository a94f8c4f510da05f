"""Redrives: the header by which a dead letter is handled once more by the consumer group that failed, and by no other group.

Each dead letter bears one header ``dedup-redrive``, which names the failed record:

    group=<quoted>&topic=<quoted>&partition=N&offset=N&timestamp=N

Quoted as by ``urllib.parse.quote(text, safe="")``; the timestamp is in milliseconds, -1 without one. Of several such headers the last
counts. The header *names a group* when its value begins with ``group=<quoted group>&``.

For the group that it names, the ID of a record is the ID and the header together: ``sha256(digest + header value)[:16]`` in the place
of the digest. For all other groups, and in a record without the header, it is the ID alone. A record without an ID has none with the
header either. Where IDs are compared, the header belongs to the source (`dedup_sdk.core.source_keys`); a record of a unit is a
single record with it (`dedup_sdk.units.keys`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

from dedup_sdk.ids.digest import Ids, digest_one
from dedup_sdk.ids.fields import Fields, Need, ReadOnce

REDRIVE_HEADER: Final = "dedup-redrive"

_GROUP: Final = b"group="


class ReadsKeys(Protocol):
    """Reads the digests of IDs, source keys or unit keys of records; all three are called *keys* here."""

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of records."""


class Redrivable(ReadsKeys, Protocol):
    """Keys that differ with a redrive header."""

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""

    def redriven(self, key: bytes, header: bytes) -> bytes | None:
        """Return the key that a record has with this redrive header in the place of ``key``; None where it has no ID."""


def redrive_value(group: str, topic: str, partition: int, offset: int, timestamp_ms: int) -> bytes:
    """Return the value of the header for a record that failed in a group."""
    named = f"group={quote(group, safe='')}&topic={quote(topic, safe='')}"
    return f"{named}&partition={partition}&offset={offset}&timestamp={timestamp_ms}".encode()


def redrive_prefix(group: str | None) -> bytes:
    """Return the beginning of header values that name a group; None: any group."""
    return _GROUP if group is None else _GROUP + quote(group, safe="").encode() + b"&"


def redriven_digest(digest: bytes, header: bytes) -> bytes:
    """Return the digest (16 bytes) of an ID, or a source, together with a redrive header."""
    return digest_one(digest + header)


def redrive_headers(fields: Fields, group: str | None) -> dict[int, bytes]:
    """Return the value of the redrive header of those records that bear one which names a group (None: any), by row."""
    shared = ReadOnce.of(fields)
    if not shared.has_header(REDRIVE_HEADER):
        return {}
    prefix = redrive_prefix(group)
    values = enumerate(shared.header(REDRIVE_HEADER))
    return {row: value for row, value in values if value is not None and value.startswith(prefix)}


def redriven_keys(keys: Redrivable, ids: Ids, fields: Fields, group: str | None) -> dict[int, bytes | None]:
    """Return the keys, by row, of records with a redrive header that names a group (None: any); None where there is no ID.

    ``ids`` are their keys without it. A reader for no particular group must remember both.
    """
    return {
        row: keys.redriven(key, header)
        for row, header in redrive_headers(fields, group).items()
        if (key := ids.digests[row]) is not None
    }


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Reads the keys of records as one consumer group knows them."""

    keys: Redrivable
    group: str

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.keys.needs | {"headers"}

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of ``fields.count`` records, in order; each column that is needed is read once."""
        shared = ReadOnce.of(fields)
        ids = self.keys.digests(shared)
        redriven = redriven_keys(self.keys, ids, shared, self.group)
        if not redriven:
            return ids
        digests, missing = list(ids.digests), dict(ids.missing)
        for row, key in redriven.items():
            digests[row] = key
            if key is None:
                missing[row] = "absent"
        return Ids(digests, missing)
