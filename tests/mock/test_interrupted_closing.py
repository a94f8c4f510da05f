"""A time-out of the application that strikes while a consumer closes, writes marks, or waits, and what comes then."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk.shared import MemoryClaimStore, Shared
from tests.support import interrupting
from tests.support.consuming import PATIENCE_S, committed, numbers, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from confluent_kafka import Consumer

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

SENT = numbers(0, 40)


class OverdueError(TimeoutError):
    """The error of an application's time-out."""


class OverdueClientError(KafkaException):
    """The same by the type of the client's errors."""

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._TIMED_OUT))


@pytest.fixture(params=[OverdueError, OverdueClientError])
def overdue(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """The error that the handler of SIGALRM raises."""

    def ring(*_: object) -> None:
        raise request.param

    before = signal.signal(signal.SIGALRM, ring)
    yield request.param
    signal.signal(signal.SIGALRM, before)


def strike_at(name: str, times: int = 1) -> None:
    """Have the alarm strike at the n-th call of a function of this name."""
    interrupting.strike_at(name, lambda: signal.raise_signal(signal.SIGALRM), times)


def strike_while_idle(consumer: DedupConsumer, overdue: type[Exception]) -> None:
    """Have the alarm strike in a call that waits for a message."""
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(overdue):
        consumer.poll(PATIENCE_S)


def commit_all(consumer: Consumer, _: object = None) -> None:
    """Commit, as many programs do when their partitions go."""
    with contextlib.suppress(KafkaException):
        consumer.commit(asynchronous=False)


@pytest.mark.parametrize("manual", [False, True])
def test_an_alarm_in_close_completes_nothing_that_nobody_received(
    make: Make, send: Send, overdue: type[Exception], *, manual: bool
) -> None:
    """Messages in the queue come again, also where a callback commits when the partitions go."""
    send(*SENT)
    settings: dict[str, Any] = {"config": {"enable.auto.commit": False}} if manual else {}
    consumer = make(**settings)
    consumer.subscribe(["orders"], on_revoke=commit_all)
    got = values(poll_some(consumer, 3))
    strike_at("take_out", 5)
    try:
        with pytest.raises(overdue):
            consumer.close()
    finally:
        sys.setprofile(None)
    consumer.close()
    again = values(poll_quiet(make("orders", **settings)))
    assert {*got, *again} == {*SENT}


@pytest.mark.parametrize("inside", ["poll", "commit"])
def test_a_commit_after_an_alarm_passes_no_record_without_its_mark(
    make: Make, send: Send, overdue: type[Exception], inside: str
) -> None:
    """The alarm strikes between the memory and the store; a copy that comes later is known."""
    send(*SENT)
    consumer = make("orders")
    poll_some(consumer, len(SENT))
    strike_at("note_completed")
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(0.3),
        "commit": lambda: consumer.commit(asynchronous=False),
    }
    try:
        with pytest.raises(overdue):
            calls[inside]()
    finally:
        sys.setprofile(None)
    commit_all(consumer)
    consumer.close()
    send(*SENT)
    assert all(message.offset() < len(SENT) for message in poll_quiet(make("orders")))


