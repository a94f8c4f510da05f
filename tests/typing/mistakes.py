"""Mistakes that a type checker has to find: each line says which.

One that is not found is an unused comment, which is an error itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_adapters.sql import Inbox
from dedup_adapters.sql_outbox import SqlOutbox
from dedup_sdk import DedupConsumer, Lookup, Record, Recovery, Window, header
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.ids import function, key

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncSession

CONFIG = {"bootstrap.servers": "localhost:9092", "group.id": "billing"}


def misspelt(consumer: DedupConsumer) -> None:
    """Methods of a message, of the consumer, and of returned objects."""
    for message in consumer:
        message.vlaue()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        with consumer.once(message) as again:
            again.ofset()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    for message in consumer.consume(100, 1.0):
        message.haeders()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    consumer.comit()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def nothing_came(consumer: DedupConsumer) -> None:
    """`poll` returns None as well; and so may a message's own methods."""
    message = consumer.poll(1.0)
    message.value()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    if message is not None:
        message.value().decode()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


def wrong_arguments(consumer: DedupConsumer) -> None:
    """Of another kind than the plain client takes."""
    consumer.complete("orders")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    consumer.subscribe("orders")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    done: list[TopicPartition] = consumer.commit()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(done)


def order_id(record: Record) -> bytes | None:
    """Return a value that is no ID: text or a number would be one."""
    return record.key


def wrong_settings() -> None:
    """Names and kinds of settings."""
    Lookup(id=header("dedup-id"), windw="7d")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Lookup(id=7, window="7d")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Lookup(id=order_id, window="7d")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Lookup(
        id=function(order_id, name="id", version="1"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        window="7d",
    )
    Lookup(id=function(len), window="7d")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    Lookup(id=key(), window=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Window(day=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    DedupConsumer(CONFIG, store="var/dedup")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    dedup = Lookup(id=key(), window="7d")
    DedupConsumer(
        CONFIG,
        dedup=dedup,
        store="v",
        mode="watch",  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )
    Recovery(timeout="10s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Recovery(on_full_disk="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Recovery(snapshots="s3://bucket")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    DedupConsumer(
        CONFIG,
        dedup=dedup,
        store="v",
        recovery=5,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )


def handle(message: Message) -> None:
    """A plain function, which would stop the event loop."""
    print(message.topic())


async def coroutines(consumer: AsyncDedupConsumer) -> None:
    """A forgotten `await`, and a handler that is none."""
    consumer.poll(1.0).value()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    message = await consumer.poll(1.0)
    message.value()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    await consumer.run(handle)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async for each in consumer:
        each.vlaue()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def in_a_transaction(
    inbox: Inbox, outbox: SqlOutbox, connection: Connection, session: AsyncSession, message: Message
) -> None:
    """A block of the other kind, and a forgotten `await`: nothing would be stored, and nothing sent."""
    with inbox.once(session, message) as first:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(first)
    async with inbox.once(connection, message) as first:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        print(first)
    outbox.add(session, "invoices", b"")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await outbox.add(connection, "invoices", b"")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    inbox.create_async()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    inbox.once(7, message)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
