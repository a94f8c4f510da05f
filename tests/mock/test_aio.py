from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from dedup_sdk import MemoryStore, PartitionEvent, VerdictEvent
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.errors import ConfigurationError
from tests.mock.conftest import QUICK_CLIENT, SHARED_GROUP
from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, lookup, make_consumer, values
from tests.support.forking import in_a_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Open, Send


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (what the thread counts sets no event)
            await asyncio.sleep(0.01)


def _offset(kafka: MockKafka, topic: str = "orders") -> int:
    return committed(kafka.bootstrap, "g", topic).offset


# --- iteration and calls -----------------------------------------------------------------------------------------


def test_iteration_brings_each_logical_message_once(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """Until `stop`; the message in hand is completed by leaving the block in order."""
    send("a", "b", "a", "c", "d")

    async def main() -> list[Message]:
        got = []
        async with consumer_of("orders") as consumer:
            async for message in consumer:
                got.append(message)
                if len(got) == 3:
                    consumer.stop()
        assert consumer.counters.verdicts["duplicate"] == 1
        return got

    assert values(run(main())) == ["a", "b", "c"]
    assert _offset(kafka) == 4


def test_iteration_ends_after_a_time_without_messages(run: Any, consumer_of: Open, send: Send) -> None:
    """`idle_timeout`, of `run` too."""
    send("a")

    async def main() -> list[str]:
        got: list[Message] = []

        async def handle(message: Message) -> None:
            got.append(message)

        async with consumer_of("orders", idle_timeout=0.5) as consumer:
            async for message in consumer:
                await handle(message)
            send("b")
            await consumer.run(handle)
        return values(got)

    assert run(main()) == ["a", "b"]


def test_calls_return_what_the_synchronous_ones_do(run: Any, consumer_of: Open, send: Send) -> None:
    """Each method once."""
    send(*"abcdef")
    place = TopicPartition("orders", 0)

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            first = await consumer.poll()
            assert first is not None
            verdict = await consumer.verdict(first)
            assert verdict is not None
            assert (await consumer.holds(first), verdict.kind.value) == (True, "fresh")
            assert values(await consumer.consume(2, 5)) == ["b", "c"]
            assert await consumer.holds(first) is False
            assert [each.offset for each in await consumer.position([place])] == [3]
            assert [(each.topic, each.partition) for each in await consumer.assignment()] == [("orders", 0)]
            await consumer.commit(asynchronous=False)
            assert [each.offset for each in await consumer.committed([place])] == [3]
            await consumer.pause([place])
            assert await consumer.poll(0.3) is None
            await consumer.resume([place])
            assert values([await consumer.poll()]) == ["d"]
            await consumer.seek(TopicPartition("orders", 0, 1))
            assert values(await consumer.consume(5, 5)) == ["b", "c", "d", "e", "f"]
            assert [status.state for status in consumer.partition_statuses] == ["active"]
            assert consumer.health().live
            await consumer.unsubscribe()
            assert await consumer.poll(0.1) is None

    run(main())


def test_calls_that_return_coroutines_are_coroutine_functions() -> None:
    """Mocks and frameworks ask; before Python 3.12 `inspect` does not know of marks."""
    is_coroutine_function = (
        inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    )
    for name in ("poll", "consume", "commit", "store_offsets", "seek", "complete", "close"):
        assert is_coroutine_function(getattr(AsyncDedupConsumer, name)), name


def test_a_seek_to_the_position_is_no_move(run: Any, consumer_of: Open, send: Send) -> None:
    """Messages that wait stay, though a released one comes before them: for the consumer they are in flight."""
    send(*"abcdef")

    async def main() -> None:
        async with consumer_of() as consumer:
            await consumer.subscribe(["orders"])
            first = await consumer.poll()
            assert first is not None
            await _until(lambda: consumer.counters.delivered >= 6)
            assert consumer.counters.delivered == 6
            # In one turn of the thread: a released message that is queued again is no special case.
            await asyncio.gather(consumer.release(first), consumer.seek(TopicPartition("orders", 0, 0)))
            assert sorted(values(await consumer.consume(6, 5))) == list("abcdef")

    run(main())


def test_a_seek_forward_skips_what_waits(run: Any, consumer_of: Open, send: Send) -> None:
    """The consumer has delivered up to there, the application has not: what lies between is done without."""
    send(*"abcdef")

    async def main() -> None:
        async with consumer_of() as consumer:
            await consumer.subscribe(["orders"])
            assert values([await consumer.poll()]) == ["a"]
            await _until(lambda: consumer.counters.delivered >= 6)
            assert consumer.counters.delivered == 6
            await consumer.seek(TopicPartition("orders", 0, 6))
            send("g")
            assert values([await consumer.poll()]) == ["g"]
            await consumer.commit(asynchronous=False)
            (committed,) = await consumer.committed([TopicPartition("orders", 0)])
            assert committed.offset == 7

    run(main())


def test_partitions_by_hand(run: Any, consumer_of: Open, send: Send) -> None:
    """What waits of a partition that stays is not dropped with that of another one."""
    send("a", "b", topic="pairs")
    send("c", "d", topic="pairs", partition=1)
    one, two = TopicPartition("pairs", 0, 0), TopicPartition("pairs", 1, 0)

    async def main() -> None:
        async with consumer_of(config={"partition.assignment.strategy": "cooperative-sticky"}) as consumer:
            await consumer.incremental_assign([one])
            await consumer.incremental_assign([two])
            got = values(await consumer.consume(1, 5))
            await asyncio.sleep(0.5)
            await consumer.incremental_unassign([two])
            got += values(await consumer.consume(4, 1))
            assert [each for each in got if each in "ab"] == ["a", "b"]
            assert got.count("c") + got.count("d") <= 1
            await consumer.unassign()
            assert await consumer.assignment() == []

    run(main())


def test_only_what_was_taken_is_committed_by_hand(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """With ``enable.auto.commit=false`` a commit without arguments means the messages that the application has."""
    send(*"abcdef")

    async def main() -> None:
        async with consumer_of("orders", config={"enable.auto.commit": False}) as consumer:
            assert values(await consumer.consume(2, 5)) == ["a", "b"]
            await asyncio.sleep(0.3)  # the others wait here by now
            with pytest.raises(RuntimeError):
                await asyncio.create_task(_takes(consumer, 1))
            await consumer.commit(asynchronous=False)

    async def _takes(consumer: AsyncDedupConsumer, count: int) -> None:
        # Whoever handles by offsets may ask in any task.
        await consumer.consume(count, 5)
        raise RuntimeError("the third one was taken, and is committed with the others")

    run(main())
    assert _offset(kafka) == 3


def test_a_released_message_is_not_committed_with_later_ones(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """It waits to come again: a commit of what lies behind it stays below it."""
    send(*"abc")

    async def main() -> None:
        async with consumer_of("orders", config={"enable.auto.commit": False}) as consumer:
            first, second = await consumer.consume(2, 5)
            await consumer.release(first)
            await asyncio.sleep(0.3)  # it waits here by now
            (place,) = await consumer.commit(second, asynchronous=False) or []
            assert place.offset == 0
            assert values(await consumer.consume(2, 5)) == ["a", "c"]
            await consumer.commit(asynchronous=False)

    run(main())
    assert _offset(kafka) == 3


def test_what_waits_here_goes_back_unseen(run: Any, consumer_of: Open, send: Send) -> None:
    """A pause, a position and a release count no attempt of the messages behind; a second release is a stale one."""
    send(*"abcd")
    place = TopicPartition("orders", 0)

    async def main() -> None:
        async with consumer_of("orders", completion="explicit") as consumer:
            (first,) = await consumer.consume(1, 5)
            await _until(lambda: consumer.counters.delivered >= 4)
            await consumer.pause([place])
            assert await consumer.poll(0.3) is None
            assert [each.offset for each in await consumer.position([place])] == [1]
            await consumer.resume([place])
            await consumer.release(first)
            await consumer.release(first)
            got = await consumer.consume(4, 5)
            verdicts = [await consumer.verdict(message) for message in got]
            assert values(got) == list("abcd")
            assert [verdict and verdict.attempt for verdict in verdicts] == [2, 1, 1, 1]
            assert (consumer.counters.released, consumer.counters.stale) == (1, 1)

    run(main())


def test_observing_shows_each_message_once(run: Any, consumer_of: Open, send: Send) -> None:
    """Also a duplicate, which is completed already, that waits behind a released message."""
    send(*"aabba")

    async def main() -> None:
        async with consumer_of("orders", mode="observe", completion="explicit") as consumer:
            (first,) = await consumer.consume(1, 5)
            await _until(lambda: consumer.counters.delivered >= 5)
            await consumer.release(first)
            offsets = [message.offset() for message in await consumer.consume(5, 5)]
            assert sorted(offset or 0 for offset in offsets) == [0, 1, 2, 3, 4]
            assert await consumer.consume(1, 0.3) == []

    run(main())


# --- cancellation ------------------------------------------------------------------------------------------------


def test_a_cancelled_body_releases_its_message(run: Any, consumer_of: Open, send: Send) -> None:
    """It is delivered again, before all others; the one before it was completed."""
    send("a", "b", "c")

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            seen: list[str] = []
            both = asyncio.Event()

            async def work() -> None:
                async for message in consumer:
                    seen.extend(values([message]))
                    if len(seen) == 2:
                        both.set()
                        await asyncio.sleep(PATIENCE_S)

            working = asyncio.create_task(work())
            await both.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert seen == ["a", "b"]
            assert values(await consumer.consume(2, 5)) == ["b", "c"]
            assert consumer.counters.released == 1

    run(main())


def test_a_block_that_fails_releases_its_message(run: Any, consumer_of: Open, send: Send) -> None:
    """And the exception names it; a cancellation does the same."""
    send("a")

    async def main() -> None:
        async with consumer_of("orders", completion="explicit") as consumer:
            (message,) = await consumer.consume(1, 5)
            with pytest.raises(OSError, match="away") as failed:
                async with consumer.once(message):
                    raise OSError("the database is away")
            assert "orders[0]@0" in "".join(failed.value.__notes__)
            again = await consumer.poll(5)
            assert again is not None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), consumer.once(again):
                    await asyncio.sleep(PATIENCE_S)
            each = await consumer.poll(5)
            assert each is not None
            assert (await consumer.verdict(each)).attempt == 3  # type: ignore[union-attr]
            await consumer.complete(each, dead_lettered=True)
            assert consumer.counters.dead_lettered == 1

    run(main())


def test_two_tasks_cannot_ask(run: Any, consumer_of: Open, send: Send) -> None:
    """The second would complete what the first is handling."""
    send("a", "b")

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def ask() -> Message | None:
                return await consumer.poll(0)

            seen = []
            async for message in consumer:
                seen.extend(values([message]))
                with pytest.raises(RuntimeError, match="another task"):
                    await asyncio.create_task(ask())
                if len(seen) == 2:
                    break
            assert seen == ["a", "b"]

    run(main())


def test_close_ends_calls_that_wait(run: Any, consumer_of: Open) -> None:
    """They raise, as all later ones; a second close does nothing; a cancelled one goes on to its end."""

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def handle(message: Message) -> None:
                raise AssertionError(message)

            waiting = [asyncio.create_task(consumer.run(handle))]
            await asyncio.sleep(0.2)
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            for each in waiting:
                with pytest.raises(RuntimeError, match="closed"):
                    await each
            with pytest.raises(RuntimeError, match="closed"):
                await consumer.poll()
            with pytest.raises(RuntimeError, match="closed"):
                await consumer.assignment()
            await consumer.close()

    run(main())


def test_after_close_nothing_is_handed_out(run: Any, consumer_of: Open, send: Send) -> None:
    """What waits comes to the next consumer; also of partitions that no group takes back."""
    send(*(f"m{number}" for number in range(200)))
    got: list[str] = []

    async def iterate(consumer: AsyncDedupConsumer) -> None:
        async for message in consumer:
            assert not consumer.health().closed
            got.extend(values([message]))
            await asyncio.sleep(0.002)

    async def main() -> None:
        async with consumer_of() as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            task = asyncio.create_task(iterate(consumer))
            await _until(lambda: len(got) >= 50)
            await consumer.close()
            with pytest.raises(RuntimeError, match="is closed"):
                await task
        async with consumer_of(idle_timeout=1) as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            await iterate(consumer)

    run(main())
    # The message in hand at `close` was completed in time, or comes again.
    assert len(set(got)) == 200
    assert len(got) <= 201


def test_close_ends_a_run_that_is_full(run: Any, consumer_of: Open, send: Send) -> None:
    """Its handler is cancelled, and none begins."""
    send(*"abcd")
    begun: list[str] = []

    async def handle(message: Message) -> None:
        begun.extend(values([message]))
        await asyncio.sleep(PATIENCE_S)

    async def main() -> None:
        async with consumer_of() as consumer:
            await consumer.assign([TopicPartition("orders", 0)])
            running = asyncio.create_task(consumer.run(handle, concurrency=1))
            await _until(lambda: consumer.counters.delivered >= 4 and bool(begun))
            assert consumer.counters.delivered == 4
            await consumer.close()
            with pytest.raises(RuntimeError, match="is closed"):
                await asyncio.wait_for(running, 5)

    with patch("dedup_sdk.aio._run.MOST_QUEUED", 1):
        run(main())
    assert begun == ["a"]


def test_nobody_asks_beside_a_run_that_is_full(run: Any, consumer_of: Open, send: Send) -> None:
    """Another task is refused, and the run goes on when it has room."""
    send(*"abcd")

    async def main() -> list[str]:
        handled, may_go = list[str](), asyncio.Event()
        async with consumer_of("orders") as consumer:

            async def handle(message: Message) -> None:
                await may_go.wait()
                handled.extend(values([message]))
                if len(handled) == 4:
                    consumer.stop()

            running = asyncio.create_task(consumer.run(handle, concurrency=1))
            await _until(lambda: consumer.counters.delivered >= 4)
            assert consumer.counters.delivered == 4
            await asyncio.sleep(0.1)
            with pytest.raises(RuntimeError, match="another task"):
                await consumer.poll(0.1)
            may_go.set()
            await running
        return handled

    with patch("dedup_sdk.aio._run.MOST_QUEUED", 1):
        assert run(main()) == list("abcd")


def test_a_consumer_belongs_to_one_loop(kafka: MockKafka, memory: MemoryStore) -> None:
    """Another loop, trio, and no loop at all are refused in a line each; one that was left open is closed."""
    config = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0}
    consumer = AsyncDedupConsumer(config, dedup=lookup(), store=memory)

    async def begin() -> None:
        await consumer.subscribe(["orders"])

    async def go_on() -> None:
        with pytest.raises(RuntimeError, match=r"another event loop|closed"):
            await consumer.poll()

    asyncio.run(begin())
    asyncio.run(go_on())
    other = AsyncDedupConsumer(config, dedup=lookup(), store=memory)
    with pytest.raises(RuntimeError, match="trio"):
        trio.run(other.poll)
    asyncio.run(other.close())
    _wait_until(_no_thread_is_left)


def test_a_child_of_a_fork_is_refused(kafka: MockKafka, memory: MemoryStore) -> None:
    """Its calls raise, and nothing hangs: the thread exists in the parent only."""

    async def main() -> str:
        config = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0}
        async with AsyncDedupConsumer(config, dedup=lookup(), store=memory) as consumer:
            await consumer.subscribe(["orders"])

            def work() -> str:
                try:
                    asyncio.run(consumer.assignment())
                except RuntimeError as error:
                    asyncio.run(consumer.close())
                    return str(error)
                return "it waits"

            return in_a_child(work)

    assert "in each process" in asyncio.run(main())


