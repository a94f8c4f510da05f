"""The columns of Kafka messages that an ID spec asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from gc import get_referents
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
from confluent_kafka import Message

from dedup_sdk.ids.columns import Headers, Ids, RecordFields
from dedup_sdk.ids.spec import IdSpec
from dedup_sdk.marks import Int64s
from dedup_sdk.record import Record

_second = itemgetter(1)
_read_headers = methodcaller("headers")
"""The client may leave an exception behind and return a list all the same: a plain call of a method, once it is fast, lets it pass."""


def timestamps_ms(messages: Sequence[Any]) -> Int64s:
    """Return the record timestamps in milliseconds, shape ``(n,)``."""
    return np.fromiter(map(_second, map(Message.timestamp, messages)), np.int64, len(messages))


def offsets_of(messages: Sequence[Any]) -> list[int]:
    """Return the offsets."""
    read: Callable[[Any], Any] = Message.offset
    return list(map(read, messages))


def _headers(message: Any) -> tuple[Any, int]:
    """Return those headers whose names are UTF-8, and how many others there were; the message has only the former from then on."""
    try:
        found = _read_headers(message)
    except (SystemError, UnicodeDecodeError):
        # Asked once more, the client gives them all, with a null pointer for such a name: to touch it ends the process.
        found = _read_headers(message)
    if not found or len(get_referents(*found)) == 2 * len(found):
        return found, 0
    named = [pair for pair in found if len(get_referents(pair)) == 2]  # noqa: PLR2004 (a name and a value)
    message.set_headers(named)
    return named, len(found) - len(named)


def as_record(message: Any) -> Record:
    """Return a message as a plain record."""
    return Record(
        topic=message.topic(), partition=message.partition(), offset=message.offset(),
        timestamp_ms=message.timestamp()[1], key=message.key(), value=message.value(),
        headers=tuple(_headers(message)[0] or ()),
    )  # fmt: skip


@dataclass(slots=True)
class MessageFields:
    """The fields of messages; each column is read when it is asked for."""

    messages: Sequence[Any]
    nameless: list[tuple[Any, int]] = field(default_factory=list)
    """Messages with headers whose names are not UTF-8, and how many, once `headers` was asked for."""

    @property
    def count(self) -> int:
        """How many messages these are."""
        return len(self.messages)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each message."""
        read: Callable[[Any], Any] = Message.headers
        try:
            return list(map(read, self.messages))
        except (SystemError, UnicodeDecodeError):
            # A header's name that is no UTF-8: only that one is left out.
            read_one_by_one = list(map(_headers, self.messages))
        self.nameless = [
            (message, missing)
            for message, (_, missing) in zip(self.messages, read_one_by_one, strict=True)
            if missing
        ]
        return [found for found, _ in read_one_by_one]

    def keys(self) -> list[bytes | None]:
        """Return the key of each message."""
        return list(map(Message.key, self.messages))

    def values(self) -> list[bytes | None]:
        """Return the value of each message."""
        return list(map(Message.value, self.messages))

    def records(self) -> list[Record]:
        """Return the messages as plain records."""
        return list(map(as_record, self.messages))


def ids_of(spec: IdSpec, messages: Sequence[Any]) -> Ids:
    """Return the IDs of messages, or of plain records, in order: ``digests`` (16 bytes each, or None), and why some have none in ``missing``.

    No content of a message raises.
    """
    if not any(isinstance(message, Record) for message in messages):
        return spec.digests(MessageFields(messages))
    return spec.digests(
        RecordFields([each if isinstance(each, Record) else as_record(each) for each in messages])
    )
