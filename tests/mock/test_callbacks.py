from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.mock.conftest import SHARED_GROUP
from tests.support.consuming import PATIENCE_S, committed, committed_metadata, poll_quiet, poll_some, values

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
