"""The topic that workers copy messages to, in transactions: a committed record is the call of a handler."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.history import Call, Delivery, Place
from tests.chaos.topic_log import read_messages

_BATCH: Final = 500
_POLL_S: Final = 0.2
_SILENCE_S: Final = 15.0
_CATCH_UP_S: Final = 60.0
_NAME: Final = "output-reader"


class OutputTopic:
    """The output of one scenario, and a reader that polls it all the time, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self._bootstrap, self._partitions = bootstrap, partitions
        self._polls: list[Delivery] = []
        self._values: list[bytes] = []
        self._calls: list[Call] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name=_NAME, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def log(self) -> dict[Place, Call]:
        """Read the whole output as a new reader of committed records."""
        found = read_messages(self._bootstrap, self.topic, self._partitions)
        return {(each.partition(), each.offset()): _call(each.value()) for each in found}

    def calls(self) -> list[Call]:
        """Return the records that the reader has seen, each as the call of a handler."""
        for value in self._values[len(self._calls) : self.count]:
            self._calls.append(_call(value))
        return self._calls

    def polls(self) -> list[Delivery]:
        """Return what the reader has got, in its order."""
        return self._polls[: self.count]

    @property
    def count(self) -> int:
        """The number of records that the reader has seen."""
        return len(self._polls)

    def catch_up(self, log: Mapping[Place, Call]) -> None:
        """Let the reader come as far as this log reaches; return after a while also where it does not."""
        ends: dict[int, int] = {}
        for partition, offset in log:
            ends[partition] = max(offset, ends.get(partition, -1))
        until = time.monotonic() + _CATCH_UP_S
        while time.monotonic() < until and any(self._next(each) <= end for each, end in ends.items()):
            time.sleep(_POLL_S)

    def _next(self, partition: int) -> int:
        """Return the offset behind the last record that the reader has got."""
        return next((each.offset + 1 for each in reversed(self._polls) if each.partition == partition), 0)

    def _work(self) -> None:
        number = 0
        while not self._ending.is_set():
            consumer = self._reader()
            heard = time.monotonic()
            try:
                # One that hears nothing for long may have forgotten every broker.
                while not self._ending.is_set() and time.monotonic() < heard + _SILENCE_S:
                    number += 1
                    for message in consumer.consume(_BATCH, _POLL_S):
                        if message.error() is None:
                            heard = time.monotonic()
                            self._note(message, number)
            except KafkaException:
                time.sleep(_POLL_S)
            finally:
                consumer.close()

    def _note(self, message: Any, number: int) -> None:
        # The values first: `count` is that of the polls.
        self._values.append(message.value())
        place = message.partition(), message.offset()
        self._polls.append(Delivery(_NAME, number, *place, time.monotonic_ns()))

    def _reader(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self.topic}-{_NAME}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        places = [TopicPartition(self.topic, each, self._next(each)) for each in range(self._partitions)]
        consumer.assign(places)
        return consumer


def _call(value: bytes) -> Call:
    return Call(*json.loads(value))
