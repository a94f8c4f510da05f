"""The messages that a commit vouches for.

At the offset and by the rule it was written for, and above that offset for completed messages.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk import LastId, Lookup, MemoryStore, Recovery, Window, header
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk.errors import StoreLockedError
from dedup_sdk.ids import key
from dedup_sdk.orders import integer
from tests.mock.conftest import QUICK_CLIENT
from tests.support.consuming import (
    commit_plainly,
    committed,
    lookup,
    make_consumer,
    numbers,
    poll_quiet,
    poll_some,
    values,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def copy_the_text(consumer: DedupConsumer, by: int) -> None:
    """Move the group as scripts do: ask for its offset, add to it, and commit that, with the text that came along.

    The mock cluster takes it from a member only.
    """
    consumer.commit(asynchronous=False)
    [now] = Consumer.committed(consumer, [TopicPartition("orders", 0)], timeout=10)
    now.offset += by
    Consumer.commit(consumer, offsets=[now], asynchronous=False)


@pytest.mark.parametrize("same_disk", [True, False])
def test_a_text_copied_forward_hides_nothing(make: Make, send: Send, *, same_disk: bool) -> None:
    """Ten messages were skipped, nobody handled them: sent again, each is delivered."""
    send(*numbers(0, 10))
    with make("orders") as consumer:
        poll_some(consumer, 10)
        assert poll_quiet(consumer) == []
        send(*numbers(10, 20))
        copy_the_text(consumer, 10)
    send(*numbers(10, 20), "new")
    again = make("orders") if same_disk else make("orders", store=MemoryStore())
    assert values(poll_quiet(again)) == [*numbers(10, 20), "new"]
    assert again.counters.verdicts["unverified"] == 11


def test_a_text_copied_backward_is_a_rewind(make: Make, send: Send) -> None:
    """The operator wants the last five again, and gets them, as doubtful as after any tool."""
    send(*numbers(0, 10))
    with make("orders") as consumer:
        poll_some(consumer, 10)
        assert poll_quiet(consumer) == []
        copy_the_text(consumer, -5)
    again = make("orders")
    assert values(poll_quiet(again)) == numbers(5, 10)
    assert again.counters.verdicts["redelivered"] == 0


def test_a_group_that_was_set_back_is_so_for_every_host(make: Make, send: Send, kafka: MockKafka) -> None:
    """A tool without texts sets it back.

    Another host goes on for a while before the one that had handled all of it comes back.
    """
    all_of_it, options = MemoryStore(), dict[str, Any](completion="explicit")
    send(*numbers(0, 20))
    with make("orders", store=all_of_it, **options) as first:
        complete_all_but(first, 20, set())
        first.commit(asynchronous=False)
        Consumer.commit(first, offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    with make("orders", store=MemoryStore(), **options) as other:
        complete_all_but(other, 5, set())
        other.commit(asynchronous=False)
    stands = committed(kafka.bootstrap, "g", "orders").offset
    assert 3 < stands < 20
    again = make("orders", store=all_of_it, **options)
    assert values(poll_quiet(again)) == numbers(stands, 20)


def sent_twice(kafka: MockKafka) -> None:
    """Customer 1 orders A, then B: by the key B is a duplicate, by the order's ID it is not."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for order in ("A", "B"):
        producer.produce("orders", order, key="customer-1", headers={"order-id": order}, partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("same_disk", [True, False])
def test_what_another_id_spec_hid_was_not_handled(
    make: Make, kafka: MockKafka, tmp_path: Path, *, same_disk: bool
) -> None:
    """The next version reads another ID: B, sent again, is delivered, because nobody ever handled it."""
    sent_twice(kafka)
    with make("orders", dedup=Lookup(id=key(), window=Window(days=7)), store=tmp_path / "one") as before:
        assert values(poll_quiet(before)) == ["A"]
    sent_twice(kafka)
    now = Lookup(id=header("order-id"), window=Window(days=7))
    after = make("orders", dedup=now, store=tmp_path / ("one" if same_disk else "two"))
    assert values(poll_quiet(after)) == ["A", "B"]
    assert after.counters.verdicts["unverified"] == 2
    after.close()
    again = make("orders", dedup=now, store=tmp_path / "three")
    sent_twice(kafka)
    assert values(poll_quiet(again)) == []


def test_nobody_vouches_for_what_another_id_spec_hid(make: Make, kafka: MockKafka) -> None:
    """The text lies beside another offset, as after a mirror's tool, and is void.

    By which rule the group went is believed all the same.
    """
    sent_twice(kafka)
    with make("orders", dedup=Lookup(id=key(), window=Window(days=7)), store=MemoryStore()) as before:
        assert values(poll_quiet(before)) == ["A"]
        sent_twice(kafka)
        copy_the_text(before, 1)
    sent_twice(kafka)
    now = Lookup(id=header("order-id"), window=Window(days=7))
    after = make("orders", dedup=now, store=MemoryStore(), recovery=Recovery(history="assume-processed"))
    assert "B" in values(poll_quiet(after))


HIDDEN_BY: dict[str, tuple[LastId | Lookup, LastId | Lookup]] = {
    "strategy": (
        LastId(id=header("dedup-id"), order=integer(), reorder_depth=0, below_floor="discard"),
        lookup(),
    ),
    "kind of window": (lookup(window=Window(count=2)), lookup()),
    "no window by time any more": (lookup(), lookup(window=Window(count=1_000))),
}


@pytest.mark.parametrize("changed", HIDDEN_BY)
def test_nobody_vouches_across_a_strategy_or_a_kind_of_window(make: Make, send: Send, changed: str) -> None:
    """Messages before were judged by the other rule, hidden or handled.

    Sent again, all of it is delivered, as unverified.
    """
    before, now = HIDDEN_BY[changed]
    send("5", "6")
    with make("orders", dedup=before, store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == ["5", "6"]
        send("4", "6")
        assert values(poll_quiet(consumer)) == ([] if isinstance(before, LastId) else ["4"])
        send("7")
        copy_the_text(consumer, 1)
    send("4", "5", "6", "7")
    after = make("orders", dedup=now, store=MemoryStore(), recovery=Recovery(history="assume-processed"))
    assert values(poll_quiet(after)) == ["4", "5", "6", "7"]
    assert after.counters.verdicts["unverified"] == 4


def test_whoever_keeps_the_rule_may_vouch_beyond_a_void_text(make: Make, send: Send) -> None:
    """The counterpart: the same rule, the same copied text, and the user's word counts."""
    send("5", "6")
    with make("orders", store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == ["5", "6"]
        send("7")
        copy_the_text(consumer, 1)
    send("5", "6", "7", "8")
    after = make("orders", store=MemoryStore(), recovery=Recovery(history="assume-processed"))
    assert values(poll_quiet(after)) == ["8"]


def test_what_was_discarded_for_want_of_an_id_was_not_handled(make: Make, send: Send) -> None:
    """Records without the old ID were discarded; by the new one they have one, and come as new."""
    send("a", "b")
    discarding = Lookup(id=header("order-id"), window=Window(days=7), on_missing_id="discard")
    with make("orders", dedup=discarding, store=MemoryStore()) as before:
        assert values(poll_quiet(before)) == []
    send("a", "b")
    after = make("orders", store=MemoryStore())
    assert values(poll_quiet(after)) == ["a", "b"]


def test_what_a_comparison_hid_was_not_handled(make: Make, send: Send) -> None:
    """`LastId` discards a message that comes too late; `Lookup` then delivers it when it is sent again."""
    last = LastId(id=header("dedup-id"), order=integer(), reorder_depth=0, below_floor="discard")
    send("5", "6")
    with make("orders", dedup=last, store=MemoryStore()) as before:
        assert values(poll_quiet(before)) == ["5", "6"]
        send("4")
        assert values(poll_quiet(before)) == []
    send("4")
    after = make("orders", store=MemoryStore())
    assert values(poll_quiet(after)) == ["4"]


STRATEGIES: dict[str, dict[str, Any]] = {
    "time": {"dedup": lookup()},
    "count": {"dedup": lookup(window=Window(count=1_000))},
    "last": {"dedup": LastId(id=header("dedup-id"), order=integer())},
}


def complete_all_but(consumer: DedupConsumer, count: int, open_: set[int]) -> None:
    """Take messages 0 to ``count`` and complete them, all but some."""
    for message in poll_some(consumer, count):
        if int(message.value()) not in open_:
            consumer.complete(message)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_hand_over_doubles_nothing_that_was_completed_out_of_order(
    make: Make, send: Send, strategy: str
) -> None:
    """Two messages of 200 keep failing.

    The next owner, on another disk, gets these two, and knows the marks of all others.
    """
    options = {**STRATEGIES[strategy], "completion": "explicit"}
    send(*numbers(0, 200))
    with make("orders", store=MemoryStore(), **options) as first:
        complete_all_but(first, 200, {0, 77})
    second = make("orders", store=MemoryStore(), **options)
    assert values(poll_quiet(second)) == ["0", "77"]
    send("150", "199", "200")
    assert values(poll_quiet(second)) == ["200"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_commit_of_the_users_tells_what_is_completed_above_it(
    make: Make, send: Send, *, asynchronous: bool
) -> None:
    """The message in front keeps failing, so that the offset stays where it was.

    The next owner is told of all others.
    """
    options: dict[str, Any] = {"completion": "explicit", "config": {"enable.auto.commit": False}}
    send(*numbers(0, 50))
    with make("orders", store=MemoryStore(), **options) as first:
        messages = poll_some(first, 50)
        for message in messages[:5]:
            first.complete(message)
        first.commit(asynchronous=False)
        for message in messages[6:]:
            first.complete(message)
        first.commit(asynchronous=asynchronous)
        assert poll_quiet(first) == []
    second = make("orders", store=MemoryStore(), **options)
    assert values(poll_quiet(second)) == ["5"]


def test_a_commit_with_nothing_new_says_so(make: Make, send: Send) -> None:
    """As the plain client does, also where something is completed above the offset and was told before."""
    send(*numbers(0, 10))
    consumer = make("orders", completion="explicit", config={"enable.auto.commit": False})
    complete_all_but(consumer, 10, {5})
    consumer.commit(asynchronous=False)
    with pytest.raises(KafkaException) as raised:
        consumer.commit(asynchronous=False)
    assert raised.value.args[0].code() == KafkaError._NO_OFFSET


def test_what_was_handed_over_travels_on(make: Make, send: Send) -> None:
    """The next owner goes before it has read all of it, and so does the one after it."""
    options: dict[str, Any] = {"completion": "explicit"}
    send(*numbers(0, 200))
    with make("orders", store=MemoryStore(), **options) as first:
        complete_all_but(first, 200, {0})
    for _ in range(2):
        with make("orders", store=MemoryStore(), **options) as another:
            assert values(poll_some(another, 1)) == ["0"]
    last = make("orders", store=MemoryStore(), **options)
    assert values(poll_quiet(last)) == ["0"]


def test_thousands_of_completions_travel(make: Make, send: Send) -> None:
    """With unfinished ones at random among them, over several batches: the next owner gets just these."""
    count = 5_200
    open_ = set(Random(7).sample(range(count), 200))
    options: dict[str, Any] = {"completion": "explicit"}
    send(*numbers(0, count))
    with make("orders", store=MemoryStore(), **options) as first:
        complete_all_but(first, count, open_)
        assert first.counters.left_out == 0
    second = make("orders", store=MemoryStore(), **options)
    assert {int(each) for each in values(poll_some(second, 200))} == open_
    assert poll_quiet(second) == []


def test_a_broker_that_takes_no_long_texts_gets_short_ones(make: Make, send: Send, kafka: MockKafka) -> None:
    """The commit counts all the same; completions missing in the text are handled again, and counted."""
    options: dict[str, Any] = {"completion": "explicit", "config": {"auto.commit.interval.ms": 60_000}}
    send(*numbers(0, 10))
    with make("orders", store=MemoryStore(), **options) as first:
        complete_all_but(first, 10, {5})
        kafka.push_errors("OffsetCommit", KafkaError.OFFSET_METADATA_TOO_LARGE, 1)
    assert committed(kafka.bootstrap, "g", "orders").offset == 5
    assert first.counters.left_out == 4
    second = make("orders", store=MemoryStore(), **options)
    assert values(poll_quiet(second)) == numbers(5, 10)


def test_the_text_of_another_group_vouches_for_nothing(make: Make, send: Send, kafka: MockKafka) -> None:
    """A script clones a group, offset and text: messages only the old group handled come, and hide no copies."""
    send(*numbers(0, 10))
    with make("orders", store=MemoryStore(), completion="explicit") as first:
        complete_all_but(first, 10, {5})
    now = committed(kafka.bootstrap, "g", "orders")
    assert now.offset == 5
    commit_plainly(kafka.bootstrap, "another", "orders", now.offset, metadata=now.metadata or "")
    send("1", "2", "new")
    with make_consumer(kafka.bootstrap, "another", MemoryStore(), QUICK_CLIENT) as second:
        second.subscribe(["orders"])
        assert values(poll_quiet(second)) == [*numbers(5, 10), "1", "2", "new"]
        assert second.counters.verdicts["unverified"] == 8


def test_the_text_of_another_partition_vouches_for_nothing(make: Make, send: Send) -> None:
    """A script takes the wrong row, at an equal offset."""
    for partition in (0, 1):
        send(*numbers(100 * partition, 100 * partition + 10), topic="pairs", partition=partition)
    first = make("pairs", store=MemoryStore())
    assert len(poll_some(first, 20)) == 20
    assert poll_quiet(first) == []
    first.commit(asynchronous=False)
    [now] = Consumer.committed(first, [TopicPartition("pairs", 0)], timeout=10)
    Consumer.commit(first, offsets=[TopicPartition("pairs", 1, now.offset, now.metadata)], asynchronous=False)
    first.close()
    send("101", "102", topic="pairs", partition=1)
    second = make("pairs", store=MemoryStore())
    assert values(poll_quiet(second)) == ["101", "102"]
    assert second.counters.verdicts["unverified"] == 2


def test_a_store_of_another_rule_that_somebody_opens_meanwhile_is_waited_for(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is locked between the look at it and the moment it is set aside.

    The loop goes on, and it is set aside later.
    """
    send("a")
    with make("orders", store=tmp_path) as first:
        assert values(poll_some(first, 1)) == ["a"]
    real, tries = Deduplicator.set_aside, []

    def locked(self: Deduplicator, *place: Any, **more: Any) -> Any:
        tries.append(place)
        if len(tries) == 1:
            raise StoreLockedError("the store is open in another process")
        return real(self, *place, **more)

    monkeypatch.setattr(Deduplicator, "set_aside", locked)
    send("b")
    second = make("orders", store=tmp_path, dedup=lookup(id=key()))
    assert values(poll_some(second, 1)) == ["b"]
    assert len(tries) == 2
