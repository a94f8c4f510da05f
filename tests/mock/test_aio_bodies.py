"""What becomes of the message of a body, or of a call, that did not come to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk.aio import AsyncDedupConsumer
from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, lookup, values

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from confluent_kafka import Message

    from dedup_sdk import MemoryStore
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Open, Send

    Work = Callable[[Message], Coroutine[Any, Any, None]]
    Loop = Callable[[AsyncDedupConsumer, Work, AsyncExitStack], Coroutine[Any, Any, object]]


def _offset(kafka: MockKafka) -> int:
    return committed(kafka.bootstrap, "g", "orders").offset


# --- loops that await a function for each message, and may be begun again -------------------------------------------


async def _plain(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    async for message in consumer:
        await work(message)


async def _in_a_variable(_: AsyncDedupConsumer, work: Work, iterator: AsyncIterator[Message]) -> None:
    async for message in iterator:
        await work(message)


async def _messages(consumer: AsyncDedupConsumer) -> AsyncGenerator[Message]:
    async for message in consumer:
        yield message


async def _by_generator(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    async for message in _messages(consumer):
        await work(message)


async def _by_generator_closed_late(consumer: AsyncDedupConsumer, work: Work, stack: AsyncExitStack) -> None:
    async for message in await stack.enter_async_context(aclosing(_messages(consumer))):
        await work(message)


async def _by_comprehension(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    async def each(message: Message) -> Message:
        await work(message)
        return message

    assert [await each(message) async for message in consumer]


async def _in_a_cancelled_task(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    async for message in consumer:
        task.uncancel()
        await work(message)


# --- the body of a loop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_offsets", [False, True])
@pytest.mark.parametrize(
    "loop",
    [
        _plain,
        _in_a_variable,
        _by_generator,
        _by_generator_closed_late,
        _by_comprehension,
        _in_a_cancelled_task,
    ],
)
def test_a_cancelled_body_loses_nothing_wherever_its_iterator_lives(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, loop: Any, by_offsets: Any
) -> None:
    """A timeout ends the second body; the next loop gets its message, and the others, once each and in order."""
    send(*"abcde")
    done: list[str] = []
    config = {"enable.auto.commit": False} if by_offsets else {}

    async def main() -> None:
        async with (
            consumer_of("orders", config=config, idle_timeout=1) as consumer,
            AsyncExitStack() as stack,
        ):

            async def work(message: Message) -> None:
                if len(done) == 1 and scope.when() is None:
                    scope.reschedule(0)
                    await asyncio.sleep(PATIENCE_S)
                done.extend(values([message]))
                if by_offsets:
                    await consumer.commit(message)

            kept = aiter(consumer) if loop is _in_a_variable else stack
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as scope:
                    await loop(consumer, work, kept)
            await stack.aclose()
            await loop(consumer, work, kept)
            assert consumer.counters.released == 1

    run(main())
    assert done == list("abcde")
    assert _offset(kafka) == 5


@pytest.mark.parametrize("closes_first", [False, True])
def test_a_generator_that_is_left_gives_its_message_back(
    run: Any, consumer_of: Open, send: Send, closes_first: Any
) -> None:
    """Nobody knows whether that was handled; what its steps have shown to be handled is completed."""
    send(*"abc")

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=1) as consumer, AsyncExitStack() as stack:

            async def fail_at_b(message: Message) -> None:
                if values([message]) == ["b"]:
                    raise OSError("away")

            async def nothing(_: Message) -> None: ...

            with pytest.raises(OSError, match="away"):
                await _by_generator_closed_late(consumer, fail_at_b, stack)
            await asyncio.sleep(0.3)
            assert consumer.counters.released == 0
            if closes_first:
                await stack.aclose()
            assert values([await consumer.poll()]) == ["b"]
            await _by_generator(consumer, nothing, stack)
            assert await consumer.poll(0.5) is None
            assert consumer.counters.released == 1

    run(main())


def test_a_step_may_have_a_task_of_its_own(run: Any, consumer_of: Open, send: Send, kafka: MockKafka) -> None:
    """``wait_for`` gives each one, in Python 3.11, and cancels the one that comes too late: not the body."""

    async def main() -> None:
        async with consumer_of("orders") as consumer:

            async def first() -> list[str]:
                iterator = aiter(consumer)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(iterator), 0.1)
                send("a", "b")
                return values([await asyncio.wait_for(anext(iterator), 5)])

            assert await first() == ["a"]
            assert values([await consumer.poll()]) == ["b"]

    run(main())
    assert _offset(kafka) == 2


@pytest.mark.parametrize("ends", ["block", "commit", "commit by name", "stop"])
def test_who_leaves_a_generator_shows_nothing_but_by_a_commit_of_the_message(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, ends: str
) -> None:
    """The end of the block, and a loop that ends at once, leave the last message to the next consumer."""
    send("a", "b")

    async def main() -> None:
        async with consumer_of("orders") as consumer, AsyncExitStack() as stack:
            messages = await stack.enter_async_context(aclosing(_messages(consumer)))
            last = [await anext(messages), await anext(messages)][1]
            assert values([last]) == ["b"]
            if ends.startswith("commit"):
                await consumer.commit(last if ends == "commit by name" else None)
            if ends == "stop":
                consumer.stop()
                assert [message async for message in consumer] == []
        assert consumer.counters.released == (ends != "commit by name")

    run(main())
    assert _offset(kafka) == (2 if ends == "commit by name" else 1)


# --- messages of other tasks ------------------------------------------------------------------------------------------


async def _by_poll(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    while message := await consumer.poll():
        await work(message)


async def _stop_at_b(begun: asyncio.Event, message: Message) -> None:
    if values([message]) == ["b"]:
        begun.set()
        await asyncio.sleep(PATIENCE_S)


async def _fail_at_b(message: Message) -> None:
    if values([message]) == ["b"]:
        raise OSError("away")


@pytest.mark.parametrize("loop", [_plain, _by_poll])
@pytest.mark.parametrize("end", ["none", "cancellation", "failure"])
def test_only_who_got_a_message_can_show_that_it_is_handled(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, loop: Any, end: str
) -> None:
    """The block ends in order while a task handles a message, or after that failed: the message comes again."""
    send("a", "b")

    async def main() -> None:
        async with consumer_of("orders") as consumer, AsyncExitStack() as stack:
            begun = asyncio.Event()
            work = _fail_at_b if end == "failure" else partial(_stop_at_b, begun)
            task = asyncio.create_task(loop(consumer, work, stack))
            if end == "failure":
                await asyncio.wait([task])
            else:
                await begun.wait()
                with pytest.raises(RuntimeError, match="another task"):
                    await consumer.poll(0)
            if end == "cancellation":
                task.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await task

    run(main())
    assert _offset(kafka) == 1


def test_a_commit_completes_what_its_own_task_has(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """A timeout may give it a task of its own; one of another task leaves the message in hand alone."""
    send("a", "b")

    async def main() -> None:
        async with consumer_of("orders", config={"auto.commit.interval.ms": 60_000}) as consumer:

            async def work() -> None:
                await consumer.poll()
                await asyncio.wait_for(consumer.commit(asynchronous=False), 5)
                in_hand.append(await consumer.poll())
                await asyncio.sleep(PATIENCE_S)

            in_hand: list[Any] = []
            task = asyncio.create_task(work())
            while not in_hand:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert _offset(kafka) == 1
            await consumer.commit()
            await asyncio.sleep(0.3)
            assert _offset(kafka) == 1
            task.cancel()
            await asyncio.wait([task])
            assert values([await consumer.poll()]) == ["b"]

    run(main())


async def _commit_directly(consumer: AsyncDedupConsumer, _: Message) -> None:
    await consumer.commit(asynchronous=False)


async def _commit_in_a_task(consumer: AsyncDedupConsumer, _: Message) -> None:
    await asyncio.create_task(consumer.commit(asynchronous=False))


async def _commit_by_name(consumer: AsyncDedupConsumer, message: Message) -> None:
    await consumer.commit(message, asynchronous=False)


@pytest.mark.parametrize("commits", [_commit_directly, _commit_in_a_task, _commit_by_name])
def test_a_body_commits_its_own_message_by_its_name(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, commits: Any
) -> None:
    """The body has not ended: it may fail still, and its message comes again."""
    send("a", "b")
    is_named = commits is _commit_by_name

    async def fails_at_b(consumer: AsyncDedupConsumer) -> None:
        async for message in consumer:
            if values([message]) == ["b"]:
                await commits(consumer, message)
                raise OSError("away")

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            with pytest.raises(OSError, match="away"):
                await asyncio.create_task(fails_at_b(consumer))
            assert _offset(kafka) == 1 + is_named
            assert values(await consumer.consume(1, 0.5)) == ([] if is_named else ["b"])

    run(main())


def test_each_body_may_commit_those_before_it(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka
) -> None:
    """Also the first one, before which there is none; the end of the block commits the last one."""
    send("a", "b", "c")
    offsets = []

    async def main() -> None:
        async with consumer_of("orders", idle_timeout=1) as consumer:
            async for _ in consumer:
                committed_now = await consumer.commit(asynchronous=False)
                offsets.append([each.offset for each in committed_now])

    run(main())
    assert offsets == [[], [1], [2]]
    assert _offset(kafka) == 3


async def _seek(consumer: AsyncDedupConsumer, _: Message) -> None:
    await consumer.seek(TopicPartition("orders", 0, 2))


async def _commit_offsets(consumer: AsyncDedupConsumer, _: Message) -> None:
    await consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)


async def _store_offsets(consumer: AsyncDedupConsumer, message: Message) -> None:
    await consumer.store_offsets(message)


async def _stopped_iteration(consumer: AsyncDedupConsumer, _: Message) -> None:
    consumer.stop()
    assert [message async for message in consumer] == []


async def _by_waiting(consumer: AsyncDedupConsumer, work: Work, _: AsyncExitStack) -> None:
    while message := await asyncio.wait_for(consumer.poll(), PATIENCE_S):
        await work(message)


@pytest.mark.parametrize("loop", [_plain, _by_poll, _by_waiting])
@pytest.mark.parametrize(
    "call", [_commit_directly, _commit_by_name, _commit_offsets, _store_offsets, _seek, _stopped_iteration]
)
def test_calls_of_another_task_complete_nothing_of_a_message_in_hand(
    run: Any, consumer_of: Open, send: Send, kafka: MockKafka, loop: Any, call: Any
) -> None:
    """Also where the call for the message ran in a task of its own, which is over, as in ``wait_for``."""
    send("a", "b")
    in_hand = list[Any]()

    async def keep_b(message: Message) -> None:
        if values([message]) == ["b"]:
            in_hand.append(message)
            await asyncio.sleep(PATIENCE_S)

    async def main() -> None:
        async with consumer_of("orders") as consumer, AsyncExitStack() as stack:
            task = asyncio.create_task(loop(consumer, keep_b, stack))
            while not in_hand:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if call in (_commit_by_name, _store_offsets):
                with pytest.raises(RuntimeError, match=r"orders\[0\]@1 is in the hands of another task"):
                    await call(consumer, in_hand[0])
            else:
                with suppress(KafkaException):  # what is named is not completed: there is nothing to commit
                    await call(consumer, in_hand[0])
            await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run(main())
    assert _offset(kafka) == 1


@pytest.mark.parametrize("way", ["iterator", "poll"])
def test_a_task_that_another_one_began_does_not_ask_beside_it(
    run: Any, consumer_of: Open, send: Send, way: str
) -> None:
    """Not by an iterator that both have, either: that would complete the message which the first one has."""
    send("a", "b", "c")

    async def main() -> None:
        async with consumer_of("orders") as consumer:
            iterator = aiter(consumer)

            async def ask() -> Message | None:
                return await (anext(iterator) if way == "iterator" else consumer.poll())

            assert values([await ask(), await ask()]) == ["a", "b"]
            with pytest.raises(RuntimeError, match="another task"):
                await asyncio.create_task(ask())
            assert values([await ask()]) == ["c"]

    run(main())


def test_a_call_may_be_made_before_its_loop_runs(kafka: MockKafka, memory: MemoryStore, send: Send) -> None:
    """As in ``asyncio.run(consumer.poll())``: each call has a task of its own, and the next one completes."""
    send("a", "b")
    config = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    with asyncio.Runner() as runner:
        runner.get_loop()
        consumer = AsyncDedupConsumer({**config, "log_level": 0}, dedup=lookup(), store=memory)
        runner.run(consumer.subscribe(["orders"]))
        assert values([runner.run(consumer.poll()), runner.run(consumer.poll())]) == ["a", "b"]
        runner.run(consumer.close())
    assert _offset(kafka) == 1


@pytest.mark.parametrize("end", ["cancellation", "failure"])
@pytest.mark.parametrize("loop", [_plain, _by_poll])
def test_the_next_task_gets_what_one_failed_with(
    run: Any, consumer_of: Open, send: Send, loop: Any, end: str
) -> None:
    """As a supervisor begins again; whoever waits for the error gets it."""
    send("a", "b", "c")

    async def main() -> None:
        async with consumer_of("orders") as consumer, AsyncExitStack() as stack:
            begun = asyncio.Event()
            work = _fail_at_b if end == "failure" else partial(_stop_at_b, begun)
            task = asyncio.create_task(loop(consumer, work, stack))
            if end == "cancellation":
                await begun.wait()
                task.cancel()
            await asyncio.wait([task])
            got = values([await consumer.poll(), await consumer.poll()])
            assert got == ["b", "c"]
            if end == "failure":
                assert isinstance(task.exception(), OSError)

    run(main())


def test_a_generator_that_is_closed_late_leaves_its_message_to_whoever_has_it(
    run: Any, consumer_of: Open, send: Send
) -> None:
    """The call after it released the message, which came again, and is handled."""
    send("a", "b")

    async def main() -> list[str]:
        async with consumer_of("orders", idle_timeout=1) as consumer:
            messages = _messages(consumer)
            assert values([await anext(messages), await consumer.poll()]) == ["a", "a"]
            await messages.aclose()
            return values([message async for message in consumer])

    assert run(main()) == ["b"]


def test_a_body_that_fails_gets_its_message_again_behind_a_hundred_events(
    run: Any, consumer_of: Open, kafka: MockKafka, send: Send
) -> None:
    """With so many in the queue nothing is fetched: whoever puts the events back must wake the loop."""
    kafka.create_topic("wide", 150)
    send("a", topic="wide")

    async def main() -> list[str]:
        got = list[str]()
        async with consumer_of(config={"enable.partition.eof": True}) as consumer:
            await consumer.assign([TopicPartition("wide", 0)])
            async for message in consumer.explicit():
                with suppress(ValueError):
                    async with consumer.once(message):
                        got += values([message])
                        if len(got) == 1:
                            await consumer.incremental_assign(
                                [TopicPartition("wide", n) for n in range(1, 150)]
                            )
                            while inside.queued(consumer) < 100:  # noqa: ASYNC110 (nothing tells that)
                                await asyncio.sleep(0.01)
                            raise ValueError
                if len(got) == 2:
                    break
        return got

    assert run(main()) == ["a", "a"]
