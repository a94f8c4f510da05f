from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from dedup_sdk import DeadLetter
from dedup_sdk.kafka.dead_letters import original_headers
from tests.support.consuming import PATIENCE_S, iterate_all, run_all, values
from tests.support.stored import snapshot_of, stored_marks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.kafka.conftest import World
    from tests.support.brokers import Broker


@pytest.fixture(autouse=True)
def dead_letter_topic(world: World, broker: Broker) -> str:
    """The group's dead-letter topic: the broker makes none by itself."""
    return broker.create_topic(f"{world.group}.dead-letters", 1, None)


def run(world: World, disk: str, *, failing: tuple[str, ...] = (), **options: Any) -> list[str]:
    """Run a handler over what is there; return what it handled. What it fails for becomes dead letters."""
    handled: list[str] = []

    def handle(message: Any) -> None:
        if message.value().decode() in failing:
            raise ConnectionError("the bank is closed")
        handled.append(message.value().decode())

    with world.consumer(disk, **options) as consumer:
        run_all(consumer, handle, on_error="dead-letter", attempts=2, wait_initial=0.01, workers=2)
    return handled


def dead_letters(world: World) -> list[Any]:
    """All dead letters of the group."""
    reader = Consumer({
        "bootstrap.servers": world.bootstrap, "group.id": f"{world.group}-reader", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    found: list[Any] = []
    until = time.monotonic() + PATIENCE_S
    try:
        reader.subscribe([f"{world.group}.dead-letters"])
        while True:
            message = reader.poll(0.2)
            assert time.monotonic() < until
            if message is not None and message.error() is not None:
                return found
            if message is not None:
                found.append(message)
    finally:
        reader.close()


def drive_again(world: World) -> None:
    """Send every dead letter's message to its topic again."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 0})
    for message in dead_letters(world):
        letter = DeadLetter.read(message)
        assert letter is not None
        producer.produce(letter.topic, message.value(), message.key(), headers=original_headers(message))
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("disk", ["one", "another"])
def test_what_is_sent_again_is_handled(world: World, disk: str) -> None:
    """A handler fails for good, its message is sent again and handled: on the same machine, and on one that has no store."""
    world.send("a", "b", "c", "a")
    assert sorted(run(world, "one", failing=("b",))) == ["a", "c"]
    assert world.committed().offset == 4
    assert values(dead_letters(world)) == ["b"]
    drive_again(world)
    world.send("c", "a")

    assert run(world, disk) == ["b"]
    drive_again(world)
    assert run(world, disk) == []
    assert world.committed().offset == 8


def test_a_dead_letter_topic_made_anew_vouches_for_nothing_before_it(
    world: World, dead_letter_topic: str
) -> None:
    """It has letters of the group, and more than the old one had, but not that of a message which is sent again now."""
    world.send("a", "b", "c")
    assert sorted(run(world, "one", failing=("b",))) == ["a", "c"]
    world.make_anew(dead_letter_topic)
    world.send("d", "e", "f", "g")
    assert sorted(run(world, "one", failing=("d", "f"))) == ["e", "g"]
    world.send("b", "f", "e", "g")

    assert sorted(run(world, "another")) == ["b", "f"]


def test_a_rebuilt_store_is_the_one_that_lived(world: World) -> None:
    """Replaying the topic without what was given up gives the marks of the store that was there."""
    world.send(*"abcdefgh", *"aceg")
    run(world, "one", failing=("c", "f"))
    world.send("z")
    run(world, "other")
    world.send("y")
    run(world, "one")

    lived = [mark for mark in stored_marks(world.disk("one")) if mark[1] != 13]
    assert lived == stored_marks(world.disk("other"))
    assert len(lived) == 7


def test_marks_of_what_was_given_up_are_erased_from_a_snapshot(world: World, tmp_path: Path) -> None:
    """A snapshot whose maker knew nothing of dead letters does not hide what is sent again."""
    world.send("a", "b", "c")
    run(world, "one", failing=("b",))
    # A group that handled all of it makes the snapshot.
    with world.consumer("maker", group=f"{world.group}-maker") as maker:
        iterate_all(maker)
    snapshot = snapshot_of(world.disk("maker"), tmp_path / "snapshot", high=3, group=world.group)
    drive_again(world)
    world.send("a")

    assert run(world, "two", snapshot=snapshot) == ["b"]
