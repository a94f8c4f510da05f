"""Programs that are right: a type checker finds nothing in them, with `DedupConsumer` as with the plain `Consumer`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup_adapters.sql import Inbox, KeptOffsets, is_retryable
from dedup_adapters.sql_outbox import SqlOutbox
from dedup_sdk import (
    DedupConsumer,
    Deduplicator,
    LastId,
    Lookup,
    Record,
    Recovery,
    RocksStore,
    Window,
    Windows,
    header,
)
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.ids import function, key, py
from dedup_sdk.orders import integer

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition
    from confluent_kafka.admin import AdminClient
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

CONFIG = {"bootstrap.servers": "localhost:9092", "group.id": "billing"}


def charge(value: bytes) -> None:
    """Do work that is to be done once."""
    raise NotImplementedError(value)


def order_id(record: Record) -> str | None:
    """Return the part of a key in front of the slash."""
    return record.key.decode().partition("/")[0] if record.key else None


def strategies() -> list[Lookup | LastId]:
    """Each way to say an ID and a window."""
    return [
        Lookup(id="header:dedup-id", window="7d"),
        Lookup(id=function(order_id, name="order-id", version="1"), window="1w"),
        Lookup(
            id=function(lambda record: record.offset, name="offset", version="1") + key(), window="PT1H30M"
        ),
        Lookup(id=py("shop.ids:order_id", version="2"), window="7d+20000n"),
        Lookup(id=header("dedup-id"), window=Window(days=7)),
        Lookup(id=header("tenant") + key(), window=timedelta(days=7), on_missing_id="discard"),
        Lookup(id=key(), window=Windows(default="7d", topics={"audit": Window.off(), "orders": "1h30m"})),
        Lookup(id=key(), window="20000n", unit="header:dedup-unit", unit_mode="members"),
        LastId(id="header:sequence", order=integer(), source="header:producer"),
        LastId(
            id=function(order_id, name="id", version="1"),
            order=integer(),
            source=function(order_id, name="id", version="2"),
        ),
        LastId(id=key(), order=integer(), window="30d", otherwise=Lookup(id=key(), window="1d")),
    ]


def ways_to_configure() -> list[DedupConsumer]:
    """The client's settings as a dictionary, as keyword arguments, and both."""
    dedup = Lookup(id=key(), window="7d")
    conf: dict[str, Any] = {**CONFIG}
    return [
        DedupConsumer(CONFIG, dedup=dedup, store="var/dedup"),
        DedupConsumer(**conf, dedup=dedup, store="var/dedup"),
        DedupConsumer(CONFIG, dedup=dedup, store="var/dedup", debug="cgrp"),
        DedupConsumer(CONFIG, dedup=dedup, store="var/dedup", recovery=Recovery(timeout=0.5)),
        DedupConsumer(CONFIG, dedup=dedup, store=RocksStore("var/dedup", recent_marks=1_000)),
    ]


def ways_to_recover() -> list[Recovery]:
    """A snapshot is a folder, a URL, or several of them."""
    return [
        Recovery(),
        Recovery(snapshot="s3://bucket/snapshots", timeout=600),
        Recovery(snapshot=Path("snapshots"), history="assume-processed"),
        Recovery(snapshot=["snapshots", Path("elsewhere")], on_full_disk="unverified"),
    ]


def poll_loop(consumer: DedupConsumer) -> None:
    """One message at a time; an event of the client is a message with an error."""
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            print(error.code())
            continue
        value = message.value()
        if value is not None:
            charge(value)


def consume_loop(consumer: DedupConsumer) -> None:
    """Batches, with commits of each kind."""
    messages: list[Message] = consumer.consume(100, 1.0)
    for message in messages:
        consumer.complete(message)
        consumer.commit(message=message)
    nothing: None = consumer.commit()
    done: list[TopicPartition] = consumer.commit(asynchronous=False)
    done += consumer.commit(message=messages[-1], asynchronous=False)
    consumer.store_offsets(messages[-1])
    consumer.store_offsets(offsets=done)
    print(nothing)


def iteration() -> None:
    """The loop of the README, and a message in a block."""
    with DedupConsumer(
        CONFIG, dedup=Lookup(id="header:dedup-id", window="7d"), store="var/dedup"
    ) as consumer:
        consumer.subscribe(["orders"], on_assign=assigned)
        for message in consumer:
            with consumer.once(message) as again:
                charge(again.value() or b"")
            verdict = consumer.verdict(message)
            print(None if verdict is None else verdict.kind.name)


