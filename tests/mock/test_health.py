"""Health and statuses: their truth in each phase of a consumer, and that nobody who asks for them waits."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from dedup_sdk import Health, MemoryStore
from dedup_sdk._kafka.assign import health
from tests.support.consuming import PATIENCE_S, commit_plainly, make_consumer, poll_quiet, poll_some, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dedup_sdk import DedupConsumer
    from dedup_sdk._store.memory import MemoryPartition
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

READ: dict[str, Callable[[DedupConsumer], object]] = {
    "health": lambda consumer: consumer.health(),
    "statuses": lambda consumer: consumer.partition_statuses,
    "metrics": lambda consumer: consumer.metrics(),
    "counters": lambda consumer: consumer.counters.as_dict(),
}


class Blocked:
    """Something that stands still, with the consumer's lock, until the test is over."""

    def __init__(self) -> None:
        self.entered, self.over = Event(), Event()

    def __call__(self, *_: object) -> None:
        """Stand still."""
        self.entered.set()
        assert self.over.wait(PATIENCE_S)


class BlockedStore(MemoryStore):
    """A store that opens no partition until the test is over."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = Blocked()

    def open(self, *arguments: Any) -> MemoryPartition:
        """Open a partition, in the end."""
        self.blocked()
        return super().open(*arguments)


def polled_beside(consumer: DedupConsumer, blocked: Blocked) -> Iterator[None]:
    """Have another thread poll until it stands still; end both afterwards."""
    over = Event()

    def loop() -> None:
        while not over.is_set():
            consumer.poll(0.1)

    thread = Thread(target=loop)
    thread.start()
    try:
        assert blocked.entered.wait(PATIENCE_S)
        yield
    finally:
        over.set()
        blocked.over.set()
        thread.join(PATIENCE_S)


def read_beside(read: Callable[[DedupConsumer], Any], consumer: DedupConsumer) -> Any:
    """Return what a thread reads of a consumer; fail if that waits for ever."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(read(consumer)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S / 3)
    assert found, "it waits for a lock"
    return found[0]


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_nobody_who_looks_waits_for_a_step(
    make: Make, send: Send, read: Callable[[DedupConsumer], object]
) -> None:
    """An observer stands still, inside a call for messages that holds the consumer's lock."""
    send("a")
    blocked = Blocked()
    consumer = make("orders", observers=[blocked])
    for _ in polled_beside(consumer, blocked):
        read_beside(read, consumer)
        assert [each.state for each in read_beside(READ["statuses"], consumer)] == ["active"]


def test_nobody_who_looks_waits_for_a_recovery(make: Make, send: Send) -> None:
    """A store stands still while it opens: the statuses are those before that step."""
    send("a")
    store = BlockedStore()
    consumer = make("orders", store=store)
    for _ in polled_beside(consumer, store.blocked):
        assert read_beside(READ["health"], consumer).ready is False


def reason(found: Health) -> str:
    """The only reason."""
    [only] = found.reasons
    return only


def test_a_consumer_is_ready_when_its_partitions_deliver(make: Make, send: Send) -> None:
    """Each earlier phase says the next step; after the end it is not ready, and alive."""
    send("a")
    consumer = make()
    assert "call subscribe() or assign()" in reason(consumer.health())
    consumer.subscribe(["orders"])
    assert "has not asked for messages yet" in reason(consumer.health())
    consumer.poll(0)
    assert consumer.health().ready is False
    poll_some(consumer, 1)
    assert consumer.health() == Health(live=True, ready=True, reasons=())
    consumer.close()
    closed = consumer.health()
    assert (closed.live, closed.ready, closed.closed) == (True, False, True)
    assert "the consumer is closed" in reason(closed)


def test_a_partition_that_recovers_is_not_ready(make: Make, send: Send, memory: MemoryStore) -> None:
    """The reason names it, with what it waits for."""
    send("a", "b")
    owner = make(store=memory)
    owner.assign([TopicPartition("orders", 0)])
    poll_some(owner, 2)
    consumer = make(store=memory)
    consumer.assign([TopicPartition("orders", 0)])
    wait_for(consumer, lambda: "lock" in str(consumer.health().reasons), "the reason")
    found = consumer.health()
    assert (found.live, found.ready) == (True, False)
    assert reason(found).startswith("orders[0] (lock) is not up to date")
    owner.close()
    wait_for(consumer, lambda: consumer.health().ready, "the lock")


@pytest.mark.usefixtures("_quick")
def test_a_member_without_a_partition_is_ready(kafka: MockKafka, send: Send) -> None:
    """With ``group.protocol=consumer`` the client makes no callback for it; other protocols: `tests.group`."""
    send("a")
    config = {"group.protocol": "consumer"}
    with (
        make_consumer(kafka.bootstrap, "g", MemoryStore(), config) as first,
        make_consumer(kafka.bootstrap, "g", MemoryStore(), config) as second,
    ):
        first.subscribe(["orders"])
        poll_some(first, 1)
        second.subscribe(["orders"])
        wait_for(second, lambda: second.health().ready, "its membership")
        assert (len(first.partition_statuses), len(second.partition_statuses)) == (1, 0)


