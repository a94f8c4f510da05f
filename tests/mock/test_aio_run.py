"""What a run does with messages that go, that come again, and that wait for another attempt."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from dedup_sdk import DedupConsumer, MemoryStore
from dedup_sdk.shared import Shared
from tests.mock.conftest import QUICK_CLIENT, SHARED_GROUP
from tests.support.consuming import PATIENCE_S, make_consumer, values
from tests.support.shared_memory import Watched

if TYPE_CHECKING:
    from confluent_kafka import Message

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Open, Send


def test_only_running_handlers_go_on_with_a_partition_that_was_given_up(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """What waits in the run comes with the next assignment, though messages of another partition wait before it."""
    send(*(f"a{number}" for number in range(200)), topic="pairs")
    send(*(f"b{number}" for number in range(2_000)), topic="pairs", partition=1)
    first, second = TopicPartition("pairs", 0, 0), TopicPartition("pairs", 1, 0)
    handled: Counter[str] = Counter()

    async def main() -> None:
        async with consumer_of(idle_timeout=1) as consumer:
            await consumer.incremental_assign([first, second])

            async def handle(message: Message) -> None:
                await asyncio.sleep(0.002)
                handled.update(values([message]))

            running = asyncio.create_task(consumer.run(handle, concurrency=5))
            while sum(each[0] == "a" for each in handled) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await consumer.incremental_unassign([TopicPartition("pairs", 0)])
            before = sum(each[0] == "a" for each in handled)
            await asyncio.sleep(0.3)
            assert sum(each[0] == "a" for each in handled) <= before + 5
            await consumer.incremental_assign([TopicPartition("pairs", 0)])
            await running

    run(main())
    assert len(handled) == 2_200
    assert handled.total() <= 2_250


def test_after_an_error_only_running_handlers_go_on(run: Any, consumer_of: Open, send: Send) -> None:
    """The consumer has to open its partitions again: all that waits comes again, and is not handled before."""
    for partition in range(2):
        send(*(f"{partition}-{number}" for number in range(300)), topic="pairs", partition=partition)
    handled: Counter[str] = Counter()

    async def main() -> None:
        async with consumer_of("pairs", idle_timeout=1) as consumer:

            async def handle(message: Message) -> None:
                await asyncio.sleep(0.002)
                handled.update(values([message]))
                if len(handled) == 50:
                    with pytest.raises(ValueError, match="mutually exclusive"):
                        await consumer.commit(message, [TopicPartition("pairs", 0, 1)])

            await consumer.run(handle, concurrency=5)

    run(main())
    assert len(handled) == 600
    assert handled.total() <= 610


def test_a_shared_memory_that_is_away_takes_no_message_from_its_handler(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """For longer than a lease; nobody else asks for it."""
    send("a", "b")
    store, handled = Watched(), list[str]()

    async def main() -> None:
        shared = Shared(store, scope="global", lease=1.0)
        async with consumer_of("orders", shared=shared, idle_timeout=1) as consumer:

            async def handle(message: Message) -> None:
                handled.extend(values([message]))
                if handled == ["a"]:
                    store.away = True
                    await asyncio.sleep(2)
                    store.away = False
                    await asyncio.sleep(0.5)

            await consumer.run(handle, concurrency=1)

    run(main())
    assert handled == ["a", "b"]


def test_no_handler_sees_what_another_one_left_in_its_task(run: Any, consumer_of: Open, send: Send) -> None:
    """A task handles many messages: neither context variables nor cancellations reach the next one."""
    send("a", "b", "c", "d")
    seen: list[tuple[str | None, int]] = []
    variable: ContextVar[str | None] = ContextVar("variable", default=None)

    async def handle(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append((variable.get(), task.cancelling()))
        if values([message]) == ["b"]:
            variable.set("mine")
        if values([message]) == ["c"]:
            with suppress(asyncio.CancelledError):
                task.cancel()
                await asyncio.sleep(0)

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=1) as consumer:
            await consumer.run(handle, concurrency=1)

    run(main())
    assert seen == [(None, 0)] * 4


def test_handlers_that_await_nothing_let_others_have_their_turn(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """Else a timeout would not end such a run."""
    send(*map(str, range(500)))
    handled: list[str] = []

    async def handle(message: Message) -> None:
        time.sleep(0.001)  # noqa: ASYNC251 (a handler that awaits nothing)
        handled.extend(values([message]))

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=1))
            while not handled:  # noqa: ASYNC110
                await asyncio.sleep(0)
            consumer.stop()
            await running

    run(main())
    assert len(handled) < 400


def test_a_rebalance_does_not_wait_for_another_attempt(run: Any, consumer_of: Open, send: Send) -> None:
    """The next owner gets the message; the run goes on with what it keeps."""
    send("a", topic="pairs")
    send("b", topic="pairs", partition=1)
    attempted: list[str] = []

    async def handle(message: Message) -> None:
        attempted.extend(values([message]))
        raise OSError("away")

    async def main() -> None:
        async with consumer_of("pairs", config=SHARED_GROUP) as consumer:
            running = asyncio.create_task(
                consumer.run(
                    handle, on_error="retry", attempts=None, wait_initial=PATIENCE_S, wait_max=PATIENCE_S
                )
            )
            while len(attempted) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with consumer_of("pairs", config=SHARED_GROUP) as other:
                message = await other.poll(PATIENCE_S / 2)
                assert message is not None
                assert not running.done()
                assert consumer.counters.abandoned == 0
            consumer.stop()
            await running

    run(main())


def test_a_rebalance_waits_for_the_report_of_a_dead_letter(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, letters: str
) -> None:
    """Handlers that fail while their partitions are revoked: each message ends by its letter, and comes to nobody."""
    send("a", topic="pairs")
    send("b", topic="pairs", partition=1)

    async def main() -> None:
        revoking, loop = asyncio.Event(), asyncio.get_running_loop()
        running = set[str]()

        async def handle(message: Message) -> None:
            running.update(values([message]))
            await revoking.wait()
            raise OSError("away")

        def revoked(*_: object) -> None:
            loop.call_soon_threadsafe(revoking.set)

        async with consumer_of(config=SHARED_GROUP, revoke_deadline=5) as consumer:
            await consumer.subscribe(["pairs"], on_revoke=revoked)
            work = asyncio.create_task(
                consumer.run(handle, on_error="dead-letter", dead_letters=letters, attempts=1)
            )
            while len(running) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with consumer_of("pairs", config=SHARED_GROUP, idle_timeout=1) as other:
                assert [message async for message in other] == []
            assert consumer.counters.abandoned == 0
            consumer.stop()
            await work

    run(main())
    config: dict[str, Any] = {**QUICK_CLIENT}
    with make_consumer(kafka.bootstrap, "reader", MemoryStore(), config, idle_timeout=1) as reader:
        reader.subscribe([letters])
        assert sorted(values(reader)) == ["a", "b"]


def test_a_run_that_ends_waits_for_no_broker_that_is_away(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, letters: str
) -> None:
    """It would otherwise wait for the report of the dead letter as long as the producer tries."""
    send("a")

    async def main() -> None:
        async with consumer_of("orders", revoke_deadline=1) as consumer:

            async def handle(_: Message) -> None:
                kafka.push_errors("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 1_000)
                consumer.stop()
                raise OSError("away")

            await consumer.run(handle, on_error="dead-letter", dead_letters=letters, attempts=1)
            kafka.clear_errors("Produce")
            assert values([await consumer.poll(PATIENCE_S)]) == ["a"]

    run(main())


def test_a_message_whose_handler_was_not_called_counts_no_attempt(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """A run that ends gives back what waits; the message whose handler was cancelled comes for the second time."""
    send("a", "b", "c")

    async def main() -> list[int]:
        async with consumer_of("orders") as consumer:
            begun = asyncio.Event()

            async def handle(_: Message) -> None:
                begun.set()
                await asyncio.sleep(PATIENCE_S)

            running = asyncio.create_task(consumer.run(handle, concurrency=1))
            await begun.wait()
            while consumer.counters.delivered < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            got = await consumer.consume(3, 5)
            assert values(got) == ["a", "b", "c"]
            return [verdict.attempt for each in got if (verdict := await consumer.verdict(each)) is not None]

    assert run(main()) == [2, 1, 1]


def test_a_handler_that_cancels_itself_before_a_pause_ends_the_run(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """Its error might pass, but it has no pause before another call; nothing fails beside the run."""
    send("a")
    failed: list[dict[str, Any]] = []

    async def handle(_: Message) -> None:
        job = asyncio.current_task()
        assert job is not None
        job.cancel()
        raise OSError("away")

    async def main() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with consumer_of("orders") as consumer:
            with pytest.raises(RuntimeError, match="handler was cancelled"):
                await consumer.run(handle, on_error="retry")
            return values([await consumer.poll()])

    assert run(main()) == ["a"]
    assert failed == []


def test_a_pause_that_begins_as_a_run_ends_is_over_with_it(run: Any, consumer_of: Open, send: Send) -> None:
    """The handler fails with an error that may pass in the moment in which its run stops waiting for it."""
    send("a", "b")
    attempted: list[str] = []

    async def main() -> list[str]:
        async with consumer_of("orders", idle_timeout=1) as consumer:
            begun = asyncio.Event()

            async def handle(message: Message) -> None:
                attempted.extend(values([message]))
                begun.set()
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError:
                    running.cancel()
                    raise OSError("away") from None

            running = asyncio.create_task(consumer.run(handle, concurrency=1, on_error="retry"))
            await begun.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await asyncio.sleep(0.5)
            # And nothing stops the next iteration.
            return values([message async for message in consumer])

    assert run(main()) == ["a", "b"]
    assert attempted == ["a"]


def test_beside_handlers_few_messages_are_fetched_at_a_time(
    run: Any, consumer_of: Open, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the thread decides about messages, the event loop waits for the interpreter."""
    send(*(f"a{number}" for number in range(1_500)))
    fetches, begun = list[int](), list[Any]()
    real = DedupConsumer.consume

    def consume(consumer: DedupConsumer, count: int = 1, timeout: float = -1) -> list[Message]:
        got = real(consumer, count, timeout)
        if begun:
            fetches.append(len(got))
        return got

    monkeypatch.setattr(DedupConsumer, "consume", consume)

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=1) as consumer:

            async def handle(message: Message) -> None:
                begun.append(message)
                await asyncio.sleep(0.005)

            await consumer.run(handle, concurrency=50)

    run(main())
    assert len(begun) == 1_500
    # The first one may have begun before any handler did.
    assert max(fetches[1:]) <= 100


def test_sigterm_ends_all_runs_of_a_program(run: Any, consumer_of: Open, send: Send) -> None:
    """Each of them finds that the program handles the signal nowhere."""
    begun: set[str] = set()

    async def consume(topic: str) -> None:
        async with consumer_of(topic) as consumer:

            async def handle(_: Message) -> None:
                begun.add(topic)

            await consumer.run(handle)

    async def main() -> None:
        send("a")
        send("b", topic="pairs")
        running = asyncio.gather(consume("orders"), consume("pairs"))
        while len(begun) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
