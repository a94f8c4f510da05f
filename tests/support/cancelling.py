"""Coroutines that take messages and are cancelled at any moment, by a seeded schedule; what came of the messages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from confluent_kafka import Message


@dataclass
class World:
    """What was sent, and what came of it.

    ``ids``: topic partition and offset -> ID. ``handled``: how often the handler came to its end, by ID.
    ``unhandled``: IDs that a commit of the group called completed before their handler had come to its end.
    """

    topic: str
    ids: dict[tuple[int, int], str]
    rng: Random
    handled: Counter[str] = field(default_factory=Counter)
    unhandled: set[str] = field(default_factory=set)
    cancelled: int = 0
    over: bool = False

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topic."""
        return [TopicPartition(self.topic, number) for number in sorted({number for number, _ in self.ids})]

    @property
    def lost(self) -> set[str]:
        """IDs of which no handler came to its end."""
        return set(self.ids.values()) - set(self.handled)

    @property
    def doubled(self) -> dict[str, int]:
        """IDs that were handled more than once."""
        return {each: count for each, count in self.handled.items() if count > 1}

    async def handle(self, message: Message) -> None:
        """Handle a message: the work is done, and noted, behind the last await."""
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(self.rng.choice([0, 0, 0.0005, 0.002, 0.01]))
        self.handled[(message.value() or b"").decode()] += 1

    async def look(self, consumer: Any) -> None:
        """Note what the group's commits call completed, and whether all is."""
        committed = await consumer.committed(self.partitions)
        reached = {each.partition: max(0, each.offset) for each in committed}
        for (partition, offset), each in self.ids.items():
            if offset < reached[partition] and each not in self.handled:
                self.unhandled.add(each)
        self.over = sum(reached.values()) == len(self.ids)


# --- ways to consume ---------------------------------------------------------------------------------------------


async def by_iteration(consumer: Any, world: World) -> None:
    """``async for``: the next step completes."""
    async for message in consumer:
        await world.handle(message)


async def by_generator(consumer: Any, world: World) -> None:
    """Iteration in a generator of the application's, which nobody closes."""

    async def messages() -> AsyncIterator[Message]:
        async for message in consumer:
            yield message

    async for message in messages():
        await world.handle(message)


async def by_comprehension(consumer: Any, world: World) -> None:
    """Iteration in an expression."""

    async def handle(message: Message) -> Message:
        await world.handle(message)
        return message

    assert [await handle(message) async for message in consumer]


async def by_once(consumer: Any, world: World) -> None:
    """One by one."""
    async for message in consumer.explicit():
        async with consumer.once(message):
            await world.handle(message)


async def by_tasks(consumer: Any, world: World) -> None:
    """Tasks that end their messages, all cancelled at once; what had no task yet is released."""

    async def work(message: Message) -> None:
        async with consumer.once(message):
            begun.add(id(message))
            await world.handle(message)

    begun: set[int] = set()
    handed: list[Message] = []
    try:
        async with asyncio.TaskGroup() as group:
            async for message in consumer.explicit():
                handed.append(message)
                group.create_task(work(message))
                if len(handed) % 5 == 0:
                    await asyncio.sleep(0.005)
    finally:
        for message in handed:
            if id(message) not in begun:
                # Its task was cancelled before its first step.
                await consumer.release(message)


async def by_batches(consumer: Any, world: World) -> None:
    """Batches of which each message ends by itself; what a cancellation leaves is released."""
    while True:
        batch = await consumer.consume(world.rng.randrange(1, 20), 0.05)
        left = [message for message in batch if message.error() is None]
        try:
            while left:
                async with consumer.once(left[0]):
                    await world.handle(left[0])
                left.pop(0)
        except asyncio.CancelledError:
            for message in left[1:]:
                await consumer.release(message)
            raise


async def by_poll(consumer: Any, world: World) -> None:
    """Calls of ``poll`` that are cancelled; what one returns is always handled."""
    for _ in range(world.rng.randrange(20, 60)):
        with suppress(TimeoutError):
            message = await asyncio.wait_for(consumer.poll(5), world.rng.choice([0, 0.0001, 0.001, 0.02]))
            if message is not None and message.error() is None:
                await world.handle(message)


async def by_run(consumer: Any, world: World) -> None:
    """Many handlers at a time."""
    await consumer.run(
        world.handle,
        concurrency=world.rng.choice([1, 3, 50]),
        order=world.rng.choice(["key", "partition", None]),
    )


STYLES = (by_iteration, by_generator, by_comprehension, by_once, by_tasks, by_batches, by_run)


async def live(
    opens: Callable[[], Any], world: World, styles: tuple[Any, ...], *, seconds: float, moves: Any = None
) -> None:
    """Open a consumer, and consume with it in one way after the other, each cancelled after a while."""
    until = time.monotonic() + seconds
    async with opens() as consumer:
        while not world.over and time.monotonic() < until:
            style = world.rng.choice(styles)
            task = asyncio.create_task(style(consumer, world))
            if style is not by_poll:
                await asyncio.wait([task], timeout=world.rng.choice([0, 0.001, 0.005, 0.02, 0.05, 0.2]))
                for _ in range(world.rng.choice([1, 1, 2])):
                    task.cancel()
                    await asyncio.sleep(0)
            world.cancelled += 1
            with suppress(asyncio.CancelledError):
                await task
            if moves is not None:
                await moves(consumer, world)
            await world.look(consumer)


async def come_and_go(
    opens: Callable[[], Any], world: World, styles: tuple[Any, ...], moves: Any = None
) -> None:
    """Consume with two members: one stays, the other joins and leaves."""

    async def visit() -> None:
        while not world.over:
            await asyncio.sleep(world.rng.uniform(0, 0.3))
            await live(opens, world, styles, seconds=world.rng.uniform(2, 8), moves=moves)

    async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(live(opens, world, styles, seconds=2 * PATIENCE_S, moves=moves))
        group.create_task(visit())
