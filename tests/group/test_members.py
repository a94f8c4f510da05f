"""Members that come and go, by each way of forming groups.

Completed messages come to nobody again, and the rest to the next owner.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import LastId, Window, header
from dedup_sdk.orders import integer
from tests.group.conftest import MEMBERS, PROTOCOLS, on
from tests.support.consuming import lookup, numbers, poll_quiet, poll_some, wait_for
from tests.support.crew import Crew

if TYPE_CHECKING:
    from tests.support.worlds import World

JOINS_S = 1.5
"""Seconds in which a member begins to join; then its group waits for the other member."""
CLOSES_S = 20.0
"""A close that is longer waits for the other member: the default deadline is 60 s, and a client's own close 5."""
STRATEGIES = {
    "time": lookup(),
    "count": lookup(window=Window(count=1_000)),
    "last": LastId(id=header("dedup-id"), order=integer()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("pair_world", "protocol"), MEMBERS, indirect=True)
def test_members_come_and_go(pair_world: World, protocol: dict[str, Any]) -> None:
    """Two members, partitions that move both ways in the middle of the work: nothing is lost, and nothing doubled."""
    world = pair_world
    ids = [f"{number:03}" for number in range(300)]

    def send(start: int, end: int) -> None:
        for partition in (0, 1):
            again = ids[max(0, start - 50) : start]
            world.send(*ids[start:end], *again, partition=partition)

    send(0, 100)
    first = world.consumer("one", config=protocol)
    crew = Crew(first)
    crew.until(lambda: len(crew.handled) > 30)
    second = world.consumer(world.next_disk, config=protocol)
    crew.members.append(second)
    crew.until_shared()
    send(100, 200)
    crew.until(lambda: len(crew.handled) >= 330)
    crew.members.remove(first)
    with first:
        pass  # Its messages in hand are handled: leaving in order says so.
    crew.until(lambda: len(second.assignment()) == 2)
    send(200, 300)
    crew.until(lambda: len(crew.handled) >= 600)
    crew.members.append(world.consumer("one", config=protocol))
    crew.until_shared()
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


@pytest.mark.parametrize(("pair_world", "protocol"), MEMBERS, indirect=True)
def test_callbacks_get_what_comes_and_goes(pair_world: World, protocol: dict[str, Any]) -> None:
    """Whole assignments or deltas, as the protocol has it; every partition is taken and given back once in the end."""
    world = pair_world
    taken: Counter[int] = Counter()

    def note(step: int) -> Any:
        return lambda _, partitions: taken.update({tp.partition: step for tp in partitions})

    first = world.idle_consumer("one", config=protocol)
    first.subscribe([world.topic], on_assign=note(1), on_revoke=note(-1))
    crew = Crew(first)
    crew.until(lambda: len(first.assignment()) == 2)
    second = world.consumer(world.next_disk, config=protocol)
    crew.members.append(second)
    crew.until_shared()
    assert sum(taken.values()) == 1
    first.close()
    assert set(taken.values()) == {0}


@pytest.mark.slow
@pytest.mark.parametrize(("pair_world", "protocol"), MEMBERS, indirect=True)
def test_what_was_in_flight_comes_to_the_next_owner(pair_world: World, protocol: dict[str, Any]) -> None:
    """With explicit completion.

    Uncompleted messages come again, completed ones do not, and a completion that comes too late is counted.
    """
    world = pair_world
    for partition in (0, 1):
        world.send(*[f"{partition}-{number}" for number in range(10)], partition=partition)
    first = world.consumer("one", config=protocol, completion="explicit")
    held = poll_some(first, 20)
    for message in held:
        if message.offset() < 4:
            first.complete(message)
    second = world.consumer(world.next_disk, config=protocol, completion="explicit")
    crew = Crew(first, second)
    crew.until_shared()
    [moved] = [tp.partition for tp in second.assignment()]
    crew.until(lambda: len(crew.came_to(second, moved)) >= 6)
    stale = first.counters.stale
    for message in held:
        if message.partition() == moved and message.offset() >= 4:
            first.complete(message)
    assert first.counters.stale == stale + 6
    # By the eager protocol uncompleted messages would come again when the next partition comes.
    for message in crew.messages(second, moved):
        second.complete(message)
    first.unsubscribe()
    crew.until(lambda: len(crew.came_to(second, 1 - moved)) >= 6)
    for partition in (0, 1):
        assert crew.came_to(second, partition) == [f"{partition}-{number}" for number in range(4, 10)]
    assert poll_quiet(second) == []


# The mock cluster takes no commit while a group forms anew, and nothing else tells another disk the completions
# out of order.
@pytest.mark.parametrize(
    ("pair_world", "protocol", "strategy"),
    [on("real", "eager", "count"), on("real", "cooperative", "last"), on("real", "kip-848", "time")],
    indirect=["pair_world", "protocol"],
)
def test_a_hand_over_doubles_nothing_that_was_completed_out_of_order(
    pair_world: World, protocol: dict[str, Any], strategy: str
) -> None:
    """Two of 200 messages of each partition keep failing.

    Its next owner, on another disk, gets these two, and knows the marks of all others.
    """
    world = pair_world
    options: dict[str, Any] = {
        "config": protocol,
        "completion": "explicit",
        "dedup": STRATEGIES[strategy],
    }
    for partition in (0, 1):
        world.send(*numbers(0, 200), partition=partition)
    first = world.consumer("one", **options)
    for message in poll_some(first, 400):
        if message.offset() not in {0, 77}:
            first.complete(message)
    second = world.consumer("two", **options)
    crew = Crew(first, second)
    crew.until_shared()
    [moved] = [tp.partition for tp in second.assignment()]
    crew.until(lambda: len(crew.came_to(second, moved)) >= 2)
    world.send("150", "199", "200", partition=moved)
    for member in crew.members:
        for message in poll_quiet(member):
            crew.note(member, message)
    assert crew.came_to(second, moved) == ["0", "77", "200"]
    # By the eager protocol all of a member's partitions are released, also that which it gets again.
    assert crew.came_to(first, 1 - moved) in ([], ["0", "77"])
    assert set(crew.handled.values()) == {1}
    assert (first.counters.left_out, second.counters.left_out) == (0, 0)


@pytest.mark.parametrize(("pair_world", "protocol"), [on("real", each) for each in PROTOCOLS], indirect=True)
def test_a_member_that_still_joins_closes_soon(pair_world: World, protocol: dict[str, Any]) -> None:
    """Another member sits in a long handler, and the eager protocol waits for it: nothing is to be handed over."""
    world = pair_world
    world.send("a")
    busy = world.consumer("one", config=protocol)
    wait_for(busy, lambda: len(busy.assignment()) == 2, "the first member's partitions")
    joining = world.consumer("two", config=protocol)
    until = time.monotonic() + JOINS_S
    while time.monotonic() < until:
        joining.poll(0.1)

    began = time.monotonic()
    joining.close()

    assert time.monotonic() - began < CLOSES_S
