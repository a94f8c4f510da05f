from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from tests.integration.kafka.conftest import World

PROTOCOLS = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip-848": {"group.protocol": "consumer"},
}


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The client's settings for a way of forming groups."""
    return dict(PROTOCOLS[request.param])


class Crew:
    """Consumers that poll in turn, and what they handled."""

    def __init__(self) -> None:
        self.members: list[DedupConsumer] = []
        self.handled: Counter[tuple[int, str]] = Counter()

    def turn(self) -> None:
        """Let each member poll a few times."""
        for member in self.members:
            for _ in range(5):
                message = member.poll(0.01)
                if message is not None and message.error() is None:
                    self.handled[message.partition(), message.value().decode()] += 1

    def until(self, condition: Any) -> None:
        """Take turns until a condition holds."""
        for _ in range(round(PATIENCE_S / 0.05)):
            if condition():
                return
            self.turn()
        raise AssertionError(f"waited in vain; {sum(self.handled.values())} handled")


def test_members_come_and_go(pair_world: World, protocol: dict[str, Any]) -> None:
    """Two machines, partitions that move both ways in the middle of the work: nothing is lost, and nothing doubled."""
    world, crew = pair_world, Crew()
    ids = [f"{number:03}" for number in range(300)]

    def send(start: int, end: int) -> None:
        for partition in (0, 1):
            again = ids[max(0, start - 50) : start]
            world.send(*ids[start:end], *again, partition=partition)

    send(0, 100)
    first = world.consumer("one", config=protocol)
    crew.members.append(first)
    crew.until(lambda: len(crew.handled) > 30)
    second = world.consumer("two", config=protocol)
    crew.members.append(second)
    crew.until(lambda: len(first.assignment()) == 1 and len(second.assignment()) == 1)
    send(100, 200)
    crew.until(lambda: len(crew.handled) >= 330)
    crew.members.remove(first)
    with first:
        pass  # What it has in hand is handled: leaving in order says so.
    crew.until(lambda: len(second.assignment()) == 2)
    send(200, 300)
    crew.until(lambda: len(crew.handled) >= 600)
    third = world.consumer("one", config=protocol)
    crew.members.append(third)
    crew.until(lambda: len(third.assignment()) == 1 and len(second.assignment()) == 1)
    for partition in (0, 1):
        world.send(*ids, partition=partition)
    ends = [TopicPartition(world.topic, partition) for partition in (0, 1)]
    total = [second.get_watermark_offsets(tp)[1] for tp in ends]

    def through() -> bool:
        positions = [max(m.position([tp])[0].offset for m in crew.members) for tp in ends]
        return positions == total

    crew.until(through)

    assert {key for key, times in crew.handled.items() if times > 1} == set()
    assert set(crew.handled) == {(partition, each) for partition in (0, 1) for each in ids}


def test_a_member_that_vanishes_costs_what_was_in_flight(pair_world: World, protocol: dict[str, Any]) -> None:
    """With explicit completion: what the lost member had completed and committed does not come again, the rest does."""
    world = pair_world
    for partition in (0, 1):
        world.send(*[f"{partition}-{number}" for number in range(10)], partition=partition)
    first = world.consumer("one", config=protocol, completion="explicit")
    held = poll_some(first, 20)
    done = [message for message in held if message.offset() < 4]
    for message in done:
        first.complete(message)
    first.commit(asynchronous=False)
    first.unsubscribe()
    for _ in range(10):
        first.poll(0.05)
    second = world.consumer("two", config=protocol, completion="explicit")

    rest = values(poll_some(second, 12))
    assert sorted(rest) == sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(4, 10))


def test_callbacks_get_what_comes_and_goes(pair_world: World, protocol: dict[str, Any]) -> None:
    """Whole assignments or deltas, as the protocol has it; every partition is taken and given back once in the end."""
    world = pair_world
    taken: Counter[int] = Counter()

    def note(step: int) -> Any:
        return lambda _, partitions: taken.update({tp.partition: step for tp in partitions})

    first = world.idle_consumer("one", config=protocol)
    first.subscribe([world.topic], on_assign=note(1), on_revoke=note(-1))
    crew = Crew()
    crew.members.append(first)
    crew.until(lambda: len(first.assignment()) == 2)
    second = world.consumer("two", config=protocol)
    crew.members.append(second)
    crew.until(lambda: len(first.assignment()) == 1 and len(second.assignment()) == 1)
    assert sum(taken.values()) == 1
    first.close()
    assert set(taken.values()) == {0}


def test_the_lag_goes_down_over_duplicates_behind_a_manual_commit(world: World) -> None:
    """10 messages, then 2,000 duplicates: all of them are committed, on the interval and at the end, but none behind a message in hand."""
    ids = [f"{number:03}" for number in range(10)]
    world.send(*ids, *(ids * 200))
    by_user = {"enable.auto.commit": False, "auto.commit.interval.ms": 100}
    with world.consumer(config=by_user) as consumer:
        for message in poll_some(consumer, 10):
            consumer.commit(message=message, asynchronous=False)
        wait_for(consumer, lambda: world.committed().offset == 2_010, "a commit of the duplicates")
        world.send("new", *ids)
        (message,) = poll_some(consumer, 1)
        poll_quiet(consumer)
        assert world.committed().offset == 2_010
    assert world.committed().offset == 2_010

    with world.consumer(config={**by_user, "auto.commit.interval.ms": 600_000}) as consumer:
        (message,) = poll_some(consumer, 1)
        consumer.commit(message=message, asynchronous=False)
        assert poll_quiet(consumer) == []
    assert world.committed().offset == 2_021
