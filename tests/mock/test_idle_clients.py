"""Clients of ours that have nothing to do: the log lines that they write meanwhile reach the application's logger."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import header
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.client import client, reader
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._runner import dead_letters
from dedup_sdk._transactions import producer as transactional_producer
from dedup_sdk.bridge import _target
from dedup_sdk.errors import StoreLockedError
from dedup_sdk.testing import MockKafka
from tests.support import inside
from tests.support.bridging import Running, bridge, until
from tests.support.consuming import PATIENCE_S, active, numbers, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from dedup_sdk import DedupConsumer
    from dedup_sdk._engine.partition import Partition
    from tests.mock.conftest import Make, Send

TALKING = {"log_level": 6, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
STAYING = {"session.timeout.ms": 60_000}
"""The group loses no member while the broker is away."""


class Lines:
    """A logger that keeps the lines of a client."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def log(self, _: int, text: str, *fields: object) -> None:
        """Keep one."""
        self.kept.append(text % fields)


class Clients:
    """The clients that a module made and did not close, and the lines of each."""

    def __init__(self, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[Lines] = []
        made = self.lines
        kind: Any = getattr(module, name)

        class Watched(kind):  # type: ignore[misc]  # whichever it is
            def __init__(self, config: dict[str, Any]) -> None:
                self.spoken = Lines()
                made.append(self.spoken)
                super().__init__({**config, **TALKING, "logger": self.spoken})

            def close(self) -> Any:
                made.remove(self.spoken)
                return super().close()

        monkeypatch.setattr(module, name, Watched)

    def forget(self) -> None:
        """Forget the lines of before."""
        for each in self.lines:
            each.kept.clear()

    def have_all_spoken(self) -> bool:
        """Whether each has written that it has lost its broker, or found none."""
        return all(any("onnect" in line for line in each.kept) for each in self.lines)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """Watches the readers."""
    return Clients(reader, "Consumer", monkeypatch)


def serve_until(serve: Callable[[], object], condition: Callable[[], bool]) -> None:
    """Serve until the condition holds, or the patience ends."""
    patient_until = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < patient_until:
        serve()
        time.sleep(0.01)


def hindrances(consumer: DedupConsumer) -> list[tuple[str, ...]]:
    """What each partition waits for."""
    return [status.hindrances for status in consumer.partition_statuses]


def test_a_reader_that_no_recovery_needs_writes_its_lines(
    make: Make, send: Send, kafka: MockKafka, readers: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition waits for its store, for hours perhaps; the reader of the other one is kept for it meanwhile."""
    send("a", topic="pairs")
    attach, locked = Deduplicator.attach, {1}

    def attach_if_free(engine: Deduplicator, topic: str, partition: int, **options: Any) -> Partition:
        if partition in locked:
            raise StoreLockedError("open in another consumer")
        return attach(engine, topic, partition, **options)

    monkeypatch.setattr(Deduplicator, "attach", attach_if_free)
    consumer = make("pairs", config=STAYING)
    wait_for(consumer, lambda: active(consumer) == [0], "the partition whose store is free")
    readers.forget()
    kafka.set_broker_down()

    serve_until(lambda: consumer.poll(0.1), readers.have_all_spoken)

    kafka.set_broker_up()
    assert hindrances(consumer) == [(), ("lock",)]
    assert readers.lines
    assert readers.have_all_spoken()


@pytest.fixture
def pool(kafka: MockKafka) -> Iterator[Readers]:
    """A pool of readers."""
    pool = Readers(client_settings({"bootstrap.servers": kafka.bootstrap, "group.id": "g"}))
    yield pool
    pool.close()


def test_a_reader_writes_its_lines_while_a_recovery_has_it_and_waits(
    kafka: MockKafka, readers: Clients, pool: Readers
) -> None:
    """E.g. for the end of a transaction: it asks now and then, and reads nothing."""
    waiting = TailReader(pool, "orders", 0)
    waiting.bounds()
    waiting.log_end()
    readers.forget()
    kafka.set_broker_down()

    serve_until(pool.serve, readers.have_all_spoken)

    assert len(readers.lines) == 2
    waiting.close()
    assert readers.have_all_spoken()


def test_to_serve_readers_takes_no_record_from_one_that_reads(send: Send, pool: Readers) -> None:
    """A record that got lost there would be a mark that is missing."""
    send(*numbers(0, 100))
    reading, read = TailReader(pool, "orders", 0), list[int]()
    for piece in reading.slices(0, 100, header("dedup-id")):
        pool.serve()
        read += piece.offsets if piece else []
    reading.close()
    assert read == [*range(100)]


def test_a_client_that_asks_for_metadata_writes_its_lines_after_another_one_took_its_place(
    kafka: MockKafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its requests are not answered; that is when a broker is away."""
    asking = Clients(client, "AdminClient", monkeypatch)
    consumer = make("orders", config=STAYING)
    wait_for(consumer, lambda: active(consumer) == [0], "the partition")
    requests = inside.metadata_requests(consumer)
    requests.renew()
    pending = requests.probe("orders", 0)
    requests.renew()
    del asking.lines[:-1]
    asking.forget()
    kafka.set_broker_down()

    serve_until(lambda: consumer.poll(0.1), asking.have_all_spoken)

    kafka.set_broker_up()
    assert asking.have_all_spoken()
    assert pending.asked.client is not None


def test_the_client_of_dead_letters_writes_its_lines_while_there_are_none(
    make: Make, send: Send, kafka: MockKafka, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of `run` serves it, also while a handler is at work."""
    sending = Clients(dead_letters, "Producer", monkeypatch)
    send("a")
    consumer = make("orders", config=STAYING)

    def work(_: object) -> None:
        sending.forget()
        kafka.set_broker_down()
        serve_until(lambda: None, sending.have_all_spoken)
        kafka.set_broker_up()
        consumer.stop()

    consumer.run(work, on_error="dead-letter", dead_letters=letters)

    assert len(sending.lines) == 1
    assert sending.have_all_spoken()


@pytest.mark.parametrize("transactions", ["auto", "never"])
def test_the_clients_of_a_bridge_write_their_lines_while_nothing_is_copied(
    kafka: MockKafka, send: Send, transactions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them reads metadata only, the other one sends batches."""
    send("a")
    clients = [Clients(module, "Producer", monkeypatch) for module in (_target, transactional_producer)]
    with MockKafka() as there:
        there.create_topic("orders")
        with Running(bridge(kafka.bootstrap, there.bootstrap, transactions=transactions)) as running:
            until(lambda: running.counters.copied >= 1)
            assert running.counters.copied == 1
            assert [len(each.lines) for each in clients] == [1, 1]
            for each in clients:
                each.forget()
            there.set_broker_down()
            until(lambda: all(each.have_all_spoken() for each in clients))