def test_a_dropped_consumer_is_closed(run: Any, kafka: MockKafka, memory: MemoryStore, send: Send) -> None:
    """Its thread does not keep its partitions for ever."""
    send("a")

    async def main() -> None:
        config = {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        consumer = AsyncDedupConsumer({**config, **QUICK_CLIENT}, dedup=lookup(), store=memory)
        await consumer.subscribe(["orders"], on_assign=lambda *_: None)
        assert await consumer.poll() is not None
        del consumer
        await asyncio.to_thread(_wait_until, _no_thread_is_left)

    run(main())


def test_after_an_error_only_what_is_in_hand_comes_twice(run: Any, consumer_of: Open, send: Send) -> None:
    """The consumer opens its partitions again; what waits here is dropped, because it comes once more."""
    send(*(f"m{number}" for number in range(300)))

    async def main() -> list[str]:
        got: list[str] = []
        async with consumer_of("orders", idle_timeout=1) as consumer:
            async for message in consumer:
                got.extend(values([message]))
                if len(got) == 50:
                    with pytest.raises(ValueError, match="mutually exclusive"):
                        await consumer.commit(message, [TopicPartition("orders", 0, 1)])
                    await asyncio.sleep(0.5)
        return got

    got = run(main())
    assert len(set(got)) == 300
    assert len(got) <= 301


# --- errors of the thread ------------------------------------------------------------------------------------------


@pytest.fixture
def stats_that_fail() -> tuple[dict[str, Any], list[int]]:
    """Settings with a callback that raises each number of a list once."""
    numbers: list[int] = []

    def tell(_: str) -> None:
        if numbers:
            raise OSError(f"no room for statistics {numbers.pop(0)}")

    return {"statistics.interval.ms": 50, "stats_cb": tell}, numbers


def test_an_error_waits_for_the_application_and_the_group_for_nobody(
    run: Any, consumer_of: Open, send: Send, stats_that_fail: Any
) -> None:
    """A callback raises while a body works: another member gets its partition, then the next step raises."""
    send("a", topic="pairs")
    send("b", topic="pairs", partition=1)
    config, errors = stats_that_fail
    config.update(SHARED_GROUP)

    async def main() -> None:
        async with consumer_of("pairs", config=config, revoke_deadline=1) as consumer:
            assert await consumer.poll() is not None
            errors.append(1)
            await _until(lambda: not errors)
            async with consumer_of("pairs", config=SHARED_GROUP) as other:
                assert await other.poll(PATIENCE_S / 2) is not None
            with pytest.raises(OSError, match="statistics 1"):
                await consumer.poll()

    run(main())


def test_a_call_for_many_messages_does_not_wait_behind_an_error(
    run: Any, consumer_of: Open, send: Send, stats_that_fail: Any
) -> None:
    """It returns what came before the error; the next call raises that, and the calls go on."""
    send("a")
    config, errors = stats_that_fail

    async def main() -> None:
        async with consumer_of("orders", config=config) as consumer:
            asking = asyncio.create_task(consumer.consume(100))
            await _until(lambda: consumer.counters.delivered >= 1)
            assert consumer.counters.delivered == 1
            errors.append(1)
            assert values(await asking) == ["a"]
            with pytest.raises(OSError, match="statistics 1"):
                await consumer.consume(100)
            send("b")
            assert values(await consumer.consume(1, 5)) == ["b"]

    run(main())


def test_close_raises_an_error_that_nobody_has_taken(
    run: Any, consumer_of: Open, send: Send, stats_that_fail: Any
) -> None:
    """As the synchronous one does."""
    send("a")
    config, errors = stats_that_fail

    async def main() -> None:
        async with consumer_of("orders", config=config) as consumer:
            await consumer.poll()
            errors.append(1)
            await _until(lambda: not errors)
            await asyncio.sleep(0.3)

    with pytest.raises(OSError, match="statistics 1"):
        run(main())


def test_an_error_of_the_dead_letters_client_does_not_end_the_consumer(
    run: Any, consumer_of: Open, send: Send, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run raises it; the next one handles what is left."""
    send("a", "b")
    handled: list[Message] = []
    errors = [OSError("no room for a log")]

    def poll(_: object) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr("dedup_sdk._runner.dead_letters.DeadLetterProducer.poll", poll)

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=1) as consumer:

            async def handle(message: Message) -> None:
                await asyncio.sleep(0.2)
                handled.append(message)

            with pytest.raises(OSError, match="no room for a log"):
                await consumer.run(handle, on_error="dead-letter", dead_letters=letters, attempts=1)
            await consumer.run(handle)

    run(main())
    assert sorted(values(handled)) == ["a", "b"]


@pytest.fixture
def refuses_lines() -> Iterator[None]:
    """A filter of the program's that raises at a line of the thread."""

    def refuse(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith(("an AsyncDedupConsumer was left", "another error came")):
            raise OSError("no room for a line")
        return True

    logger = logging.getLogger("dedup_sdk")
    logger.addFilter(refuse)
    yield
    logger.removeFilter(refuse)


@pytest.mark.usefixtures("refuses_lines")
def test_an_error_that_ends_the_thread_closes_the_consumer(
    run: Any, consumer_of: Open, send: Send, stats_that_fail: Any
) -> None:
    """The application gets the first error, once; its partitions go to others at once."""
    send("a")
    config, errors = stats_that_fail

    async def main() -> None:
        async with consumer_of("orders", config=config) as consumer:
            assert await consumer.poll() is not None
            for number in (1, 2):
                errors.append(number)
                await _until(lambda: not errors)
                await asyncio.sleep(0.3)
            assert consumer.health().closed
            with pytest.raises(OSError, match="statistics 1"):
                await consumer.poll()
            with pytest.raises(RuntimeError, match="closed"):
                await consumer.poll()

    run(main())


@pytest.mark.usefixtures("refuses_lines")
def test_a_dropped_consumer_is_closed_whatever_fails(run: Any, kafka: MockKafka, memory: MemoryStore) -> None:
    """Also if nobody can be told."""

    async def main() -> None:
        config = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0}
        consumer = AsyncDedupConsumer(config, dedup=lookup(), store=memory)
        await consumer.subscribe(["orders"])
        inner = inside.consumer_of(consumer)
        del consumer
        await _until(_no_thread_is_left)
        assert inner.health().closed

    run(main())


# --- rebalances --------------------------------------------------------------------------------------------------


def test_callbacks_may_be_coroutines(run: Any, consumer_of: Open, send: Send) -> None:
    """They run on the loop, and may await the consumer, also while it closes."""
    send(*"abcd")
    seen: list[str] = []

    async def on_assign(consumer: AsyncDedupConsumer, partitions: list[TopicPartition]) -> None:
        seen.append(threading.current_thread().name)
        await consumer.assign([TopicPartition(each.topic, each.partition, 2) for each in partitions])

    async def on_revoke(consumer: AsyncDedupConsumer, partitions: list[TopicPartition]) -> None:
        seen.extend(each.topic for each in await consumer.committed(partitions))

    async def main() -> list[str]:
        async with consumer_of() as consumer:
            await consumer.subscribe(["orders"], on_assign=on_assign, on_revoke=on_revoke)
            return values(await consumer.consume(2, 5))

    assert run(main()) == ["c", "d"]
    assert seen == ["MainThread", "orders"]


def test_a_callback_that_hangs_has_a_deadline(run: Any, consumer_of: Open, send: Send) -> None:
    """It is cancelled, and the next call says so."""
    send("a")
    cancelled = []

    async def on_assign(*_: object) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def main() -> None:
        async with consumer_of(revoke_deadline=0.6) as consumer:
            await consumer.subscribe(["orders"], on_assign=on_assign)
            with pytest.raises(TimeoutError, match="revoke_deadline"):
                await consumer.poll()
            assert values([await consumer.poll()]) == ["a"]

    run(main())
    assert cancelled == [1]


async def _passed_through(coroutine: Any) -> Any:
    return await coroutine


def _traced(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
    """A task factory as tracing tools set it: each coroutine runs inside another one."""
    return asyncio.Task(_passed_through(coroutine), loop=loop, **named)


@pytest.mark.parametrize("factory", [None, _traced], ids=["plain", "traced"])
@pytest.mark.parametrize("event", ["on_assign", "on_revoke"])
def test_close_in_a_callback_is_refused_at_once(
    run: Any, consumer_of: Open, send: Send, event: str, factory: Any
) -> None:
    """It would wait for the thread, which waits for the callback."""
    send("a")
    refused: list[str] = []

    async def close(consumer: AsyncDedupConsumer, _: object) -> None:
        with pytest.raises(RuntimeError, match="in a callback") as caught:
            await consumer.close()
        refused.append(str(caught.value))

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        async with consumer_of() as consumer:
            await consumer.subscribe(["orders"], **{event: close})
            assert values([await consumer.poll()]) == ["a"]

    run(main())
    assert len(refused) == 1


def test_a_call_that_meets_a_rebalance_leaves_the_calls_behind_it_alone(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """`unsubscribe` has to commit, and meets the rebalance; its callback has the other calls answered meanwhile."""
    for partition in range(2):
        send("a", "b", topic="pairs", partition=partition)
    # The member hears of the rebalance by its commit.
    deaf = {**SHARED_GROUP, "heartbeat.interval.ms": 2_000, "auto.commit.interval.ms": 60_000}
    client = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0}
    revoked = []

    async def on_revoke(*_: object) -> None:
        revoked.append(1)
        await asyncio.sleep(0.2)

    async def main() -> None:
        other = Consumer({**client, **SHARED_GROUP})
        async with consumer_of(config=deaf, completion="explicit") as consumer:
            await consumer.subscribe(["pairs"], on_revoke=on_revoke)
            await consumer.complete(*await consumer.consume(2, 5))
            other.subscribe(["pairs"])
            await asyncio.to_thread(other.poll, 0.3)
            assert revoked == []
            await asyncio.gather(consumer.unsubscribe(), consumer.position([TopicPartition("pairs", 0)]))
            assert revoked == [1]
            assert await consumer.poll(0.2) is None
        await asyncio.to_thread(other.close)

    run(main())


def test_a_loop_that_stands_still_keeps_its_partitions(run: Any, consumer_of: Open, send: Send) -> None:
    """The group hears from the thread: longer than the session, and longer than ``max.poll.interval.ms``."""
    send("a", "b")
    lost = []

    async def main() -> None:
        config = {"max.poll.interval.ms": 1500, "session.timeout.ms": 1200}
        async with consumer_of(config=config) as consumer:
            await consumer.subscribe(["orders"], on_revoke=lambda *_: lost.append(1))
            assert values([await consumer.poll()]) == ["a"]
            time.sleep(3)  # noqa: ASYNC251 (the application blocks its loop)
            assert values([await consumer.poll()]) == ["b"]
            assert lost == []

    run(main())


# --- run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["key", "partition", None])
def test_run_holds_the_order_and_the_concurrency(
    run: Any, consumer_of: Open, kafka: MockKafka, order: Any
) -> None:
    """As many handlers at a time as can, none too many, and those with one key one after the other."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(120):
        producer.produce(
            "pairs",
            str(number),
            key=f"k{number % 10}",
            partition=number % 10 % 2,
            headers={"dedup-id": str(number)},
        )
    producer.flush()
    running: dict[Any, int] = defaultdict(int)
    seen: dict[Any, list[int]] = defaultdict(list)
    most, both = 0, 0

    async def main() -> None:
        nonlocal most, both
        async with consumer_of("pairs") as consumer:

            async def handle(message: Message) -> None:
                nonlocal most, both
                group = message.key() if order == "key" else message.partition()
                running[group] += 1
                most, both = max(most, sum(running.values())), max(both, running[group])
                await asyncio.sleep(0.01 if int(message.value() or 0) % 3 else 0)
                running[group] -= 1
                seen[group].append(int(message.value() or 0))
                if sum(map(len, seen.values())) == 120:
                    consumer.stop()

            await consumer.run(handle, concurrency=5, order=order)

    run(main())
    assert most == (2 if order == "partition" else 5)
    in_order = all(each == sorted(each) for each in seen.values())
    assert (both == 1, in_order) == ((True, True) if order else (False, False))


def test_run_retries_and_sends_dead_letters(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, letters: str
) -> None:
    """An error that passes is tried again; one that stays makes a letter, and the run goes on."""
    send("a", "b", "c")
    calls: list[str] = []

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def handle(message: Message) -> None:
                calls.extend(values([message]))
                if calls[-1] == "b" or calls == ["a"]:
                    raise OSError("away")
                if calls[-1] == "c":
                    consumer.stop()

            await consumer.run(
                handle,
                concurrency=1,
                on_error="dead-letter",
                dead_letters=letters,
                attempts=2,
                wait_initial=0.01,
            )
            assert (consumer.counters.dead_lettered, consumer.counters.retried) == (1, 2)

    run(main())
    assert calls == ["a", "a", "b", "b", "c"]
    assert _offset(kafka) == 3
    with make_consumer(kafka.bootstrap, "reader", MemoryStore(), QUICK_CLIENT) as reader:
        reader.subscribe([letters])
        assert values([reader.poll(10)]) == ["b"]


def test_released_messages_come_again_in_their_order(run: Any, consumer_of: Open, send: Send) -> None:
    """Also if each is released by a call of its own, as two handlers are cancelled one after the other."""
    send("a", "b", "c", "d")

    async def main() -> None:
        async with consumer_of("orders", completion="explicit") as consumer:
            first, second, _ = await consumer.consume(3, 5)
            await consumer.release(first)
            await consumer.release(second)
            assert values(await consumer.consume(3, 5)) == ["a", "b", "d"]

    run(main())


@pytest.mark.parametrize("on_error", ["raise", "retry"])
def test_run_raises_the_error_of_a_handler(run: Any, consumer_of: Open, send: Send, on_error: Any) -> None:
    """The message comes again, and so do those whose handlers were cancelled."""
    send("a", "b", "c")

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def handle(message: Message) -> None:
                if values([message]) == ["b"]:
                    raise OSError("away")
                await asyncio.sleep(0 if values([message]) == ["a"] else PATIENCE_S)

            with pytest.raises(OSError, match="away") as failed:
                await consumer.run(handle, on_error=on_error, attempts=5 if on_error == "raise" else 2)
            assert "orders[0]@1" in "".join(failed.value.__notes__)
            assert values(await consumer.consume(2, 5)) == ["b", "c"]

    run(main())


def test_sigterm_lets_handlers_end(run: Any, consumer_of: Open, send: Send, kafka: MockKafka) -> None:
    """The one that runs is completed; a retry that waits is not waited for; none begins any more."""
    send("a", "b", "c")
    handled: list[str] = []

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def handle(message: Message) -> None:
                if values([message]) == ["b"]:
                    raise OSError("away")
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.3)
                handled.extend(values([message]))

            await consumer.run(
                handle,
                concurrency=2,
                on_error="retry",
                attempts=None,
                wait_initial=PATIENCE_S,
                wait_max=PATIENCE_S,
            )

    run(main())
    assert handled == ["a"]
    assert _offset(kafka) == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def come_again_behind(run: Any, begun: asyncio.Event, consumer: Any) -> Message:
    """Cancel a run whose handler has begun, and ignores that; return the message, which comes again."""
    running = asyncio.create_task(run)
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    message: Message
    [message] = await consumer.consume(1, 5)
    return message


def test_a_handler_that_ignores_its_cancellation_is_abandoned(
    run: Any, consumer_of: Open, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """After the deadline, with a line; the message comes again, whatever the handler does later."""
    send("a")

    async def main() -> None:
        async with consumer_of("orders", revoke_deadline=0.6) as consumer:
            begun, late = asyncio.Event(), asyncio.Event()

            async def handle(_: Message) -> None:
                begun.set()
                while not late.is_set():
                    try:
                        await late.wait()
                    except asyncio.CancelledError:
                        continue

            message = await come_again_behind(consumer.run(handle), begun, consumer)
            late.set()
            await asyncio.sleep(0.1)
            assert await consumer.holds(message)

    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        run(main())
    assert "orders[0]@0: its handler ignored the cancellation" in caplog.text


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_handler_that_was_abandoned_is_not_called_again(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, letters: str, attempts: int
) -> None:
    """Its message comes again, whatever the handler raises later: no further attempt, and no dead letter."""
    send("a")
    calls: list[str] = []

    async def main() -> None:
        async with consumer_of("orders", revoke_deadline=0.6) as consumer:
            begun, late = asyncio.Event(), asyncio.Event()

            async def handle(message: Message) -> None:
                calls.extend(values([message]))
                begun.set()
                while not late.is_set():
                    with suppress(asyncio.CancelledError):
                        await late.wait()
                raise OSError("away")

            how: Any = {"on_error": "dead-letter", "dead_letters": letters, "wait_initial": 0.01}
            message = await come_again_behind(consumer.run(handle, attempts=attempts, **how), begun, consumer)
            late.set()
            await asyncio.sleep(0.3)
            assert calls == ["a"]
            assert await consumer.holds(message)

    run(main())
    with make_consumer(kafka.bootstrap, "reader", MemoryStore(), QUICK_CLIENT) as reader:
        reader.subscribe([letters])
        assert reader.poll(1) is None


def test_a_handler_that_is_cancelled_by_others_ends_the_run(run: Any, consumer_of: Open, send: Send) -> None:
    """Nobody knows whether it has done its work: no letter is made of its message."""
    send("a")

    async def handle(_: Message) -> None:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            with pytest.raises(RuntimeError, match="was cancelled"):
                await consumer.run(handle, on_error="retry")
            assert values([await consumer.poll(5)]) == ["a"]

    run(main())


def test_slow_handlers_keep_their_partition(run: Any, consumer_of: Open, send: Send) -> None:
    """Ten sessions long: what waits is bounded, and the group hears from the consumer."""
    send(*(f"m{number}" for number in range(6000)))
    lost = []

    async def main() -> None:
        async with consumer_of() as consumer:
            await consumer.subscribe(["orders"], on_revoke=lambda *_: lost.append(1))
            handled = 0

            async def handle(_: Message) -> None:
                nonlocal handled
                handled += 1
                if handled <= 2:
                    await asyncio.sleep(12)
                if handled == 6000:
                    assert lost == []
                    consumer.stop()

            run_ = asyncio.create_task(consumer.run(handle, concurrency=2, order=None))
            await asyncio.sleep(6)
            assert consumer.partition_statuses[0].in_flight <= 4_000
            await run_
            assert handled == 6000

    run(main())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"handler": print}, "to_thread"),
        ({"handler": partial(print)}, "to_thread"),
        ({"handler": 1}, "coroutine function"),
        ({"concurrency": 0}, "concurrency"),
        ({"order": "none"}, "order"),
        ({"dead_letters": "letters"}, "not used with"),
        ({"dead_letters": "a b", "on_error": "dead-letter"}, "topic's name"),
        ({"attempts": 3}, "not used with on_error"),
    ],
)
def test_unfit_settings_of_run_are_refused(consumer_of: Open, arguments: dict[str, Any], text: str) -> None:
    """In one line, with the way out."""

    async def handle(_: Message) -> None: ...

    async def main() -> None:
        async with consumer_of() as consumer:
            with pytest.raises(ConfigurationError, match=text):
                await consumer.run(arguments.pop("handler", handle), **arguments)

    asyncio.run(main())


# --- observers ---------------------------------------------------------------------------------------------------


def test_observers_are_functions_or_coroutine_functions(run: Any, consumer_of: Open, send: Send) -> None:
    """Coroutine functions get the events in order, on the loop, and all of them before the consumer is closed."""
    send(*"abc")
    send("b", "d")
    on_loop, on_thread, loops = list[tuple[int, str]](), list[int](), list[Any]()

    async def observe(event: VerdictEvent) -> None:
        await asyncio.sleep(0.01)
        assert asyncio.get_running_loop() is loops[0]
        on_loop.append((event.offset, event.verdict.kind.value))

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with consumer_of(
            "orders", observers=[observe, lambda event: on_thread.append(event.offset)]
        ) as consumer:
            assert values([await consumer.poll() for _ in range(4)]) == list("abcd")

    run(main())

    assert [offset for offset, _ in on_loop] == on_thread
    assert dict(on_loop) == {0: "fresh", 1: "fresh", 2: "fresh", 3: "duplicate", 4: "fresh"}


def test_an_observer_may_be_an_object_that_takes_events_of_partitions_too(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """Each of its two methods may be a coroutine function; here one is."""
    send("a")

    class Watch:
        verdicts: list[int]
        events: list[str]

        def __init__(self) -> None:
            self.verdicts, self.events = [], []

        async def __call__(self, event: VerdictEvent) -> None:
            self.verdicts.append(event.offset)

        async def partition_event(self, event: PartitionEvent) -> None:
            self.events.append(event.name)

    watch = Watch()

    async def main() -> None:
        async with consumer_of("orders", observers=[watch]) as consumer:
            assert values([await consumer.poll()]) == ["a"]
            await consumer.seek(TopicPartition("orders", 0, 500))
            await consumer.poll(2)

    run(main())

    assert watch.verdicts == [0]
    assert watch.events


def test_a_failing_observer_is_counted(
    run: Any, consumer_of: Open, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """The events behind one that failed, or was cancelled, come all the same."""
    send(*"abc")
    got: list[int] = []

    async def observe(event: VerdictEvent) -> None:
        got.append(event.offset)
        if event.offset == 0:
            raise ValueError("poison")
        if event.offset == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    async def main() -> int:
        async with consumer_of("orders", observers=[observe]) as consumer:
            assert values([await consumer.poll()]) == ["a"]
            await _until(lambda: len(got) >= 2)
            assert values([await consumer.poll() for _ in range(2)]) == ["b", "c"]
            await asyncio.sleep(0.05)
            send("d", topic="orders")
            assert values([await consumer.poll()]) == ["d"]
        return consumer.counters.observer_errors

    assert run(main()) == 1
    assert got == [0, 1, 2, 3]
    assert "poison" in caplog.text


def test_an_observer_that_is_too_slow_misses_events(
    run: Any, consumer_of: Open, send: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread waits for no coroutine; what is left out is counted, and told once."""
    monkeypatch.setattr("dedup_sdk.aio._observers.MOST_EVENTS", 3)
    send(*"abcdef")
    got: list[int] = []

    async def observe(event: VerdictEvent) -> None:
        got.append(event.offset)
        await asyncio.sleep(3600)

    async def main() -> int:
        async with consumer_of("orders", observers=[observe], revoke_deadline=1) as consumer:
            assert values([await consumer.poll() for _ in range(6)]) == list("abcdef")
        return consumer.counters.observer_errors

    assert 1 <= run(main()) <= 3
    assert got == [0]
    assert caplog.text.count("are too slow") == 1
    assert "are left out: the consumer is closed" in caplog.text


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def _no_thread_is_left() -> bool:
    return not any(each.name.startswith("dedup-aio") for each in threading.enumerate())
