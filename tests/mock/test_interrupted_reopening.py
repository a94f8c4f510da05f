"""An interruption while partitions are opened again after an earlier one: a partition may be late, never forgotten."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.deliver import batch
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.ids import function
from tests.support import inside
from tests.support.consuming import committed, lookup, numbers, poll_quiet, poll_some, values, wait_for
from tests.support.interrupting import Interrupted, InterruptedAt, InterruptingQueue, strike_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dedup_sdk import DedupConsumer, Record
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def held(consumer: DedupConsumer) -> set[tuple[str, int]]:
    """The partitions that the consumer shows."""
    return {(each.topic, each.partition) for each in consumer.partition_statuses}


def given(consumer: DedupConsumer) -> set[tuple[str, int]]:
    """The partitions that the client has."""
    return {(each.topic, each.partition) for each in consumer.assignment()}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_reopening_that_is_interrupted_forgets_no_partition(make: Make, send: Send, strategy: str) -> None:
    """At any place, and once more at one behind it."""
    consumer = make("pairs", config={"partition.assignment.strategy": strategy})
    for partition in (0, 1):
        send(f"first-{partition}", topic="pairs", partition=partition)
    poll_some(consumer, 2)
    struck = 0
    for place in range(1, 800, 5):
        inside.interrupt(consumer)
        strikes = [InterruptedAt(place), InterruptedAt(place + 17)]
        for strike in strikes:
            with suppress(Interrupted), strike:
                consumer.poll(0)
        consumer.poll(0)
        assert held(consumer) == given(consumer) == {("pairs", 0), ("pairs", 1)}, strikes[0].where
        struck += strikes[0].struck
        if not strikes[0].struck:
            break
    assert struck > 10
    for partition in (0, 1):
        send(f"last-{partition}", topic="pairs", partition=partition)
    assert {"last-0", "last-1"} <= set(values(poll_quiet(consumer)))


def test_an_interruption_among_early_messages_leaves_no_closed_store(make: Make, send: Send) -> None:
    """Whatever came early before, messages that come alone are delivered afterwards."""
    consumer = make("orders")
    poll_quiet(consumer)
    sent, got, struck = list[str](), list[str](), 0
    for place in range(1, 400, 4):
        for each in ("a", "b"):
            sent.append(f"{place}{each}")
            send(sent[-1])
            got += values(poll_some(consumer, 1))
        strike = InterruptedAt(place)
        with suppress(Interrupted), strike:
            inside.let_time_pass(consumer)
            got += values(filter(None, [consumer.poll(0)]))
        sent.append(f"{place}c")
        send(sent[-1])
        while sent[-1] not in got:
            got += values(poll_some(consumer, 1))
        struck += strike.struck
        if not strike.struck:
            break
    assert struck > 10
    assert set(got) == set(sent)


def test_the_position_is_before_a_message_that_was_lost_on_its_way_out(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody got it: who keeps positions, and seeks to this one, gets it."""
    monkeypatch.setattr(batch, "deque", InterruptingQueue)
    sent = list(map(str, range(20)))
    send(*sent)
    consumer = make("orders")
    got = values(poll_some(consumer, 1))
    while len(inside.ready(consumer)) < 2:
        got += values(poll_some(consumer, 1))
    InterruptingQueue.lose_the_next()
    with pytest.raises(Interrupted):
        consumer.poll(0)
    [position] = consumer.position([TopicPartition("orders", 0)])

    assert position.offset <= len(got)
    consumer.seek(position)
    assert {*got, *values(poll_quiet(consumer))} == {*sent}


def test_a_seek_that_was_interrupted_leaves_no_message_behind(make: Make, send: Send) -> None:
    """At any place: no message that waited is forgotten by a partition that was not moved."""
    struck = 0
    sent = list(map(str, range(6)))
    send(*sent)
    for place in range(1, 300, 5):
        consumer = make(
            "orders", store=MemoryStore(), config={"group.id": f"g-{place}"}, completion="explicit"
        )
        got = values(poll_some(consumer, 3))
        strike = InterruptedAt(place)
        with suppress(Interrupted), strike:
            consumer.seek(TopicPartition("orders", 0, 1))
        again = values(poll_quiet(consumer))
        consumer.close()
        assert {*got, *again} == {*sent}, strike.where
        struck += strike.struck
        if not strike.struck:
            break
    assert struck > 4


