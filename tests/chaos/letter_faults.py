"""A scenario in which handlers give messages up: dead letters under kills, which are sent back."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import Producer

from dedup_sdk import DeadLetter
from tests.chaos.group_offsets import await_committed
from tests.chaos.letters import read_letters
from tests.chaos.options import SENT_AGAIN_HEADER
from tests.chaos.process_faults import again_and_again, kill_one
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

_ASK_S: Final = 10.0
_PARTITIONS: Final = 2


def _dead_letters(stage: Stage) -> None:
    stage.bed.kafka.create_topic(f"{stage.topic}.dead-letters", _PARTITIONS)
    again_and_again(kill_one, 1.5)(stage)
    stage.sender.pause()
    stage.sender.confirm()
    await_committed(stage)
    letters = read_letters(stage.bed.kafka.bootstrap, f"{stage.topic}.dead-letters", _PARTITIONS)
    stage.given_up |= {(letter.partition, letter.offset) for letter, _ in letters}
    stage.faults["given-up"] += len(stage.given_up)
    _send_back(stage, [message for _, message in letters])
    kill_one(stage)
    stage.about(1.0)


def _send_back(stage: Stage, messages: list[Any]) -> None:
    """Send every letter back with its headers, and one by which its handler now succeeds."""
    producer = Producer({"bootstrap.servers": stage.bed.kafka.bootstrap, "log_level": 0})
    for message in messages:
        letter = DeadLetter.read(message)
        if letter is not None:
            producer.produce(
                stage.topic,
                value=message.value(),
                key=message.key(),
                headers=[*(message.headers() or ()), (SENT_AGAIN_HEADER, b"1")],
                partition=letter.partition,
            )
    if producer.flush(_ASK_S):
        raise TimeoutError(f"{stage.topic}: the broker confirmed nothing for {_ASK_S:g} s")


DEAD_LETTERS: Final = Scenario(
    name="dead-letters",
    summary="messages that always fail are given up under kills, and sent back with their headers at the end",
    play=_dead_letters,
    broken="overlook-the-redrive",
    mode="letters",
    disks=None,
    per_second=150.0,
    work_ms=5.0,
)