def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """The plain client's own kind of callback."""
    consumer.assign(partitions)


def handle(message: Message) -> None:
    """Handle a message on a worker's thread."""
    charge(message.value() or b"")


def workers(consumer: DedupConsumer) -> None:
    """Handlers on threads."""
    consumer.run(handle, workers=4, on_error="dead-letter", retry_on=(ConnectionError, TimeoutError))


def as_the_plain_client(consumer: Consumer) -> None:
    """A function that takes the plain client takes ours."""
    message = consumer.poll(1.0)
    print(None if message is None else message.topic())


def without_kafka() -> None:
    """The engine by itself."""
    with Deduplicator(Lookup(id=key(), window="7d"), RocksStore("var/dedup")) as engine:
        record = Record(topic="orders", partition=0, offset=0, timestamp_ms=0, key=b"1")
        for verdict in engine.admit([record]):
            print(verdict.kind.name)
        engine.complete([record])


def all_of_it(consumer: DedupConsumer) -> None:
    """Ours is one of theirs."""
    as_the_plain_client(consumer)
    print(consumer.assignment(), consumer.memberid(), consumer.counters.verdicts["fresh"])


async def handle_async(message: Message) -> None:
    """Handle a message as a coroutine."""
    charge(message.value() or b"")


async def coroutines() -> None:
    """The same program with `await`."""
    async with AsyncDedupConsumer(
        CONFIG, dedup=Lookup(id="header:dedup-id", window="7d"), store="var/dedup"
    ) as consumer:
        await consumer.subscribe(["orders"], on_assign=assigned)
        await consumer.subscribe(["orders"], on_assign=assigned_async)
        async for message in consumer:
            charge(message.value() or b"")
        async for message in consumer.explicit():
            async with consumer.once(message) as again:
                await handle_async(again)
            verdict = await consumer.verdict(message)
            print(None if verdict is None else verdict.kind.name)
        for message in await consumer.consume(100, 1.0):
            await consumer.complete(message)
        done: list[TopicPartition] = await consumer.commit(asynchronous=False)
        await consumer.store_offsets(offsets=done)
        await consumer.run(handle_async, concurrency=100, order=None, on_error="dead-letter")
        print(consumer.partition_statuses, consumer.counters.verdicts["fresh"])


async def assigned_async(consumer: AsyncDedupConsumer, partitions: list[TopicPartition]) -> None:
    """A callback may be a coroutine function."""
    await consumer.assign(partitions)


def in_a_transaction(consumer: DedupConsumer, engine: Engine) -> None:
    """The inbox and the outbox in a `Connection`."""
    inbox, outbox = Inbox(engine, group="billing", window="7d"), SqlOutbox(engine)
    inbox.create()
    for message in consumer:
        with consumer.once(message), engine.begin() as connection, inbox.once(connection, message) as first:
            if first:
                key: bytes = outbox.add(connection, "invoices", message.value())
                print(key.hex())
    with engine.begin() as connection, inbox.once_many(connection, consumer.consume(100, 1.0)) as firsts:
        print(firsts.count(True))


async def in_an_async_transaction(
    consumer: AsyncDedupConsumer, engine: AsyncEngine, session: AsyncSession, cluster: AdminClient
) -> None:
    """The same in an `AsyncSession`, and in an `AsyncConnection`."""
    inbox = Inbox(engine, group="billing", window="7d", offsets=KeptOffsets(cluster))
    outbox = SqlOutbox(engine)
    await inbox.create_async()
    await outbox.create_async()
    await consumer.subscribe(["orders"], on_assign=inbox.offsets.on_assign_async)

    async def handle(message: Message) -> None:
        async with session.begin(), inbox.once(session, message) as first:
            if first:
                key: bytes = await outbox.add(session, "invoices", message.value())
                print(key.hex())

    await consumer.run(handle, order="partition", on_error="retry", retry_on=is_retryable)
    messages = await consumer.consume(100, 1.0)
    async with engine.begin() as connection, inbox.once_many(connection, messages) as firsts:
        print(firsts.count(True), await inbox.expire_async())
