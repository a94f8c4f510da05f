"""The fields of Kafka messages as columns, as ID specs read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from gc import get_referents
from operator import itemgetter, methodcaller
from typing import Any, Final

import numpy as np
from confluent_kafka import Message

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._marks import Int64s
from dedup_sdk._masking import shown
from dedup_sdk._record import Record
from dedup_sdk.ids._columns import Headers, Ids, RecordFields
from dedup_sdk.ids._spec import IdSpec

_second = itemgetter(1)
_read_headers = methodcaller("headers")
"""Not `Message.headers`: the client may set an exception and still return a list.

A specialised (fast) direct call of a method does not see that exception; `methodcaller` does."""


def timestamps_ms(messages: Sequence[Any]) -> Int64s:
    """Return the record timestamps in milliseconds, shape ``(n,)``."""
    return np.fromiter(map(_second, map(Message.timestamp, messages)), np.int64, len(messages))


def offsets_of(messages: Sequence[Any]) -> list[int]:
    """Return the messages' offsets."""
    read: Callable[[Any], Any] = Message.offset
    return list(map(read, messages))


def coordinates(message: Any) -> tuple[str, int]:
    """Return topic and partition of a message."""
    return message.topic(), message.partition()


def headers_of(message: Any) -> tuple[Any, int]:
    """Return the headers whose names are valid UTF-8, and the number of the others.

    The message is changed: it keeps only those headers.
    """
    try:
        found = _read_headers(message)
    except (SystemError, UnicodeDecodeError):
        # A second call returns all headers, with a null pointer for such a name. Access to that pointer would crash
        # the process, so `get_referents` must find the pairs that have one.
        found = _read_headers(message)
    if not found or len(get_referents(*found)) == 2 * len(found):
        return found, 0
    named = [pair for pair in found if len(get_referents(pair)) == 2]  # noqa: PLR2004 (a name and a value)
    message.set_headers(named)
    return named, len(found) - len(named)


_NOTE: Final = "while handling "


def note_message(error: BaseException, message: Any, attempt: int) -> None:
    """Have an exception of a handler name its message: as a note, which tracebacks show.

    A note of an earlier call is replaced, because a handler may raise the same object again.
    """
    notes: object = getattr(error, "__notes__", None)
    try:
        if isinstance(notes, list):
            notes[:] = [each for each in notes if not str(each).startswith(_NOTE)]
        place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        error.add_note(f"{_NOTE}{place}, attempt {attempt}")
    except Exception as refusal:
        # An exception's class decides what can be set.
        if is_interruption(refusal):
            raise


def refuse_other(message: object) -> None:
    """Raise `TypeError` for what is no message of the client."""
    if not isinstance(message, Message):
        raise TypeError(f"message={shown(message)}: give a message that poll() or consume() returned")


def as_record(message: Any) -> Record:
    """Convert a message to a plain record."""
    return Record(
        topic=message.topic(), partition=message.partition(), offset=message.offset(),
        timestamp_ms=message.timestamp()[1], key=message.key(), value=message.value(),
        headers=tuple(headers_of(message)[0] or ()),
    )  # fmt: skip


@dataclass(slots=True)
class MessageFields:
    """The fields of some messages; each column is read on demand."""

    messages: Sequence[Any]
    nameless: list[tuple[Any, int]] = field(default_factory=list)
    """After `headers`: messages with header names that are not valid UTF-8, and how many such headers each has."""

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each message, without those whose names are not valid UTF-8."""
        read: Callable[[Any], Any] = Message.headers
        try:
            return list(map(read, self.messages))
        except (SystemError, UnicodeDecodeError):
            # A header name is not valid UTF-8: leave out only that header.
            read_one_by_one = list(map(headers_of, self.messages))
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
        """Convert the messages to plain records."""
        return list(map(as_record, self.messages))


def ids_of(spec: IdSpec, messages: Sequence[Any]) -> Ids:
    """Return the IDs of messages or plain records, in order.

    ``digests`` has 16 bytes each, or None; ``missing`` says why there is none. No content of a message makes this
    raise.
    """
    if not any(isinstance(message, Record) for message in messages):
        return spec.digests(MessageFields(messages))
    return spec.digests(
        RecordFields([each if isinstance(each, Record) else as_record(each) for each in messages])
    )
