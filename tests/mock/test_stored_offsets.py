"""``enable.auto.offset.store=false``.

``store_offsets`` says which messages are handled, as in the plain client's careful loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, poll_quiet, poll_some, run_all, values, wait_for

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

STORED: dict[str, Any] = {"enable.auto.offset.store": False, "auto.commit.interval.ms": 50}
NEVER = 3_600_000


def offset_of(kafka: MockKafka) -> int:
    """The offset that group "g" has committed of orders[0]."""
    return committed(kafka.bootstrap, "g", "orders").offset


def test_what_was_gathered_and_not_stored_comes_again(make: Make, send: Send, kafka: MockKafka) -> None:
    """A loop that gathers, writes and then stores offsets loses nothing when it ends before the write."""
    send("a", "b", "c", "d")
    dying = make("orders", config={**STORED, "enable.auto.commit": True})
    assert values(poll_some(dying, 3)) == ["a", "b", "c"]
    poll_quiet(dying)
    assert offset_of(kafka) == 0
    dying.close()

    assert offset_of(kafka) == 0
    assert values(poll_some(make("orders", config=STORED), 4)) == ["a", "b", "c", "d"]


def test_leaving_the_block_in_order_completes_nothing_unsaid(make: Make, send: Send) -> None:
    """The end of a ``with`` block stores no offsets either."""
    send("a", "b")
    with make("orders", config=STORED) as consumer:
        first, _ = poll_some(consumer, 2)
        consumer.store_offsets(first)

    assert values(poll_quiet(make("orders"))) == ["b"]


def test_stored_offsets_are_committed_on_the_interval(make: Make, send: Send, kafka: MockKafka) -> None:
    """Stored offsets are committed without a call, up to there and no further, and its twins are duplicates then."""
    send("a", "b", "c", "a")
    consumer = make("orders", config=STORED)
    first = poll_some(consumer, 3)
    consumer.store_offsets(message=first[1])

    wait_for(consumer, lambda: offset_of(kafka) == 2, "a commit of what was stored")
    consumer.store_offsets(offsets=[TopicPartition("orders", 0, 3)])
    wait_for(consumer, lambda: offset_of(kafka) == 4, "a commit past the duplicate")
    assert consumer.counters.verdicts["duplicate"] == 1


def test_a_commit_of_everything_takes_only_what_was_stored(make: Make, send: Send, kafka: MockKafka) -> None:
    """commit() means the stored offsets, as with the plain client; one that names a message completes up to it."""
    send("a", "b", "c")
    consumer = make("orders", config={"enable.auto.offset.store": False, "enable.auto.commit": False})
    batch = poll_some(consumer, 3)

    with pytest.raises(KafkaException) as caught:
        consumer.commit(asynchronous=False)
    assert caught.value.args[0].code() == KafkaError._NO_OFFSET
    consumer.store_offsets(batch[0])
    consumer.commit(asynchronous=False)
    assert offset_of(kafka) == 1
    consumer.commit(batch[1], asynchronous=False)
    assert offset_of(kafka) == 2


@pytest.mark.parametrize("durability", ["record", "batch"])
def test_what_was_stored_outlives_a_crash(make: Make, send: Send, durability: Any) -> None:
    """Without a commit: at once, or after the next calls for messages, as ``durability`` says."""
    send("a", "b", "c")
    config = {**STORED, "auto.commit.interval.ms": NEVER}
    dying = make("orders", config=config, durability=durability)
    batch = dying.consume(3, PATIENCE_S)
    dying.store_offsets(batch[1])
    if durability == "batch":
        poll_quiet(dying)
    # As a killed process leaves: nothing more is written or committed.
    inside.lose_all(dying)

    again = make("orders", config=config)
    dying.close()
    assert values(poll_some(again, 1)) == ["c"]
    assert again.counters.verdicts["redelivered"] == 2


def test_handlers_of_run_need_not_store(make: Make, send: Send, kafka: MockKafka) -> None:
    """In run() a message is completed when its handler returns, whatever the offsets say."""
    send("a", "b")
    consumer = make("orders", config=STORED)
    run_all(consumer, lambda _: None)
    consumer.close()

    assert offset_of(kafka) == 2
