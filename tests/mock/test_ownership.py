"""Who may end a record, and until when: epochs, lost partitions, and the deadline of a revoke."""

from __future__ import annotations

import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import ConfigurationError
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.recover import scheduler
from tests.support import inside
from tests.support.consuming import PATIENCE_S, active, committed, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

HERE = TopicPartition("orders", 0)


def by_hand(make: Make, **options: Any) -> DedupConsumer:
    """A consumer that has taken orders[0] without a group's rebalance."""
    consumer = make(completion="explicit", **options)
    consumer.assign([HERE])
    return consumer


def test_a_handler_that_outlived_its_partition_ends_nothing(make: Make, send: Send, kafka: MockKafka) -> None:
    """The partition went and came back: the old handler's calls do not touch the same record, in flight again."""
    send("a", "b")
    consumer = by_hand(make)
    old = poll_some(consumer, 1)[0]
    consumer.assign([HERE])
    new = poll_some(consumer, 1)[0]
    assert (old.offset(), new.offset()) == (0, 0)

    consumer.release(old)
    consumer.complete(old)
    assert consumer.counters.stale == 2
    assert consumer.counters.released == 0
    consumer.commit(asynchronous=False, offsets=[TopicPartition("orders", 0, 2)])
    assert committed(kafka.bootstrap, "g", "orders").offset == 0

    consumer.complete(new)
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_a_lost_partition_takes_no_marks(make: Make, send: Send, kafka: MockKafka) -> None:
    """A message completed after the loss is counted as stale, and neither written nor committed."""
    send("a", "b")
    consumer = by_hand(make)
    message = poll_some(consumer, 1)[0]
    held = inside.partition_of(consumer)
    inside.lose_all(consumer)

    consumer.complete(message)
    assert held.complete([0]) == []
    assert held.release([0]) == []
    assert consumer.counters.stale == 3
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 0
    assert values(poll_quiet(make("orders"))) == ["a", "b"]


def test_a_message_is_held_until_it_ends_or_its_partition_goes(make: Make, send: Send) -> None:
    """`holds` is true of messages that the application has to handle, and of nothing else.

    It is not true of the same record, handed out anew.
    """
    send("a", "b", "c")
    consumer = by_hand(make)
    done, held, again = poll_some(consumer, 3)
    consumer.complete(done)
    assert [consumer.holds(message) for message in (done, held, again)] == [False, True, True]
    consumer.release(again)
    assert poll_some(consumer, 1)[0] is again
    assert consumer.holds(again)
    consumer.assign([HERE])
    assert [consumer.holds(message) for message in (held, again)] == [False, False]
    new = poll_some(consumer, 2)[0]
    assert new.offset() == held.offset()
    assert (consumer.holds(new), consumer.holds(held)) == (True, False)
    consumer.close()
    assert not consumer.holds(new)


def test_what_waits_in_a_queue_is_not_begun_when_its_partition_goes(make: Make, send: Send) -> None:
    """Workers that ask `holds` before they begin double only the messages that they were in the middle of.

    See docs/completion.md.
    """
    send(*map(str, range(100)))
    consumer = by_hand(make)
    begun: list[Any] = []
    gone = Event()

    def work(message: Any) -> None:
        if consumer.holds(message):
            with consumer.once(message):
                begun.append(message)
                assert gone.wait(PATIENCE_S)

    with ThreadPoolExecutor(4) as pool:
        for message in poll_some(consumer, 100):
            pool.submit(work, message)
        wait_for(consumer, lambda: len(begun) >= 4, "all workers to be busy")
        consumer.unassign()
        gone.set()
    assert len(begun) == 4
    assert consumer.counters.stale == 4


@pytest.mark.parametrize("deadline_s", [0, 0.5])
def test_a_revoke_ends_at_its_deadline(
    make: Make, send: Send, kafka: MockKafka, caplog: pytest.LogCaptureFixture, deadline_s: float
) -> None:
    """A coordinator that does not answer holds the handing over no longer; uncommitted messages come again."""
    send("a", "b")
    consumer = by_hand(make, revoke_deadline=deadline_s)
    consumer.complete(poll_some(consumer, 1)[0])
    kafka.set_broker_down()

    began = time.monotonic()
    consumer.unassign()
    # The client by itself asks for a minute.
    assert time.monotonic() - began < 45
    assert "commit on revoke failed" in caplog.text
    assert ("abandoned after the revoke deadline of 0.0 s" in caplog.text) == (deadline_s == 0)
    kafka.set_broker_up()

    again = by_hand(make)
    assert values(poll_some(again, 1)) == ["b"], "what complete() wrote is known to the disk all the same"
    assert values(poll_quiet(again)) == []


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "30", True])
def test_a_deadline_is_a_length_of_time(make: Make, wrong: Any) -> None:
    """Anything else is refused in one line that names it."""
    with pytest.raises(ConfigurationError, match="revoke_deadline="):
        make(revoke_deadline=wrong)


def test_many_partitions_come_up_to_date_together(
    make: Make, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a rebalance begin to deliver in few groups.

    Only the first of these waits for an answer of their leaders.
    """
    kafka.create_topic("many", partitions=32)
    with make("many") as first:
        wait_for(first, lambda: len(active(first)) == 32, "all partitions of a new group")
    asked: list[int] = []
    wake = Client.wake

    def counted_wake(client: Client, partitions: list[TopicPartition]) -> None:
        asked.append(len(partitions))
        wake(client, partitions)

    # However long the recoveries of a slow machine take.
    monkeypatch.setattr(scheduler, "TOGETHER_S", PATIENCE_S)
    monkeypatch.setattr(Client, "wake", counted_wake)
    second = make("many")
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        wait_for(second, lambda: len(active(second)) == 32, "all partitions of a group that is known")
    found = (re.match(r"ready (\d+) partitions?: ", record.getMessage()) for record in caplog.records)
    groups = [int(line[1]) for line in found if line]
    assert sum(groups) == 32
    assert len(groups) < 10
    assert [count for count in asked if count] == groups[:1]
