"""The dedup IDs of records that are copied: the one they bear, else one that says where they lay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids.fields import Headers
from dedup_sdk.ids.parts import HeaderPart
from dedup_sdk.ids.spec import IdSpec
from dedup_sdk.kafka.fields import MessageFields

_NO_TIMESTAMP: Final = 0


def source_id(lies_in: str, message: Any) -> bytes:
    """Return the ID of a record that bears none: ``CLUSTER.TOPIC~MARK-PARTITION-OFFSET@MILLISECONDS``, the same however often it is read.

    ``lies_in`` is what comes before its offset; the mark is the topic's, which tells it from one of its name that was there before. The timestamp tells
    two records apart that lay at one offset, one after the other: after a log was cut, or where brokers have no topic IDs to make a mark of.
    """
    kind, timestamp_ms = message.timestamp()
    place = f"{lies_in}-{message.offset()}"
    return (place if kind == _NO_TIMESTAMP else f"{place}@{timestamp_ms}").encode()


class Names:
    """Knows which records bear an ID, and names the others.

    Args:
        spec: says what an ID is.
        adds: whether records without one get one, in the spec's header.

    Raises `ConfigurationError` where the spec reads something that a bridge cannot add.
    """

    def __init__(self, spec: IdSpec, *, adds: bool) -> None:
        self.header: str | None = None
        self._spec = spec
        match spec.parts:
            case (HeaderPart(argument),):
                self.header = argument
        if adds and self.header is None:
            raise ConfigurationError(
                f"id={str(spec)!r}: an ID is added as a header; give header:NAME, or use_duplicate_detection=False (--no-duplicate-detection) to add none"
            )

    def read(
        self, messages: Sequence[Any]
    ) -> tuple[list[Headers | None], list[bytes | None], list[tuple[Any, int]]]:
        """Return the headers of the messages, 16 bytes that stand for each ID (None where there is none), and what has headers that cannot be read.

        The last are messages, and how many such headers each has: their names are not UTF-8.
        """
        fields = _HeadersOnce(messages)
        return fields.headers(), self._spec.digests(fields).digests, fields.nameless

    def key_of(self, headers: Headers, digest: bytes) -> bytes:
        """Return an ID as a key: the header's value, or for other specs the digest in hexadecimal."""
        if self.header is None:
            return digest.hex().encode()
        return dict(headers)[self.header] or b""


class _HeadersOnce(MessageFields):
    """Fields whose headers are read once: the bridge copies them as well."""

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__(messages)
        self._read: list[Headers | None] | None = None

    def headers(self) -> list[Headers | None]:
        if self._read is None:
            self._read = super().headers()
        return self._read
