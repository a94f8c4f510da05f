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
    from collections.abc import Callable, Iterator
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
_BREATH_S = 0.1
_ASK_S = 60.0
_BATCH = 7
_driver: list[Pipe] = []


class Source:
    """The messages for a consumer, up to the end of the log now."""

    def __init__(self, consumer: Any, begun: list[TopicPartition]) -> None:
        self.consumer = consumer
        self._ends = [Consumer.get_watermark_offsets(consumer, each, timeout=_ASK_S)[1] for each in begun]
        known = Consumer.committed(consumer, PARTITIONS, timeout=_ASK_S)
        self._begins = [
            max(each.offset if each.offset >= 0 else at.offset, 0)
            for each, at in zip(begun, known, strict=True)
        ]

    def one_by_one(self) -> Iterator[Any]:
        """Yield messages."""
        return self._until_the_end(lambda: self.consumer.poll(_BREATH_S))

    def in_batches(self) -> Iterator[list[Any]]:
        """Yield lists of messages."""
        return self._until_the_end(lambda: self.consumer.consume(_BATCH, _BREATH_S))

    def _until_the_end(self, take: Callable[[], Any]) -> Iterator[Any]:
        more = True
        while more:
            # One call more than brings the last: its messages may have to be asked for again.
            more = self._is_there_more()
            while got := take():
                yield got

    def _is_there_more(self) -> bool:
        places = zip(Consumer.position(self.consumer, PARTITIONS), self._begins, self._ends, strict=True)
        return any(max(at.offset, begin) < end for at, begin, end in places)


def begin(driver: Pipe) -> None:
    """Say the steps there."""
    _driver.append(driver)


def step() -> None:
    """Be seen, and wait to be let on."""
    _driver[0].send(None)
    _driver[0].recv()


def work(connection: Connection, message: Any) -> None:
    """The work to do once."""
    step()
    connection.execute(insert(WORK).values(body=message.value().decode()))
    step()


def transact(engine: Engine, inbox: Inbox, messages: list[Any]) -> None:
    """Handle some messages in one transaction."""
    with engine.begin() as connection, inbox.once_many(connection, messages) as first:
        for message, is_first in zip(messages, first, strict=True):
            if is_first:
                work(connection, message)


def ids(source: Source, engine: Engine, inbox: Inbox) -> None:
    """The plain client; the offset is committed when the transaction is."""
    for message in source.one_by_one():
        transact(engine, inbox, [message])
        step()
        source.consumer.commit(message, asynchronous=False)


def in_batches(source: Source, engine: Engine, inbox: Inbox) -> None:
    """The same with several messages a transaction."""
    for messages in source.in_batches():
        transact(engine, inbox, messages)
        step()
        source.consumer.commit(asynchronous=False)


def dedup(source: Source, engine: Engine, inbox: Inbox) -> None:
    """The drop-in consumer in front."""
    for message in source.one_by_one():
        transact(engine, inbox, [message])
        step()


def offset_first(source: Source, engine: Engine, inbox: Inbox) -> None:
    """Broken where the inbox keeps no offsets: messages committed in Kafka do not come again."""
    for message in source.one_by_one():
        source.consumer.commit(message, asynchronous=False)
        step()
        transact(engine, inbox, [message])


def id_apart(source: Source, engine: Engine, inbox: Inbox) -> None:
    """Broken: the ID is kept before the work is."""
    for message in source.one_by_one():
        with engine.begin() as connection, inbox.once(connection, message) as first:
            pass
        if first:
            with engine.begin() as connection:
                work(connection, message)
        source.consumer.commit(message, asynchronous=False)


WAYS: dict[str, Callable[[Source, Engine, Inbox], None]] = {
    "ids": ids, "batches": in_batches, "dedup": dedup,
    "offsets": offset_first, "offset-first": offset_first, "id-apart": id_apart,
}  # fmt: skip


def main(driver: Pipe, way: str, bootstrap: str, url: str, store: str) -> None:
    """Handle the messages."""
    begin(driver)
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
    begun = PARTITIONS if kept is None else kept.begin(consumer, PARTITIONS)
    consumer.assign(begun)
    WAYS[way](Source(consumer, begun), engine, inbox)
    consumer.close()
