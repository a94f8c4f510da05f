"""When a partition counts as read to its end, and when a unit that is not whole may fail."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._kafka.assign.assignment import Assigned, Pause, State
from dedup_sdk._kafka.assign.log_end import COMPACTED_S, HOLES_S, LogEnds
from dedup_sdk._kafka.client.client import EndProbe, PendingRequest


@dataclass
class Answer:
    """A leader's answer."""

    offset: int


@dataclass
class Broker:
    """A client whose log ends where the test says, and a clock."""

    end: int = -1001
    now_s: float = 1_000.0
    probes: list[EndProbe] = field(default_factory=list)

    def known_end(self, topic: str, partition: int) -> int:
        """See `Ends`."""
        del topic, partition
        return self.end

    def probe(self, topic: str, partition: int) -> EndProbe:
        """See `Ends`."""
        del topic, partition
        self.probes.append(EndProbe(PendingRequest(Future(), cast("Any", None))))
        return self.probes[-1]

    def answer(self, end: int) -> None:
        """Answer the last question."""
        self.probes[-1].asked.answer.set_result(Answer(end))

    def answer_all(self, end: int) -> None:
        """Answer the questions that wait."""
        for probe in self.probes:
            if not probe.asked.answer.done():
                probe.asked.answer.set_result(Answer(end))


@pytest.fixture
def broker() -> Broker:
    """The client."""
    return Broker()


@pytest.fixture
def watch(broker: Broker) -> LogEnds:
    """The object under test."""
    return LogEnds(broker, lambda: broker.now_s)


def active(**settings: Any) -> Assigned:
    """A partition that delivers."""
    return Assigned("orders", 0, state=State.ACTIVE, **settings)


def test_the_end_is_where_the_last_fetch_saw_it(broker: Broker, watch: LogEnds) -> None:
    """Before the first fetch nobody knows it."""
    assigned = active()
    assert not watch.is_reached(assigned, 0, dry=True)
    broker.end = 5
    assert not watch.is_reached(assigned, 4, dry=True)
    assert watch.is_reached(assigned, 5, dry=False)


@pytest.mark.parametrize(
    "settings", [{"pauses": {Pause.USER}}, {"pauses": {Pause.BACKLOG}}, {"stopped": True}]
)
def test_what_is_not_read_does_not_come_to_its_end(
    broker: Broker, watch: LogEnds, settings: dict[str, Any]
) -> None:
    """Paused, or given up by the client."""
    broker.end = 5
    assert not watch.is_reached(active(**settings), 5, dry=True)


def test_where_nothing_comes_for_a_while_it_seems_to_be_at_its_end(broker: Broker, watch: LogEnds) -> None:
    """Whatever comes of other partitions; a partition not looked at does not count."""
    assigned, broker.end = active(), 6
    assert not watch.is_reached(assigned, 4, dry=True)
    broker.now_s += HOLES_S
    assert not watch.is_reached(assigned, 5, dry=False)
    broker.now_s += HOLES_S / 2
    assert not watch.is_reached(assigned, 5, dry=False)
    broker.now_s += HOLES_S / 2
    assert watch.is_reached(assigned, 5, dry=False)
    broker.now_s += HOLES_S + 1
    assert not watch.is_reached(assigned, 5, dry=True)


def test_a_log_whose_end_is_never_reached_is_read_up_to_what_its_leader_had(
    broker: Broker, watch: LogEnds
) -> None:
    """As of a few seconds ago: that of transactions that follow one another, say.

    One question at a time, until its answer is reached.
    """
    assigned, broker.end = active(), 1_000_000
    for position in range(5):
        assert not watch.is_reached(assigned, position, dry=False)
        broker.now_s += HOLES_S / 2 + 1
    broker.answer(6)
    assert not watch.is_reached(assigned, 5, dry=False)
    assert len(broker.probes) == 1
    # The leader had the offset read now too long ago.
    assert not watch.is_reached(assigned, 6, dry=False)
    assert not watch.is_reached(assigned, 7, dry=False)
    broker.answer(8)
    assert watch.is_reached(assigned, 8, dry=False)
    broker.now_s += HOLES_S - 1
    assert watch.is_reached(assigned, 9, dry=False)
    broker.now_s += 1
    assert not watch.is_reached(assigned, 10, dry=False)
    assert len(broker.probes) == 3


