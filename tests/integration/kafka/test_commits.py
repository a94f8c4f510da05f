"""Commits on a real broker: behind duplicates, with a text as long as it may be, and with a short one."""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk._commit_text import MOST_CHARACTERS, parse_metadata, unsealed
from dedup_sdk.testing import LocalKafka
from tests.support.consuming import numbers, poll_quiet, poll_some, values, wait_for
from tests.support.worlds import World

if TYPE_CHECKING:
    from pathlib import Path


_SHORT: Final = 120
"""Characters: enough for the text of a commit, and for nothing above its offset."""


def test_the_lag_goes_down_over_duplicates_behind_a_manual_commit(world: World) -> None:
    """10 messages, then 2,000 duplicates.

    All of them are committed, on the interval and at the end, but none behind a message in hand.
    """
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


@pytest.mark.slow
def test_a_broker_takes_a_text_as_long_as_it_may_be(world: World) -> None:
    """Completions above the offset fill the 4,095 characters that a client can send.

    The commit counts, and only the unfinished and those without room come again.
    """
    count = 30_000
    ids = numbers(0, count)
    done = set(Random(7).sample(range(1, count), count // 2))
    world.send(*ids)
    with world.consumer(store=MemoryStore(), completion="explicit") as first:
        for message in poll_some(first, count):
            if message.offset() in done:
                first.complete(message)
    now = world.committed()
    assert now.offset == 0
    assert 4_000 < len(now.metadata or "") <= MOST_CHARACTERS
    told = parse_metadata(unsealed(now.metadata, world.group, world.topic, 0), committed=now.offset)
    assert told is not None
    assert told.done is not None
    hidden = {offset for begin, end in told.done.ranges for offset in range(begin, end)}
    assert hidden == {offset for offset in done if offset <= max(hidden)}, "the nearest ones"
    assert first.counters.left_out == len(done - hidden)
    second = world.consumer(store=MemoryStore(), completion="explicit")
    assert set(map(int, values(poll_some(second, count - len(hidden))))) == set(range(count)) - hidden
    assert poll_quiet(second) == []


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_broker_that_takes_only_short_texts_gets_one(tmp_path: Path, *, asynchronous: bool) -> None:
    """Its ``offset.metadata.max.bytes`` has no room for completions above the offset.

    The commit counts without, and that is counted.
    """
    with (
        LocalKafka(config={"offset.metadata.max.bytes": str(_SHORT)}) as kafka,
        ExitStack() as stack,
    ):
        world = World(kafka.bootstrap, kafka.create_topic("orders"), "g", tmp_path, stack)
        world.send(*numbers(0, 10))
        first = world.consumer("one", completion="explicit", config={"auto.commit.interval.ms": 100})
        for message in poll_some(first, 10):
            if message.offset() != 5:
                first.complete(message)
        if asynchronous:
            wait_for(first, lambda: world.committed().offset == 5, "a commit on the interval")
        first.close()
        now = world.committed()
        assert now.offset == 5
        metadata = world.metadata()
        assert metadata is not None
        assert (metadata.done, len(now.metadata or "") <= _SHORT) == (None, True)
        assert first.counters.left_out == 4
        assert world.rest("two") == numbers(5, 10)


@pytest.mark.slow
def test_a_broker_that_takes_no_text_makes_the_consumer_unready(tmp_path: Path) -> None:
    """Its ``offset.metadata.max.bytes`` has room for where a group begins, and for the text of no later commit."""
    with LocalKafka(config={"offset.metadata.max.bytes": "100"}) as kafka, ExitStack() as stack:
        world = World(kafka.bootstrap, kafka.create_topic("orders"), "g", tmp_path, stack)
        world.send(*numbers(0, 10))
        consumer = world.consumer("one", config={"auto.commit.interval.ms": 100})
        assert values(poll_some(consumer, 10)) == numbers(0, 10)
        wait_for(consumer, lambda: not consumer.health().ready, "a commit is refused")
        [reason] = consumer.health().reasons
        assert "raise offset.metadata.max.bytes to 4096" in reason
        assert consumer.partition_statuses[0].hindrances == ("commits",)
