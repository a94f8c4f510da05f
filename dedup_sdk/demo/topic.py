"""What is in the topic, seen by a plain consumer, and how far a group has got."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Self

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk.demo.errors import DemoError
from dedup_sdk.demo.producer import ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Message

_TIMEOUT_S = 10.0
_BATCH_RECORDS = 1_000


class Topic:
    """One topic of the demo's broker; ``with`` it, because it holds two clients.

    Args:
        bootstrap: ``host:port``.
        name: the topic's name.
        group: the group of the workers.
        partitions: how many the topic has.
    """

    def __init__(self, bootstrap: str, name: str, *, group: str, partitions: int) -> None:
        self.name = name
        self.group = group
        self.partitions = range(partitions)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{group}-oracle",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "fetch.queue.backoff.ms": 1,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def ends(self) -> dict[int, int]:
        """By partition: the offset that the next record will get."""
        return {partition: self._end(partition) for partition in self.partitions}

    def _end(self, partition: int) -> int:
        return self._consumer.get_watermark_offsets(TopicPartition(self.name, partition), _TIMEOUT_S)[1]

    def committed(self) -> dict[int, int]:
        """By partition: the offset that the group has committed (the next one to read); 0 where it has not yet."""
        partitions = [TopicPartition(self.name, partition) for partition in self.partitions]
        asked = ConsumerGroupTopicPartitions(self.group, partitions)
        try:
            answer = self._admin.list_consumer_group_offsets([asked])[self.group].result(_TIMEOUT_S)
        except KafkaException as error:
            raise DemoError(
                f"the broker does not say what group {self.group} has committed: {error}"
            ) from None
        return {each.partition: max(each.offset, 0) for each in answer.topic_partitions or ()}

    def count_ids(self, ends: dict[int, int]) -> Counter[str]:
        """Read the topic from its beginning to ``ends`` (as `ends` gives them) and count the records of each dedup ID.

        Raises:
            DemoError: records are missing, or bear no ID.
        """
        counts: Counter[str] = Counter()
        wanted = sum(ends.values())
        self._consumer.assign([TopicPartition(self.name, partition, 0) for partition in ends])
        while (missing := wanted - counts.total()) > 0:
            messages = self._consumer.consume(min(missing, _BATCH_RECORDS), _TIMEOUT_S)
            if not messages:
                raise DemoError(
                    f"topic {self.name} should hold {wanted} records; {missing} could not be read"
                )
            counts.update(self._ids(messages))
        self._consumer.unassign()
        return counts

    def _ids(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            if message.error() is not None:
                raise DemoError(f"topic {self.name} cannot be read: {message.error()}")
            yield dedup_id_of(message)


def dedup_id_of(message: Message) -> str:
    """Return the dedup ID in a record's header.

    Raises:
        DemoError: it has none; the demo sent nothing without.
    """
    value = dict(message.headers() or ()).get(ID_HEADER)
    if isinstance(value, bytes):
        return value.decode()
    raise DemoError(
        f"the record at {message.topic()}[{message.partition()}]@{message.offset()} has no {ID_HEADER}"
    )
