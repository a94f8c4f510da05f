"""Redrives: the header by which only the consumer group that failed handles a dead letter once more.

Each dead letter has one header ``dedup-redrive``, which names the failed record:

    group=<quoted>&topic=<quoted>&partition=N&offset=N&timestamp=N

Quoted as by ``urllib.parse.quote(text, safe="")``; the timestamp is in milliseconds, -1 without one. Of
several such headers the last counts. The header *names a group* when its value begins with ``group=<quoted
group>&``.

For the group that it names, the ID of a record is the ID and the header together: ``sha256(digest + header
value)[:16]`` replaces the digest. For all other groups, and in a record without the header, it is the ID
alone. A record without an ID has no ID with the header either. Where IDs are compared, the header belongs
to the source (`dedup_sdk._core.source_keys`); a record of a unit becomes a single record with it
(`dedup_sdk._units.keys`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from dedup_sdk.ids._columns import digest_one

REDRIVE_HEADER: Final = "dedup-redrive"

_GROUP: Final = b"group="


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
