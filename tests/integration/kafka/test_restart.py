from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_INVALID

from tests.support.consuming import lookup, poll_quiet, poll_some, values
from tests.support.killed_member import completed_before_a_kill

if TYPE_CHECKING:
    from tests.support.worlds import World


def test_a_restart_on_the_same_disk_goes_on(world: World) -> None:
    """Handled messages are neither handed out again nor replayed; their duplicates are recognised."""
    world.send("a", "b", "c")
    assert world.handle(2) == ["a", "b"]
    world.send("a", "b", "d", "c")

    with world.consumer() as consumer:
        assert values(poll_quiet(consumer)) == ["c", "d"]
        assert consumer.partition_statuses[0].detail == "resumed"
        assert consumer.counters.verdicts["unverified"] == 0


def test_the_commits_say_where_the_history_begins(world: World) -> None:
    """A plain client of the same group sees the offset, and our text beside it."""
    world.send("a", "b")
    assert world.committed().offset == OFFSET_INVALID
    world.handle(2)

    assert world.committed().offset == 2
    text = world.committed().metadata or ""
    assert re.fullmatch(
        r"dedup/2 at=\d+/[0-9a-f]{8} fingerprint=[0-9a-f]{16}\.[0-9a-f]{16} low=0 complete=1 era=[0-9a-f]{8} epoch=0",
        text,
    )


@pytest.mark.slow
@pytest.mark.parametrize("completion", ["explicit", "on-next-call"])
def test_a_kill_right_after_complete_forgets_nothing(world: World, completion: str) -> None:
    """A completed message is in the store when complete() returns: after SIGKILL the next process does not see it."""
    world.send(*"abcdefgh")
    dedup = "Lookup(id=header('dedup-id'), window=Window(days=7))"
    assert completed_before_a_kill(world, dedup, 5, completion=completion) == [*"abcde"]
    assert world.committed().offset == 0
    world.send("a", "e", "i")

    assert world.rest("same") == ["f", "g", "h", "i"]


def test_a_store_in_use_is_waited_for(world: World) -> None:
    """Two members on one machine: the second waits until the first has let go of the partition's database."""
    world.send("a", "b")
    first = world.consumer()
    poll_some(first, 2)
    second = world.idle_consumer()
    second.subscribe([world.topic])
    second.poll(0.5)
    first.commit(asynchronous=False)
    first.close()
    world.send("b", "c")

    assert values(poll_some(second, 1)) == ["c"]


def test_another_id_spec_on_the_same_disk_begins_anew(world: World) -> None:
    """Marks by one ID say nothing of another.

    The store is set aside, and messages that the old one would have hidden are delivered in doubt.
    """
    world.send("a", "b")
    world.handle(2)
    world.send("a", "c")
    with world.consumer(dedup=lookup(id="value")) as consumer:
        assert values(poll_quiet(consumer)) == ["a", "c"]
        assert consumer.counters.verdicts["unverified"] == 2
        assert consumer.counters.stores_set_aside == 1
