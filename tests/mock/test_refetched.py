"""Messages that the client returns a second time, although nobody sought, paused or moved their partition."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from dedup_sdk import LastId, Window, header, orders
from dedup_sdk._kafka.deliver import fetcher as fetch
from dedup_sdk.shared import MemoryClaimStore, Shared
from tests.support.consuming import (
    committed,
    lookup,
    numbers,
    poll_quiet,
    poll_some,
    run_through,
    values,
)
from tests.support.sending_units import unit_sender, units

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

COUNT = 120


def rewind(consumer: DedupConsumer, offset: int) -> None:
    """Have the client read on from an offset, unknown to everybody else, as after a re-fetch of its own."""
    # A client that is not reading yet refuses.
    with suppress(KafkaException):
        Consumer.seek(consumer, TopicPartition("orders", 0, offset))


class Refetching:
    """In the place of the client's class: one fetch in three brings messages, goes back, and brings more.

    ``few``: the most messages of one fetch, so that they go the way of single messages.
    """

    def __init__(self, few: int) -> None:
        self._few, self._fetches = few, 0

    def consume(self, consumer: Any, count: int, wait_s: float) -> list[Any]:
        """Fetch as the client does."""
        came = Consumer.consume(consumer, min(count, self._few), wait_s)
        self._fetches += bool(came)
        last = came[-1].offset() if came else None
        if last is not None and self._fetches % 3 == 0:
            rewind(consumer, max(0, last - 2))
            came += Consumer.consume(consumer, min(count, self._few), 0.1)
        return came

    def __getattr__(self, name: str) -> Any:
        return getattr(Consumer, name)


@pytest.fixture(params=[None, 3, 1000], ids=["between fetches", "in few", "in many"])
def refetching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the repetition comes: with the next fetch only, or also behind messages of the same fetch."""
    if request.param is not None:
        monkeypatch.setattr(fetch, "Consumer", Refetching(request.param))


class Handler:
    """Handles messages; at every tenth one the client goes some back."""

    def __init__(self, consumer: DedupConsumer) -> None:
        self.got: list[str] = []
        self._consumer = consumer

    def __call__(self, message: Any) -> None:
        """Handle one message."""
        self.got += values([message])
        if len(self.got) % 10 == 0:
            rewind(self._consumer, max(0, message.offset() - 7))


def by_iteration(consumer: DedupConsumer, handle: Handler) -> None:
    """One message after the other."""
    for message in consumer:
        handle(message)
        if len(handle.got) >= COUNT:
            break


def by_poll(consumer: DedupConsumer, handle: Handler) -> None:
    """One message a call."""
    while len(handle.got) < COUNT:
        for message in poll_some(consumer, 1):
            handle(message)


def by_consume(consumer: DedupConsumer, handle: Handler) -> None:
    """Some messages a call."""
    while len(handle.got) < COUNT:
        for message in consumer.consume(25, 0.2):
            handle(message)


def explicitly(consumer: DedupConsumer, handle: Handler) -> None:
    """Each message is completed by itself, later ones first."""
    held: list[Any] = []
    while len(handle.got) < COUNT:
        held += poll_some(consumer, 1)
        handle(held[-1])
        if len(held) == 5:
            for message in reversed(held):
                consumer.complete(message)
            held = []


def by_run(consumer: DedupConsumer, handle: Handler) -> None:
    """A handler in the one thread of `run`."""
    run_through(consumer, "orders", handle)


def by_workers(consumer: DedupConsumer, handle: Handler) -> None:
    """Handlers in three threads."""
    run_through(consumer, "orders", handle, workers=3)


WAYS = pytest.mark.parametrize(
    ("way", "options"),
    [
        (by_iteration, {}),
        (by_poll, {}),
        (by_poll, {"durability": "record"}),
        (by_poll, {"mode": "observe"}),
        (by_consume, {}),
        (explicitly, {"completion": "explicit"}),
        (by_run, {"idle_timeout": 0.5}),
        (by_workers, {"idle_timeout": 0.5}),
    ],
    ids=["iteration", "poll", "record", "observe", "consume", "explicit", "run", "workers"],
)


@WAYS
@pytest.mark.usefixtures("refetching")
def test_a_repetition_is_handled_once(
    make: Make,
    send: Send,
    kafka: MockKafka,
    way: Callable[[Any, Any], None],
    options: dict[str, Any],
) -> None:
    """In each way into a partition; the commit goes on to the end."""
    send(*numbers(0, COUNT))
    consumer = make("orders", **options)
    handle = Handler(consumer)
    way(consumer, handle)
    handle.got += values(poll_quiet(consumer))
    consumer.close()

    assert sorted(handle.got, key=int) == numbers(0, COUNT)
    assert committed(kafka.bootstrap, "g", "orders").offset == COUNT
    assert consumer.counters.refetched > 0
    assert consumer.counters.verdicts["fresh"] == COUNT


def ints(**settings: Any) -> LastId:
    """Numbers, each later than the one before."""
    return LastId(id=header("dedup-id"), order=orders.integer(), **settings)


@pytest.mark.usefixtures("refetching")
@pytest.mark.parametrize("way", [by_poll, by_consume])
@pytest.mark.parametrize(
    "options",
    [
        {"dedup": ints()},
        {"dedup": lookup(window=Window(count=50))},
        {"shared": True},
    ],
    ids=["LastId", "count", "shared"],
)
def test_a_repetition_is_no_sighting(
    make: Make, send: Send, kafka: MockKafka, way: Callable[[Any, Any], None], options: dict[str, Any]
) -> None:
    """Nor for a memory of another kind, or for a gate."""
    send(*numbers(0, COUNT))
    if options.get("shared"):
        options = {"shared": Shared(MemoryClaimStore(), scope="global")}
    consumer = make("orders", **options)
    handle = Handler(consumer)
    way(consumer, handle)
    handle.got += values(poll_quiet(consumer))
    consumer.close()

    assert handle.got == numbers(0, COUNT)
    assert committed(kafka.bootstrap, "g", "orders").offset == COUNT
    assert consumer.counters.refetched > 0


@pytest.mark.usefixtures("refetching")
def test_a_repetition_in_a_unit(make: Make, kafka: MockKafka) -> None:
    """Neither does a unit get a record twice, nor one that it waits for too late."""
    send = unit_sender(kafka.bootstrap)
    names = [f"{number}/U{number // 4}{'.' if number % 4 == 3 else ''}" for number in range(COUNT)]
    send(*names)
    consumer = make("orders", dedup=units())
    handle = Handler(consumer)
    by_poll(consumer, handle)
    handle.got += values(poll_quiet(consumer))
    consumer.close()

    assert handle.got == names
    assert committed(kafka.bootstrap, "g", "orders").offset == COUNT
    assert consumer.counters.refetched > 0


def test_a_seek_ends_what_counts_as_read(make: Make, send: Send) -> None:
    """Messages that the application asks for again are no repetition."""
    send(*numbers(0, 10))
    consumer = make("orders")
    got = values(poll_some(consumer, 10))
    consumer.seek(TopicPartition("orders", 0, 4))

    assert got + values(poll_quiet(consumer)) == [*numbers(0, 10), *numbers(4, 10)]
    assert consumer.counters.refetched == 0
