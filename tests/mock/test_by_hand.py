"""Partitions that the user assigned, beside those of the group or instead of them: as with the plain client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import MemoryStore
from tests.support.consuming import committed, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS, PAIRS = TopicPartition("orders", 0), TopicPartition("pairs", 0)
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@pytest.fixture(params=["by hand first", "by hand last"])
def both(request: pytest.FixtureRequest, make: Make, send: Send) -> DedupConsumer:
    """A consumer that has "orders" from its group and "pairs" by hand, and has handled a message of each."""
    send("a")
    send("p", topic="pairs")
    consumer = make(config=COOPERATIVE)
    if request.param == "by hand first":
        consumer.incremental_assign([PAIRS])
        poll_some(consumer, 1)
        consumer.subscribe(["orders"])
        poll_some(consumer, 1)
    else:
        consumer.subscribe(["orders"])
        poll_some(consumer, 1)
        consumer.incremental_assign([PAIRS])
        poll_some(consumer, 1)
    assert poll_quiet(consumer) == []
    return consumer


def test_what_was_assigned_by_hand_stays_when_the_group_goes(both: DedupConsumer, send: Send) -> None:
    """It delivers on, each message once; the group's assignment does not."""
    both.unsubscribe()
    send("b")
    send("q", "p", "r", topic="pairs")
    assert values(poll_some(both, 2)) == ["q", "r"]
    assert poll_quiet(both) == []
    assert both.assignment() == [PAIRS]
    send("s", topic="pairs")
    assert values(poll_some(both, 1)) == ["s"]


def test_what_is_in_hand_when_the_group_goes(both: DedupConsumer, make: Make, send: Send) -> None:
    """Of the group's partition it comes again to its next owner.

    Of the other one nothing comes twice, and nothing is left out.
    """
    send("b", "c")
    send(*"qrstu", topic="pairs")
    got: list[Any] = []
    while not {"b", "q"} <= set(values(got)):
        got += poll_some(both, 1)
    last = values(got)[-1]
    both.unsubscribe()
    got += poll_quiet(both)
    assert [value for value in values(got) if value in "qrstu"] == list("qrstu")
    both.close()

    again = values(poll_quiet(make("orders")))
    assert last in again if last in "bc" else "c" in again or "c" in values(got)


@pytest.mark.timeout(45)  # less than the minute that `close` may wait for a group: nothing here is waited for
@pytest.mark.parametrize("close", [True, False])
def test_both_are_committed(both: DedupConsumer, kafka: MockKafka, *, close: bool) -> None:
    """The group's while it takes that."""
    if close:
        both.close()
    else:
        both.unsubscribe()
        wait_for(both, lambda: both.assignment() == [PAIRS], "the group's partition to go")
        both.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 1
    assert committed(kafka.bootstrap, "g", "pairs").offset == 1


@pytest.mark.parametrize("why", ["left", "others", "others come later"])
def test_the_group_accepts_no_commits_of_what_was_assigned_by_hand(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture, *, why: str
) -> None:
    """Because the consumer has left, or is not a member beside others: the messages come all the same."""

    def told() -> int:
        return sum(getattr(each, "event", "") == "commits-not-accepted" for each in caplog.records)

    send("a", "b", "a", topic="pairs")
    send("o")
    member = make(store=MemoryStore())
    consumer = make(store=MemoryStore()) if why != "left" else member
    if why != "others come later":
        member.subscribe(["orders"])
        poll_some(member, 1)
    if why == "left":
        member.unsubscribe()
        wait_for(member, lambda: not member.assignment(), "the group's partition to go")
        member.poll(1)
    consumer.assign([PAIRS])
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    assert poll_quiet(consumer) == []
    if why == "others come later":
        assert told() == 0
        member.subscribe(["orders"])
        poll_some(member, 1)
        send("c", topic="pairs")
        assert values(poll_some(consumer, 1)) == ["c"]
    wait_for(consumer, lambda: told() > 0, "the line")
    send("d", topic="pairs")
    assert values(poll_some(consumer, 1)) == ["d"]
    assert poll_quiet(consumer) == []
    assert told() == 1
    assert not any(getattr(each, "event", "") == "commit-refused" for each in caplog.records)


def unassign(consumer: Any, _: Any) -> None:
    """Take none."""
    consumer.unassign()


def assign_none(consumer: Any, _: Any) -> None:
    """Take none."""
    consumer.assign([])


def assign_and_unassign(consumer: Any, partitions: Any) -> None:
    """Take none after all."""
    consumer.assign(partitions)
    consumer.unassign()


@pytest.mark.parametrize("refuse", [unassign, assign_none, assign_and_unassign])
def test_a_callback_may_take_none(make: Make, send: Send, refuse: Callable[[Any, Any], None]) -> None:
    """As with the plain client nothing is read then, until the user assigns something.

    So it is also of partitions assigned by hand before.
    """
    send("a")
    send("p", topic="pairs")
    asked: list[Any] = []

    def on_assign(consumer: Any, partitions: Any) -> None:
        asked.extend(partitions)
        refuse(consumer, partitions)

    consumer = make()
    consumer.assign([PAIRS])
    poll_some(consumer, 1)
    consumer.subscribe(["orders"], on_assign=on_assign)
    assert wait_for(consumer, lambda: asked == [ORDERS], "an assignment") == []
    assert consumer.assignment() == []
    assert consumer.poll(1) is None
    assert consumer.partition_statuses == []

    consumer.assign([ORDERS, PAIRS])
    send("q", topic="pairs")
    assert sorted(values(poll_quiet(consumer))) == ["a", "q"]


def test_a_callback_that_takes_them_after_all(make: Make, send: Send) -> None:
    """The last word counts."""

    def on_assign(consumer: Any, partitions: Any) -> None:
        consumer.unassign()
        consumer.assign(partitions)

    send("a")
    consumer = make()
    consumer.subscribe(["orders"], on_assign=on_assign)
    assert values(poll_quiet(consumer)) == ["a"]


def test_a_refused_change_in_a_callback_costs_nothing(make: Make, send: Send) -> None:
    """In the cooperative protocol the client refuses it: the error is raised, and the group's assignment holds."""
    send("a")
    consumer = make(config=COOPERATIVE)
    consumer.subscribe(["orders"], on_assign=unassign)
    with pytest.raises(KafkaException, match="_STATE"):
        wait_for(consumer, lambda: False, "an error")
    assert values(poll_quiet(consumer)) == ["a"]


def test_what_is_assigned_anew_in_an_open_transaction_delivers_behind_it(make: Make, send: Send) -> None:
    """Where its history begins is not committed before the transaction has ended, and is then."""
    send(*"abcde")
    consumer = make(config={"enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    got = poll_some(consumer, 2)
    consumer.transaction_offsets(got)
    consumer.assign([TopicPartition("orders", 0, 3)])
    for _ in range(10):
        assert consumer.poll(0.1) is None
    consumer.transaction_aborted(got)

    assert values(poll_some(consumer, 2)) == ["d", "e"]
