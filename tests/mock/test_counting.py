from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import DedupConsumer
from tests.support.consuming import lookup, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send

DELIVERED = "fresh", "unverified", "unkeyed"
ORDERS = TopicPartition("orders", 0)


def delivered(consumer: DedupConsumer) -> int:
    """How many messages the counters call delivered."""
    return sum(consumer.counters.verdicts[kind] for kind in DELIVERED)


def test_a_message_counts_when_it_is_delivered(make: Make, send: Send) -> None:
    """Not when it is judged, ahead, with its batch."""
    send("a", "b", "a", "c", "d")
    consumer = make("orders")
    assert delivered(consumer) == 0
    for count in range(1, 5):
        poll_some(consumer, 1)
        assert delivered(consumer) == count
    assert poll_quiet(consumer) == []
    assert delivered(consumer) == 4
    assert consumer.counters.verdicts["duplicate"] == 1


def test_a_reading_does_not_change(make: Make, send: Send) -> None:
    """The counters of one moment can be compared with those of another."""
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 1)
    before = consumer.counters
    poll_some(consumer, 1)
    assert (before.verdicts["fresh"], consumer.counters.verdicts["fresh"]) == (1, 2)


def test_reasons_count_with_their_verdicts(make: Make, send: Send) -> None:
    """A message without an ID, judged and not delivered yet, is in neither total."""
    send("a", "b", "c")
    consumer = make("orders", dedup=lookup(id="header:other"))
    poll_some(consumer, 1)
    assert consumer.counters.as_dict() | {"unkeyed": 1, "unkeyed.absent": 1} == consumer.counters.as_dict()


def closed(consumer: DedupConsumer) -> None:
    """Its messages are dropped from the batch."""
    consumer.close()


def unsubscribed(consumer: DedupConsumer) -> None:
    """They are dropped before the partitions are revoked."""
    consumer.unsubscribe()
    consumer.close()


def paused(consumer: DedupConsumer) -> None:
    """Its messages are set aside, and dropped from there."""
    consumer.pause([ORDERS])
    closed(consumer)


def paused_for_a_while(consumer: DedupConsumer) -> None:
    """Its messages come back from aside as single ones."""
    consumer.pause([ORDERS])
    consumer.resume([ORDERS])
    closed(consumer)


def moved(consumer: DedupConsumer) -> None:
    """A seek drops what was judged ahead."""
    consumer.seek(TopicPartition("orders", 0, consumer.position([ORDERS])[0].offset))
    closed(consumer)


@pytest.mark.parametrize("left", [closed, unsubscribed, paused, paused_for_a_while, moved])
@pytest.mark.parametrize("completion", ["on-next-call", "explicit"])
def test_the_lives_of_a_group_add_up_to_what_was_delivered(
    make: Make, send: Send, left: Any, completion: str
) -> None:
    """What one life had judged, and did not deliver, the next one counts."""
    send("a", "b", "a", "c", "d", "e")
    first = make("orders", completion=completion)
    early = poll_some(first, 2)
    for message in early if completion == "explicit" else ():
        first.complete(message)

    left(first)

    second = make("orders", completion=completion)
    late = poll_quiet(second)
    assert delivered(first) == len(early) == 2
    assert delivered(second) == len(late)
    assert values(early)[0] == "a"
    assert values(late)[-1] == "e"


def test_a_released_message_counts_once(make: Make, send: Send) -> None:
    """While it waits to be delivered again, it is one that was delivered."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    first = poll_some(consumer, 1)[0]
    consumer.release(first)
    assert delivered(consumer) == 1
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    assert delivered(consumer) == 2


def test_totals_never_go_back(make: Make, send: Send) -> None:
    """Another thread reads them, as an exporter of metrics does, while messages are delivered and dropped."""
    send(*(str(number) for number in range(2_000)))
    consumer = make("orders")
    read, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            read.append(delivered(consumer))

    watching = threading.Thread(target=watch)
    watching.start()
    got = 0
    for number in range(60):
        got += len(poll_some(consumer, 7))
        if number % 20 == 19:
            consumer.seek(TopicPartition("orders", 0, consumer.position([ORDERS])[0].offset))
    consumer.close()
    ended.set()
    watching.join()

    assert read == sorted(read)
    assert delivered(consumer) == got
