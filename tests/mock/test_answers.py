"""Every assignment, revocation and loss is answered, whatever the callback of the application asks of the client.

The client takes any call of the callback for the answer. Else the group waits for this member, and `close` for the
group.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.support.consuming import committed, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

    Call = Callable[[DedupConsumer, list[TopicPartition]], None]

ORDERS = TopicPartition("orders", 0)
PAIRS = [TopicPartition("pairs", 0), TopicPartition("pairs", 1)]
RANGE = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
KIP_848 = {"group.protocol": "consumer"}
QUICK_S = 5.0
"""Longer than each step here takes, shorter than every deadline."""


def nothing(*_: object) -> None:
    """Leave it to the client."""


def take_away(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
    """What the cooperative protocols want."""
    consumer.incremental_unassign(partitions)


def take_away_one(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
    """A part of that."""
    consumer.incremental_unassign(partitions[:1])


def take_away_others(consumer: DedupConsumer, _: list[TopicPartition]) -> None:
    """Partitions that are not assigned."""
    consumer.incremental_unassign([ORDERS])


def add(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
    """Partitions that are assigned already."""
    consumer.incremental_assign(partitions)


def add_others(consumer: DedupConsumer, _: list[TopicPartition]) -> None:
    """Partitions of another topic, which the cooperative protocols allow."""
    consumer.incremental_assign([ORDERS])


def take_all_away(consumer: DedupConsumer, _: list[TopicPartition]) -> None:
    """What the eager protocol wants."""
    consumer.unassign()


def take_none(consumer: DedupConsumer, _: list[TopicPartition]) -> None:
    """The same in other words."""
    consumer.assign([])


def take_twice(consumer: Any, partitions: list[TopicPartition]) -> None:
    """A list that no protocol takes."""
    consumer.assign([*partitions, *partitions])


class Callback:
    """Makes a call, and goes on when the client refuses it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.calls = 0

    def __call__(self, consumer: Any, partitions: Any) -> None:
        """Be called by the client."""
        self.calls += 1
        with suppress(KafkaException):
            self._call(consumer, partitions)


def close_quickly(consumer: DedupConsumer) -> None:
    """Close; the group, the mock cluster's, waits for nobody."""
    began = monotonic()
    consumer.close()
    assert monotonic() - began < QUICK_S


def position(consumer: DedupConsumer) -> int:
    """Where the first partition of "pairs" goes on."""
    (at,) = consumer.position(PAIRS[:1])
    return at.offset


PROTOCOLS = pytest.mark.parametrize(
    "protocol", [RANGE, COOPERATIVE, KIP_848], ids=["range", "cooperative", "kip-848"]
)
CALLS = [
    nothing,
    take_away,
    take_away_one,
    take_away_others,
    add,
    add_others,
    take_all_away,
    take_none,
    take_twice,
]


@PROTOCOLS
@pytest.mark.parametrize("call", CALLS)
def test_a_revocation_is_answered(
    make: Make, send: Send, kafka: MockKafka, protocol: dict[str, Any], call: Call
) -> None:
    """The revoked partitions are committed and gone, and those that the group gives next are read."""
    send("x", topic="pairs")
    send("a")
    consumer, gone = make(config=protocol), Callback(call)
    consumer.subscribe(["pairs"], on_revoke=gone)
    assert values(poll_some(consumer, 1)) == ["x"]
    # The next call completes it.
    assert consumer.poll(0.1) is None
    consumer.subscribe(["orders"], on_revoke=gone)

    assert values(poll_some(consumer, 1, patience_s=QUICK_S)) == ["a"]
    assert consumer.assignment() == [ORDERS]
    assert gone.calls == 1
    close_quickly(consumer)
    if protocol is not COOPERATIVE:  # there the client does not commit before it has joined again
        assert committed(kafka.bootstrap, "g", "pairs").offset == 1


@PROTOCOLS
@pytest.mark.parametrize("call", [each for each in CALLS if each is not add_others])
def test_a_loss_is_answered(
    make: Make, send: Send, kafka: MockKafka, protocol: dict[str, Any], call: Call
) -> None:
    """The group gives the partitions again, and they are read on."""
    send("x", topic="pairs")
    consumer, gone = make(config=protocol), Callback(call)
    consumer.subscribe(["pairs"], on_lost=gone)
    assert values(poll_some(consumer, 1)) == ["x"]
    api = "ConsumerGroupHeartbeat" if protocol is KIP_848 else "Heartbeat"
    kafka.push_errors(api, KafkaError.UNKNOWN_MEMBER_ID, 1)
    wait_for(consumer, lambda: gone.calls > 0, "the loss")
    wait_for(consumer, lambda: set(PAIRS) <= set(consumer.assignment()), "the partitions")

    send("y", topic="pairs")
    assert values(wait_for(consumer, lambda: position(consumer) == 2, "the next message"))[-1:] == ["y"]
    close_quickly(consumer)


@PROTOCOLS
def test_an_assignment_is_answered_where_the_callback_chose_what_the_client_refuses(
    make: Make, send: Send, protocol: dict[str, Any]
) -> None:
    """The refusal is raised, and the group's partitions are read."""
    send("a")
    consumer = make(config=protocol)
    consumer.subscribe(["orders"], on_assign=take_twice)
    with pytest.raises(KafkaException):
        wait_for(consumer, lambda: False, "an error")

    assert values(poll_some(consumer, 1, patience_s=QUICK_S)) == ["a"]
    assert consumer.assignment() == [ORDERS]
    close_quickly(consumer)


@PROTOCOLS
def test_the_group_assigns_what_was_assigned_by_hand(
    make: Make, send: Send, protocol: dict[str, Any]
) -> None:
    """The partition goes on as one of the group, behind completed messages."""
    send("a", "b")
    consumer, came = make(config=protocol, completion="explicit"), Callback(lambda *_: None)
    consumer.assign([ORDERS])
    consumer.complete(poll_some(consumer, 1)[0])
    consumer.subscribe(["orders"], on_assign=came)
    wait_for(consumer, lambda: came.calls > 0, "the group's assignment")
    send("c")

    assert "c" in values(poll_quiet(consumer))
    assert consumer.assignment() == [ORDERS]
    close_quickly(consumer)
