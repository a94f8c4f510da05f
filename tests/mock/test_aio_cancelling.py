from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.aio import AIOConsumer

from dedup_sdk.aio import AsyncDedupConsumer
from tests.mock.conftest import SHARED_GROUP
from tests.support.cancelling import STYLES, World, by_iteration, by_poll, by_run, come_and_go, live
from tests.support.consuming import PATIENCE_S, lookup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dedup_sdk import MemoryStore
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

_COUNT = 600


def _world(kafka: MockKafka, seed: int) -> World:
    """Messages with IDs in four partitions, some with one key."""
    topic = kafka.create_topic("fuzz", partitions=4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    ids: dict[tuple[int, int], str] = {}
    for number in range(_COUNT):
        partition, offset = number % 4, number // 4
        ids[partition, offset] = each = f"m{number}"
        producer.produce(topic, each, key=str(number % 29), partition=partition, headers={"dedup-id": each})
    assert producer.flush(PATIENCE_S) == 0
    return World(topic, ids, Random(seed))


def _opens(
    kafka: MockKafka, world: World, memory: MemoryStore, kind: type[AsyncDedupConsumer] = AsyncDedupConsumer
) -> Callable[[], Any]:
    """Opens a member of one group, subscribed to the world's topic."""
    config = {
        "bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0,
        "auto.commit.interval.ms": 100, **SHARED_GROUP,
    }  # fmt: skip

    @asynccontextmanager
    async def opens() -> AsyncIterator[AsyncDedupConsumer]:
        async with kind(config, dedup=lookup(), store=memory) as consumer:
            await consumer.subscribe([world.topic])
            yield consumer

    return opens


@pytest.mark.parametrize("seed", range(3))
def test_to_cancel_anything_loses_and_doubles_nothing(
    kafka: MockKafka, memory: MemoryStore, seed: int
) -> None:
    """Two members take turns, each way to consume is cancelled at any await, partitions move meanwhile."""
    world = _world(kafka, seed)
    asyncio.run(come_and_go(_opens(kafka, world, memory), world, (*STYLES, by_poll)))

    assert (world.lost, world.unhandled, world.doubled) == (set(), set(), {})
    assert world.cancelled > 5


@pytest.mark.parametrize("style", [by_iteration, by_run, by_poll])
def test_pauses_and_seeks_between_lose_nothing(kafka: MockKafka, memory: MemoryStore, style: Any) -> None:
    """A seek may bring what is completed already, by its own rule; it loses nothing."""

    async def moves(consumer: AsyncDedupConsumer, world: World) -> None:
        if not (assigned := await consumer.assignment()):
            return
        chosen = [TopicPartition(world.rng.choice(assigned).topic, world.rng.choice(assigned).partition)]
        await consumer.pause(chosen)
        (at,) = await consumer.position(chosen)
        if at.offset >= 0 and world.rng.random() < 0.3:
            await consumer.seek(at)
        await consumer.resume(chosen)

    world = _world(kafka, 7)
    asyncio.run(live(_opens(kafka, world, memory), world, (style,), seconds=PATIENCE_S, moves=moves))

    assert world.over
    assert (world.lost, world.unhandled) == (set(), set())


class _Careless(AsyncDedupConsumer):
    """A broken twin: its `poll` waits once more when it has its message, and hides its cancellation then."""

    async def poll(self, timeout: float | None = -1) -> Any:  # noqa: ASYNC109
        message = await super().poll(timeout)
        try:
            await asyncio.sleep(0.0005)
        except asyncio.CancelledError:
            return None
        return message


def test_the_fuzz_sees_a_poll_that_drops_its_message(kafka: MockKafka, memory: MemoryStore) -> None:
    """A call that is cancelled behind its message loses it: the next call completes it."""
    world = _world(kafka, 0)
    asyncio.run(live(_opens(kafka, world, memory, _Careless), world, (by_poll,), seconds=PATIENCE_S))

    assert world.lost
    assert world.lost == world.unhandled


async def _after_a_cancelled_poll(make: Callable[[], Any], topic: str, send: Send) -> list[str]:
    """Subscribe, cancel a call that waits, send three records; return what the next calls bring."""
    consumer = make()
    await consumer.subscribe([topic])
    send("first")
    while await consumer.poll(0.5) is None:
        pass
    with suppress(TimeoutError):
        await asyncio.wait_for(consumer.poll(2), 0.3)
    send("a", "b", "c")
    await asyncio.sleep(1)
    got = [await consumer.poll(1) for _ in range(4)]
    await consumer.close()
    return [(message.value() or b"").decode() for message in got if message is not None]


def test_the_clients_own_consumer_loses_the_message_of_a_cancelled_poll(
    kafka: MockKafka, memory: MemoryStore, send: Send
) -> None:
    """What docs/asyncio.md says of it; ours brings all three."""
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "auto.offset.reset": "earliest",
        "log_level": 0,
        **SHARED_GROUP,
    }
    theirs = partial(AIOConsumer, {**config, "group.id": "theirs"})
    ours = partial(AsyncDedupConsumer, {**config, "group.id": "ours"}, dedup=lookup(), store=memory)

    assert asyncio.run(_after_a_cancelled_poll(theirs, "orders", send)) == ["b", "c"]
    assert asyncio.run(_after_a_cancelled_poll(ours, "pairs", partial(send, topic="pairs"))) == [
        "a",
        "b",
        "c",
    ]
