"""A process that handles the messages of the topic "orders" by coroutines, and notes each in a file.

``python -m tests.support.coroutine_worker BOOTSTRAP STORE FILE WAY``: ``run``, ``for`` or ``once``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from dedup_sdk import Lookup
from dedup_sdk.aio import AsyncDedupConsumer
from tests.mock.conftest import QUICK_CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message


async def work(bootstrap: str, store: str, way: str, note: Callable[[str], object]) -> None:
    """Handle messages until a signal comes."""
    pauses = Random(len(store))
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }

    async def handle(message: Message) -> None:
        await asyncio.sleep(pauses.uniform(0, 0.01))
        note((message.value() or b"").decode() + "\n")

    async with AsyncDedupConsumer(
        {**config, **QUICK_CLIENT, "auto.commit.interval.ms": 100},
        dedup=Lookup(id="header:dedup-id", window="7d"),
        store=store,
    ) as consumer:
        await consumer.subscribe(["orders"])
        if way == "run":
            await consumer.run(handle, concurrency=10)
        with consumer.stop_on_signals():
            if way == "for":
                async for message in consumer:
                    await handle(message)
            if way == "once":
                async for message in consumer.explicit():
                    async with consumer.once(message):
                        await handle(message)


def main(bootstrap: str, store: str, file: str, way: str) -> None:
    """Handle messages, and note each at once."""
    with Path(file).open("a", encoding="utf-8", buffering=1) as notes:
        asyncio.run(work(bootstrap, store, way, notes.write))


if __name__ == "__main__":
    main(*sys.argv[1:])