def test_a_completion_behind_an_alarm_passes_no_mark_that_is_lost(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """The alarm strikes when a mark has left the memory; until the reopening nothing is written."""
    send(*SENT[:2])
    consumer = make("orders", completion="explicit")
    first, second = poll_some(consumer, 2)
    strike_at("append")
    try:
        with pytest.raises(overdue):
            consumer.complete(first)
    finally:
        sys.setprofile(None)
    consumer.complete(second)
    send(*SENT[:2])
    assert poll_quiet(consumer) == []


@pytest.mark.parametrize(
    ("protocol", "way"),
    [({}, "close"), ({}, "unassign"), ({"partition.assignment.strategy": "cooperative-sticky"}, "close")],
)
def test_an_alarm_while_nothing_comes_keeps_what_is_completed(
    make: Make, send: Send, overdue: type[Exception], kafka: MockKafka, protocol: dict[str, Any], way: str
) -> None:
    """A program that Ctrl-C ends in `poll`, and that closes its consumer: another host gets nothing again."""
    send(*SENT)
    consumer = make("orders", config=protocol)
    assert values(poll_some(consumer, len(SENT))) == SENT
    strike_while_idle(consumer, overdue)
    getattr(consumer, way)()
    assert committed(kafka.bootstrap, "g", "orders").offset == len(SENT)
    consumer.close()
    assert poll_quiet(make("orders", store=MemoryStore(), config=protocol)) == []


def test_an_alarm_before_partitions_are_unassigned_one_by_one(
    make: Make, send: Send, overdue: type[Exception], kafka: MockKafka
) -> None:
    """What is completed of them is committed: they are no lost ones."""
    send(*SENT)
    consumer = make(config={"partition.assignment.strategy": "cooperative-sticky"})
    consumer.incremental_assign([TopicPartition("orders", 0)])
    assert values(poll_some(consumer, len(SENT))) == SENT
    strike_while_idle(consumer, overdue)
    consumer.incremental_unassign([TopicPartition("orders", 0)])
    assert committed(kafka.bootstrap, "g", "orders").offset == len(SENT)


@pytest.mark.parametrize("completes", [False, True])
def test_an_alarm_takes_no_completion_from_the_list_of_the_commit(
    make: Make, send: Send, overdue: type[Exception], *, completes: bool
) -> None:
    """Neither from that of the owner before, nor from its own."""
    send(*SENT[:10])
    first = make("orders", completion="explicit")
    got = poll_some(first, 10)
    for row in (0, 1, 2, 5, 6):
        first.complete(got[row])
    first.close()
    consumer = make("orders", completion="explicit", store=MemoryStore())
    left = poll_some(consumer, 5)
    assert values(left) == [SENT[row] for row in (3, 4, 7, 8, 9)]
    if completes:
        consumer.complete(left[3])
        consumer.commit(asynchronous=False)
    consumer.complete(left[0])
    strike_while_idle(consumer, overdue)
    consumer.close()
    again = values(poll_quiet(make("orders", completion="explicit", store=MemoryStore())))
    assert again == [SENT[row] for row in ((4, 7, 9) if completes else (4, 7, 8, 9))]


def test_an_alarm_hides_nothing_that_a_seek_asked_for(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """Completions that a commit before the seek had listed are no completions after it."""
    send(*SENT[:10])
    consumer = make("orders", completion="explicit")
    got = poll_some(consumer, 10)
    for row in (5, 6):
        consumer.complete(got[row])
    consumer.commit(asynchronous=False)
    consumer.seek(TopicPartition("orders", 0, 0))
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=True)
    assert values(poll_some(consumer, 1)) == SENT[:1]
    strike_at("_round")
    with pytest.raises(overdue):
        consumer.poll(1)
    sys.setprofile(None)
    assert values(poll_quiet(consumer)) == SENT[:10]


def test_a_completion_behind_an_alarm_stays_one(make: Make, send: Send, overdue: type[Exception]) -> None:
    """Also above one that is in flight: the reopening does not deliver that message again."""
    send(*SENT[:2])
    consumer = make("orders", completion="explicit")
    _, second = poll_some(consumer, 2)
    strike_while_idle(consumer, overdue)
    consumer.complete(second)
    assert values(poll_quiet(consumer)) == SENT[:1]


def test_a_completion_behind_an_alarm_of_which_a_shared_memory_does_not_know(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """The shared memory is told of it: neither the message comes again, nor its copy in another partition."""
    send("a", topic="pairs", partition=0)
    consumer = make("pairs", completion="explicit", shared=Shared(MemoryClaimStore(), scope="topic"))
    (message,) = poll_some(consumer, 1)
    strike_while_idle(consumer, overdue)
    consumer.complete(message)
    assert poll_quiet(consumer) == []
    send("a", topic="pairs", partition=1)
    assert poll_quiet(consumer) == []
    assert consumer.counters.reasons["duplicate.shared"] == 1


@pytest.mark.parametrize(("call", "other"), [("poll", "commit"), ("consume", "commit"), ("consume", "seek")])
def test_an_alarm_behind_a_call_of_another_thread_loses_nothing(
    make: Make, send: Send, overdue: type[Exception], call: str, other: str
) -> None:
    """Messages that a call has taken, and not returned, are not completed by the other thread's commit or seek."""
    send(*SENT[:10])
    consumer = make("orders")
    others: dict[str, Callable[[], object]] = {
        "commit": lambda: commit_all(consumer),
        "seek": lambda: consumer.seek(TopicPartition("orders", 0, 5)),
    }

    def profile(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code.co_name == "_round" and result:
            sys.setprofile(None)
            thread = threading.Thread(target=others[other])
            thread.start()
            thread.join()
            signal.raise_signal(signal.SIGALRM)

    sys.setprofile(profile)
    with pytest.raises(overdue):
        consumer.poll(PATIENCE_S) if call == "poll" else consumer.consume(10, PATIENCE_S)
    sys.setprofile(None)
    assert values(poll_quiet(consumer)) == SENT[:10]


def test_a_commit_beside_a_call_takes_what_the_call_before_has_returned(make: Make, send: Send) -> None:
    """A thread that commits what it has handled gets no less because another one lets the group hear meanwhile."""
    send(*SENT[:10])
    consumer = make("orders", config={"enable.auto.commit": False})
    got = poll_some(consumer, 10)
    answers: list[TopicPartition] = []

    def commit() -> None:
        answers.extend(consumer.commit(message=got[-1], asynchronous=False))

    def strike() -> None:
        thread = threading.Thread(target=commit)
        thread.start()
        thread.join()

    interrupting.strike_at("Poller._look_after", strike)
    consumer.consume(0)
    assert [each.offset for each in answers] == [10]


def test_an_alarm_in_an_iteration_beside_a_commit_loses_nothing(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """Between a message that was taken and its body nothing looks for signals."""
    send(*SENT[:10])
    consumer = make("orders", idle_timeout=2)
    got: list[str] = []

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "c_call" and frame.f_code.co_name == "__iter__" and len(got) == 5:
            sys.setprofile(None)
            thread = threading.Thread(target=commit_all, args=[consumer])
            thread.start()
            thread.join()
            signal.raise_signal(signal.SIGALRM)

    for _ in range(2):
        with contextlib.suppress(overdue):
            for message in consumer:
                sys.setprofile(None if got[5:] else profile)
                got += values([message])
                sys.setprofile(None if got[5:] else profile)
        sys.setprofile(None)
    assert set(got) == {*SENT[:10]}


@pytest.mark.parametrize("way", ["unassign", "assign others"])
def test_partitions_whose_assignment_was_interrupted_go_with_the_others(
    make: Make, send: Send, overdue: type[Exception], way: str
) -> None:
    """The client had got them; the consumer had not noted all of them yet."""
    send("a", topic="pairs", partition=0)
    send("b", topic="pairs", partition=1)
    consumer = make()
    strike_at("_succeed", 2)
    try:
        with pytest.raises(overdue):
            consumer.assign([TopicPartition("pairs", 0), TopicPartition("pairs", 1)])
    finally:
        sys.setprofile(None)
    if way == "unassign":
        consumer.unassign()
    else:
        consumer.assign([TopicPartition("orders", 0)])
    expected = {("orders", 0)} if way == "assign others" else set()
    assert [consumer.poll(0.1) for _ in range(10)] == [None] * 10
    assert {(each.topic, each.partition) for each in consumer.assignment()} == expected
    assert {(each.topic, each.partition) for each in consumer.partition_statuses} == expected


def test_an_alarm_commits_nothing_where_only_the_program_does(
    make: Make, send: Send, overdue: type[Exception], kafka: MockKafka
) -> None:
    """With ``enable.auto.commit=false`` closing commits nothing, with an alarm or without."""
    send(*SENT)
    consumer = make("orders", config={"enable.auto.commit": False})
    poll_some(consumer, len(SENT))
    strike_while_idle(consumer, overdue)
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset <= 0


def test_a_seek_behind_an_alarm_where_the_commit_had_listed_completions(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """Those that lie below the completed ones by now are in no commit any more."""
    send(*SENT[:10])
    settings: dict[str, Any] = {"completion": "explicit", "durability": "commit"}
    first = make("orders", **settings)
    got = poll_some(first, 10)
    for row in (0, 1, 2, 5, 6):
        first.complete(got[row])
    first.close()
    consumer = make("orders", **settings)
    for message in poll_some(consumer, 5)[:-1]:
        consumer.complete(message)
    strike_while_idle(consumer, overdue)
    # Its partitions are opened again, and read the records that are not in the store.
    consumer.poll(0)
    consumer.seek(TopicPartition("orders", 0, 8))
    assert {*SENT[9:10]} <= {*values(poll_quiet(consumer))} <= {*SENT[8:10]}


@pytest.mark.parametrize("place", ["give_back", "_close", "_detach"])
def test_a_partition_whose_end_was_interrupted_goes_on_at_its_commit(
    make: Make, send: Send, overdue: type[Exception], place: str
) -> None:
    """Not where it was assigned long ago."""
    send(*SENT)
    consumer = make()
    consumer.assign([TopicPartition("orders", 0, 0)])
    got = values(poll_some(consumer, 10))
    consumer.consume(0, 0.1)
    consumer.commit(asynchronous=False)
    strike_at(place)
    try:
        with contextlib.suppress(overdue):
            consumer.unassign()
    finally:
        sys.setprofile(None)
    again = values(poll_quiet(consumer))
    assert got == SENT[:10]
    assert set(again) <= {*SENT[9:]}


@pytest.mark.parametrize("overdue", [OverdueError], indirect=True)
@pytest.mark.parametrize("place", ["_leave", "read_again"])
def test_what_was_assigned_by_hand_outlives_an_alarm_in_unsubscribe(
    make: Make, send: Send, overdue: type[Exception], place: str
) -> None:
    """Its fetched messages are dropped before the group goes, and read again after that."""
    send("group's")
    send("own", topic="pairs")
    consumer = make("orders", config={"partition.assignment.strategy": "cooperative-sticky"})
    poll_some(consumer, 1)
    consumer.incremental_assign([TopicPartition("pairs", 0)])
    poll_some(consumer, 1)
    send(*SENT, topic="pairs")
    got = poll_some(consumer, 1)

    strike_at(place)
    with pytest.raises(overdue):
        consumer.unsubscribe()

    got += poll_quiet(consumer)
    send("last", topic="pairs")
    got += poll_some(consumer, 1)
    assert {*values(got)} == {*SENT, "last"}


def test_a_close_that_is_interrupted_as_the_client_ends_can_be_repeated(
    make: Make, send: Send, overdue: type[Exception]
) -> None:
    """The thread that ends the client has not run yet when the alarm strikes; the next close waits for nobody."""
    send(*SENT)
    consumer = make()
    consumer.assign([TopicPartition("orders", 0)])
    poll_some(consumer, 1)
    # Of `ClientEnd`, then of the event that its thread sets.
    strike_at("wait", 2)
    try:
        with pytest.raises(overdue):
            consumer.close()
    finally:
        sys.setprofile(None)
    # The turn of that thread.
    time.sleep(0.2)
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
