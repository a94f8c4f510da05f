"""Which topic an offset in the database is of, as brokers tell it, or do not."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from dedup_adapters.sql import Inbox, KeptOffsets

if TYPE_CHECKING:
    from pathlib import Path

PARTITION = [TopicPartition("orders", 0)]


class Brokers(AdminClient):
    """Say which topics these are."""

    def __init__(self, topic_id: Uuid) -> None:
        super().__init__({"bootstrap.servers": "nowhere", "log_level": 0})
        self.topic_id = topic_id

    def list_topics(self, *_: Any, **__: Any) -> Any:
        """See `AdminClient`."""
        return SimpleNamespace(cluster_id="real")

    def describe_topics(self, *_: Any, **__: Any) -> Any:
        """See `AdminClient`."""
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(topic_id=self.topic_id))
        return {"orders": answer}


class Client:
    """A consumer's answers, of a group that has committed 3 of 10."""

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        """See `Consumer`."""
        return 0, 10

    def committed(self, partitions: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        """See `Consumer`."""
        return [TopicPartition(each.topic, each.partition, 3) for each in partitions]


def begins_at(database: Path, topic_id: Uuid) -> int:
    """Begin the partition with brokers that tell this ID."""
    engine = create_engine(f"sqlite:///{database}")
    inbox = Inbox(engine, group="g", offsets=KeptOffsets(Brokers(topic_id), reset="latest"))
    inbox.create()
    [begun] = inbox.offsets.begin(Client(), PARTITION)
    engine.dispose()
    return begun.offset


def test_brokers_that_begin_to_tell_ids_have_made_no_topic_anew(tmp_path: Path) -> None:
    """The client shows an ID of zeros for none.

    Another topic's offset is of no use, and a policy would pass over unread messages.
    """
    told = [Uuid(0, 0), Uuid(1, 2), Uuid(0, 0), Uuid(1, 2)]
    assert [begins_at(tmp_path / "db", each) for each in told] == [3, 3, 3, 3]
    assert begins_at(tmp_path / "db", Uuid(3, 4)) == 10


def test_zeros_that_an_earlier_version_kept_are_no_topic(tmp_path: Path) -> None:
    """Whether brokers still tell none, or tell IDs by now."""
    assert begins_at(tmp_path / "db", Uuid(0, 0)) == 3
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}")
    for topic_id in (Uuid(0, 0), Uuid(1, 2)):
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE dedup_inbox_offsets SET topic_id = :zeros"), {"zeros": str(Uuid(0, 0))}
            )
        assert begins_at(tmp_path / "db", topic_id) == 3
    engine.dispose()
    assert begins_at(tmp_path / "db", Uuid(3, 4)) == 10


class Waiting(Brokers):
    """Answers when the event loop has gone on."""

    def __init__(self) -> None:
        super().__init__(Uuid(1, 2))
        self.asked, self.went_on = threading.Event(), threading.Event()

    def list_topics(self, *_: Any, **__: Any) -> Any:
        """See `AdminClient`."""
        self.asked.set()
        assert self.went_on.wait(30), "the event loop stands still"
        return super().list_topics()


class AsyncClient:
    """`Client` for coroutines; the coordinator moves at first, and the group assigns eagerly."""

    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []
        self._moves = [KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))]

    async def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        """See `AsyncDedupConsumer`."""
        await asyncio.sleep(0)
        return Client().get_watermark_offsets()

    async def committed(self, partitions: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        """See `AsyncDedupConsumer`."""
        await asyncio.sleep(0)
        if self._moves:
            raise self._moves.pop()
        return Client().committed(partitions)

    async def incremental_assign(self, _: list[TopicPartition]) -> None:
        """See `AsyncDedupConsumer`."""
        raise KafkaException(KafkaError(KafkaError._STATE))

    async def assign(self, partitions: list[TopicPartition]) -> None:
        """See `AsyncDedupConsumer`."""
        await asyncio.sleep(0)
        self.assigned = partitions


def test_the_event_loop_goes_on_while_brokers_are_asked(tmp_path: Path) -> None:
    """The questions of `AdminClient` block: other coroutines run meanwhile."""

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/db")
        brokers, client = Waiting(), AsyncClient()
        inbox = Inbox(engine, group="g", offsets=KeptOffsets(brokers))
        await inbox.create_async()
        assigning = asyncio.create_task(inbox.offsets.on_assign_async(client, PARTITION))
        assert await asyncio.to_thread(brokers.asked.wait, 30)
        brokers.went_on.set()
        await assigning
        assert [each.offset for each in client.assigned] == [3]
        await engine.dispose()

    asyncio.run(main())
