"""Several threads at one consumer: the calls that they may make at once, and those refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk._kafka.deliver.batch import Batch
from tests.support import inside
from tests.support.consuming import PATIENCE_S, numbers, poll_quiet, poll_some, run_all, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import MemoryStore
    from tests.mock.conftest import Make, Send

ALL = [TopicPartition("pairs", 0), TopicPartition("pairs", 1)]
JOIN_S = 40.0


class Busybody:
    """A thread that does something again and again until the block ends, which has to let it end."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._over = False
        self._thread = threading.Thread(target=self._go, daemon=True)

    def _go(self) -> None:
        while not self._over:
            self._work()
            time.sleep(0.002)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive(), "the other thread hangs"


def toggle(consumer: Any) -> None:
    """Pause and resume everything; a partition not ours yet is the client's error."""
    with contextlib.suppress(KafkaException):
        consumer.pause(ALL)
        consumer.resume(ALL)


def test_pauses_by_another_thread_do_not_block_a_rebalance(make: Make, send: Send) -> None:
    """Partitions come in while another thread pauses and resumes them: both go on, and every message comes."""
    send("a", "b", "c", topic="pairs")
    send("d", "e", "f", topic="pairs", partition=1)
    consumer = make("pairs")
    with Busybody(lambda: toggle(consumer)):
        got = poll_some(consumer, 1)
        # The other thread has the consumer to itself for a while: no event says that nothing went wrong.
        time.sleep(0.3)
        got += [] if (message := consumer.poll(0.2)) is None else [message]
    consumer.resume(ALL)
    got += poll_some(consumer, 6 - len(got))
    assert sorted(values(got)) == ["a", "b", "c", "d", "e", "f"]


def test_commits_by_another_thread_do_not_block_a_rebalance(make: Make, send: Send) -> None:
    """The same for a thread that commits, synchronously."""
    send("a", "b", "c", topic="pairs")
    consumer = make("pairs")

    def commit() -> None:
        with contextlib.suppress(KafkaException):
            consumer.commit(asynchronous=False)

    with Busybody(commit):
        assert sorted(values(poll_some(consumer, 3))) == ["a", "b", "c"]


def test_a_pause_by_another_thread_is_a_pause(make: Make, send: Send) -> None:
    """Asked for while the consumer waits for messages, it holds until it is taken back."""
    consumer = make("orders")
    send("a")
    poll_some(consumer, 1)
    pause = threading.Timer(0.3, lambda: consumer.pause([TopicPartition("orders", 0)]))
    pause.start()
    assert consumer.poll(1.0) is None
    pause.join()
    send("b")
    assert poll_quiet(consumer) == []
    consumer.resume([TopicPartition("orders", 0)])
    assert values(poll_some(consumer, 1)) == ["b"]


def test_two_loops_at_once_are_refused(make: Make, send: Send) -> None:
    """A second thread that asks for messages gets an error with the remedy; the first one goes on."""
    consumer, polling = make(), threading.Event()
    consumer.subscribe(["orders"], on_assign=lambda *_: polling.set())
    errors: list[RuntimeError] = []

    def ask() -> None:
        try:
            consumer.poll(0.1)
        except RuntimeError as error:
            errors.append(error)

    def look() -> None:
        assert polling.wait(PATIENCE_S)
        ask()
        send("a")

    other = threading.Thread(target=look)
    other.start()
    first = consumer.poll(2 * PATIENCE_S)
    other.join()
    assert "one thread asks for messages" in str(errors[0])
    assert values([first]) == ["a"]


def test_what_is_released_twice_comes_once(make: Make, send: Send) -> None:
    """A handler that releases and then lets `once` release again has its message delivered one more time, not two."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    [first] = poll_some(consumer, 1)

    def handle() -> None:
        with consumer.once(first):
            consumer.release(first)
            raise ValueError("again")

    with pytest.raises(ValueError, match="again"):
        handle()
    assert values([*poll_some(consumer, 2), *poll_quiet(consumer)]) == ["a", "b"]


def test_what_is_completed_after_its_release_does_not_come(make: Make, send: Send) -> None:
    """A thread that is late completes a message that was handed back: it is done, and not delivered again."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    [first] = poll_some(consumer, 1)
    consumer.release(first)
    consumer.complete(first)
    assert values([*poll_some(consumer, 1), *poll_quiet(consumer)]) == ["b"]


def test_a_handler_may_seek_while_another_ends(make: Make, send: Send) -> None:
    """A message that ends while a seek lets go of it is no error of the run: it comes again."""
    send(*(f"id-{number}" for number in range(8)))
    consumer = make("orders")
    seen: list[str] = []
    sought, seeking = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        seen.append(message.value().decode())
        if message.offset() == 1 and not sought.is_set():
            sought.set()
            with inside.lock_of(consumer).lock:
                # The others come to their ends while this one has the lock: no event says that they wait for it.
                seeking.set()
                time.sleep(0.2)
                consumer.seek(TopicPartition("orders", 0, 0))
        elif message.offset() == 0:
            seeking.wait(JOIN_S)

    run_all(consumer, handle, workers=2)
    assert set(seen) == {f"id-{number}" for number in range(8)}
    assert seen.count("id-5") >= 1


def test_a_thread_that_a_signal_took_out_of_its_call_keeps_nobody_out(make: Make, send: Send) -> None:
    """It may never ask again, e.g. because it handles messages from then on."""
    consumer, ends = make("orders"), threading.Event()
    send("a")
    marked = threading.Event()

    def leave_mark() -> None:
        inside.leave_mark_of_poll(consumer)
        marked.set()
        ends.wait(JOIN_S)

    thread = threading.Thread(target=leave_mark)
    thread.start()
    try:
        assert marked.wait(JOIN_S)
        assert values(poll_some(consumer, 1)) == ["a"]
    finally:
        ends.set()
        thread.join(JOIN_S)


