"""The world of a group: a topic of its own on some broker, and the disks of its machines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._commit_text import parse_metadata
from dedup_sdk.testing._local_kafka import create_topic
from tests.support import consuming
from tests.support.brokers import make_anew

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from dedup_sdk._commit_text import CommitMetadata
    from dedup_sdk.testing import MockKafka

QUICK_GROUP = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
MOCK_GROUP = {"session.timeout.ms": 4_000, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}
"""The mock cluster wakes no fetch that waits, and rebalances a second before a session is over.

Who joins waits for that.
"""
MOCK_ALONE = {**MOCK_GROUP, "session.timeout.ms": 1_200}
"""The same where a group has one member at a time.

Nobody has to join again before that, and the next one waits 0.2 s.
"""


class World:
    """A topic, a group, and the disks of its machines; consumers that were made are closed at the end.

    ``mock``: the cluster, where that is librdkafka's own. ``alone``: the group never has two members at a time.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        disks: Path,
        stack: ExitStack,
        *,
        mock: MockKafka | None = None,
        alone: bool = False,
    ) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self._disks, self._stack, self._mock = disks, stack, mock
        on_mock = MOCK_ALONE if alone else MOCK_GROUP
        self._settings: dict[str, Any] = dict(QUICK_GROUP if mock is None else on_mock)
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        return Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0, "max.in.flight": 1}
        )

    @property
    def next_disk(self) -> str:
        """The machine of a member that joins "one".

        The mock cluster takes no commit while a group forms anew: there only the store of the same machine tells
        the completed records.
        """
        return "two" if self._mock is None else "one"

    def disk(self, name: str = "one") -> Path:
        """The store folder of a machine."""
        return self._disks / name

    def send(self, *ids: str, partition: int = 0, topic: str | None = None) -> None:
        """Send one record an ID."""
        for each in ids:
            self._producer.produce(topic or self.topic, each, headers={"dedup-id": each}, partition=partition)
        assert self._producer.flush(consuming.PATIENCE_S) == 0

    def create_topic(self, name: str) -> str:
        """Create another topic, of one partition; return its name."""
        return create_topic(self.bootstrap, name) if self._mock is None else self._mock.create_topic(name)

    def delete_before(self, offset: int) -> None:
        """Remove records of partition 0 as retention does."""
        if self._mock is not None:
            self._mock.delete_records(self.topic, 0, offset)
            return
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            future.result()

    def make_anew(self, topic: str) -> None:
        """See `tests.support.brokers.make_anew`."""
        make_anew(self.bootstrap, topic)
        # The former one knows the old topic: it would send the first record there, and repeat it after the others.
        self._producer = self._new_producer()

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
        settings = {**self._settings, **(config or {})}
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
        """The commit that a plain client sees."""
        return consuming.committed(self.bootstrap, self.group, self.topic, partition)

    def metadata(self, partition: int = 0) -> CommitMetadata | None:
        """The text beside the committed offset, as ours."""
        return consuming.committed_metadata(self.bootstrap, self.group, self.topic, partition)

    def text_for(self, offset: int, **changed: Any) -> str:
        """The text of the group's commit, as if it were one of another offset."""
        now = self.committed()
        told = parse_metadata(now.metadata, committed=now.offset)
        assert told is not None
        return replace(told, done=None, **changed).text(offset)

    def commit_plainly(self, offset: int, *, partition: int = 0, metadata: str | None = "") -> None:
        """Set the group's offset as a tool does that knows nothing of us."""
        # The mock cluster takes no commit for a group that it knows, but that of a member.
        joining = None if self._mock is None else self._settings
        consuming.commit_plainly(
            self.bootstrap, self.group, self.topic, offset, partition=partition, metadata=metadata or "",
            joining=joining
        )  # fmt: skip
