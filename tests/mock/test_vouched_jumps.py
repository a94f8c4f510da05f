"""``history="assume-processed"`` vouches for a group that was here before this package, and for no jump of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from dedup_sdk import Recovery
from tests.support.consuming import poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

VOUCHED: dict[str, Any] = {"recovery": Recovery(history="assume-processed")}
FOUR = TopicPartition("orders", 0, 4)


def commits_one(make: Make) -> DedupConsumer:
    """A consumer that has completed and committed the first message."""
    consumer = make("orders", **VOUCHED)
    poll_some(consumer, 1)
    consumer.consume(1, 0.3)
    return consumer


def test_a_seek_forward_vouches_for_nothing(make: Make, send: Send) -> None:
    """Messages that it leaves out are new when sent again."""
    send(*"abcdef")
    consumer = make("orders", **VOUCHED)
    poll_some(consumer, 1)
    consumer.seek(FOUR)
    assert values(poll_some(consumer, 2)) == ["e", "f"]
    send("a", "c")
    assert values(poll_some(consumer, 1)) == ["c"]


def test_an_offset_set_at_the_assignment_vouches_for_nothing(make: Make, send: Send) -> None:
    """Nor does one that the application keeps elsewhere."""
    send(*"abcdef")
    commits_one(make).close()
    consumer = make(**VOUCHED)
    consumer.subscribe(["orders"], on_assign=lambda same, _: same.assign([FOUR]))
    assert values(poll_some(consumer, 2)) == ["e", "f"]
    send("c")
    assert values(poll_some(consumer, 1)) == ["c"]


def test_a_reset_to_the_end_vouches_for_nothing(make: Make, send: Send, kafka: MockKafka) -> None:
    """Messages that the log had lost, or that are skipped behind it."""
    send(*"abcdef")
    commits_one(make).close()
    kafka.delete_records("orders", 0, 3)
    consumer = make("orders", config={"auto.offset.reset": "latest"}, **VOUCHED)
    assert poll_quiet(consumer) == []
    send("e")
    assert values(poll_some(consumer, 1)) == ["e"]
