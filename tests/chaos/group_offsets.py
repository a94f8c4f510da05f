"""The ways of operators to move the offsets of a group that has no members, and their tools.

Plain clients and the broker's admin interface.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition

from tests.chaos.options import ID_HEADER
from tests.chaos.stage import Stage
from tests.chaos.topic_log import read_log

ASK_S: Final = 10.0
PATIENCE_S: Final = 20.0
_IDLE_S: Final = 45.0
"""Seconds without a commit, of workers that may have just been started on a busy machine."""

Stand = tuple[int, str]
"""A committed offset and the text beside it."""


def stands(stage: Stage) -> dict[int, Stand]:
    """Return the commits, with their texts."""
    config = {"bootstrap.servers": stage.bed.kafka.bootstrap, "group.id": stage.topic, "log_level": 0}
    with closing(Consumer(config)) as plain:
        found = plain.committed(stage.places(), timeout=ASK_S)
    return {
        tp.partition: (tp.offset, tp.metadata or "") for tp in found if tp.error is None and tp.offset >= 0
    }


def set_stands(stage: Stage, wanted: Mapping[int, Stand]) -> None:
    """Set the group's offsets and texts. The group must be empty, which the coordinator may learn a little later."""
    places = [TopicPartition(stage.topic, partition, *stand) for partition, stand in wanted.items()]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            _alter(stage, places)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _alter(stage: Stage, places: list[TopicPartition]) -> None:
    request = [ConsumerGroupTopicPartitions(stage.topic, places)]
    for future in stage.admin.alter_consumer_group_offsets(request, request_timeout=ASK_S).values():
        # A refusal for single partitions raises nothing by itself.
        for place in future.result().topic_partitions:
            if place.error is not None:
                raise KafkaException(place.error)


def set_offsets(stage: Stage, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets as the plain reset tool does: without texts."""
    set_stands(stage, {partition: (offset, "") for partition, offset in offsets.items()})


def ends(stage: Stage) -> dict[int, int]:
    """Return where the log of each partition ends."""
    found = dict.fromkeys(range(stage.watch.partitions), 0)
    for record in read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions):
        found[record.partition] = max(found[record.partition], record.offset + 1)
    return found


def await_committed(stage: Stage) -> None:
    """Wait until everything that was sent is committed, as long as commits go on."""
    to, known, moved = ends(stage), dict[int, int](), time.monotonic()
    while any((now := stage.watch.patiently()).get(partition, 0) < end for partition, end in to.items()):
        if now != known:
            known, moved = now, time.monotonic()
        elif time.monotonic() - moved > _IDLE_S:
            raise TimeoutError(
                f"{stage.topic}: nothing was committed for {_IDLE_S:g} s: {now}; to come: {to}"
            )
        stage.sleep(0.2)


def send_apart(stage: Stage, idents: Sequence[bytes]) -> None:
    """Send messages of their own, each to the partition that its number says."""
    producer = Producer({"bootstrap.servers": stage.bed.kafka.bootstrap, "log_level": 0})
    produce(producer, stage, idents, b"apart")
    if producer.flush(ASK_S):
        raise TimeoutError(f"{stage.topic}: the broker confirmed nothing for {ASK_S:g} s")


def produce(producer: Producer, stage: Stage, idents: Sequence[bytes], value: bytes) -> None:
    """Hand messages to a producer, one key for each partition."""
    for number, ident in enumerate(idents):
        partition = number % stage.watch.partitions
        producer.produce(
            stage.topic,
            value=value,
            key=b"%s%d" % (value, partition),
            partition=partition,
            headers=[(ID_HEADER, ident)],
        )


def start_all(stage: Stage) -> None:
    """Start a worker on each of three hosts."""
    for host in range(3):
        stage.start(host)