def test_nothing_fails_unasked(broker: Broker, watch: LogEnds) -> None:
    """The leader's answer counts, not the end that the last fetch saw, and one that does not answer is asked again."""
    assigned = active()
    assert watch.late(assigned, 5, [b"U"]) == set()
    assert watch.late(assigned, 5, [b"U"]) == set()
    assert len(broker.probes) == 1
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    broker.probes[-1].asked.answer.set_exception(timed_out)
    assert watch.late(assigned, 5, [b"U"]) == set()
    assert watch.late(assigned, 5, [b"U"]) == set()
    broker.answer(-1001)
    assert watch.late(assigned, 5, [b"U"]) == set()
    assert watch.late(assigned, 5, [b"U"]) == set()
    broker.answer(5)
    assert watch.late(assigned, 5, [b"U"]) == {b"U"}
    assert len(broker.probes) == 3


def test_what_lay_in_the_log_is_read_before(broker: Broker, watch: LogEnds) -> None:
    """However much comes behind it; a unit overdue only since then is asked for anew."""
    assigned = active()
    assert watch.late(assigned, 5, [b"U", b"V"]) == set()
    broker.answer(8)
    assert watch.late(assigned, 7, [b"U", b"V", b"W"]) == set()
    assert watch.late(assigned, 9, [b"V", b"W"]) == {b"V"}
    assert watch.late(assigned, 9, [b"W"]) == set()
    broker.answer(9)
    assert watch.late(assigned, 9, [b"W"]) == {b"W"}
    assert watch.late(assigned, 9, [b"X"]) == set()
    broker.answer(10)
    assert watch.late(assigned, 10, [b"Y"]) == set()
    assert len(broker.probes) == 4


def _stand(broker: Broker, watch: LogEnds, assigned: Assigned, *, dry: bool) -> set[bytes]:
    """Look at a partition in which nothing comes for as long as a compacted log may be silent, and once more.

    Return the units that failed then.
    """
    for _ in range(int(COMPACTED_S / HOLES_S) + 1):
        watch.is_reached(assigned, 5, dry=dry)
        if late := watch.late(assigned, 5, [b"U"]):
            return late
        broker.now_s += HOLES_S
    return set()


@pytest.mark.parametrize("dry", [True, False])
def test_a_log_that_ends_in_holes(broker: Broker, watch: LogEnds, *, dry: bool) -> None:
    """Of compaction.

    Its leader tells the same end again, and nothing came though the client had room; where it is full of others
    nobody knows.
    """
    assigned, broker.end = active(), 8
    assert _stand(broker, watch, assigned, dry=dry) == set()
    broker.answer_all(8)
    assert _stand(broker, watch, assigned, dry=dry) == set()
    broker.answer_all(8)
    assert _stand(broker, watch, assigned, dry=dry) == ({b"U"} if dry else set())


def test_an_end_that_moves_while_nothing_comes_is_no_hole(broker: Broker, watch: LogEnds) -> None:
    """The log goes on, and is not fetched."""
    assigned, broker.end = active(), 8
    for end in range(8, 14):
        assert _stand(broker, watch, assigned, dry=True) == set()
        broker.answer_all(end)


def test_a_partition_that_begins_anew_is_looked_at_anew(broker: Broker, watch: LogEnds) -> None:
    """Questions for the one before say nothing of this one."""
    watch.late(active(), 5, [b"U"])
    broker.answer(5)
    assert watch.late(active(), 5, [b"U"]) == set()


def test_what_has_gone_is_not_kept(watch: LogEnds) -> None:
    """With it would stay all that the partition had in memory."""
    assigned = active()
    watch.is_reached(assigned, 5, dry=True)
    watch.late(assigned, 5, [b"unit"])
    seen = ref(assigned)
    del assigned
    assert seen() is None
