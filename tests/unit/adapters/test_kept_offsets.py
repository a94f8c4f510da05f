"""Which topic an offset in the database is of, as brokers tell it, or do not."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition, Uuid
from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine, text

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
