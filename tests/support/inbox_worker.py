"""A process that writes a row for each message, in one of several ways; it is killed, and started again.

At each step it says so and waits for an answer, so that who drives it chooses the place at which it dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from dedup_adapters.sql import Inbox, KeptOffsets
from dedup_sdk import DedupConsumer, Lookup, Window, header

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection as Pipe

    from sqlalchemy import Connection, Engine

GROUP = "billing"
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
WORK = Table(
    "work",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("body", String(200)),
)
_QUIET_S = 1.0
_BATCH = 7
_driver: list[Pipe] = []


def step() -> None:
    """Be seen, and wait to be let on."""
    _driver[0].send(None)
    _driver[0].recv()


def work(connection: Connection, message: Any) -> None:
    """What has to be done once."""
    step()
    connection.execute(insert(WORK).values(body=message.value().decode()))
    step()


def transact(engine: Engine, inbox: Inbox, messages: list[Any]) -> None:
    """Handle some messages in one transaction."""
    with engine.begin() as connection, inbox.once_many(connection, messages) as first:
        for message, is_first in zip(messages, first, strict=True):
            if is_first:
                work(connection, message)


def ids(consumer: Any, engine: Engine, inbox: Inbox) -> None:
    """The plain client; the offset is committed when the transaction is."""
    while message := consumer.poll(_QUIET_S):
        transact(engine, inbox, [message])
        step()
        consumer.commit(message, asynchronous=False)


def in_batches(consumer: Any, engine: Engine, inbox: Inbox) -> None:
    """The same with several messages a transaction."""
    while messages := consumer.consume(_BATCH, _QUIET_S):
        transact(engine, inbox, messages)
        step()
        consumer.commit(asynchronous=False)


def dedup(consumer: Any, engine: Engine, inbox: Inbox) -> None:
    """The drop-in consumer in front."""
    while (message := consumer.poll(_QUIET_S)) is not None:
        transact(engine, inbox, [message])
        step()


def offset_first(consumer: Any, engine: Engine, inbox: Inbox) -> None:
    """Broken where the inbox keeps no offsets: what was committed in Kafka does not come again."""
    while message := consumer.poll(_QUIET_S):
        consumer.commit(message, asynchronous=False)
        step()
        transact(engine, inbox, [message])


def id_apart(consumer: Any, engine: Engine, inbox: Inbox) -> None:
    """Broken: the ID is kept before the work is."""
    while message := consumer.poll(_QUIET_S):
        with engine.begin() as connection, inbox.once(connection, message) as first:
            pass
        if first:
            with engine.begin() as connection:
                work(connection, message)
        consumer.commit(message, asynchronous=False)


WAYS: dict[str, Callable[[Any, Engine, Inbox], None]] = {
    "ids": ids, "batches": in_batches, "dedup": dedup,
    "offsets": offset_first, "offset-first": offset_first, "id-apart": id_apart,
}  # fmt: skip


def main(driver: Pipe, way: str, bootstrap: str, url: str, store: str) -> None:
    """Handle what there is, and end when nothing has come for a second."""
    _driver.append(driver)
    engine = create_engine(url)
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest", "log_level": 0,
    }  # fmt: skip
    kept = (
        KeptOffsets(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))
        if way == "offsets"
        else None
    )
    inbox = Inbox(engine, group=GROUP, offsets=kept)
    consumer: Any
    if way == "dedup":
        consumer = DedupConsumer(
            config, dedup=Lookup(id=header("dedup-id"), window=Window(days=7)), store=store
        )
    else:
        consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.assign(PARTITIONS if kept is None else kept.begin(consumer, PARTITIONS))
    WAYS[way](consumer, engine, inbox)
    consumer.close()
