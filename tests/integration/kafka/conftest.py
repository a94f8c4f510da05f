"""Fixtures of the consumer's tests on a real broker: a world of one topic, one group, and disks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition

from dedup_sdk import DedupConsumer
from dedup_sdk.kafka.commit_text import parse_metadata
from tests.support import consuming
from tests.support.brokers import make_anew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.kafka.commit_text import CommitMetadata
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

QUICK_GROUP = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}


class World:
    """A topic, a group, and the disks of its machines; consumers that were made are closed at the end."""

    def __init__(self, bootstrap: str, topic: str, group: str, disks: Path, stack: ExitStack) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self._disks, self._stack = disks, stack
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, "enable.idempotence": True}
        )

    def disk(self, name: str = "one") -> Path:
        """The store folder of a machine."""
        return self._disks / name

    def send(self, *ids: str, partition: int = 0, topic: str | None = None) -> None:
        """Send one record an ID."""
        for each in ids:
            self._producer.produce(topic or self.topic, each, headers={"dedup-id": each}, partition=partition)
        assert self._producer.flush(consuming.PATIENCE_S) == 0

    def make_anew(self, topic: str) -> None:
        """See `tests.support.brokers.make_anew`."""
        make_anew(self.bootstrap, topic)

    def consumer(
        self, disk: str = "one", config: dict[str, Any] | None = None, **options: Any
    ) -> DedupConsumer:
        """A consumer of the group on a machine, subscribed to the topic."""
        consumer = self.idle_consumer(disk, config, **options)
        consumer.subscribe([self.topic])
        return consumer

    def idle_consumer(
        self, disk: str = "one", config: dict[str, Any] | None = None, **options: Any
    ) -> DedupConsumer:
        """A consumer that is not subscribed yet."""
        group = options.pop("group", self.group)
        settings = {**QUICK_GROUP, **(config or {})}
        if settings.get("group.protocol") == "consumer":
            for name in QUICK_GROUP:
                del settings[name]
        store = options.pop("store", self.disk(disk))
        consumer = consuming.make_consumer(self.bootstrap, group, store, settings, **options)
        self._stack.callback(consumer.close)
        return consumer

    def handle(self, count: int, disk: str = "one", **more: Any) -> list[str]:
        """Run a consumer until it has handled so many messages and leaves in order; return their values."""
        with self.consumer(disk, **more) as consumer:
            return consuming.values(consuming.poll_some(consumer, count))

    def rest(self, disk: str = "one", **more: Any) -> list[str]:
        """Run a consumer until nothing comes any more; return the values."""
        with self.consumer(disk, **more) as consumer:
            return consuming.values(consuming.poll_quiet(consumer))

    def committed(self, partition: int = 0) -> TopicPartition:
        """What a plain client sees committed."""
        return consuming.committed(self.bootstrap, self.group, self.topic, partition)

    def metadata(self, partition: int = 0) -> CommitMetadata | None:
        """What stands beside the committed offset, as ours."""
        return consuming.committed_metadata(self.bootstrap, self.group, self.topic, partition)

    def text_for(self, offset: int, **changed: Any) -> str:
        """What the group's commit says, as if it were one of another offset."""
        now = self.committed()
        told = parse_metadata(now.metadata, committed=now.offset)
        assert told is not None
        return replace(told, done=None, **changed).text(offset)

    def commit_plainly(self, offset: int, *, partition: int = 0, metadata: str | None = "") -> None:
        """Set the group's offset as a tool does that knows nothing of us."""
        consuming.commit_plainly(
            self.bootstrap, self.group, self.topic, offset, partition=partition, metadata=metadata or ""
        )


@pytest.fixture
def world(broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path) -> Iterator[World]:
    """A fresh topic of one partition, a fresh group, empty disks."""
    with ExitStack() as stack:
        yield World(broker.bootstrap, make_topic(partitions=1), group, tmp_path, stack)


@pytest.fixture
def pair_world(broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path) -> Iterator[World]:
    """The same with a topic of two partitions."""
    with ExitStack() as stack:
        yield World(broker.bootstrap, make_topic(partitions=2), group, tmp_path, stack)
