"""The topic that workers copy messages to, in transactions: a committed record is the call of a handler."""

from __future__ import annotations

import json
import time
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.chaos.history import Call
from tests.chaos.topic_log import read_messages

_ASK_S: Final = 10.0


def work_of(run: str, message: Message, began_ns: int) -> bytes:
    """Return the record of a message that was handled now."""
    return json.dumps([run, message.partition(), message.offset(), began_ns, time.monotonic_ns()]).encode()


class OutputTopic:
    """The output of one scenario."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self._bootstrap, self._partitions = bootstrap, partitions

    def calls(self) -> list[Call]:
        """Return the records that readers of committed ones see, each as the call of a handler."""
        found = read_messages(self._bootstrap, self.topic, self._partitions)
        return [Call(*json.loads(message.value())) for message in found]

    def count(self) -> int:
        """Return a number that grows with the output; 0 while the broker does not tell."""
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.topic, "log_level": 0})
        try:
            places = [TopicPartition(self.topic, number) for number in range(self._partitions)]
            return sum(reader.get_watermark_offsets(place, timeout=_ASK_S)[1] for place in places)
        except KafkaException:
            return 0
        finally:
            reader.close()
