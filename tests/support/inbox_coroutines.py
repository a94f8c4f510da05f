"""A process that writes a row for each message in an `AsyncSession`; it is killed, and started again.

As `inbox_worker`: at each step it says so and waits for an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from dedup_adapters.sql import Inbox, KeptOffsets, is_retryable
from dedup_sdk import Lookup, Recovery
from dedup_sdk.aio import AsyncDedupConsumer
from tests.support.inbox_worker import GROUP, PARTITIONS, WORK, begin, step

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    from sqlalchemy.ext.asyncio import AsyncSession

_IDLE_S = 2.0


class Worker:
    """Handles messages in one of several ways: the last one is broken."""

    def __init__(
        self, consumer: AsyncDedupConsumer, inbox: Inbox, sessions: async_sessionmaker[AsyncSession]
    ) -> None:
        self._consumer, self._inbox, self._sessions = consumer, inbox, sessions

    async def go(self, way: str) -> None:
        """Handle messages until none comes for a while."""
        if way == "once":
            async for message in self._consumer.explicit():
                async with self._consumer.once(message):
                    await self._handle(message)
        else:
            await self._consumer.run(
                self._handle_apart if way == "id-apart" else self._handle,
                concurrency=4,
                order="partition" if way == "offsets" else "key",
                on_error="retry",
                retry_on=is_retryable,
                attempts=None,
            )

    async def _handle(self, message: Any) -> None:
        async with self._sessions.begin() as session, self._inbox.once(session, message) as first:
            if first:
                await self._work(session, message)
        step()

    async def _work(self, session: AsyncSession, message: Any) -> None:
        step()
        await session.execute(insert(WORK).values(body=message.value().decode()))
        step()

    async def _handle_apart(self, message: Any) -> None:
        async with self._sessions.begin() as session, self._inbox.once(session, message) as first:
            pass
        if first:
            async with self._sessions.begin() as session:
                await self._work(session, message)


async def work(way: str, bootstrap: str, url: str, store: str) -> None:
    """Handle the messages."""
    client: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
    kept = KeptOffsets(AdminClient(client)) if way == "offsets" else None
    engine = create_async_engine(url)
    inbox = Inbox(engine, group=GROUP, offsets=kept)
    async with AsyncDedupConsumer(
        {**client, "group.id": GROUP, "auto.offset.reset": "earliest"},
        dedup=Lookup(id="header:dedup-id", window="7d"),
        store=store,
        recovery=Recovery(set_back="again"),
        idle_timeout=_IDLE_S,
    ) as consumer:
        begun = PARTITIONS if kept is None else await kept.begin_async(consumer, PARTITIONS)
        await consumer.assign(begun)
        await Worker(consumer, inbox, async_sessionmaker(engine)).go(way)
    await engine.dispose()


def main(driver: Pipe, way: str, bootstrap: str, url: str, store: str) -> None:
    """Handle the messages."""
    begin(driver)
    asyncio.run(work(way, bootstrap, url, store))
