"""ID specs for systems that put an ID into headers by their own convention.

    from dedup_adapters import conventions
    from dedup_sdk import Lookup, Window

    Lookup(id=conventions.debezium_outbox(), window=Window(days=7))

A dead letter has no ID of its own, but headers with the coordinates of the failed message: topic, partition
and offset identify that message, however often it is sent to the dead-letter topic. Check a real record
before you use a preset: header names and formats are those of the systems' documentation, and users may
have configured others.
"""

from __future__ import annotations

from dedup_sdk import IdSpec, header


def debezium_outbox() -> IdSpec:
    """Return the spec of events of Debezium's outbox event router: the unique event ID in the header ``id``.

    Source: Debezium's documentation of the outbox event router (``table.field.event.id``), which names
    deduplication as its use.
    """
    return header("id")


def connect_dead_letter() -> IdSpec:
    """Return the spec of dead letters of Kafka Connect's sink connectors.

    You must set ``errors.deadletterqueue.context.headers.enable=true`` there. Source: KIP-298; the headers
    ``__connect.errors.topic``, ``.partition`` and ``.offset``.
    """
    return _coordinates("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")


def spring_kafka_dead_letter() -> IdSpec:
    """Return the spec of dead letters of Spring for Apache Kafka (``DeadLetterPublishingRecoverer``).

    Source: its reference; the headers ``kafka_dlt-original-topic``, ``-partition`` and ``-offset`` (numbers
    as big-endian bytes).
    """
    return _coordinates(
        "kafka_dlt-original-topic", "kafka_dlt-original-partition", "kafka_dlt-original-offset"
    )


def spring_cloud_stream_dead_letter() -> IdSpec:
    """Return the spec of dead letters of Spring Cloud Stream's Kafka binder (``enableDlq``).

    Source: the binder's reference; the headers ``x-original-topic``, ``x-original-partition`` and
    ``x-original-offset``.
    """
    return _coordinates("x-original-topic", "x-original-partition", "x-original-offset")


def _coordinates(topic: str, partition: str, offset: str) -> IdSpec:
    return header(topic) + header(partition) + header(offset)
