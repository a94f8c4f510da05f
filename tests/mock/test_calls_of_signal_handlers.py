"""A signal's handler that calls the consumer runs between two lines of `poll`, and costs no message."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._core import flight, lookup
from dedup_sdk._engine import partition
from dedup_sdk._kafka.client import client, guards
from dedup_sdk._kafka.deliver import (
    assignment_api,
    batch,
    classifier,
    completion,
    delivery,
    fetcher,
    in_hand,
    judge,
    maintenance,
    poller,
    positions,
)
from tests.support import inside
from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values
from tests.support.interrupting import Interrupted, InterruptedAt, strike_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send


def pause_and_resume(consumer: DedupConsumer) -> None:
    """Pause its partition, and resume it at once."""
    consumer.pause([TopicPartition("orders", 0)])
    consumer.resume([TopicPartition("orders", 0)])


SOON = {"fetch.wait.max.ms": 5}
"""For tests that send hundreds of messages one by one: no fetch that waits hears of them."""
CALLS: dict[str, Callable[[DedupConsumer], object]] = {
    "health": lambda consumer: consumer.health(),
    "metrics": lambda consumer: consumer.metrics(),
    "statuses": lambda consumer: consumer.partition_statuses,
    "counters": lambda consumer: consumer.counters.as_dict(),
    "window": lambda consumer: consumer.effective_window_ms,
    "commit": lambda consumer: consumer.commit(),
    "position": lambda consumer: consumer.position([TopicPartition("orders", 0)]),
    "pause": pause_and_resume,
}
FILES = frozenset(
    str(Path(module.__file__ or ""))
    for module in (
        batch, classifier, completion, delivery, fetcher, flight, in_hand, judge, lookup, maintenance, partition,
        poller,
    )
)  # fmt: skip
# Where a batch is judged, and until it is handed over; behind that a commit completes it, as in the plain client.
STEPS = frozenset(
    str(Path(module.__file__ or "")) for module in (batch, classifier, delivery, flight, partition)
)


class Calling:
    """Calls a consumer once, before the n-th line that this thread runs, from the loop to the flight."""

    def __init__(
        self,
        consumer: DedupConsumer,
        call: Callable[[DedupConsumer], object],
        line: int,
        files: frozenset[str] = FILES,
    ) -> None:
        self._consumer, self._call, self._left, self._files = consumer, call, line, files

    @property
    def has_called(self) -> bool:
        """Whether the line was reached."""
        return self._left <= 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self._call(self._consumer)
        return self._trace


@pytest.mark.parametrize("call", CALLS)
def test_a_call_between_two_lines_loses_no_message(make: Make, send: Send, call: str) -> None:
    """Each message leaves its mark: sent again, all are duplicates, and a message in hand is not committed."""
    # Every other line, for each other call the other ones.
    lines = range(1 + list(CALLS).index(call) % 2, 200, 2)
    consumer = make("orders", config=SOON)
    send("first")
    poll_some(consumer, 1)
    got = list[str]()
    for line in lines:
        send(f"message {line}")
        with Calling(consumer, CALLS[call], line):
            message = consumer.poll(5)
        assert message is not None
        got += values([message])
    assert got == [f"message {line}" for line in lines]
    assert consumer.counters.verdicts["fresh"] == 1 + len(lines)
    send(*got, "last")
    assert values(poll_some(consumer, 1)) == ["last"]
    assert consumer.counters.verdicts["duplicate"] == len(lines)


@pytest.mark.parametrize("call", ["health", "position"])
def test_a_message_that_failed_is_not_committed(make: Make, send: Send, call: str) -> None:
    """Its handler raised; a call had come between two lines while it was delivered. It comes again."""
    for line in range(30, 180, 6):
        consumer = make("orders", config=SOON)
        send(f"good {line}")
        poll_some(consumer, 1)
        send(f"bad {line}")
        with Calling(consumer, CALLS[call], line):
            message = consumer.poll(5)
        assert message is not None
        assert values([message]) == [f"bad {line}"]
        with suppress(ValueError), consumer:
            raise ValueError
        again = make("orders", config=SOON)
        assert values(poll_some(again, 1)) == [f"bad {line}"]
        with again:
            pass


BATCH = [f"message {number}" for number in range(14)]

DOORS: dict[str, Callable[[DedupConsumer], list[Message]]] = {
    "poll": lambda consumer: [message for message in [consumer.poll(5)] if message is not None],
    "consume": lambda consumer: consumer.consume(4, 5),
    "iteration": lambda consumer: [next(iter(consumer))],
}


ENDS: dict[str, Callable[[DedupConsumer], object]] = {
    "commit": lambda consumer: consumer.commit(),
    "consume": lambda consumer: consumer.consume(1, 0.1),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("call", ENDS)
@pytest.mark.parametrize("moved", [False, True])
def test_a_handler_that_ends_the_program_completes_nothing_that_nobody_got(
    make: Make, send: Send, door: str, call: str, *, moved: bool
) -> None:
    """The handler calls, and raises, behind the last step of a call that has messages to return.

    ``moved``: another thread asked for messages before.
    """
    send(*BATCH)

    def left_and_came(place: int) -> tuple[int, list[str]]:
        """Have the handler run at a place; return how many places were missing to it, and what came."""
        store, config = MemoryStore(), {"group.id": f"{door} {place}"}
        consumer, got = make(store=store, config=config), list[str]()

        def end(*_: object) -> None:
            with suppress(RuntimeError):
                ENDS[call](consumer)
            raise Interrupted

        former = signal.signal(signal.SIGUSR1, end)
        try:
            with suppress(Interrupted), consumer:
                consumer.assign([TopicPartition("orders", 0)])
                with ThreadPoolExecutor(1) as pool:
                    got += values(
                        pool.submit(lambda: poll_some(consumer, 2)).result()
                        if moved
                        else poll_some(consumer, 2)
                    )
                with InterruptedAt(place, by=signal.SIGUSR1) as strike:
                    got += values(DOORS[door](consumer))
        finally:
            signal.signal(signal.SIGUSR1, former)
        with make(store=store, config=config) as again:
            again.assign([TopicPartition("orders", 0)])
            got += values(poll_quiet(again))
        return strike.left, got

    places = 10_000 - left_and_came(10_000)[0]
    for place in range(max(1, places - 8), places + 1):
        assert sorted({*left_and_came(place)[1]}) == sorted(BATCH), f"place {place} of {places}"


@pytest.mark.parametrize("config", [{}, {"enable.auto.commit": False}], ids=str)
def test_a_commit_of_another_thread_completes_nothing_that_a_signal_drops(
    make: Make, send: Send, config: dict[str, Any]
) -> None:
    """`poll` takes a message while that thread is in the middle of its commit; then a signal strikes `poll`."""
    send(*BATCH)
    store = MemoryStore()
    consumer, got = make(store=store, config=config), list[str]()
    begun, taken, committed = Event(), Event(), Event()

    def wait_for_the_signal() -> None:
        begun.set()
        assert taken.wait(PATIENCE_S)

    def commit() -> None:
        strike_at("Batch.first_ready" if config else "Delivery.on_the_way", wait_for_the_signal)
        consumer.commit()
        sys.setprofile(None)
        committed.set()

    def end(*_: object) -> None:
        taken.set()
        assert committed.wait(PATIENCE_S)
        raise Interrupted

    former, thread = signal.signal(signal.SIGUSR1, end), Thread(target=commit)
    try:
        with suppress(Interrupted), consumer:
            consumer.assign([TopicPartition("orders", 0)])
            got += values(poll_some(consumer, 2))
            thread.start()
            assert begun.wait(PATIENCE_S)
            # Behind the message's leaving of the queue.
            with InterruptedAt(3, by=signal.SIGUSR1) as strike:
                got += values(filter(None, [consumer.poll(5)]))
    finally:
        signal.signal(signal.SIGUSR1, former)
    thread.join()
    assert "poll" in strike.where
    again = make(store=store, config=config)
    again.assign([TopicPartition("orders", 0)])
    assert sorted({*got, *values(poll_quiet(again))}) == sorted(BATCH)


@pytest.mark.parametrize("call", ["commit", "position", "pause"])
def test_a_call_in_the_middle_of_a_batch_completes_nothing_that_nobody_got(
    make: Make, send: Send, call: str
) -> None:
    """A commit of all that was delivered, while a batch is judged and not delivered yet, is carried out later."""
    consumer = make("orders", config={"enable.auto.commit": False, **SOON})
    send("first")
    poll_some(consumer, 1)
    for line in range(1, 160, 2):
        consumer.commit(asynchronous=False)
        ids = [f"{each} of {line}" for each in BATCH]
        send(*ids)
        with Calling(consumer, CALLS[call], line, STEPS) as calling:
            got = values(consumer.consume(len(ids), 5))
        assert calling.has_called
        assert got == ids
        assert consumer.partition_statuses[0].in_flight == len(BATCH), f"line {line}"


def test_the_position_in_the_middle_of_a_batch_is_before_what_nobody_got(make: Make, send: Send) -> None:
    """While a batch is judged, its messages are in no queue: who keeps positions must not step over them."""
    consumer = make("orders", config={"enable.auto.commit": False, **SOON})
    send("first")
    poll_some(consumer, 1)
    told = list[int]()

    def tell(consumer: DedupConsumer) -> None:
        told.append(consumer.position([TopicPartition("orders", 0)])[0].offset)

    for number, line in enumerate(range(1, 160, 4)):
        consumer.commit(asynchronous=False)
        send(*(f"{each} of {line}" for each in BATCH))
        with Calling(consumer, tell, line, STEPS):
            consumer.consume(len(BATCH), 5)
        assert told[-1] <= 1 + number * len(BATCH), f"line {line}"
    assert len(told) == 40


def test_an_observer_that_commits_completes_nothing_that_nobody_got(make: Make, send: Send) -> None:
    """An observer is told of each record while the batch is judged, on the thread that polls."""
    send(*BATCH)
    consumer: DedupConsumer = make(
        "orders", config={"enable.auto.commit": False}, observers=[lambda _: consumer.commit()]
    )
    assert values(consumer.consume(len(BATCH), 5)) == BATCH
    assert consumer.counters.observer_errors == 0
    assert consumer.partition_statuses[0].in_flight == len(BATCH)


@pytest.mark.parametrize("end", ["block", "commit"])
def test_a_release_in_the_middle_of_a_step_goes_before_what_comes_later(
    make: Make, send: Send, end: str
) -> None:
    """A step that is no call for messages: the end of the block, or a commit, must not complete the message."""
    send("a", "b")
    consumer = make("orders", config={"enable.auto.commit": False} if end == "commit" else {})
    messages = poll_some(consumer, 2)
    with consumer:
        with Calling(consumer, lambda consumer: consumer.release(messages[1]), 1, STEPS):
            consumer.verdict(messages[0])
        if end == "commit":
            consumer.commit(asynchronous=False)
    assert values(poll_some(make("orders"), 1)) == ["b"]


def test_a_pause_in_the_middle_of_maintenance_acts_at_the_next_call(make: Make, send: Send) -> None:
    """Maintenance says at its end when it is due again, which must not put the call off."""
    send(*BATCH)
    consumer = make("orders")
    got = poll_some(consumer, 2)
    file = frozenset({str(Path(client.__file__ or ""))})
    inside.let_time_pass(consumer)
    with Calling(
        consumer, lambda consumer: consumer.pause([TopicPartition("orders", 0)]), 1, file
    ) as calling:
        got += poll_some(consumer, 1)
    assert calling.has_called
    assert consumer.poll(0.2) is None
    consumer.resume([TopicPartition("orders", 0)])
    assert values(got + poll_some(consumer, len(BATCH) - len(got))) == BATCH


@pytest.mark.parametrize("line", [1, 28, 91, *range(127, 700, 40)])
def test_a_call_in_the_middle_of_close_is_carried_out_or_logged(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture, line: int
) -> None:
    """Behind the last commit there is no next step."""
    send("a")
    consumer = make("orders", completion="explicit")
    [message] = poll_some(consumer, 1)
    files = STEPS | {str(Path(module.__file__ or "")) for module in (assignment_api, guards, positions)}
    with Calling(consumer, lambda consumer: consumer.complete(message), line, files) as calling:
        consumer.close()
    comes_again = not calling.has_called or "complete() was ignored: the consumer is closing" in caplog.text
    send("b")
    rest = values(poll_some(make("orders"), 1))
    assert rest == ["a" if comes_again else "b"]


def test_a_synchronous_commit_in_the_middle_of_a_step_says_what_to_write(make: Make, send: Send) -> None:
    """It could answer nothing that is true."""
    raised = list[Exception]()

    def commit(_: object) -> None:
        try:
            consumer.commit(asynchronous=False)
        except RuntimeError as error:
            raised.append(error)

    send("a")
    consumer = make("orders", observers=[commit])
    poll_some(consumer, 1)
    assert "call commit() there" in str(raised[0])


def test_a_close_in_the_middle_of_a_step_is_refused_and_loses_nothing(make: Make, send: Send) -> None:
    """It would wait for the step for ever. The exception of the handler ends the program's loop as a crash would."""
    for line in (10, 60, 110, 160):
        ids = [f"{each} of {line}" for each in BATCH]
        store = MemoryStore()
        consumer = make("orders", store=store, config={"group.id": f"of {line}"})
        send(*ids)
        calling = Calling(consumer, lambda consumer: consumer.close(), line, STEPS)
        with pytest.raises(RuntimeError, match="call stop"), consumer, calling:
            poll_some(consumer, len(ids))
        again = make("orders", store=store, config={"group.id": f"of {line}"})
        seen = values(poll_quiet(again))
        assert seen[-len(ids) :] == ids
        again.close()
