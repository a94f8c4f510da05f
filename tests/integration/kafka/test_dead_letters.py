from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from dedup_sdk import Recovery
from dedup_sdk._cli.app import run as dedup
from tests.support.consuming import PATIENCE_S, iterate_all, run_all
from tests.support.dead_letters import dead_letters, forward
from tests.support.stored import snapshot_of, stored_marks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.brokers import Broker
    from tests.support.worlds import World


@pytest.fixture
def dead_letter_topic(world: World, broker: Broker) -> str:
    """The group's dead-letter topic: the broker makes none by itself."""
    return broker.create_topic(f"{world.group}.dead-letters", 1, None)


def run(world: World, disk: str, *, failing: tuple[str, ...] = (), **options: Any) -> list[str]:
    """Run a handler over the messages; return those it handled. Those it fails for become dead letters."""
    handled: list[str] = []

    def handle(message: Any) -> None:
        if message.value().decode() in failing:
            raise ConnectionError("the bank is closed")
        handled.append(message.value().decode())

    with world.consumer(disk, **options) as consumer:
        run_all(consumer, handle, on_error="dead-letter", attempts=2, wait_initial=0.01, workers=2)
    return handled


def test_a_rebuilt_store_is_the_one_that_lived(world: World, dead_letter_topic: str) -> None:
    """Replaying the topic gives the marks of the store that was there, with dead letters and those sent back."""
    world.send(*"abcdefgh", *"aceg")
    run(world, "one", failing=("c", "f"))
    forward(world.bootstrap, dead_letters(world.bootstrap, dead_letter_topic), world.topic)
    assert sorted(run(world, "one")) == ["c", "f"]
    world.send("z")
    run(world, "other")
    world.send("y")
    run(world, "one")

    lived = [mark for mark in stored_marks(world.disk("one")) if mark[1] != 15]
    assert lived == stored_marks(world.disk("other"))
    assert len(lived) == 11


def test_a_snapshot_of_another_group_hides_nothing_that_is_sent_back(
    world: World, dead_letter_topic: str, tmp_path: Path
) -> None:
    """Its maker handled the message that failed here."""
    world.send("a", "b", "c")
    run(world, "one", failing=("b",))
    with world.consumer("maker", group=f"{world.group}-maker") as maker:
        iterate_all(maker)
    snapshot = snapshot_of(world.disk("maker"), tmp_path / "snapshot", high=3, group=world.group)
    letters = dead_letters(world.bootstrap, dead_letter_topic)
    forward(world.bootstrap, letters, world.topic)
    world.send("a", "b")

    assert run(world, "two", recovery=Recovery(snapshot=snapshot)) == ["b"]
    with world.consumer("maker", group=f"{world.group}-maker") as maker:
        assert iterate_all(maker) == []


def test_the_command_sends_dead_letters_back(
    world: World, dead_letter_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a log that ends in a transaction's marker, and once each: the next run goes on where this one ended."""
    world.send("a", "b", "c")
    run(world, "one", failing=("a", "b"))
    producer = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": world.group})
    producer.init_transactions(PATIENCE_S)
    for finish in producer.abort_transaction, producer.commit_transaction:
        producer.begin_transaction()
        producer.produce(dead_letter_topic, "what else")
        finish(PATIENCE_S)
    for sent in 2, 0:
        command = ["redrive", "--bootstrap", world.bootstrap, "--from", dead_letter_topic, "--json"]
        assert dedup([*command, "--execute"]) == 0
        assert json.loads(capsys.readouterr().out)["letters"] == sent
        assert sorted(run(world, "one")) == ["a", "b"][:sent]
