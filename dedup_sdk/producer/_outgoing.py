"""A message on its way to Kafka, as an outbox keeps it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dedup_sdk._masking import shown

HeaderValue = str | bytes | None
_LENGTHS: Final = struct.Struct(">Hi")
_MOST_NAME: Final = 65_535
_MOST_PARTITION: Final = 2**31
_MOST_TIMESTAMP: Final = 2**62


class Outgoing(NamedTuple):
    """One message; the fields are those of the outbox's table, in its order.

    Attributes:
        dedup_id: the dedup key, by which consumers recognise a duplicate.
        topic: the target topic.
        partition: the target partition; -1: by the record's key.
        key: the record's key.
        value: the record's value.
        timestamp_ms: the record's timestamp; a resend has the same, so that it has the same age.
        headers: the other headers, packed (`pack_headers`); None where there is none.
    """

    dedup_id: bytes
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: bytes | None


def pack_headers(headers: Iterable[tuple[str, HeaderValue]]) -> bytes | None:
    """Return headers as bytes, each name and value with its length; None for no header.

    Raises `TypeError` for a name or value of another type, `ValueError` for a name that is too long.
    """
    parts: list[bytes] = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"header name {shown(name)}: give text")
        raw, content = name.encode(), as_bytes("header value", value)
        if len(raw) > _MOST_NAME:
            raise ValueError(f"header name of {len(raw)} bytes: at most {_MOST_NAME} are kept")
        parts += (_LENGTHS.pack(len(raw), -1 if content is None else len(content)), raw, content or b"")
    return b"".join(parts) if parts else None


def unpack_headers(packed: bytes) -> list[tuple[str, HeaderValue]]:
    """Return the headers of `pack_headers`; raises `ValueError` for other bytes."""
    headers: list[tuple[str, HeaderValue]] = []
    at = 0
    try:
        while at < len(packed):
            name_bytes, value_bytes = _LENGTHS.unpack_from(packed, at)
            at += _LENGTHS.size
            name, value = packed[at : at + name_bytes].decode(), None
            at += name_bytes
            if value_bytes >= 0:
                value = packed[at : at + value_bytes]
                at += value_bytes
            headers.append((name, value))
    except struct.error:
        at = -1
    if at != len(packed):
        raise ValueError("headers end in the middle")
    return headers


def pairs(
    headers: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]],
) -> list[tuple[str, HeaderValue]]:
    """Return headers as a list of pairs, given as for `confluent_kafka.Producer.produce` (a dict or pairs)."""
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def as_bytes(name: str, given: object) -> bytes | None:
    """Return text or bytes as bytes; raises `TypeError` for anything else."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"{name} of type {type(given).__name__}: give text, bytes or None")


def usable_id(given: bytes | None) -> bytes:
    """Return a dedup key; raises `ValueError` for an empty one: all messages without a key would share it."""
    if not given:
        raise ValueError(
            "the dedup key is empty: messages that share it are duplicates of each other; give another one, or "
            "None to have one made"
        )
    return given


def why_unusable(row: tuple[object, ...]) -> str | None:
    """Return why a stored row is not a message, None where it is one: other programs may have written to the file."""
    dedup_id, topic, partition, key, value, timestamp_ms, headers = row
    for name, content in (
        ("dedup_id", dedup_id or b""),
        ("key", key),
        ("value", value),
        ("headers", headers),
    ):
        if content is not None and not isinstance(content, bytes):
            return f"{name} is not bytes"
    if not isinstance(topic, str) or not topic:
        return "topic is not text"
    for name, number, least, end in (
        ("partition", partition, -1, _MOST_PARTITION),
        ("timestamp_ms", timestamp_ms, 0, _MOST_TIMESTAMP),
    ):
        if not isinstance(number, int) or not least <= number < end:
            return f"{name} is out of range"
    try:
        unpack_headers(headers if isinstance(headers, bytes) else b"")
    except ValueError:
        return "headers cannot be read"
    return None
