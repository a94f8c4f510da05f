"""A signal whose handler raises inside a call of `AsyncDedupConsumer`, in a program that goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import PATIENCE_S, committed, numbers
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dedup_sdk.aio import AsyncDedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Open, Send

    Way = Callable[[AsyncDedupConsumer, set[int]], Awaitable[None]]

_COUNT = 300


async def by_poll(consumer: AsyncDedupConsumer, got: set[int]) -> None:
    """Take one message."""
    message = await consumer.poll(PATIENCE_S)
    if message is not None:
        got.add(message.offset() or 0)


async def by_consume(consumer: AsyncDedupConsumer, got: set[int]) -> None:
    """Take a few."""
    messages = await consumer.consume(3, 1)
    got.update(message.offset() or 0 for message in messages)


async def by_iteration(consumer: AsyncDedupConsumer, got: set[int]) -> None:
    """Take some, and leave the loop."""
    count = 0
    async for message in consumer:
        got.add(message.offset() or 0)
        count += 1
        if count == 3:
            break


@pytest.mark.parametrize("way", [by_poll, by_consume, by_iteration])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_anywhere_loses_nothing_and_leaves_nothing_standing(
    consumer_of: Open, send: Send, kafka: MockKafka, way: Way
) -> None:
    """What a call may have taken comes again; behind the last signal all that is left comes, and is committed."""
    send(*numbers(0, _COUNT))
    got: set[int] = set()
    places: list[str] = []

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=2) as consumer:
            await consumer.poll(PATIENCE_S)
            for place in range(1, 200):
                # asyncio's own callbacks do not bear a handler that raises, either.
                at = InterruptedAt(place, counts=asyncio.current_task)
                async with asyncio.timeout(PATIENCE_S):
                    with suppress(Interrupted), at:
                        await way(consumer, got)
                if not at.struck:
                    break
                places.append(at.where)
            async with asyncio.timeout(PATIENCE_S):
                while len(got) < _COUNT:
                    await way(consumer, got)
                while await consumer.poll(1) is not None:
                    pass

    asyncio.run(main())
    assert len(places) > 10
    assert got == {*range(_COUNT)}
    assert committed(kafka.bootstrap, "g", "orders").offset == _COUNT
