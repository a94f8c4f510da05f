"""Where keys go: as Java's client and librdkafka place them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer

from dedup_sdk.testing import MockKafka
from spark_backfill.partitioner import NO_KEY, PARTITIONERS, Partitioner, partitions_of

ALL = 2**31 - 1

HASHES = {
    # From the tests of Kafka's own Utils.murmur2, signed.
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}


def test_murmur2_is_that_of_java() -> None:
    """The hashes that Kafka tests its own function with, their sign bit cleared."""
    found = partitions_of(pa.array(HASHES, pa.binary()), "murmur2", ALL)
    assert found.tolist() == [(value & 0x7FFFFFFF) % ALL for value in HASHES.values()]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("murmur2", "murmur2"),
        ("murmur2", "murmur2_random"),
        ("consistent_random", "consistent"),
        ("consistent_random", "consistent_random"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 7, 12])
def test_keys_lie_where_a_producer_puts_them(ours: Partitioner, theirs: str, partitions: int) -> None:
    """A real producer with that partitioner gives every key, of any length and bytes, the same partition."""
    source = random.Random(partitions)
    keys = [source.randbytes(source.choice([1, 2, 3, 4, 5, 8, 13, 36, 300])) for _ in range(400)]
    went: dict[bytes, int] = {}

    def note(error: object, message: Message) -> None:
        assert error is None
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        went[key] = partition

    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": theirs, "log_level": 0})
        for key in keys:
            producer.produce("orders", b"x", key=key, on_delivery=note)
        assert producer.flush(30) == 0
    # A slice of a larger column, whose buffers begin elsewhere.
    column = pa.array([b"before", *keys], pa.binary())[1:]
    assert partitions_of(column, ours, partitions).tolist() == [went[key] for key in keys]


def test_what_has_no_key_goes_nowhere() -> None:
    """No key is placed by nobody; an empty one is a key to Java, and none to librdkafka's default."""
    keys = pa.array([None, b"", b"k", None], pa.binary())
    by_java, by_librdkafka = (partitions_of(keys, each, 5).tolist() for each in PARTITIONERS)
    assert [by_java[0], by_java[3], by_librdkafka[0], by_librdkafka[3]] == [NO_KEY] * 4
    assert by_java[1] == HASHES[b""] % 5
    assert by_librdkafka[1] == NO_KEY
    assert min(by_java[2], by_librdkafka[2]) >= 0
    assert partitions_of(pa.array([], pa.binary()), "murmur2", 5).tolist() == []
    assert partitions_of(pa.array([None], pa.binary()), "consistent_random", 5).tolist() == [NO_KEY]
