from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk.aio import AsyncDedupConsumer
from tests.support.cancelling import STYLES, World, by_poll, come_and_go
from tests.support.consuming import lookup
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

_COUNT = 2_000


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_to_cancel_anything_loses_and_doubles_nothing(
    broker: Broker,
    make_topic: MakeTopic,
    produce: Callable[[str, Iterable[Outgoing]], int],
    group: str,
    seed: int,
    strategy: str,
) -> None:
    """As on the mock cluster; here partitions move by a real coordinator, in both protocols."""
    topic = make_topic(partitions=4)
    ids = {(number % 4, number // 4): f"m{number}" for number in range(_COUNT)}
    produce(
        topic,
        (
            Outgoing(
                key=b"%d" % (offset % 29),
                value=each.encode(),
                headers={"dedup-id": each.encode()},
                partition=partition,
            )
            for (partition, offset), each in ids.items()
        ),
    )
    world, memory = World(topic, ids, Random(seed)), MemoryStore()
    config = {
        "bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
        "auto.commit.interval.ms": 100, "session.timeout.ms": 6000, "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": strategy,
    }  # fmt: skip

    @asynccontextmanager
    async def opens() -> AsyncIterator[AsyncDedupConsumer]:
        async with AsyncDedupConsumer(config, dedup=lookup(), store=memory) as consumer:
            await consumer.subscribe([topic])
            yield consumer

    asyncio.run(come_and_go(opens, world, (*STYLES, by_poll)))

    assert (world.lost, world.unhandled, world.doubled) == (set(), set(), {})
