"""Presets for records that carry an ID by a convention of somebody else's."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from dedup_adapters import conventions
from dedup_sdk import Deduplicator, IdSpec, Lookup, Record, VerdictKind, Window, id_spec

Headers = list[tuple[str, bytes | None]]


def outbox(number: int) -> Headers:
    """Headers of Debezium's outbox event router, as its documentation shows them."""
    return [("id", f"4d47e190-0402-4048-bc2c-{number:012}".encode())]


def connect(number: int) -> Headers:
    """Headers of a dead letter of Kafka Connect: texts."""
    return [
        ("__connect.errors.topic", b"orders"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", str(number).encode()),
        ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ]


def spring_kafka(number: int) -> Headers:
    """Headers of a dead letter of Spring for Apache Kafka: numbers in bytes."""
    return [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", struct.pack(">i", 3)),
        ("kafka_dlt-original-offset", struct.pack(">q", number)),
        ("kafka_dlt-exception-message", b"no"),
    ]


def spring_cloud_stream(number: int) -> Headers:
    """Headers of a dead letter of Spring Cloud Stream."""
    return [
        ("x-original-topic", b"orders"),
        ("x-original-partition", struct.pack(">i", 3)),
        ("x-original-offset", struct.pack(">q", number)),
    ]


PRESETS = [
    (conventions.debezium_outbox(), outbox),
    (conventions.connect_dead_letter(), connect),
    (conventions.spring_kafka_dead_letter(), spring_kafka),
    (conventions.spring_cloud_stream_dead_letter(), spring_cloud_stream),
]


@pytest.mark.parametrize(("spec", "headers"), PRESETS, ids=[str(spec) for spec, _ in PRESETS])
def test_a_message_that_comes_twice_is_one(spec: IdSpec, headers: Callable[[int], Headers]) -> None:
    """Whatever else its headers say the second time; another message is another; one without them has no ID."""
    engine = Deduplicator(Lookup(id=spec, window=Window(days=7)))
    sent = [headers(1), [*headers(1), ("attempt", b"2")], headers(2), headers(1)[1:]]
    said = []
    for offset, each in enumerate(sent):
        record = Record("letters", 0, offset, headers=each)
        [verdict] = engine.admit([record])
        said.append(verdict.kind)
        engine.complete([record] if verdict.deliver else [])
    assert said == [VerdictKind.FRESH, VerdictKind.DUPLICATE, VerdictKind.FRESH, VerdictKind.UNKEYED]


def test_presets_are_specs_like_any_other() -> None:
    """So that `dedup backfill --id` reads the same."""
    for spec, _ in PRESETS:
        assert id_spec(str(spec)) == spec
