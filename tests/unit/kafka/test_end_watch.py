"""When a partition counts as read to its end, and when a unit that is not whole may fail."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.kafka.assigned import Assigned, State
from dedup_sdk.kafka.end_watch import HOLES_S, EndWatch
from dedup_sdk.kafka.questions import Asked, Knock


@dataclass
class Answer:
    """What a leader says."""

    offset: int


@dataclass
class Broker:
    """A client whose log ends where the test says, and a clock."""

    end: int = -1001
    now_s: float = 1_000.0
    knocks: list[Knock] = field(default_factory=list)

    def known_end(self, topic: str, partition: int) -> int:
        """See `Ends`."""
        del topic, partition
        return self.end

    def knock(self, topic: str, partition: int) -> Knock:
        """See `Ends`."""
        del topic, partition
        self.knocks.append(Knock(Asked(Future(), cast("Any", None))))
        return self.knocks[-1]

    def answer(self, end: int) -> None:
        """Answer the last question."""
        self.knocks[-1].asked.answer.set_result(Answer(end))


@pytest.fixture
def broker() -> Broker:
    """The client."""
    return Broker()


@pytest.fixture
def watch(broker: Broker) -> EndWatch:
    """What is tested."""
    return EndWatch(broker, lambda: broker.now_s)


def active(**settings: Any) -> Assigned:
    """A partition that delivers."""
    return Assigned("orders", 0, state=State.ACTIVE, **settings)


def test_the_end_is_where_the_last_fetch_saw_it(broker: Broker, watch: EndWatch) -> None:
    """Before the first fetch nobody knows it."""
    assigned = active()
    assert not watch.is_reached(assigned, 0, dry=True)
    broker.end = 5
    assert not watch.is_reached(assigned, 4, dry=True)
    assert watch.is_reached(assigned, 5, dry=False)


@pytest.mark.parametrize("settings", [{"user_paused": True}, {"full": True}, {"stopped": True}])
def test_what_is_not_read_does_not_come_to_its_end(
    broker: Broker, watch: EndWatch, settings: dict[str, bool]
) -> None:
    """Paused, or given up by the client."""
    broker.end = 5
    assert not watch.is_reached(active(**settings), 5, dry=True)


def test_a_log_that_ends_in_holes(broker: Broker, watch: EndWatch) -> None:
    """Markers of transactions are never handed over: where nothing comes for a while, though more is asked for, there is nothing."""
    assigned, broker.end = active(), 6
    assert not watch.is_reached(assigned, 5, dry=True)
    broker.now_s += HOLES_S / 2
    # The client has more ready, perhaps of this partition.
    assert not watch.is_reached(assigned, 5, dry=False)
    broker.now_s += HOLES_S / 2
    assert not watch.is_reached(assigned, 5, dry=True)
    broker.now_s += HOLES_S / 2
    assert watch.is_reached(assigned, 5, dry=True)
    broker.end = 7
    assert not watch.is_reached(assigned, 5, dry=True)


def test_nothing_fails_unasked(broker: Broker, watch: EndWatch) -> None:
    """The leader's answer counts, not what the last fetch saw, and one that does not answer is asked again."""
    assigned = active()
    assert watch.is_confirmed(assigned, 5) is None
    assert watch.is_confirmed(assigned, 5) is None
    assert len(broker.knocks) == 1
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    broker.knocks[-1].asked.answer.set_exception(timed_out)
    assert watch.is_confirmed(assigned, 5) is None
    assert watch.is_confirmed(assigned, 5) is None
    broker.answer(-1001)
    assert watch.is_confirmed(assigned, 5) is None
    assert watch.is_confirmed(assigned, 5) is None
    broker.answer(5)
    assert watch.is_confirmed(assigned, 5) is True
    assert len(broker.knocks) == 3


def test_more_that_is_there_is_waited_for(broker: Broker, watch: EndWatch) -> None:
    """Unless the same end is answered again, and nothing came in between: these are holes."""
    assigned, told = active(), []
    for position, end in ((5, 8), (5, 9), (6, 9), (6, 9)):
        watch.is_confirmed(assigned, position)
        broker.answer(end)
        told.append(watch.is_confirmed(assigned, position))
    assert told == [False, False, False, True]


def test_a_partition_that_begins_anew_is_looked_at_anew(broker: Broker, watch: EndWatch) -> None:
    """What was asked of the one before says nothing of this one."""
    watch.is_confirmed(active(), 5)
    broker.answer(5)
    assert watch.is_confirmed(active(), 5) is None
