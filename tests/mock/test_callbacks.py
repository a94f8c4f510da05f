from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import PartitionEvent
from dedup_sdk._kafka.assign import health
from dedup_sdk._kafka.deliver.worker_session import WorkerSession
from tests.mock.conftest import SHARED_GROUP
from tests.support.consuming import (
    PATIENCE_S,
    commit_plainly,
    commit_text,
    committed,
    committed_metadata,
    poll_quiet,
    poll_some,
    run_all,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

MANY = [f"{number:03}" for number in range(60)]


class CallbackError(Exception):
    """The error of a user's callback."""


def fail(*_: object) -> None:
    """A callback that raises."""
    raise CallbackError


def by_poll(consumer: Any) -> list[Any]:
    """One message, or none, as a list."""
    message = consumer.poll(0.2)
    return [] if message is None else [message]


def by_consume(consumer: Any) -> list[Any]:
    """A few messages."""
    got: list[Any] = consumer.consume(7, 0.2)
    return got


def gather(consumer: Any, count: int, fetch: Callable[[Any], list[Any]]) -> tuple[list[str], int]:
    """Fetch until `count` messages came, whatever callbacks raise; return the values and how often they raised."""
    got: list[Any] = []
    raised = 0
    for _ in range(400):
        try:
            got += fetch(consumer)
        except CallbackError:
            raised += 1
        if len(got) >= count:
            break
    return values(got), raised


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("fetch", [by_poll, by_consume])
def test_an_exception_in_on_assign_costs_no_message(
    make: Make, send: Send, strategy: str, fetch: Callable[[Any], list[Any]]
) -> None:
    """It is raised once, by the call in which it happened, and every message comes afterwards."""
    send(*MANY, topic="pairs", partition=0)
    send(*MANY, topic="pairs", partition=1)
    consumer = make(config={"partition.assignment.strategy": strategy})
    consumer.subscribe(["pairs"], on_assign=fail)

    got, raised = gather(consumer, 2 * len(MANY), fetch)

    assert sorted(got) == sorted(MANY * 2)
    assert raised == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_exceptions_while_the_group_changes_cost_no_message(make: Make, send: Send, strategy: str) -> None:
    """A member whose callbacks always fail hands over in order: nothing is lost, and nothing doubled."""
    for partition in (0, 1):
        send(*[f"{partition}{each}" for each in MANY[:30]], topic="pairs", partition=partition)
    config = {**SHARED_GROUP, "partition.assignment.strategy": strategy}
    first, second = make(config=config), make(config=config)
    first.subscribe(["pairs"], on_assign=fail, on_revoke=fail, on_lost=fail)
    got, _ = gather(first, 20, by_poll)
    second.subscribe(["pairs"])
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and not (first.assignment() and second.assignment()):
        got += gather_once(first) + gather_once(second)
    for partition in (0, 1):
        send(*[f"{partition}{each}" for each in MANY[30:]], topic="pairs", partition=partition)
    while time.monotonic() < until and len(got) < 2 * len(MANY):
        got += gather_once(first) + gather_once(second)

    assert sorted(got) == sorted(f"{partition}{each}" for partition in (0, 1) for each in MANY)
    assert len(second.assignment()) == 1
    with pytest.raises(CallbackError):
        first.close()


def gather_once(consumer: Any) -> list[str]:
    """One poll, whatever callbacks raise."""
    try:
        return values(consumer.consume(10, 0.02))
    except CallbackError:
        return []


def test_exceptions_in_the_clients_other_callbacks_cost_no_message(make: Make, send: Send) -> None:
    """Statistics, throttling, errors and commits.

    Errors of their callbacks are raised by poll, after fetched messages are safe.
    """
    send(*MANY)
    consumer = make(
        "orders",
        config={
            "stats_cb": fail,
            "statistics.interval.ms": 20,
            "on_commit": fail,
            "auto.commit.interval.ms": 20,
        },
    )

    got, raised = gather(consumer, len(MANY), by_poll)
    until = time.monotonic() + PATIENCE_S
    while raised <= 3 and time.monotonic() < until:
        try:
            assert consumer.poll(0.02) is None
        except CallbackError:
            raised += 1
    with suppress(CallbackError):
        consumer.close()

    assert got == MANY
    assert raised > 3


def test_a_run_that_is_called_again_after_each_exception_of_a_callback_gets_on(
    make: Make, send: Send
) -> None:
    """Each run ends in order: what waited for a worker comes in the next one, and nothing is opened again."""
    send(*MANY)
    consumer = make("orders", config={"stats_cb": fail, "statistics.interval.ms": 1})
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.value().decode())
        # Statistics come before the last message.
        time.sleep(0.002)

    raised = 0
    until = time.monotonic() + PATIENCE_S
    while len(handled) < len(MANY) and time.monotonic() < until:
        try:
            consumer.run(handle)
        except CallbackError:
            raised += 1
    with suppress(CallbackError):
        consumer.close()

    assert handled == MANY
    assert raised > 1


