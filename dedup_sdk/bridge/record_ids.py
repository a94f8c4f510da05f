"""The dedup IDs of copied records: the one that a record bears, else one made of its position in the source.

Topic, partition and offset alone would not do: they come again in a topic that was made anew, or whose log
was cut, and the second record would pass for the first. So the ID contains a mark of the topic and the
timestamp of the record. The mark is a function of what the brokers say, so that a bridge needs no memory of
earlier topics: a deleted topic takes its group's offsets along, and a bridge that starts cannot know of it.
One thing is kept beside the commits (`dedup_sdk.bridge.source_log`): that a topic was begun without a mark,
when its brokers had no topic IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids.fields import Headers, ReadOnce
from dedup_sdk.ids.parts import HeaderPart
from dedup_sdk.ids.spec import IdSpec
from dedup_sdk.kafka.fields import MessageFields

_NO_TIMESTAMP: Final = 0


def source_id(id_prefix: str, message: Any) -> bytes:
    """Return the ID of a record without one: ``CLUSTER.TOPIC~MARK-PARTITION-OFFSET@MILLISECONDS``, the same whenever it is read.

    ``id_prefix`` is the part before the offset; its mark tells the topic from an earlier one of its name. The timestamp distinguishes two
    records that had the same offset one after the other: after a log was cut, or where brokers have no topic IDs.
    """
    kind, timestamp_ms = message.timestamp()
    place = f"{id_prefix}-{message.offset()}"
    return (place if kind == _NO_TIMESTAMP else f"{place}@{timestamp_ms}").encode()


class RecordIds:
    """Reads the IDs of records, and makes IDs for those without one.

    Args:
        spec: the ID spec.
        adds: whether records without an ID get one, in the spec's header.

    Raises `ConfigurationError` where a bridge cannot add an ID that the spec reads.
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
        """Return the messages' headers, the digest of each ID (16 bytes, None without an ID), and messages with unreadable headers.

        The last are pairs of a message and its number of headers whose names are not UTF-8.
        """
        fields = MessageFields(messages)
        shared = ReadOnce(fields)
        return shared.headers(), self._spec.digests(shared).digests, fields.nameless

    def key_of(self, headers: Headers, digest: bytes) -> bytes:
        """Return an ID as a key: the header's value, or for other specs the digest in hexadecimal."""
        if self.header is None:
            return digest.hex().encode()
        return dict(headers)[self.header] or b""