def test_a_message_of_a_cancelled_call_comes_again(make: Make, send: Send) -> None:
    """`asyncio` drops the result of a cancelled call.

    The next one, which is refused meanwhile, says that nobody waits.
    """
    consumer = make("orders")
    poll_quiet(consumer)
    returned: list[Any] = []

    def poll() -> Any:
        returned.append(consumer.poll(PATIENCE_S))
        return returned[-1]

    def ask_at_once() -> Any:
        return consumer.poll(0)

    async def cancel_and_ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(poll), 0.2)
        with pytest.raises(RuntimeError, match="another thread is in poll"):
            await asyncio.to_thread(ask_at_once)
        send("a")

    asyncio.run(cancel_and_ask())
    assert values(returned) == ["a"]
    assert consumer.counters.delivered == 1
    [again] = poll_some(consumer, 1)
    assert consumer.counters.delivered == 2
    assert values([again]) == ["a"]
    verdict = consumer.verdict(again)
    assert verdict is not None
    assert verdict.attempt == 2
    assert consumer.poll(0) is None
    assert consumer.counters.stores_set_aside == 0


@pytest.mark.parametrize("call", ["poll", "consume", "next", "lambda"])
@pytest.mark.parametrize("config", [{}, {"enable.auto.commit": False}], ids=["next call", "commit"])
def test_a_pool_may_not_ask_where_a_dropped_message_would_be_lost(
    make: Make, send: Send, call: str, config: dict[str, Any]
) -> None:
    """A cancelled task drops the message of its call: the next call, or commit, would complete it."""
    consumer = make("orders", config=config)
    send("a")

    calls: dict[str, Callable[[], object]] = {
        "poll": consumer.poll,
        "consume": consumer.consume,
        "next": iter(consumer).__next__,
        "lambda": lambda: consumer.poll(PATIENCE_S),
    }

    async def ask() -> None:
        with pytest.raises(RuntimeError, match=r"thread pool .*completion=\"explicit\""):
            await asyncio.to_thread(calls[call])

    asyncio.run(ask())
    with ThreadPoolExecutor(1) as pool:
        assert values(pool.submit(poll_some, consumer, 1).result()) == ["a"]


def test_a_dropped_message_comes_again_with_explicit_completion(
    make: Make, send: Send, memory: MemoryStore
) -> None:
    """The first message of a cancelled call stays in flight: the next life gets it."""
    first = make("orders", completion="explicit", store=memory)
    poll_quiet(first)
    got: list[Any] = []

    async def drop_one() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(first.poll, PATIENCE_S), 0.2)
        send("a", "b")
        while not got:
            # While the thread of the cancelled call is still there, it is refused.
            with contextlib.suppress(RuntimeError):
                if (message := await asyncio.to_thread(first.poll, 0.1)) is not None:
                    got.append(message)
                    first.complete(message)

    asyncio.run(drop_one())
    first.close()
    assert values([*got, *poll_some(make("orders", store=memory), 1)]) == ["b", "a"]


def test_two_loops_that_refuse_each_other_get_on(make: Make, send: Send) -> None:
    """Each message is doubted once at most: it comes twice then, is counted, and is completed."""
    names = [f"id-{number}" for number in range(60)]
    consumer = make("orders")
    poll_quiet(consumer)

    handled = list[str]()

    def ask(timeout_s: float) -> None:
        # Either thread is refused while the other is inside; one that gets in handles its messages.
        with contextlib.suppress(RuntimeError):
            handled.extend(values(consumer.consume(10, timeout_s)))

    with Busybody(lambda: ask(0)):
        for at, name in enumerate(names, 1):
            send(name)
            until = time.monotonic() + PATIENCE_S
            while len(set(handled)) < at and time.monotonic() < until:
                ask(0.1)
    handled += values(poll_quiet(consumer))
    assert set(handled) == set(names)
    assert max(Counter(handled).values()) <= 2
    assert consumer.counters.released == len(handled) - len(names) > 0
    assert consumer.counters.delivered == len(handled)


def test_a_refused_call_changes_nothing_with_explicit_completion(make: Make, send: Send) -> None:
    """There no call completes the messages of another one: they stay in flight."""
    consumer = make("orders", completion="explicit")
    poll_quiet(consumer)
    got: list[Any] = []
    with Busybody(lambda: got.append(consumer.poll(0.5))):
        until = time.monotonic() + PATIENCE_S
        refused = False
        while not refused and time.monotonic() < until:
            try:
                consumer.poll(0)
            except RuntimeError:
                refused = True
        send("a")
        while not any(got) and time.monotonic() < until:
            time.sleep(0.01)
    message = next(each for each in got if each is not None)
    assert consumer.holds(message)
    assert poll_quiet(consumer) == []


def test_a_message_that_poll_takes_while_another_thread_closes_is_not_completed(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`poll` takes a ready message without the lock, also in the middle of a step that completes those before."""
    send(*numbers(0, 40))
    consumer = make("orders")
    got = values(poll_some(consumer, 2))
    while not inside.ready(consumer):
        got += values(poll_some(consumer, 1))
    late = list[Any]()

    def count(batch: Batch) -> int:
        given = len(batch.messages) - len(batch.ready)
        if not late:
            late.append(consumer.poll(0))
        return given

    monkeypatch.setattr(Batch, "given", property(count))
    consumer.unsubscribe()
    monkeypatch.undo()
    consumer.close()
    assert {*values(late), got[-1]} <= {*values(poll_quiet(make("orders")))}