def test_a_program_that_asks_no_more_is_not_alive(make: Make, send: Send) -> None:
    """The group has removed it; asking again is enough."""
    send("a")
    consumer = make("orders", config={"max.poll.interval.ms": 1_300})
    poll_some(consumer, 1)
    assert consumer.health().live
    until = time.monotonic() + PATIENCE_S
    while consumer.health().live:
        assert time.monotonic() < until
        time.sleep(0.1)
    found = consumer.health()
    assert found.ready is False
    assert "max.poll.interval.ms is 1300" in found.reasons[0]
    wait_for(consumer, lambda: consumer.health().live, "the next call")


def test_partitions_assigned_by_hand_are_nobody_elses(make: Make, send: Send) -> None:
    """The group takes nothing away from a program that is no member of it, however long a handler runs."""
    send("a")
    consumer = make(config={"max.poll.interval.ms": 1_300})
    consumer.poll(0.1)
    assert reason(consumer.health()).startswith("no topic is subscribed")
    consumer.assign([TopicPartition("orders", 0, 0)])
    poll_some(consumer, 1)
    time.sleep(1.5)
    assert consumer.health() == Health(live=True, ready=True, reasons=())


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.3)
    monkeypatch.setattr(health, "STOPPED_S", 0.5)


@pytest.mark.usefixtures("_quick")
def test_a_client_that_fetches_no_more_is_not_alive(make: Make, send: Send) -> None:
    """Its connections are in order; the log goes on."""
    send("a")
    consumer = make()
    # Not by the group: a rebalance, which a machine that stands still causes, would have the client fetch again.
    consumer.assign([TopicPartition("orders", 0, 0)])
    poll_some(consumer, 1)
    # As if it had stopped: nobody tells the consumer.
    Consumer.pause(consumer, [TopicPartition("orders", 0)])
    poll_quiet(consumer, 0.5)
    assert consumer.health().live
    sent = 0

    def is_found() -> bool:
        # Only an end that moves after a leader's first answer proves a stop, and that answer may take its time.
        nonlocal sent
        send(f"m{sent}")
        sent += 1
        return not consumer.health().live

    wait_for(consumer, is_found, "the word that it stands still")
    found = consumer.health()
    assert found.ready is False
    assert reason(found).startswith("orders[0]: the client has fetched nothing for ")
    Consumer.resume(consumer, [TopicPartition("orders", 0)])
    poll_some(consumer, sent)
    wait_for(
        consumer, lambda: consumer.health() == Health(live=True, ready=True, reasons=()), "the end of it"
    )


@pytest.mark.usefixtures("_quick")
def test_a_log_that_ends_in_holes_is_not_taken_for_a_stop(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that was there before, and stays, proves nothing."""
    looks: list[int] = []
    look = health.FetchWatch.look

    def counted(self: health.FetchWatch, *arguments: Any) -> None:
        look(self, *arguments)
        looks.append(1)

    monkeypatch.setattr(health.FetchWatch, "look", counted)
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 2)
    consumer.seek(TopicPartition("orders", 0, 1))
    Consumer.pause(consumer, [TopicPartition("orders", 0)])
    wait_for(consumer, lambda: bool(consumer.partition_statuses), "the partition")
    Consumer.pause(consumer, [TopicPartition("orders", 0)])
    seen = len(looks)
    wait_for(consumer, lambda: len(looks) > seen + 8, "some looks")
    assert consumer.health().live


@pytest.mark.usefixtures("_quick")
def test_without_any_broker_it_is_not_ready(make: Make, send: Send, kafka: MockKafka) -> None:
    """A restart would not help, so it stays alive; it is ready again by itself."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    kafka.set_broker_down()
    wait_for(consumer, lambda: not consumer.health().ready, "the word that no broker answers")
    found = consumer.health()
    assert found.live
    assert reason(found).startswith("no broker has answered for ")
    kafka.set_broker_up()
    wait_for(consumer, lambda: consumer.health().ready, "a broker")


def test_statuses_show_the_group_s_offset_and_the_lag(make: Make, send: Send, kafka: MockKafka) -> None:
    """Of the log's end as the client knows it."""
    commit_plainly(kafka.bootstrap, "g", "orders", 0)
    send("a", "b", "b", "c")
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 3)
    poll_quiet(consumer, 1.2)
    [status] = consumer.partition_statuses
    assert (status.committed, status.lag, status.in_flight, status.waiting) == (0, 4, 4, 1)
    for message in messages:
        consumer.complete(message)
    consumer.commit(asynchronous=False)
    [status] = consumer.partition_statuses
    assert (status.committed, status.lag, status.in_flight, status.waiting) == (4, 0, 0, 0)


@pytest.mark.parametrize(
    "code", [KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_commits_that_are_refused_make_a_consumer_unready(
    make: Make, send: Send, kafka: MockKafka, code: int
) -> None:
    """Messages are delivered meanwhile. Once the broker takes a commit again, nothing is left of the refusal."""
    send("a")
    consumer = make("orders", config={"auto.commit.interval.ms": 50})
    wait_for(consumer, lambda: consumer.health() == Health(live=True, ready=True, reasons=()), "it is ready")
    kafka.push_errors("OffsetCommit", code, 3)
    wait_for(consumer, lambda: not consumer.health().ready, "a commit is refused")
    [status] = consumer.partition_statuses
    assert (status.state, status.hindrances) == ("active", ("commits",))
    [reason] = consumer.health().reasons
    assert "orders[0] (new, commits) is delivered, but the broker refuses the commits" in reason
    wait_for(consumer, lambda: consumer.health().ready, "a commit is accepted")
    assert consumer.partition_statuses[0].hindrances == ()
