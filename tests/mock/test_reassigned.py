"""Assignments that take the place of others: by hand, by the group, and inside the callbacks of partitions that go."""

from __future__ import annotations

import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._runner.runner import Runner
from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, numbers, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS, PAIRS = TopicPartition("orders", 0), TopicPartition("pairs", 0)


def has_orders(consumer: DedupConsumer) -> bool:
    """Whether the partition of "orders" is the consumer's."""
    return any(status.topic == "orders" for status in consumer.partition_statuses)


def assert_held_as_the_client_says(consumer: DedupConsumer) -> None:
    """Nothing is held, or open, that the client does not read, and everything that it reads."""
    actual = {(tp.topic, tp.partition) for tp in consumer.assignment()}
    assert {(status.topic, status.partition) for status in consumer.partition_statuses} == actual
    assert set(inside.open_partitions(consumer)) <= actual


def known_to_the_group(make: Make, send: Send) -> None:
    """Have the group complete a message of "pairs", and send another.

    So it needs no commit before it delivers there.
    """
    send("x", topic="pairs")
    with make() as before:
        before.assign([PAIRS])
        poll_some(before, 1)
    send("y", topic="pairs")


def assign_same(consumer: Any, _: Any) -> None:
    """A callback that takes the partitions that go again."""
    consumer.assign([ORDERS])


def assign_others(consumer: Any, _: Any) -> None:
    """A callback that takes others for those that go."""
    consumer.assign([PAIRS])


def unassign(consumer: Any, _: Any) -> None:
    """A callback that unassigns, as happens anyway."""
    consumer.unassign()


def seek_back(consumer: Any, _: Any) -> None:
    """A callback that moves partitions that go: that is no reason to keep it."""
    consumer.seek(TopicPartition("orders", 0, 1))


class Callback:
    """Calls another one, and remembers that it was called."""

    def __init__(self, callback: Callable[[Any, Any], None]) -> None:
        self._callback = callback
        self.calls = 0

    def __call__(self, consumer: Any, partitions: Any) -> None:
        """Be called by the client."""
        self.calls += 1
        self._callback(consumer, partitions)


WAYS = pytest.mark.parametrize(
    ("way", "comes"),
    [(assign_same, "bcd"), (assign_others, "y"), (unassign, "bcd"), (seek_back, "bcd")],
    ids=["assign same", "assign others", "unassign", "seek"],
)


