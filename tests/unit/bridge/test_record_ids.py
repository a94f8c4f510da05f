"""The IDs of a bridge."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from dedup_sdk import ConfigurationError, id_spec
from dedup_sdk.bridge.record_ids import RecordIds, source_id
from dedup_sdk.bridge.source_log import Log, id_prefix
from dedup_sdk.orders import kafka_coordinates

T0 = 1_700_000_000_000


def message(offset: int = 5, timestamp: tuple[int, int] = (1, T0), **fields: object) -> Message:
    """A message of the topic "orders"."""
    return Message(**{"topic": "orders", "partition": 2, "offset": offset, "timestamp": timestamp, **fields})  # type: ignore[arg-type]


def test_an_id_says_where_a_record_lay() -> None:
    """Cluster, topic, partition, offset, timestamp; a record that took another one's offset has another ID."""
    assert source_id("c1.orders-2", message()) == b"c1.orders-2-5@1700000000000"
    assert source_id("c1.orders-2", message(timestamp=(2, T0 + 1))) == b"c1.orders-2-5@1700000000001"
    assert source_id("c1.orders-2", message(timestamp=(0, -1))) == b"c1.orders-2-5"
    assert kafka_coordinates().place(source_id("c1.orders-2", message(timestamp=(0, -1)))) is not None


def test_no_two_places_have_one_id() -> None:
    """Not where names look alike, nor where topics of one name have IDs of their own, or none."""
    made = {
        source_id(id_prefix(cluster, (topic, partition), Log(name)), message(offset))
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
    """With what to give instead."""
    with pytest.raises(ConfigurationError, match=r"give header:NAME, or use_duplicate_detection=False"):
        RecordIds(id_spec(spec), adds=True)
    assert RecordIds(id_spec(spec), adds=False).header is None
