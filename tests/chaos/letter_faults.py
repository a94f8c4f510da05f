"""A scenario in which handlers give messages up: dead letters under kills, and what becomes of them."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk import DeadLetter
from dedup_sdk.kafka.dead_letters import original_headers
from tests.chaos.options import SENT_AGAIN_HEADER
from tests.chaos.process_faults import kill_and_start
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage
from tests.chaos.topic_log import read_log

_PATIENCE_S: Final = 60.0
_ASK_S: Final = 10.0
_SILENCE_S: Final = 20.0


def _dead_letters(stage: Stage) -> None:
    stage.bed.kafka.create_topic(f"{stage.topic}.dead-letters", 2)
    while stage.left_s > 0:
        _kill_one(stage)
        stage.about(1.5)
    stage.sender.pause()
    stage.sender.confirm()
    _await_the_end(stage)
    letters = _read_letters(stage)
    stage.given_up |= {(letter.partition, letter.offset) for letter, _ in letters}
    stage.faults["given-up"] += len(stage.given_up)
    _send_again(stage, [message for _, message in letters])
    _kill_one(stage)
    stage.about(1.0)


def _kill_one(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None:
        kill_and_start(stage, run, 0.5)


def _await_the_end(stage: Stage) -> None:
    """Wait until everything that was sent is committed: handled, or given up."""
    ends = dict.fromkeys(range(stage.watch.partitions), 0)
    for record in read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions):
        ends[record.partition] = max(ends[record.partition], record.offset + 1)
    deadline = time.monotonic() + _PATIENCE_S
    while any(stage.watch.patiently().get(partition, 0) < end for partition, end in ends.items()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stage.topic}: not ended within {_PATIENCE_S:g} s: {ends}")
        stage.sleep(0.2)


def _read_letters(stage: Stage) -> list[tuple[DeadLetter, Any]]:
    """Return every dead letter, with its message: one that was written twice, before and after a kill, is there twice."""
    topic, found = f"{stage.topic}.dead-letters", []
    reader = Consumer(
        {
            "bootstrap.servers": stage.bed.kafka.bootstrap,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    open_partitions, heard = {0, 1}, time.monotonic()
    reader.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
    try:
        while open_partitions:
            message = reader.poll(0.2)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise TimeoutError(f"{topic}: the broker said nothing for {_SILENCE_S:g} s")
                continue
            heard, error = time.monotonic(), message.error()
            if error is None:
                letter = DeadLetter.read(message)
                if letter is None:
                    raise RuntimeError(f"{topic}@{message.offset()} is no dead letter")
                found.append((letter, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            elif error.fatal():
                raise KafkaException(error)
    finally:
        reader.close()
    return found


def _send_again(stage: Stage, messages: list[Any]) -> None:
    """Send every letter's message again, as it was but for the header by which its handler now succeeds."""
    producer = Producer({"bootstrap.servers": stage.bed.kafka.bootstrap, "log_level": 0})
    for message in messages:
        letter = DeadLetter.read(message)
        if letter is not None:
            producer.produce(
                stage.topic,
                value=message.value(),
                key=message.key(),
                headers=[*original_headers(message), (SENT_AGAIN_HEADER, b"1")],
                partition=letter.partition,
            )
    if producer.flush(_ASK_S):
        raise TimeoutError(f"{stage.topic}: the broker confirmed nothing for {_ASK_S:g} s")


DEAD_LETTERS: Final = Scenario(
    name="dead-letters",
    summary="messages that always fail are given up under kills, and sent again at the end",
    play=_dead_letters,
    broken="remember-what-was-given-up",
    mode="letters",
    disks=None,
    per_second=150.0,
    work_ms=5.0,
)
