"""Static membership (``group.instance.id``).

A restart within the session is no rebalance, and an instance has one owner.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from tests.group.conftest import PROTOCOLS, on
from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values
from tests.support.crew import Crew

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from tests.support.worlds import World

OUTLASTS_A_RESTART = {"session.timeout.ms": 20_000}


@pytest.fixture
def static(protocol: dict[str, Any]) -> dict[str, Any]:
    """The client's settings for a way of forming groups, with a session that outlasts a restart."""
    # With KIP-848 the broker says how long a session is.
    return protocol if "group.protocol" in protocol else {**protocol, **OUTLASTS_A_RESTART}


@pytest.mark.parametrize(("pair_world", "protocol"), [on("real", each) for each in PROTOCOLS], indirect=True)
def test_a_restart_keeps_partitions_stores_and_verdicts(pair_world: World, static: dict[str, Any]) -> None:
    """Nobody else's partitions move, the store is found as it was left, and handled messages are not handled again."""
    world, crew, moved = pair_world, Crew(), Counter[str]()
    for partition in (0, 1):
        world.send("a", "b", "a", partition=partition)
    one = world.consumer("one", config={**static, "group.instance.id": "one"})
    two = world.idle_consumer("two", config={**static, "group.instance.id": "two"})
    two.subscribe(
        [world.topic],
        on_assign=lambda *_: moved.update(["came"]),
        on_revoke=lambda *_: moved.update(["went"]),
    )
    crew.members += [one, two]
    crew.until(lambda: len(one.assignment()) == len(two.assignment()) == 1 and len(crew.handled) == 4)
    before, [mine] = dict(moved), one.assignment()
    crew.members.remove(one)
    # Asking for more completes the last message; close() alone would have it come again.
    assert values(poll_quiet(one)) == []
    one.close()

    world.send("b", "c", partition=mine.partition)
    again = world.consumer("one", config={**static, "group.instance.id": "one"})
    crew.members.append(again)
    crew.until(lambda: (mine.partition, "c") in crew.handled)

    assert [(tp.topic, tp.partition) for tp in again.assignment()] == [(mine.topic, mine.partition)]
    assert again.partition_statuses[0].detail == "resumed"
    assert again.counters.verdicts["duplicate"] == 1
    assert set(crew.handled.values()) == {1}
    assert dict(moved) == before


@pytest.mark.parametrize(("world", "protocol"), [on("real", each) for each in PROTOCOLS], indirect=True)
def test_one_instance_has_one_owner(
    world: World, static: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A second process of the same instance.

    One ends with the client's fatal error, the other goes on, and nothing doubles.
    """
    world.send("a", "b")
    settings = {**static, "group.instance.id": "one"}
    first = world.consumer(config=settings)
    assert values(poll_some(first, 2)) == ["a", "b"]
    poll_quiet(first)
    second = world.consumer(config=settings)
    fenced: list[DedupConsumer] = []
    came: list[str] = []
    until = time.monotonic() + 2 * PATIENCE_S
    while not fenced and time.monotonic() < until:
        for member in (first, second):
            message = member.poll(0.05)
            if message is None:
                continue
            error = message.error()
            if error is None:
                came += values([message])
            elif error.code() == KafkaError._FATAL:
                fenced.append(member)

    assert fenced == [second if "group.protocol" in static else first]
    assert fenced[0].partition_statuses == []

    world.send("b", "c")
    owner = first if fenced == [second] else second
    assert values(poll_some(owner, 1)) == ["c"]
    # It did not wait for the other's store.
    assert "waits for its store" not in caplog.text
    assert values(poll_quiet(owner)) == []
    assert came == []
    assert owner.counters.events == {}
