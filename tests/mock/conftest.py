"""Fixtures of the tests on librdkafka's mock cluster: a cluster, a producer and consumers of each test's own."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import uvloop
from confluent_kafka import Producer

from dedup_sdk import DedupConsumer, MemoryStore
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.testing import MockKafka
from tests.support import consuming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager

    Open = Callable[..., AbstractAsyncContextManager[AsyncDedupConsumer]]

QUICK_CLIENT = {"session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}
"""For a consumer that is the only member of its group.

The mock cluster wakes no fetch that waits, and rebalances a second before a session is
over: who joins after another one waits for that, 0.2 s here."""
SHARED_GROUP = {**QUICK_CLIENT, "session.timeout.ms": 4000}
"""Where partitions change hands.

Members that have not joined again by then, three seconds here, are put out, and lose theirs.
"""
QUICK_KIP_848 = {"fetch.wait.max.ms": 50}
"""The same with ``group.protocol=consumer``, where the broker says how long a session is."""
_FLUSH_S = 30.0


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    """A mock cluster with the topics "orders" (1 partition) and "pairs" (2)."""
    with MockKafka() as mock:
        mock.create_topic("orders", partitions=1)
        mock.create_topic("pairs", partitions=2)
        yield mock


class Send(Protocol):
    """Sends records that bear IDs."""

    def __call__(self, *ids: str, topic: str = "orders", partition: int = 0) -> None:
        """Send one record an ID, in this order; the ID is the value too."""


@pytest.fixture
def send(kafka: MockKafka) -> Send:
    """Sends records to the mock cluster: ``send("a", "b", "a", topic="pairs", partition=1)``."""
    # Nothing goes before the flush, and the client knows the topic before the first record: the records of one
    # call come in one batch.
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 60_000, "log_level": 0})
    known: set[str] = set()

    def send(*ids: str, topic: str = "orders", partition: int = 0) -> None:
        if topic not in known:
            producer.list_topics(topic, timeout=_FLUSH_S)
            known.add(topic)
        for each in ids:
            producer.produce(topic, each, headers={"dedup-id": each}, partition=partition)
        assert producer.flush(_FLUSH_S) == 0

    return send


class Make(Protocol):
    """Makes consumers."""

    def __call__(self, *topics: str, config: dict[str, Any] | None = None, **options: Any) -> DedupConsumer:
        """Make a consumer of group "g", subscribed to the topics."""


@pytest.fixture
def memory() -> MemoryStore:
    """The memory of the test's consumers, one after the other: the disk of this test."""
    return MemoryStore()


@pytest.fixture
def make(kafka: MockKafka, memory: MemoryStore) -> Iterator[Make]:
    """Makes consumers over one store; closed at the end, should the test not have.

    They leave garbage collection as it was, whatever the test interrupted.
    """
    collects = gc.isenabled()
    made: list[DedupConsumer] = []

    def make(*topics: str, config: dict[str, Any] | None = None, **options: Any) -> DedupConsumer:
        given = config or {}
        quick = QUICK_KIP_848 if given.get("group.protocol") == "consumer" else QUICK_CLIENT
        consumer = consuming.make_consumer(
            kafka.bootstrap, "g", options.pop("store", memory), {**quick, **given}, **options
        )
        made.append(consumer)
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    yield make
    # All at once: members that hear of one that left join again before they close, and that takes almost a session.
    with ThreadPoolExecutor(max(1, len(made))) as pool:
        for closed in [pool.submit(consumer.close) for consumer in made]:
            closed.result()
    assert gc.isenabled() == collects


@pytest.fixture
def letters(kafka: MockKafka) -> str:
    """A dead-letter topic of one partition."""
    return kafka.create_topic("letters")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on one kind of event loop."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, consuming.PATIENCE_S))

    return run


@pytest.fixture
def consumer_of(kafka: MockKafka, memory: MemoryStore) -> Open:
    """Opens a consumer of group "g" over one memory, subscribed to the topics."""

    @asynccontextmanager
    async def opens(*topics: str, config: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Any]:
        settings = {
            "bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0,
            **QUICK_CLIENT, **(config or {}),
        }  # fmt: skip
        async with AsyncDedupConsumer(
            settings, dedup=consuming.lookup(), store=memory, **options
        ) as consumer:
            if topics:
                await consumer.subscribe(list(topics))
            yield consumer

    return opens
