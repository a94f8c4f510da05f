"""Which recoveries may have a poll wait for a broker, and how long."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._kafka.assign.assignment import Assigned, Retry
from dedup_sdk._kafka.client import client as client_module
from dedup_sdk._kafka.client.client import ANSWER_S, EndProbe, MetadataRequests, PendingRequest
from dedup_sdk._kafka.client.reader import Readers
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.recover.backoff import BACKOFF_S, MOST_AGAIN_S, MOST_ANSWER_S, Backoff, silent_s


@dataclass
class Offset:
    """A leader's answer; -1001 where the client gave the question up."""

    offset: int


@dataclass
class Bench(MetadataRequests):
    """Questions that the test answers, and a clock that it sets."""

    now_s: float = 1000.0
    probes: list[EndProbe] = field(default_factory=list)
    renewed: int = 0

    def probe(self, topic: str, partition: int) -> EndProbe:
        """See `MetadataRequests`."""
        del topic, partition
        self.probes.append(EndProbe(PendingRequest(Future(), cast("Any", None)), began=self.now_s))
        return self.probes[-1]

    def answer(self, offset: int, *, took_s: float) -> None:
        """Answer the last question."""
        self.probes[-1].took_s = took_s
        self.probes[-1].asked.answer.set_result(Offset(offset))

    def renew(self) -> None:
        """See `MetadataRequests`."""
        self.renewed += 1


@dataclass
class World:
    """The objects of a test."""

    bench: Bench = field(default_factory=Bench)
    readers: Readers = field(default_factory=lambda: Readers(client_settings({"group.id": "g"})))

    def __post_init__(self) -> None:
        self.backoff = Backoff(self.bench, self.readers, clock=lambda: self.bench.now_s)


@pytest.fixture
def world() -> World:
    """Brokers that have answered until now."""
    return World()


def test_nobody_knocks_while_brokers_answer(world: World) -> None:
    """Without trouble a recovery asks at once, and a poll waits for half a second at most."""
    assert world.backoff.may_begin(Assigned("t", 0))
    assert world.bench.probes == []
    assert world.readers.timeout_s == ANSWER_S


def test_after_a_silence_every_leader_has_to_answer_first(world: World) -> None:
    """Also the leaders of partitions that did not fail: one short wait is all that a broker which hangs costs."""
    hung, other = Assigned("t", 0), Assigned("t", 1)
    world.backoff.failed(hung)
    assert hung.retry.at > world.bench.now_s
    assert not world.backoff.may_begin(other)
    world.bench.answer(7, took_s=0.001)
    assert world.backoff.may_begin(other)
    assert not world.backoff.may_begin(hung)
    world.bench.now_s += 1.0
    assert not world.backoff.may_begin(hung)
    assert (hung.retry.hindrance, other.retry.hindrance) == ("broker", None)
    world.bench.answer(-1001, took_s=5.0)
    assert not world.backoff.may_begin(hung)
    world.bench.now_s += BACKOFF_S
    assert world.backoff.may_begin(hung)


def test_a_slow_broker_is_given_the_time_it_needs(world: World) -> None:
    """Several times the time of its last answer, within bounds.

    The next partition's questions have the usual time again.
    """
    slow, slower, quick = Assigned("t", 0), Assigned("t", 1), Assigned("t", 2)
    world.backoff.note_silence()
    for assigned, took_s, expected_s in (
        (slow, 0.8, 3.2),
        (slower, 3.0, MOST_ANSWER_S),
        (quick, 0.01, ANSWER_S),
    ):
        assert not world.backoff.may_begin(assigned)
        world.bench.answer(0, took_s=took_s)
        assert world.backoff.may_begin(assigned)
        assert world.readers.timeout_s == pytest.approx(expected_s)
        world.backoff.took(0.0)
        assert world.readers.timeout_s == ANSWER_S


def test_a_partition_asks_less_and_less(world: World) -> None:
    """An unanswered question is asked again after half a second.

    Then it takes twice as long each time, up to some seconds.
    """
    assigned, waits = Assigned("t", 0), []
    for _ in range(7):
        world.backoff.failed(assigned)
        waits.append(assigned.retry.at - world.bench.now_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, MOST_AGAIN_S, MOST_AGAIN_S]
    assert world.bench.renewed == 7


def test_others_have_their_turn_after_a_wait(world: World) -> None:
    """While brokers are slow a long step is followed by three times as long without one, at most two seconds."""
    rests: list[bool] = []

    def step(took_s: float, then_s: float) -> None:
        world.backoff.took(took_s)
        world.bench.now_s += then_s
        rests.append(world.backoff.rests)

    step(1.0, 0.0)
    world.backoff.note_silence()
    step(0.05, 0.0)
    step(0.5, 1.49)
    world.bench.now_s += 0.02
    rests.append(world.backoff.rests)
    step(30.0, 1.99)
    world.bench.now_s += 0.02
    rests.append(world.backoff.rests)
    assert rests == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(KafkaError._TIMED_OUT, False), (KafkaError._TRANSPORT, False), (KafkaError._NOENT, True), (6, True)],
)
def test_an_error_may_be_an_answer(code: int, expected: bool) -> None:  # noqa: FBT001 (a row of the table)
    """That there is no leader, or another one, is somebody's word; that nobody was reached is none."""
    probe = EndProbe(PendingRequest(Future(), cast("Any", None)))
    probe.asked.answer.set_exception(KafkaException(KafkaError(code)))
    assert probe.is_over
    assert probe.is_answered is expected


def test_a_client_that_was_told_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions share one client, and after `renew` another."""
    made: list[object] = []

    class Admin:
        def __init__(self, _: Any) -> None:
            made.append(self)

        def list_offsets(self, asked: dict[Any, Any], **_others: Any) -> dict[Any, Future[Any]]:
            return {partition: Future() for partition in asked}

    monkeypatch.setattr(client_module, "AdminClient", Admin)
    asking = MetadataRequests({"group.id": "g"})
    probes = [asking.probe("t", 0), asking.probe("t", 1)]
    asking.renew()
    probes.append(asking.probe("t", 0))
    assert [made.index(probe.asked.client) for probe in probes] == [0, 0, 1]


def test_silence_begins_with_the_first_request_that_fails() -> None:
    """A topic that was there in between is waited for as long again: whoever hears of it sets the time back."""
    retry = Retry()
    assert (silent_s(retry, 100.0), silent_s(retry, 109.0)) == (0.0, 9.0)
    retry.silent_since = 0.0
    assert (silent_s(retry, 200.0), silent_s(retry, 205.0)) == (0.0, 5.0)
