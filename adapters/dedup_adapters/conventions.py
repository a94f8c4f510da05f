"""ID specs of those whose records carry an ID in headers by a convention of their own.

    from dedup_adapters import conventions
    from dedup_sdk import Lookup, Window

    Lookup(id=conventions.debezium_outbox(), window=Window(days=7))

A dead letter has no ID of its own, but says where its message lay: topic, partition and offset there name
the message, however often it is put into the dead-letter topic. Look at a record before you rely on a
preset: names and forms are those of the systems' documentation, and their users may have set others.
"""

from __future__ import annotations

from dedup_sdk import IdSpec, header


def debezium_outbox() -> IdSpec:
    """Return the spec of events that Debezium's outbox event router brings: the event's unique ID, in the header ``id``.

    Source: Debezium's documentation of the outbox event router (``table.field.event.id``), which names
    removing duplicates as its use.
    """
    return header("id")


def connect_dead_letter() -> IdSpec:
    """Return the spec of dead letters of Kafka Connect's sinks, where ``errors.deadletterqueue.context.headers.enable`` is true.

    Source: KIP-298; the headers ``__connect.errors.topic``, ``.partition`` and ``.offset``.
    """
    return _coordinates("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")


def spring_kafka_dead_letter() -> IdSpec:
    """Return the spec of dead letters of Spring for Apache Kafka (``DeadLetterPublishingRecoverer``).

    Source: its reference; the headers ``kafka_dlt-original-topic``, ``-partition`` and ``-offset`` (numbers
    are big-endian bytes).
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
