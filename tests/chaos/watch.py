"""Looks at the group's commits, all the time, from outside the group."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.history import Sample

_EVERY_S: Final = 0.1
ANSWER_S: Final = 2.0
SILENCE_S: Final = 15.0


class CommitWatch:
    """Samples of the committed offsets, taken in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self.partitions = partitions
        self.samples: list[Sample] = []
        self._topic = topic
        self._config = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
        self._client = Consumer(self._config)
        self._heard = time.monotonic()
        self._one = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="commit-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._client.close()

    def committed(self) -> dict[int, int]:
        """Return the commits of now, by partition; raises `KafkaException` when the broker does not answer."""
        with self._one:
            asked = [TopicPartition(self._topic, each) for each in range(self.partitions)]
            try:
                answer = _heeded(self._client.committed(asked, timeout=ANSWER_S))
            except KafkaException:
                self._renew()
                raise
            self._heard = time.monotonic()
            at_ns = time.monotonic_ns()
            found = {tp.partition: tp.offset for tp in answer if tp.error is None and tp.offset >= 0}
            self.samples += [Sample(at_ns, partition, offset) for partition, offset in found.items()]
        return found

    def _renew(self) -> None:
        """Take another client when this one has heard nothing for long: it may have forgotten every broker."""
        if time.monotonic() - self._heard > SILENCE_S:
            self._client.close()
            self._client = Consumer(self._config)
            self._heard = time.monotonic()

    def before(self, at_ns: int) -> dict[int, int]:
        """Return the commits seen until a moment."""
        seen: dict[int, int] = {}
        for sample in list(self.samples):
            if sample.at_ns <= at_ns:
                seen[sample.partition] = sample.offset
        return seen

    def patiently(self, seconds: float = 90.0) -> dict[int, int]:
        """As `committed`, also while the broker is away for a moment."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.committed()
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_EVERY_S)

    def _work(self) -> None:
        while not self._ending.wait(_EVERY_S):
            try:
                self.committed()
            except KafkaException:
                continue


def _heeded(answer: list[TopicPartition]) -> list[TopicPartition]:
    """Raise the error that a coordinator has for every partition: it is not up yet, and tells no offset."""
    errors = [tp.error for tp in answer if tp.error is not None]
    if errors and len(errors) == len(answer):
        raise KafkaException(errors[0])
    return answer