def test_an_interruption_that_somebody_keeps_holds_no_lock(make: Make, send: Send) -> None:
    """Its traceback keeps alive what it left half entered; other threads get on all the same."""
    send(*"abc")
    consumer = make("orders", completion="explicit")
    first = poll_some(consumer, 3)[0]
    kept: list[Interrupted] = []
    calls: list[Callable[[], object]] = [
        lambda: consumer.commit(asynchronous=True),
        lambda: consumer.complete(first),
        lambda: consumer.seek(TopicPartition("orders", 0, 1)),
    ]
    for call in calls:
        for place in range(1, 120, 2):
            strike = InterruptedAt(place)
            try:
                with strike:
                    call()
            except Interrupted as error:
                kept.append(error)
            other = threading.Thread(target=lambda: consumer.partition_statuses, daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive(), strike.where
            if not strike.struck:
                break
    assert len(kept) > 20


class OverdueError(TimeoutError):
    """The error of an application's time-out."""


def overdue(*_: object) -> None:
    """Handle the signal of a time-out."""
    raise OverdueError


def refused(*_: object) -> None:
    """Handle a signal with an error that could be one about a value."""
    raise ValueError("a signal")


@contextmanager
def handled_by(handler: Callable[..., None]) -> Iterator[None]:
    """Have a handler of SIGUSR1 during the block."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", [overdue, refused])
@pytest.mark.parametrize("turned", [False, True], ids=["as it is", "turned into another error"])
def test_a_time_out_that_comes_back_is_no_error_of_the_partition(
    *, make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, handler: Callable[..., None], turned: bool
) -> None:
    """Also at the same place, and where code in C makes another error of it."""
    send("a", "b")
    real, left = MemoryPartition.find, [4]

    def find(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception as error:
                if turned:
                    raise SystemError("returned a result with an exception set") from error
                raise
        return real(*arguments)

    monkeypatch.setattr(MemoryPartition, "find", find)
    # Each message is judged first.
    consumer = make("orders", completion="explicit")
    raised, got = 0, list[str]()
    with handled_by(handler):
        while raised < 4:
            try:
                got += values(filter(None, [consumer.poll(0.1)]))
            except (OverdueError, ValueError, SystemError):
                raised += 1
        got += values(poll_some(consumer, 2 - len(got)))
    assert sorted(got) == ["a", "b"]
    assert [each.hindrances for each in consumer.partition_statuses] == [()]
    assert consumer.counters.stores_set_aside == 0


@pytest.mark.parametrize("handler", [overdue, refused])
def test_a_time_out_that_raises_twice_in_one_admit_costs_no_message(
    *, make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, handler: Callable[..., None]
) -> None:
    """The second while the first is handled, and once more when the partition is opened again; all that three times."""
    send("a", "b")
    find, reopen_all, admits, reopenings = MemoryPartition.find, Session.reopen_all, [3], [3]

    def struck_twice(*arguments: Any) -> Any:
        if admits[0]:
            admits[0] -= 1
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                signal.raise_signal(signal.SIGUSR1)
        return find(*arguments)

    def struck_at_its_end(session: Session) -> None:
        reopen_all(session)
        if reopenings[0]:
            reopenings[0] -= 1
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(MemoryPartition, "find", struck_twice)
    monkeypatch.setattr(Session, "reopen_all", struck_at_its_end)
    consumer = make("orders", completion="explicit")
    raised, got = 0, list[str]()
    with handled_by(handler):
        while raised < 6:
            try:
                got += values(filter(None, [consumer.poll(0.1)]))
            except (OverdueError, ValueError):
                raised += 1
        got += values(poll_some(consumer, 2 - len(got)))
    assert sorted(got) == ["a", "b"]
    assert (admits, reopenings) == ([0], [0])
    assert [each.hindrances for each in consumer.partition_statuses] == [()]
    assert consumer.counters.stores_set_aside == 0


def test_a_signal_inside_the_function_of_an_id_discards_no_message(make: Make, send: Send) -> None:
    """It says nothing about the record, which is asked for its ID again."""
    send("a", "b")
    left = [2]

    def value_of(record: Record) -> str:
        if left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGUSR1)
        return (record.value or b"").decode()

    rule = lookup(id=function(value_of, name="value", version="1"), on_missing_id="discard")
    consumer = make("orders", dedup=rule)
    got = list[str]()
    with handled_by(overdue):
        for _ in range(200):
            with suppress(OverdueError):
                got += values(filter(None, [consumer.poll(0.1)]))
            if len(got) == 2:
                break
    assert sorted(got) == ["a", "b"]


def test_a_close_that_was_interrupted_is_repeated(make: Make, send: Send) -> None:
    """At any place: the second call ends it, and the partition is free for another member."""
    send("a")
    struck = 0
    for place in count(1, 61):
        consumer = make("orders", store=MemoryStore(), config={"group.id": f"g-{place}"})
        poll_some(consumer, 1)
        strike = InterruptedAt(place)
        with suppress(Interrupted), strike:
            consumer.close()
        # An error of a step that went on is raised at the end.
        with suppress(Interrupted):
            consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            consumer.memberid()
        struck += strike.struck
        if not strike.struck:
            break
    assert struck > 10


def test_a_signal_while_the_client_closes_leaves_it_to_the_next_call(make: Make, send: Send) -> None:
    """The first call waits for a callback inside the client, on another thread; the second one waits on."""
    send("a")
    holds, goes_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        holds.set()
        goes_on.wait(30)

    def ring() -> None:
        holds.wait(30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    # A static member does not leave its group: its partitions are revoked inside the client's `close`.
    consumer = make(config={"group.instance.id": "one"})
    consumer.subscribe(["orders"], on_revoke=hold)
    poll_some(consumer, 1)
    bell = threading.Thread(target=ring)
    with handled_by(overdue):
        bell.start()
        threading.Timer(1.0, goes_on.set).start()
        for _ in range(2):
            with suppress(OverdueError):
                consumer.close()
        bell.join()
    assert goes_on.is_set()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.memberid()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_partition_that_is_assigned_anew_is_never_left_to_nobody(
    *, make: Make, send: Send, kafka: MockKafka, strategy: str
) -> None:
    """It is taken out of the client, and put back, in two calls."""
    send("a")
    settings = {"partition.assignment.strategy": strategy}
    consumer = make("orders", config=settings)
    poll_some(consumer, 1)
    made = client_settings(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "g", **settings}, {}, revoke_deadline=None
    )
    client = Client(consumer, made)
    struck = 0
    for place in count(1):
        strike = InterruptedAt(place)
        with suppress(Interrupted), strike:
            client.reassign(TopicPartition("orders", 0, 1), [])
        assert [(tp.topic, tp.partition) for tp in client.assignment()] == [("orders", 0)], strike.where
        struck += strike.struck
        if not strike.struck:
            break
    assert struck >= 2
    assert given(consumer) == {("orders", 0)}


def struck(consumer: DedupConsumer, place: str) -> None:
    """Have a call for messages interrupted at a function of this name."""
    try:
        strike_at(place)
        with pytest.raises(Interrupted):
            wait_for(consumer, lambda: False, "the interruption")
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("place", ["Commits.beginnings", "Client.commit", "Session.activate"])
def test_no_message_comes_before_the_group_knows_the_beginning_of_a_reopened_partition(
    make: Make, send: Send, kafka: MockKafka, place: str
) -> None:
    """Else another host would begin at the end of the topic, behind the messages that came since."""
    consumer = make("orders", config={"enable.auto.commit": False})
    struck(consumer, place)
    send("a")
    poll_some(consumer, 1)
    assert committed(kafka.bootstrap, "g", "orders").offset == 0


def test_a_commit_that_waits_for_an_answer_is_sent_behind_an_interruption(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """The call has returned, and the application relies on it: its consumer sends it at the latest when it closes."""
    send("a", "b", "c")
    consumer = make("orders", config={"enable.auto.commit": False})
    first, second, _ = poll_some(consumer, 3)
    for message in (first, second):
        consumer.commit(message=message)
    struck(consumer, "Poller._round")
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 2


@pytest.mark.parametrize("place", ["Positions.hold_back", "Assigned.lift", "Client.wake"])
def test_an_interruption_as_the_client_fetches_again_leaves_it_fetching(
    make: Make, send: Send, place: str
) -> None:
    """consume(0) has paused it for slow handlers; the call for messages that resumes it is interrupted."""
    send(*numbers(0, 3000))
    consumer = make("orders")
    got = values(consumer.consume(10, 10))
    for _ in range(1500):
        consumer.consume(0)
    struck(consumer, place)
    got += values(poll_quiet(consumer))
    assert {*got} == {*numbers(0, 3000)}
