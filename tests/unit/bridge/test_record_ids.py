"""The IDs of a bridge."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from dedup_sdk import ConfigurationError, id_spec
from dedup_sdk.bridge._record_ids import RecordIds, source_id
from dedup_sdk.bridge._source_log import Log, id_prefix

T0 = 1_700_000_000_000


def message(offset: int = 5, timestamp: tuple[int, int] = (1, T0), **fields: Any) -> Message:
    """A message of the topic "orders"."""
    return Message(**{"topic": "orders", "partition": 2, "offset": offset, "timestamp": timestamp, **fields})


def name(of: Any) -> bytes:
    """The ID of a message that lies in a partition."""
    return source_id("c1.orders-2", of, of.headers())


def test_an_id_says_where_a_record_lies() -> None:
    """Cluster, topic, partition, offset, timestamp, leader epoch and a hash of the content.

    The format that targets hold.
    """
    empty = b"f56935cf5cb88727"
    assert name(message()) == b"c1.orders-2-5@1700000000000.." + empty
    assert name(message(timestamp=(2, T0 + 1), leader_epoch=7)) == b"c1.orders-2-5@1700000000001.7." + empty
    assert name(message(timestamp=(0, -1), leader_epoch=-1)) == b"c1.orders-2-5@.." + empty
    full = message(key=b"k", value=b"v", headers=[("a", b"1"), ("a", None)], leader_epoch=0)
    assert name(full) == name(full) == b"c1.orders-2-5@1700000000000.0.a74790377ebb0546"


def test_records_that_differ_have_different_ids() -> None:
    """At one offset, with one timestamp: by the leader epoch, or by any part of the content, wherever a part ends."""
    others: list[dict[str, Any]] = [
        {},
        {"leader_epoch": 0},
        {"leader_epoch": 1},
        {"key": b""},
        {"key": b"a"},
        {"value": b""},
        {"value": b"a"},
        {"key": b"a", "value": b"bc"},
        {"key": b"ab", "value": b"c"},
        {"headers": [("a", b"bc")]},
        {"headers": [("ab", b"c")]},
        {"headers": [("a", None)]},
        {"headers": [("a", b"")]},
        {"headers": [("a", b""), ("a", b"")]},
        {"headers": [("a", b""), ("b", b"")]},
        {"headers": [("b", b""), ("a", b"")]},
        {"value": b"a", "headers": [("b", b"c")]},
        {"key": b"a", "headers": [("b", b"c")]},
    ]
    assert len({name(message(**fields)) for fields in others}) == len(others)


def test_no_two_places_have_one_id() -> None:
    """Not where names look alike, nor where topics of one name have IDs of their own, or none."""
    made = {
        source_id(id_prefix(cluster, (topic, partition), Log(name)), message(offset), None)
        for cluster in ("c", "c.a")
        for topic in ("a", "a-1", "a-1-1", "a.0a1b2c3d")
        for partition in (0, 1, 11)
        for offset in (0, 1, 10, 110)
        for name in ("00000000", "000000000a1b2c3d", "000000001a1b2c3d")
    }
    assert len(made) == 2 * 4 * 3 * 4 * 3


@pytest.mark.parametrize(
    ("spec", "headers", "key", "expected"),
    [("header:h", [("h", b"a"), ("h", b"b")], b"k", b"b"), ("header:h", [("h", b"")], None, b""),
     ("key", None, b"k", id_spec("key").digests)],
)  # fmt: skip
def test_an_id_as_a_key(
    spec: str, headers: list[tuple[str, bytes]] | None, key: bytes | None, expected: object
) -> None:
    """A header's last value as it is; of another spec the digest in hexadecimal."""
    names = RecordIds(id_spec(spec), adds=False)
    [found], [digest], _ = names.read([message(headers=headers, key=key)])
    assert digest is not None
    assert names.key_of(found or (), digest) == (
        expected if isinstance(expected, bytes) else digest.hex().encode()
    )


@pytest.mark.parametrize("spec", ["key", "json:/id", "header:a+header:b", "cloudevents"])
def test_what_cannot_be_added_is_refused(spec: str) -> None:
    """With the value to give instead."""
    with pytest.raises(ConfigurationError, match=r"give header:NAME, or use_duplicate_detection=False"):
        RecordIds(id_spec(spec), adds=True)
    assert RecordIds(id_spec(spec), adds=False).header is None