@pytest.mark.parametrize("fails", [False, True])
def test_an_exception_of_a_callback_while_handlers_are_waited_for_abandons_none(
    make: Make, send: Send, *, fails: bool
) -> None:
    """It is raised behind a handler's own exception, or when the handlers have ended."""
    send("a", "b")
    both = threading.Barrier(2)
    raised = threading.Event()

    def told(_: str) -> None:
        if ended:
            raised.set()
            raise CallbackError

    ended: list[str] = []
    handled: list[str] = []
    consumer = make("orders", config={"stats_cb": told, "statistics.interval.ms": 10})

    def handle(message: Any) -> None:
        both.wait(PATIENCE_S)
        ended.append("begun")
        if fails and message.value() == b"a":
            raise ValueError("a handler")
        consumer.stop()
        assert raised.wait(PATIENCE_S)
        # The exception is raised while this handler runs.
        time.sleep(1.5)
        handled.append(message.value().decode())

    with pytest.raises(ValueError if fails else CallbackError):
        consumer.run(handle, workers=2, order="none")
    assert sorted(handled) == (["b"] if fails else ["a", "b"])
    assert consumer.counters.abandoned == 0
    with suppress(CallbackError):
        consumer.close()


def test_an_exception_object_of_a_callback_that_strikes_again_is_an_interruption(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback raised the same object before, between two steps; now a message is on its way to a worker."""
    same, raising = CallbackError(), ["first"]
    is_delivered = WorkerSession.is_delivered

    def told(_: str) -> None:
        if raising == ["first"]:
            raising.clear()
            raise same

    def struck(session: WorkerSession, message: Any) -> bool:
        if raising == ["second"]:
            raising.clear()
            raise same
        return is_delivered(session, message)

    monkeypatch.setattr(WorkerSession, "is_delivered", struck)
    send(*MANY)
    consumer = make("orders", config={"stats_cb": told, "statistics.interval.ms": 1})
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.value().decode())
        time.sleep(0.001)

    with pytest.raises(CallbackError):
        consumer.run(handle)
    raising.append("second")
    with pytest.raises(CallbackError):
        consumer.run(handle)
    run_all(consumer, handle)
    assert sorted({*handled}) == sorted(MANY)


def test_callbacks_get_this_consumer_and_their_partitions(make: Make, send: Send) -> None:
    """The same object that the application has, so that it may commit, seek or pause in them."""
    calls: list[tuple[str, Any, list[tuple[str, int]]]] = []

    def note(what: str) -> Callable[[Any, list[TopicPartition]], None]:
        return lambda same, partitions: calls.append(
            (what, same, [(tp.topic, tp.partition) for tp in partitions])
        )

    send("a")
    consumer = make()
    consumer.subscribe(["orders"], on_assign=note("assign"), on_revoke=note("revoke"), on_lost=note("lost"))
    poll_some(consumer, 1)
    consumer.close()

    assert calls == [("assign", consumer, [("orders", 0)]), ("revoke", consumer, [("orders", 0)])]


def test_offsets_set_in_on_assign_are_where_reading_begins(make: Make, send: Send, kafka: MockKafka) -> None:
    """The history begins there: nothing before it is taken for handled."""
    send(*"abcd")
    consumer = make()

    def begin_at_two(same: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = 2
        same.assign(partitions)

    consumer.subscribe(["orders"], on_assign=begin_at_two)
    assert values(poll_quiet(consumer)) == ["c", "d"]
    consumer.close()
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert metadata.low == 2


def test_a_commit_of_all_in_on_assign_is_harmless(make: Make, send: Send, kafka: MockKafka) -> None:
    """There is nothing to commit yet, and an asynchronous commit says nothing of it."""
    send("a")
    consumer = make()
    consumer.subscribe(["orders"], on_assign=lambda same, _: same.commit())

    assert values(poll_quiet(consumer)) == ["a"]
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_an_exception_is_raised_where_nothing_comes(make: Make) -> None:
    """Also where no message ends the wait: by the call during which the callback ran."""
    consumer = make()
    consumer.subscribe(["orders"], on_assign=fail)

    with pytest.raises(CallbackError):
        consumer.poll(PATIENCE_S)
    assert consumer.poll(0.1) is None


class FailingLogger:
    """A logger whose handler or filter raises."""

    def log(self, *_: object) -> None:
        """Raise."""
        raise CallbackError


class Outage:
    """Takes the broker away when a recovery begins to read the topic; ``begun``: the recoveries that did."""

    def __init__(self, kafka: MockKafka) -> None:
        self.begun: list[str] = []
        self._kafka = kafka

    def __call__(self, _: object) -> None:
        """Take a verdict."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Take an event."""
        if event.name == "recovery-started":
            self.begun.append(event.detail)
            self._kafka.set_broker_down()


def poll_through_outage(consumer: Any, kafka: MockKafka, seconds: float) -> int:
    """Poll while the broker is away, and until the partition is active after that; return how often `poll` raised."""
    raised, until, is_up = 0, time.monotonic() + seconds, False
    while not is_up or consumer.partition_statuses[0].state != "active":
        try:
            assert consumer.poll(0.5) is None
        except CallbackError:
            raised += 1
        if not is_up and time.monotonic() > until:
            kafka.set_broker_up()
            is_up = True
        assert time.monotonic() < until + PATIENCE_S
    return raised


QUICK_TO_CONNECT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # The group must not lose the member in the outage.
    "session.timeout.ms": 60_000,
}


