"""Rebalance callbacks that wait for threads of the application, and the commit before a member leaves."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

JOIN_S = 40.0


def call_back(consumer: DedupConsumer, callback: Callable[[], object]) -> None:
    """As if the client called back while it polls."""
    lock = inside.lock_of(consumer)

    def called() -> None:
        with lock.in_callback():
            callback()

    lock.call_client(called)


class Helper:
    """A thread of the application that does one thing when a callback waits for it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self.ended: list[bool] = []

    def join(self, *_: object) -> None:
        """A callback: begins the work, and waits for its end."""
        self._thread.start()
        self._thread.join(JOIN_S)
        self.ended.append(not self._thread.is_alive())


def complete_all(consumer: Any, messages: list[Any]) -> None:
    """Complete messages, one after the other."""
    for message in messages:
        consumer.complete(message)


def test_on_revoke_may_wait_for_threads_that_complete(make: Make, send: Send, kafka: MockKafka) -> None:
    """A callback that joins the workers sees them end, and their completions of meanwhile are committed."""
    send("a", "b", "c")
    consumer = make(completion="explicit")
    held: list[Any] = []
    helper = Helper(lambda: complete_all(consumer, held))
    consumer.subscribe(["orders"], on_revoke=helper.join)
    held += poll_some(consumer, 2)
    consumer.close()

    assert helper.ended == [True]
    assert committed(kafka.bootstrap, "g", "orders").offset == 2
    assert values(poll_quiet(make("orders"))) == ["c"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_on_revoke_may_wait_for_threads_that_commit(
    make: Make, send: Send, kafka: MockKafka, *, asynchronous: bool
) -> None:
    """Nobody waits for the other: the commit is noted, and goes out with the partition."""
    send("a", "b", "c")
    consumer = make(config={"enable.auto.commit": False})
    held: list[Any] = []
    answers: list[Any] = []
    helper = Helper(lambda: answers.append(consumer.commit(held[0], asynchronous=asynchronous)))
    consumer.subscribe(["orders"], on_revoke=helper.join)
    held += poll_some(consumer, 2)
    consumer.close()

    assert helper.ended == [True]
    assert [None if answer is None else answer[0].offset for answer in answers] == [
        None if asynchronous else 1
    ]
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_a_commit_noted_for_a_partition_that_stays_goes_out_later(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A callback that is not about the partition ends first.

    Then noted offsets are committed, and no more than those.
    """
    send("a", "b", "c")
    consumer = make(config={"enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0)])
    held = poll_some(consumer, 3)
    helper = Helper(lambda: consumer.commit(held[1], asynchronous=False))
    call_back(consumer, helper.join)

    assert helper.ended == [True]
    assert committed(kafka.bootstrap, "g", "orders").offset == 0
    wait_for(consumer, lambda: committed(kafka.bootstrap, "g", "orders").offset > 0, "the noted commit")
    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_a_seek_while_a_callback_runs_is_done_afterwards(make: Make, send: Send) -> None:
    """A thread that a callback waits for may seek; of a partition that is not ours it is an error, as ever."""
    send("a", "b", "c")
    consumer = make()
    consumer.assign([TopicPartition("orders", 0)])
    poll_some(consumer, 3)
    refused: list[int] = []

    def seek() -> None:
        consumer.seek(TopicPartition("orders", 0, 1))
        try:
            consumer.seek(TopicPartition("pairs", 0, 1))
        except KafkaException as error:
            refused.append(error.args[0].code())

    helper = Helper(seek)
    call_back(consumer, helper.join)

    assert helper.ended == [True]
    assert refused == [KafkaError._STATE]
    assert values(poll_some(consumer, 2)) == ["b", "c"]


def test_on_assign_may_wait_for_threads_that_ask(make: Make, send: Send) -> None:
    """A thread that asks the consumer something while partitions come is not locked out."""
    send("a")
    consumer = make()
    helper = Helper(lambda: consumer.position([]))
    consumer.subscribe(["orders"], on_assign=helper.join)

    assert values(poll_some(consumer, 1)) == ["a"]
    assert helper.ended == [True]


def test_what_is_completed_from_on_lost_on_is_stale(make: Make, send: Send, kafka: MockKafka) -> None:
    """The partition has another owner: its workers end, and their completions are neither written nor committed."""
    send("a", "b")
    consumer = make(completion="explicit")
    held: list[Any] = []
    helper = Helper(lambda: complete_all(consumer, held))
    consumer.subscribe(["orders"], on_lost=helper.join)
    held += poll_some(consumer, 1)
    kafka.push_errors("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID, 1)
    wait_for(consumer, lambda: bool(helper.ended), "the loss")

    assert helper.ended == [True]
    assert consumer.counters.stale == 1
    assert values(poll_some(consumer, 1)) == ["a"]
    assert committed(kafka.bootstrap, "g", "orders").offset == 0


def test_the_group_hears_from_a_slow_handler_without_locking_threads_out(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks may also run while there is enough to hand out: threads can complete there too."""
    ids = [f"{number:02}" for number in range(50)]
    send(*ids)
    consumer = make("orders", completion="explicit")
    held = poll_some(consumer, 1)
    while not inside.ready(consumer):
        held += poll_some(consumer, 1)
    helper = Helper(lambda: consumer.complete(held[0]))
    fetcher = inside.fetcher_of(consumer)
    real = fetcher.listen

    def listen(wait_s: float) -> None:
        if not helper.ended:
            helper.join()
        real(wait_s)

    monkeypatch.setattr(fetcher, "listen", listen)
    inside.let_time_pass(consumer)

    assert values(poll_some(consumer, 1)) == [ids[len(held)]]
    assert helper.ended == [True]


@pytest.mark.parametrize("leave", ["close", "unsubscribe"])
def test_a_member_that_leaves_in_a_rebalance_commits_first(
    make: Make, send: Send, kafka: MockKafka, leave: str
) -> None:
    """A group that takes no commits just then is asked again before the member goes: nothing comes twice for that."""
    send("a", "b", "c")
    consumer = make("orders")
    poll_some(consumer, 3)
    kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 3)
    getattr(consumer, leave)()

    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_a_group_that_does_not_settle_is_not_waited_for_long(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """The revoke deadline bounds it; uncommitted messages come again where the disk does not know it."""
    send("a", "b", "c")
    consumer = make("orders", revoke_deadline=0.5)
    poll_some(consumer, 3)
    kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 1_000)
    began = time.monotonic()
    consumer.close()

    assert time.monotonic() - began < PATIENCE_S / 2
    kafka.clear_errors("OffsetCommit")
    assert committed(kafka.bootstrap, "g", "orders").offset == 0


def test_a_callback_may_wait_for_threads_that_ask(make: Make, send: Send) -> None:
    """A thread that commits in a transaction asks for the group's metadata, others for offsets; all get an answer."""
    send("a")
    place = TopicPartition("orders", 0)
    consumer = make()
    answers: dict[str, Any] = {}

    def ask() -> None:
        answers["member"] = consumer.memberid()
        answers["metadata"] = consumer.consumer_group_metadata()
        answers["assigned"] = consumer.assignment()
        answers["committed"] = consumer.committed([place], PATIENCE_S)
        answers["end"] = consumer.get_watermark_offsets(place, PATIENCE_S, cached=True)

    helper = Helper(ask)
    consumer.subscribe(["orders"], on_revoke=helper.join)
    poll_some(consumer, 1)
    member = consumer.memberid()
    consumer.close()
    assert helper.ended == [True]
    assert answers.pop("metadata") is not None
    assert answers == {"member": member, "assigned": [place], "committed": [place], "end": (0, 1)}


def test_credentials_of_another_thread_reach_the_client_after_the_callback(make: Make, send: Send) -> None:
    """A callback may wait for the thread that renews them: nothing hangs, and messages come."""
    send("a")
    consumer = make()
    helper = Helper(lambda: consumer.set_sasl_credentials("shop", "new"))
    consumer.subscribe(["orders"], on_assign=helper.join)
    assert values(poll_some(consumer, 1)) == ["a"]
    assert helper.ended == [True]