@WAYS
@pytest.mark.parametrize("name", ["on_revoke", "on_lost"])
def test_a_callback_may_assign_when_partitions_are_lost(
    make: Make, send: Send, kafka: MockKafka, way: Callable[[Any, Any], None], comes: str, name: str
) -> None:
    """Partitions that the callback assigned are read, lost ones are neither written nor committed.

    Their completed part is known as before.
    """
    known_to_the_group(make, send)
    send(*"abcd")
    consumer, gone = make(completion="explicit"), Callback(way)
    consumer.subscribe(["orders"], **{name: gone})
    first, *held = poll_some(consumer, 4)
    consumer.complete(first)
    kafka.push_errors("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID, 1)
    got = values(wait_for(consumer, lambda: gone.calls > 0, "the loss"))

    assert got + values(poll_quiet(consumer)) == list(comes)
    assert_held_as_the_client_says(consumer)
    for message in held:
        consumer.complete(message)
    assert consumer.counters.stale == len(held)


# Less than the revoke deadline, within which a client that keeps partitions that nobody takes back would close.
@pytest.mark.timeout(55)
@WAYS
def test_a_callback_may_assign_when_partitions_are_revoked(
    make: Make, send: Send, kafka: MockKafka, way: Callable[[Any, Any], None], comes: str
) -> None:
    """The callback's assignment stays when the partitions that go are given back, also where it is the same."""
    known_to_the_group(make, send)
    send(*"abcd")
    consumer, gone = make(completion="explicit"), Callback(way)
    consumer.subscribe(["orders"], on_revoke=gone)
    consumer.complete(poll_some(consumer, 4)[0])
    kafka.push_errors("Heartbeat", KafkaError.REBALANCE_IN_PROGRESS, 1)
    got = values(wait_for(consumer, lambda: gone.calls > 0, "the revocation"))

    assert got + values(poll_quiet(consumer)) == list(comes)
    assert_held_as_the_client_says(consumer)
    if way is not seek_back:
        assert committed(kafka.bootstrap, "g", "orders").offset == 1


@pytest.mark.timeout(55)
@pytest.mark.parametrize("way", [assign_same, assign_others, unassign])
def test_a_callback_may_assign_while_the_consumer_closes(
    make: Make, send: Send, kafka: MockKafka, way: Callable[[Any, Any], None]
) -> None:
    """Its assignment is not taken, and completed messages are committed."""
    send(*"abcd")
    consumer, gone = make(), Callback(way)
    consumer.subscribe(["orders"], on_revoke=gone)
    consumer.complete(poll_some(consumer, 4)[3])
    consumer.close()

    assert gone.calls == 1
    assert committed(kafka.bootstrap, "g", "orders").offset == 4


def test_handlers_of_lost_partitions_are_not_waited_for(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that assigns does not wait for them either: their completions are not written any more."""
    known_to_the_group(make, send)
    send("a")
    consumer, gone, go_on = make(), Callback(assign_others), threading.Event()
    waited: list[tuple[str, int]] = []
    leave = Runner.leave

    def noted(runner: Runner, partitions: Any, *, until: float | None) -> None:
        waited.extend(partitions if gone.calls and until is not None else ())
        leave(runner, partitions, until=None)

    monkeypatch.setattr(Runner, "leave", noted)
    consumer.subscribe(["orders"], on_lost=gone)
    handled: list[str] = []

    def handle(message: Any) -> None:
        if message.topic() == "orders":
            kafka.push_errors("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID, 1)
            assert go_on.wait(PATIENCE_S)
        else:
            handled.append(message.value().decode())
            go_on.set()
            consumer.stop()

    consumer.run(handle, workers=2)
    assert handled == ["y"]
    assert ("orders", 0) not in waited
    assert consumer.counters.abandoned == 1


def test_a_subscription_takes_over_what_was_assigned_by_hand(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """The group assigns the very partition: it goes on behind completed messages, each message comes once."""
    send(*"abcd")
    consumer, came = make(), Callback(lambda *_: None)
    consumer.assign([ORDERS])
    got = values(poll_some(consumer, 2))
    consumer.subscribe(["orders"], on_assign=came)
    got += values(wait_for(consumer, lambda: came.calls > 0, "the group's assignment"))
    got += values(poll_quiet(consumer))

    assert got == list("abcd")
    assert_held_as_the_client_says(consumer)
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 4


def test_what_was_in_hand_comes_again_from_the_group(make: Make, send: Send) -> None:
    """Nobody completed it; to complete it now, by a message handed out before, ends nothing."""
    send(*"abcd")
    consumer, came = make(completion="explicit"), Callback(lambda *_: None)
    consumer.assign([ORDERS])
    first, *held = poll_some(consumer, 4)
    consumer.complete(first)
    consumer.subscribe(["orders"], on_assign=came)
    again = wait_for(consumer, lambda: came.calls > 0, "the group's assignment")

    again += poll_quiet(consumer)
    assert values(again) == list("bcd")
    for message in held:
        consumer.complete(message)
    assert consumer.counters.stale == 3
    assert all(consumer.holds(message) for message in again)


def test_a_group_takes_the_place_of_what_was_assigned_by_hand(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Ready messages of it are handed out no more, completed ones are committed, and its store is closed.

    Another member may have it.
    """
    send(*numbers(0, 500))
    consumer, came = make(), Callback(lambda *_: None)
    consumer.assign([ORDERS])
    got = values(poll_some(consumer, 3))
    consumer.subscribe(["pairs"], on_assign=came)
    while not came.calls:
        # A slow handler: ready messages last.
        got += values([message for message in [consumer.poll(0.05)] if message is not None])
        sleep(0.05)
    assert len(got) < 500

    assert values(poll_quiet(consumer)) == []
    assert_held_as_the_client_says(consumer)
    assert committed(kafka.bootstrap, "g", "orders").offset == len(got)
    send("x", topic="pairs")
    assert values(poll_quiet(consumer)) == ["x"]
    consumer.close()
    assert got + values(poll_quiet(make("orders"))) == numbers(0, 500)


def until_the_group_assigns(consumer: DedupConsumer, kafka: MockKafka, error: int) -> list[str]:
    """Answer the member's heartbeats with an error until it has joined anew.

    One that comes while it joins says nothing to it.
    """
    got: list[str] = []
    until, again = monotonic() + PATIENCE_S, 0.0
    while not has_orders(consumer):
        if monotonic() > again:
            kafka.push_errors("Heartbeat", error, 1)
            again = monotonic() + 5.0
        message = consumer.poll(0.05)
        got += [] if message is None else values([message])
        assert monotonic() < until, "the group assigns nothing"
    return got


def by_rebalance(consumer: DedupConsumer, kafka: MockKafka) -> list[str]:
    """The group takes its partitions away, and gives them again."""
    return until_the_group_assigns(consumer, kafka, KafkaError.REBALANCE_IN_PROGRESS)


def by_loss(consumer: DedupConsumer, kafka: MockKafka) -> None:
    """The group has put this member out."""
    until_the_group_assigns(consumer, kafka, KafkaError.UNKNOWN_MEMBER_ID)


def by_unsubscribing(consumer: DedupConsumer, _: MockKafka) -> None:
    """The member leaves."""
    consumer.unsubscribe()
    wait_for(consumer, lambda: not consumer.assignment(), "the end of the assignment")


@pytest.mark.parametrize("how", [by_rebalance, by_loss, by_unsubscribing])
def test_what_was_assigned_by_hand_goes_with_what_the_group_assigned(
    make: Make, send: Send, kafka: MockKafka, how: Callable[[DedupConsumer, MockKafka], object]
) -> None:
    """The eager protocol takes everything away: partitions assigned meanwhile are given back too."""
    known_to_the_group(make, send)
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 3)
    consumer.assign([PAIRS])
    assert values(poll_some(consumer, 1)) == ["y"]
    poll_quiet(consumer)
    how(consumer, kafka)

    assert_held_as_the_client_says(consumer)
    send("z", topic="pairs")
    assert "z" not in values(poll_quiet(consumer, 1.0) if consumer.assignment() else [])
    consumer.close()
    assert values(poll_quiet(make("pairs"))) == ["z"]


def test_a_rebalance_gives_again_what_was_let_go_by_hand(make: Make, send: Send, kafka: MockKafka) -> None:
    """Between the two nothing comes; afterwards all but completed messages."""
    send(*"abcd")
    consumer = make("orders", completion="explicit")
    consumer.complete(poll_some(consumer, 2)[0])
    consumer.unassign()
    assert consumer.poll(0.3) is None
    got = by_rebalance(consumer, kafka)

    assert got + values(poll_quiet(consumer)) == list("bcd")
    assert_held_as_the_client_says(consumer)


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_another_subscription_ends_what_the_group_assigned(make: Make, send: Send, protocol: str) -> None:
    """Messages of the new topic come, those of the old one go on where they ended when it is subscribed to again."""
    send(*numbers(0, 20))
    send("x", topic="pairs")
    consumer, came = make(config={"partition.assignment.strategy": protocol}), Callback(lambda *_: None)
    consumer.subscribe(["orders"])
    got = values(poll_some(consumer, 3))
    consumer.subscribe(["pairs"], on_assign=came)
    got += values(wait_for(consumer, lambda: came.calls > 0, "the group's assignment"))
    got += values(poll_quiet(consumer))
    assert_held_as_the_client_says(consumer)
    consumer.subscribe(["orders"])
    got += values(wait_for(consumer, lambda: has_orders(consumer), "the old topic"))
    got += values(poll_quiet(consumer))

    assert sorted(got) == sorted([*numbers(0, 20), "x"])


def assign_pairs(consumer: DedupConsumer) -> None:
    """Replace the assignment."""
    consumer.assign([PAIRS])


def let_go(consumer: DedupConsumer) -> None:
    """End the assignment."""
    consumer.unassign()


@pytest.mark.parametrize(
    ("change", "protocol"),
    [(assign_pairs, "cooperative-sticky"), (let_go, "cooperative-sticky")],
)
def test_a_change_that_the_client_refuses_costs_no_message(
    make: Make, send: Send, change: Callable[[DedupConsumer], None], protocol: str
) -> None:
    """The group's protocol does not allow it: the refusal changes nothing, and what is in hand is in hand."""
    send(*"abcd")
    consumer = make("orders", config={"partition.assignment.strategy": protocol}, completion="explicit")
    first, second = poll_some(consumer, 2)
    consumer.complete(first)
    with pytest.raises(KafkaException, match="_STATE"):
        change(consumer)

    assert consumer.holds(second)
    assert values(poll_quiet(consumer)) == list("cd")
    assert_held_as_the_client_says(consumer)


def test_a_part_that_the_client_does_not_let_go_stays_as_it_is(make: Make, send: Send) -> None:
    """The eager protocol knows no parts: the refusal changes nothing, and what is in hand is in hand."""
    send(*"abcd")
    consumer = make("orders", config={"partition.assignment.strategy": "range"}, completion="explicit")
    first, second = poll_some(consumer, 2)
    consumer.complete(first)
    with pytest.raises(KafkaException, match="_STATE"):
        consumer.incremental_unassign([ORDERS])

    assert consumer.holds(second)
    assert values(poll_quiet(consumer)) == list("cd")
    assert_held_as_the_client_says(consumer)
