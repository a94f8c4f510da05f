from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from dedup_sdk import ConfigurationError, MemoryStore, VerdictKind
from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, committed_metadata, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def orders(offset: int) -> TopicPartition:
    """A place in orders[0]."""
    return TopicPartition("orders", 0, offset)


def test_position_is_what_was_handed_out(make: Make, send: Send) -> None:
    """Not messages fetched or judged ahead; hidden duplicates count as soon as they are judged."""
    send("a", "b", "b", "c")
    consumer = make("orders")
    assert consumer.position([orders(0)])[0].offset < 0
    seen = []
    for _ in range(3):
        poll_some(consumer, 1)
        seen.append(consumer.position([orders(0)])[0].offset)

    assert seen == [1, 2, 4]
    assert consumer.position([TopicPartition("pairs", 1)])[0].offset < 0


def test_a_seek_back_hands_out_again(make: Make, send: Send) -> None:
    """Completed messages come again with the verdicts of the first time: the first of each ID, and no duplicate."""
    send("a", "b", "a", "c")
    consumer = make("orders")
    poll_some(consumer, 3)
    poll_quiet(consumer)

    consumer.seek(orders(1))
    again = poll_quiet(consumer)

    assert values(again) == ["b", "c"]
    assert consumer.position([orders(0)])[0].offset == 4
    send("b", "d")
    assert values(poll_quiet(consumer)) == ["d"]


def test_a_seek_to_the_message_in_hand_hands_it_out_again(make: Make, send: Send) -> None:
    """The usual way to try again: those before it in the batch are done, it and those after it come again."""
    send(*"abcde")
    consumer = make("orders")
    at = consumer.consume(4, PATIENCE_S)[2].offset()
    assert at is not None

    consumer.seek(orders(at))

    assert values(poll_some(consumer, 3)) == ["c", "d", "e"]
    assert consumer.counters.verdicts["unverified"] == 0
    send("a", "b")
    assert poll_quiet(consumer) == []


def test_a_seek_forward_begins_the_history_anew(make: Make, send: Send, kafka: MockKafka) -> None:
    """Messages jumped over are not taken for handled, on this machine or another; they are not handed out either."""
    send(*"abcdef")
    consumer = make("orders")
    poll_some(consumer, 1)
    consumer.seek(orders(4))

    assert values(poll_some(consumer, 2)) == ["e", "f"]
    send("a", "c")
    # "a" was handled, and that is known; "c" was jumped over.
    assert values(poll_some(consumer, 1)) == ["c"]
    consumer.close()
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (4, False)


@pytest.mark.parametrize("target", [12, 15, 16])
def test_a_seek_forward_hides_what_is_completed_behind_it(make: Make, send: Send, target: int) -> None:
    """Messages 15 to 17 were completed on another host, before older ones; nothing but the commit tells of them."""
    send(*map(str, range(20)))
    first = make("orders", completion="explicit")
    got = poll_some(first, 20)
    first.complete(*got[:5], *got[15:18])
    first.close()
    second = make("orders", completion="explicit", store=MemoryStore())
    assert values(second.consume(2, PATIENCE_S)) == ["5", "6"]  # and judges no more than these

    second.seek(orders(target))

    assert values(poll_quiet(second)) == [str(each) for each in range(target, 20) if each not in (15, 16, 17)]


def test_a_seek_back_is_recognised_after_a_restart(make: Make, send: Send, kafka: MockKafka) -> None:
    """Messages handed out again and completed are committed, and the next start goes on from there."""
    send(*"abcd")
    consumer = make("orders")
    poll_some(consumer, 4)
    consumer.commit(asynchronous=False)
    consumer.seek(orders(1))
    poll_some(consumer, 2)
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 3
    consumer.close()

    assert values(poll_quiet(make("orders"))) == ["d"]


def test_a_seek_to_the_end_waits_for_what_comes(make: Make, send: Send) -> None:
    """A logical offset means the place where it lies now."""
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 1)
    consumer.seek(orders(OFFSET_END))
    assert poll_quiet(consumer) == []
    send("c")

    assert values(poll_some(consumer, 1)) == ["c"]


def test_a_seek_that_cannot_be_is_refused(make: Make, send: Send) -> None:
    """A partition that is not ours is the client's own error, an offset that is none is ours."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)

    with pytest.raises(KafkaException):
        consumer.seek(TopicPartition("pairs", 0, 0))
    with pytest.raises(ConfigurationError, match="-5"):
        consumer.seek(orders(-5))
    assert poll_quiet(consumer) == []


def test_a_seek_while_a_partition_recovers_counts(make: Make, send: Send) -> None:
    """The seek of an application that does not know of recoveries is not lost."""
    send(*"abcd")
    consumer = make("orders")
    while not consumer.partition_statuses:
        inside.fetcher_of(consumer).listen(0.05)
    assert consumer.partition_statuses[0].state == "recovering"
    consumer.seek(orders(2))

    assert values(poll_some(consumer, 2)) == ["c", "d"]


@pytest.mark.parametrize("target", [0, 1])
def test_a_seek_of_a_new_group_is_its_beginning(
    make: Make, send: Send, kafka: MockKafka, target: int
) -> None:
    """Also before the group has committed anything: messages completed from there on are known to the next start."""
    send(*"abcd")
    consumer = make("orders", config={"enable.auto.commit": False})
    while not consumer.partition_statuses:
        inside.fetcher_of(consumer).listen(0.05)
    while "offsets" in consumer.partition_statuses[0].hindrances:
        # A broker that is slow to say where the group stands: before that nobody knows whether it is new.
        inside.recover(consumer)
    consumer.seek(orders(target))
    consumer.complete(poll_some(consumer, 1)[0])
    assert committed(kafka.bootstrap, "g", "orders").offset == target
    consumer.close()

    assert values(poll_quiet(make("orders"))) == list("abcd"[target + 1 :])


def test_seeking_back_again_and_again_ends(make: Make, send: Send) -> None:
    """A handler that fails several times sees the same messages each time, then goes on."""
    send(*"abc")
    consumer = make("orders")
    seen = []
    for _ in range(3):
        seen.append(values(poll_some(consumer, 3)))
        consumer.seek(orders(0))
    seen.append(values(poll_some(consumer, 3)))

    assert seen == [list("abc")] * 4
    verdict_kinds = {
        consumer.counters.verdicts[kind.value] for kind in (VerdictKind.UNVERIFIED, VerdictKind.DUPLICATE)
    }
    assert verdict_kinds == {0}


def test_a_store_that_completed_nothing_is_of_no_other_log(make: Make, send: Send) -> None:
    """A group that began at the end, and is sought back: nothing could show that its log was replaced."""
    send(*"abc")
    with make("orders") as consumer:
        while not consumer.partition_statuses:
            consumer.poll(0.05)
        consumer.seek(orders(3))
        assert poll_quiet(consumer) == []
        consumer.seek(orders(0))
        assert values(poll_some(consumer, 3)) == list("abc")
        assert consumer.counters.events.get("log-truncated", 0) == 0
