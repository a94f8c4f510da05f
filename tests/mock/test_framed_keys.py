"""Keys that a schema registry's serializer wrote: a zero byte, the schema's ID in four bytes, and the key itself."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk import Record, id_spec
from dedup_sdk.ids import RecordFields, key, unframed_key
from tests.support.consuming import lookup, poll_through

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

ORDERS = [f"order-{number}".encode() for number in range(30)]


def framed(schema: int, keys: Iterable[bytes]) -> list[bytes]:
    """The keys as written with a schema."""
    return [struct.pack(">bI", 0, schema) + each for each in keys]


def send(kafka: MockKafka, keys: Iterable[bytes]) -> None:
    """Send a record of each key."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for each in keys:
        producer.produce("orders", b"", key=each, partition=0)
    assert producer.flush(30) == 0


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about keys."""
    return [line for line in map(str, caplog.messages) if "a schema's ID" in line]


@pytest.mark.parametrize(("spec", "handled", "told"), [("key", 60, 1), ("unframed-key", 30, 0)])
def test_a_new_schema(
    kafka: MockKafka, make: Make, caplog: pytest.LogCaptureFixture, spec: str, handled: int, told: int
) -> None:
    """Resent with a new schema, messages are new by their keys, which is said once, and known without the framing."""
    consumer = make("orders", dedup=lookup(id=spec))
    send(kafka, framed(7, ORDERS) + framed(8, ORDERS))
    assert len(poll_through(consumer, "orders")) == handled
    assert len(hints(caplog)) == told
    for line in hints(caplog):
        assert line.startswith("orders: the keys begin with a schema's ID (7)")
        assert "unframed-key" in line


@pytest.mark.parametrize(
    "keys",
    [
        ORDERS,
        [struct.pack(">q", number) for number in range(2**30, 2**30 + 30)],
        [struct.pack(">qq", 0, number) for number in range(30)],
        framed(7, ORDERS[:10]) + ORDERS[:1] + framed(7, ORDERS[10:20]),
    ],
    ids=["text", "integers", "long integers", "a few"],
)
def test_other_keys_are_no_hint(
    kafka: MockKafka, make: Make, caplog: pytest.LogCaptureFixture, keys: list[bytes]
) -> None:
    """Nothing is said of them."""
    consumer = make("orders", dedup=lookup(id=key()))
    send(kafka, keys)
    poll_through(consumer, "orders")
    assert hints(caplog) == []


def test_keys_without_the_framing_have_no_id() -> None:
    """To cut them could make one ID of two."""
    keys = [*framed(7, [b"a"]), b"a", b"\0\0\0\0\7", b"", None]
    ids = unframed_key().digests(RecordFields([Record("t", 0, at, key=each) for at, each in enumerate(keys)]))
    assert ids.digests[0] == key().digests(RecordFields([Record("t", 0, 0, key=b"a")])).digests[0]
    assert ids.missing == {1: "malformed", 2: "malformed", 3: "malformed", 4: "absent"}
    assert id_spec("unframed-key") == unframed_key()
