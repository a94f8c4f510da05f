"""An `AsyncDedupConsumer` whose work lives in an `AsyncSession`: offsets in the database, and cancelled runs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from dedup_adapters.sql import Inbox, KeptOffsets, is_retryable
from dedup_sdk import ConfigurationError, MemoryStore, Recovery
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.testing import MockKafka
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS
from tests.mock.conftest import SHARED_GROUP
from tests.support.consuming import PATIENCE_S, commit_plainly, lookup
from tests.support.inbox_worker import WORK
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from confluent_kafka import Message
    from sqlalchemy import URL

pytestmark = BY_ASYNC_DRIVERS
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A topic of two partitions."""
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        yield kafka.bootstrap


class World:
    """An inbox of the group "g", a table for its work, and consumers that have forgotten all IDs."""

    def __init__(self, url: URL, bootstrap: str, *, keeps_offsets: bool) -> None:
        self._client: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        kept = KeptOffsets(AdminClient(self._client)) if keeps_offsets else None
        # A statement of SQLite is awaited to its end also if it is cancelled, and waits so long for another writer.
        impatient = {"timeout": 0.1} if url.get_backend_name() == "sqlite" else {}
        self.engine = create_async_engine(url, connect_args=impatient)
        self._sessions = async_sessionmaker(self.engine)
        self.inbox = Inbox(self.engine, group="g", offsets=kept)

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[AsyncDedupConsumer]:
        """A consumer of the group, which has nothing yet."""
        await self.inbox.create_async()
        async with self.engine.begin() as connection:
            await connection.run_sync(WORK.metadata.create_all)
        async with (
            asyncio.timeout(PATIENCE_S),
            AsyncDedupConsumer(
                {**self._client, "group.id": "g", "auto.offset.reset": "earliest", **SHARED_GROUP},
                dedup=lookup(),
                store=MemoryStore(),
                recovery=Recovery(set_back="again"),
                **settings,
            ) as consumer,
        ):
            yield consumer
        await self.engine.dispose()

    async def handle(self, message: Message) -> None:
        """Write a row of work in the transaction of the message."""
        async with self._sessions.begin() as session, self.inbox.once(session, message) as first:
            if first:
                await session.execute(insert(WORK).values(body=(message.value() or b"").decode()))

    async def count(self, consumer: AsyncDedupConsumer, count: int) -> None:
        """Handle so many messages one by one."""
        async for message in consumer.explicit():
            async with consumer.once(message):
                await self.handle(message)
            count -= 1
            if not count:
                return


def done(engine: Engine) -> Counter[str]:
    """How often each message was handled."""
    with engine.connect() as connection:
        return Counter(connection.execute(select(WORK.c.body)).scalars())


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_a_partition_begins_where_the_database_says(
    async_url: URL, engine: Engine, bootstrap: str, way: str
) -> None:
    """Wherever Kafka's committed offset is; messages without IDs are handled once, too."""
    produce(bootstrap, "orders", [Outgoing(value=b"%d" % n, partition=0) for n in range(10)])
    commit_plainly(bootstrap, "g", "orders", 2)

    async def life() -> None:
        world = World(async_url, bootstrap, keeps_offsets=True)
        offsets = world.inbox.offsets
        async with world.consumer() as consumer:
            if way == "subscribe":
                await consumer.subscribe(["orders"], on_assign=offsets.on_assign_async)
            else:
                await consumer.assign(await offsets.begin_async(consumer, PARTITIONS))
            await world.count(consumer, 3)
        for blocks in (offsets.on_assign, offsets.begin):
            with pytest.raises(ConfigurationError, match=r"the engine is an AsyncEngine: .*_async"):
                blocks(consumer, PARTITIONS)

    asyncio.run(life())
    if way == "assign":
        commit_plainly(bootstrap, "g", "orders", 0)
    asyncio.run(life())
    assert done(engine) == Counter("234567")


@pytest.mark.parametrize("keeps_offsets", [False, True], ids=["ids", "offsets"])
def test_cancelled_runs_lose_nothing_and_double_nothing(
    async_url: URL, engine: Engine, bootstrap: str, *, keeps_offsets: bool
) -> None:
    """The run is cancelled at any moment, once or twice, and begun anew; every fifth consumer has forgotten all."""
    numbers = [*range(120), *([] if keeps_offsets else range(0, 120, 3))]
    produce(
        bootstrap,
        "orders",
        [
            Outgoing(
                value=b"%d" % number, partition=number % 2,
                headers={} if keeps_offsets else {"dedup-id": b"%d" % number},
            )
            for number in numbers
        ],
    )  # fmt: skip
    draw = random.Random(async_url.drivername)

    async def life(runs: int) -> None:
        world = World(async_url, bootstrap, keeps_offsets=keeps_offsets)
        async with world.consumer(idle_timeout=None if runs else 1.0) as consumer:
            begun = (
                await world.inbox.offsets.begin_async(consumer, PARTITIONS) if keeps_offsets else PARTITIONS
            )
            await consumer.assign(begun)
            for last in [False] * runs or [True]:
                task = asyncio.create_task(
                    consumer.run(
                        world.handle,
                        concurrency=5,
                        order="partition" if keeps_offsets else None,
                        on_error="retry",
                        retry_on=is_retryable,
                        attempts=None,
                        wait_initial=0.01,
                    )
                )
                if not last:
                    await asyncio.wait([task], timeout=draw.uniform(0, 0.1))
                    # aiosqlite 0.22 waits for ever for the end of a connection whose closing was cancelled.
                    for _ in range(1 if engine.dialect.name == "sqlite" else draw.choice([1, 2])):
                        task.cancel()
                        await asyncio.sleep(draw.choice([0, 0, 0.002]))
                with suppress(asyncio.CancelledError):
                    await task

    for _ in range(6):
        asyncio.run(life(runs=5))
    asyncio.run(life(runs=0))
    assert done(engine) == Counter(map(str, range(120)))