@pytest.mark.parametrize(
    "callbacks", [{"error_cb": fail}, {"logger": FailingLogger(), "log_level": 6}], ids=["error_cb", "logger"]
)
def test_a_callback_that_raises_while_a_recovery_waits_for_a_broker(
    make: Make, send: Send, kafka: MockKafka, callbacks: dict[str, Any]
) -> None:
    """Each poll returns, the exception is raised there, and costs the recovery nothing.

    The recovery has clients of its own, in whose calls the callback would raise too.
    """
    send(*MANY)
    commit_plainly(kafka.bootstrap, "g", "orders", len(MANY), metadata=commit_text(len(MANY)))
    outage = Outage(kafka)
    consumer = make("orders", config={**QUICK_TO_CONNECT, **callbacks}, observers=[outage])
    until = time.monotonic() + PATIENCE_S
    while not outage.begun and time.monotonic() < until:
        with suppress(CallbackError):
            consumer.poll(0.1)
    with ThreadPoolExecutor(1) as pool:
        raised = pool.submit(poll_through_outage, consumer, kafka, 2.0).result(2 * PATIENCE_S)
    send("later")
    got, _ = gather(consumer, 1, by_poll)

    assert raised > 0
    assert len(outage.begun) == 1, "an exception of a callback ended the recovery, which began anew"
    assert got == ["later"]


def test_what_an_event_raises_while_the_consumer_closes_is_logged(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """`poll` has told of it before; a close that raised it would hide the error that ended the loop."""
    send("a")
    consumer = make("orders", config={"stats_cb": fail, "statistics.interval.ms": 5})
    gather(consumer, 1, by_poll)
    # Statistics that no poll tells of wait for the close.
    time.sleep(0.1)

    with caplog.at_level("WARNING", "dedup_sdk"):
        consumer.close()

    assert "a callback raised while the consumer closes; only logged" in caplog.text


def test_log_lines_of_the_client_that_asks_for_metadata_come(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client writes its log lines when it is polled, and the application knows only its own one."""
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.3)
    lines: list[str] = []

    class Kept:
        """A logger that keeps its lines."""

        def log(self, _: int, text: str, *fields: object) -> None:
            """Keep one."""
            lines.append(text % fields)

    send("a")
    consumer = make("orders", config={"logger": Kept(), "log_level": 7, "debug": "broker"})
    # In a callback it answers by the client that asks for metadata.
    consumer.subscribe(["orders"], on_assign=lambda *_: consumer.list_topics(timeout=PATIENCE_S))
    poll_some(consumer, 1)
    asks = wait_until_lines(consumer, lines)

    assert asks, "no client but the application's own has written a line"


def wait_until_lines(consumer: Any, lines: list[str]) -> bool:
    """Poll until a line of a client comes that is no consumer."""
    until = time.monotonic() + PATIENCE_S
    while not any("producer-" in line for line in lines) and time.monotonic() < until:
        consumer.poll(0.1)
    return any("producer-" in line for line in lines)
