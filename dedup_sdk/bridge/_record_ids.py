"""The dedup IDs of copied records: the one that a record bears, else one made of its position and its content.

    CLUSTER.TOPIC~MARK-PARTITION-OFFSET@MILLISECONDS.EPOCH.HASH

Two different records must never share an ID, and one record must keep its ID whenever it is read. Topic, partition and
offset alone would not do: they come again in a topic that was deleted and created again, or whose log was cut, and
the second record would pass for the first. The timestamp does not tell the two apart where timestamps are coarse
(seconds, days, or all equal). So the ID also contains:

- the mark of the topic: of its topic ID, where the brokers have topic IDs. It is a function of the brokers' answers, so
  that a bridge needs no memory of earlier topics: a deleted topic takes its group's offsets along, and a bridge that
  starts cannot know of it. One thing is kept beside the commits (`dedup_sdk.bridge._source_log`): that a topic was
  begun without a mark, when its brokers had no topic IDs;
- the leader epoch of the record: the epoch of the leader that appended its batch, or nothing where the broker does not
  give one. The number is stored in the batch itself: a restart, an election, a follower, a new replica, compaction and
  tiered storage do not change it. Whatever is appended after a cut has a higher one;
- a hash of key, value and headers (64 bits). It tells records apart where neither the topic ID nor the epoch does: a
  topic created again by brokers without topic IDs begins with epoch 0 again.

Records share an ID only where all of this is equal, content included. A mirrored topic has other IDs than its original
(cluster, topic ID and offsets differ): a bridge that changes from one to the other gives new IDs. A broker that
changes the epoch of stored batches (Apache Kafka does not) makes records that are copied again have new IDs: they are
seen twice, and none is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from dedup_sdk._kafka.client.fields import MessageFields
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids._columns import Headers, ReadOnce
from dedup_sdk.ids._spec import HeaderPart, IdSpec

_NO_TIMESTAMP: Final = 0
_HASH_BYTES: Final = 8
_NULL_SIZE: Final = -1
_lengths = struct.Struct(">qq").pack


def source_id(id_prefix: str, message: Any, headers: Headers | None) -> bytes:
    """Return the ID of a record without one: ``CLUSTER.TOPIC~MARK-PARTITION-OFFSET@MILLISECONDS.EPOCH.HASH``.

    It is the same whenever the record is read.

    Args:
        id_prefix: the part before the offset; its mark distinguishes the topic from an earlier one of the same name.
        message: the record. Timestamp and leader epoch are empty in the ID of a record without them.
        headers: the record's headers, as far as the client can read them.
    """
    kind, timestamp_ms = message.timestamp()
    when = "" if kind == _NO_TIMESTAMP else timestamp_ms
    epoch = message.leader_epoch()
    stored = "" if epoch is None or epoch < 0 else epoch
    content = _content_hash(message.key(), message.value(), headers)
    return f"{id_prefix}-{message.offset()}@{when}.{stored}.{content}".encode()


def _content_hash(key: bytes | None, value: bytes | None, headers: Headers | None) -> str:
    """Return 16 hexadecimal digits. The sizes stand before the parts, so that no two contents are the same input."""
    content = _lengths(_size(key), _size(value)) + (key or b"") + (value or b"")
    if headers:
        named = [(name.encode(), text) for name, text in headers]
        content += b"".join(_lengths(len(name), _size(text)) + name + (text or b"") for name, text in named)
    return blake2b(content, digest_size=_HASH_BYTES).hexdigest()


def _size(part: bytes | None) -> int:
    return _NULL_SIZE if part is None else len(part)


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
                f"id={shown(str(spec))}: an ID is added as a header; give header:NAME, or "
                "use_duplicate_detection=False (--no-duplicate-detection) to add none"
            )

    def read(
        self, messages: Sequence[Any]
    ) -> tuple[list[Headers | None], Sequence[bytes | None], list[tuple[Any, int]]]:
        """Return headers, the digest of each ID (16 bytes, None without one), and messages with unreadable headers.

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
