from __future__ import annotations

import gc
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import StoreError
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.guards import Interruption
from dedup_sdk._kafka.deliver import batch, judge, maintenance, poller
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk._kafka.deliver.fetcher import Fetcher
from dedup_sdk._kafka.deliver.maintenance import Collector
from dedup_sdk._kafka.deliver.worker_session import WorkerSession
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._runner.dead_letters import DeadLetterProducer
from dedup_sdk._runner.workers import Workers
from dedup_sdk._store.memory import MemoryPartition
from tests.support import inside
from tests.support.consuming import committed, poll_quiet, poll_some, progress, values, wait_for
from tests.support.interrupting import Interrupted, InterruptingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk._runner.settings import OnError
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def once_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException) -> list[int]:
    """Let a method raise after it has worked, the next time only; the list tells how often it did."""
    real: Callable[..., Any] = getattr(owner, name)
    raised: list[int] = []

    def method(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        if not raised:
            raised.append(1)
            raise error
        return result

    monkeypatch.setattr(owner, name, method)
    return raised


def poll_through(consumer: Any, count: int, calls: int = 400) -> list[Any]:
    """Poll until `count` messages came, or so many times, whatever is raised."""
    got: list[Any] = []
    for _ in range(calls):
        try:
            message = consumer.poll(0.1)
        except (Interrupted, StoreError):
            continue
        if message is not None:
            got.append(message)
        if len(got) == count:
            break
    return got


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Fetcher, "fetch"), (Fetcher, "listen"), (Fetcher, "rest"), (Interruption, "schedule_maintenance"),
        (Delivery, "take"),
        (Partition, "admit"), (Partition, "complete_chunk"), (Partition, "persist"),
    ],
)  # fmt: skip
def test_an_interruption_costs_no_message(
    *, make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Wherever it strikes, messages fetched, judged or on their way to the application come.

    They are committed in the end.
    """
    monkeypatch.setattr(maintenance, "MAINTENANCE_S", 0.0)
    monkeypatch.setattr(poller, "SILENCE_S", 0.0)
    if name == "admit":
        monkeypatch.setattr(judge, "MOST_ALONE", 0)
    send(*map(str, range(20)))
    consumer = make("orders")
    got = poll_some(consumer, 5)
    raised = once_after(monkeypatch, owner, name, Interrupted())
    got += poll_through(consumer, 15)
    send("end")
    got += wait_for_value(consumer, "end")
    while not raised:
        # All came at the first look; the next call has to wait.
        got += poll_through(consumer, 1, calls=1)
    # A close now would commit nothing: the call may have been torn.
    got += poll_through(consumer, 1, calls=1)

    assert set(values(got)) == {*map(str, range(20)), "end"}
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset >= 20


def test_the_position_after_an_interruption_is_before_what_nobody_got(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were judged when it struck come again: whoever keeps positions must not step over them."""
    consumer = make("orders")
    poll_quiet(consumer)
    sent = list(map(str, range(20)))
    send(*sent)
    time.sleep(0.1)
    raised = once_after(monkeypatch, Partition, "admit", Interrupted())
    got: list[Any] = []
    while not raised:
        got += poll_through(consumer, 1, calls=1)
    position = consumer.position([TopicPartition("orders", 0)])[0].offset

    assert position <= len(got)
    consumer.seek(TopicPartition("orders", 0, position))
    assert {*values(got), *values(poll_quiet(consumer))} == {*sent}


def wait_for_value(consumer: Any, value: str) -> list[Any]:
    """Poll until a value came, whatever is raised."""
    got: list[Any] = []
    while not got or values(got[-1:]) != [value]:
        got += poll_through(consumer, 1)
    return got


def test_an_interruption_between_the_queue_and_the_application_costs_no_message(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quickest way through poll too: a message that was taken and never returned comes again."""
    monkeypatch.setattr(batch, "deque", InterruptingQueue)
    send(*map(str, range(20)))
    consumer = make("orders")
    got = poll_some(consumer, 1)
    while len(inside.ready(consumer)) < 2:
        got += poll_some(consumer, 1)
    # The next call does all other work, and the one after that has none.
    monkeypatch.setattr(maintenance, "MAINTENANCE_S", 600.0)
    monkeypatch.setattr(poller, "SILENCE_S", 600.0)
    inside.let_time_pass(consumer)
    got += poll_some(consumer, 1)
    InterruptingQueue.lose_the_next()
    with pytest.raises(Interrupted) as raised:
        consumer.poll(0)
    assert [entry.name for entry in raised.traceback][-2:] == ["poll", "popleft"]

    # The last that was handed out is not completed, and comes again, too.
    again = list(map(str, range(len(got) - 1, 20)))
    assert values(poll_some(consumer, len(again))) == again


def test_an_interruption_of_the_last_step_costs_no_message(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was found, and whose call is torn on its way out, comes again."""
    pause, take, resume = Collector.pause, Delivery.take, Collector.resume
    steps, torn = list[str](), list[str]()

    def note_pause(collector: Collector) -> None:
        pause(collector)
        steps.append("pause")

    def note_take(delivery: Delivery, count: int) -> list[Any]:
        found = take(delivery, count)
        steps.extend(["take"] if found else [])
        return found

    def tear(collector: Collector) -> None:
        resume(collector)
        if steps[-2:] == ["pause", "take"] and not torn:
            torn.append("once")
            raise Interrupted

    send(*map(str, range(20)))
    consumer = make("orders")
    got = poll_some(consumer, 20)
    monkeypatch.setattr(Collector, "pause", note_pause)
    monkeypatch.setattr(Delivery, "take", note_take)
    monkeypatch.setattr(Collector, "resume", tear)
    sent = list(map(str, range(20)))
    while not torn and len(sent) < 200:
        more = [f"end{len(sent) + number}" for number in range(20)]
        sent += more
        send(*more)
        # Messages of `consume` are judged first, with a pause.
        with suppress(Interrupted):
            got += consumer.consume(20, 1.0)
    assert torn == ["once"]
    got += wait_for_value(consumer, sent[-1])

    assert set(values(got)) == {*sent}


@pytest.mark.parametrize("name", ["disable", "enable"])
def test_an_interruption_leaves_garbage_collection_on(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Just after it was paused, or resumed, for a batch."""
    consumer = make("orders")
    poll_quiet(consumer)
    raised = once_after(monkeypatch, gc, name, Interrupted())
    sent = list[str]()
    while not raised:
        more = [f"{len(sent) + number}" for number in range(20)]
        sent += more
        send(*more)
        with suppress(Interrupted):
            consumer.consume(20, 1.0)
    assert gc.isenabled()
    assert values(poll_quiet(consumer))[-1:] == sent[-1:]


@pytest.mark.parametrize("name", ["append", "find"])
def test_a_failing_store_costs_no_message(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A write or look-up that fails is raised, and repeated by the next call.

    Verdicts are then as if it had not failed.
    """
    monkeypatch.setattr(maintenance, "MAINTENANCE_S", 0.0)
    monkeypatch.setattr(poller, "SILENCE_S", 0.0)
    for partition in (0, 1):
        send("a", "b", "a", "c", topic="pairs", partition=partition)
    raised: list[int] = []
    got: list[Any] = []
    real = getattr(MemoryPartition, name)

    def failing(*arguments: Any) -> Any:
        if got and len(raised) < 2:
            raised.append(1)
            raise StoreError("disk full")
        return real(*arguments)

    consumer = make("pairs")
    monkeypatch.setattr(MemoryPartition, name, failing)
    got = poll_through(consumer, 1)
    got += poll_through(consumer, 5)
    send("a", "b", topic="pairs", partition=0)
    send("d", topic="pairs", partition=1)
    got += wait_for_value(consumer, "d")

    assert raised
    assert {(m.partition(), m.value()) for m in got} == {
        (p, v) for p in (0, 1) for v in (b"a", b"b", b"c")
    } | {(1, b"d")}


def test_a_store_that_fails_an_explicit_completion_is_not_believed(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message whose completion could not be written is not taken for completed: it comes again."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    first = poll_some(consumer, 2)[0]

    def failing(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryPartition, "append", failing)
        with pytest.raises(StoreError, match="disk full"):
            consumer.complete(first)

    again = poll_some(consumer, 1)
    assert values(again) in (["a"], ["b"])


def test_an_interrupted_recovery_begins_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose recovery was torn is not stuck, and its store is not left open."""
    send("a", "b")
    raised = once_after(monkeypatch, Partition, "start", Interrupted())
    consumer = make("orders")

    assert values(poll_through(consumer, 2)) == ["a", "b"]
    assert raised


# Less than the revoke deadline, after which a client that does not close is left to itself.
@pytest.mark.timeout(55)
@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_closing_after_an_interruption_commits_nothing_doubtful(
    *,
    make: Make,
    send: Send,
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
) -> None:
    """Ctrl-C in the middle of judging, then leaving the block.

    Everything not certainly handled comes again, and the client closes at once.
    """
    send(*map(str, range(10)))

    def handle() -> None:
        with make("orders", config={"partition.assignment.strategy": protocol}) as consumer:
            poll_some(consumer, 3)
            once_after(monkeypatch, Interruption, "schedule_maintenance", Interrupted())
            inside.let_time_pass(consumer)
            consumer.poll(1)

    with pytest.raises(Interrupted):
        handle()

    assert "did not close" not in caplog.text
    first = committed(kafka.bootstrap, "g", "orders").offset
    assert first <= 3
    assert values(poll_quiet(make("orders")))[-7:] == [str(number) for number in range(3, 10)]


@pytest.mark.parametrize(
    ("owner", "on_error"), [(Workers, "raise"), (WorkerSession, "raise"), (WorkerSession, "dead-letter")]
)
def test_what_is_over_when_a_run_is_interrupted_is_completed(
    *, make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, owner: Any, on_error: OnError
) -> None:
    """Ctrl-C between hearing of a handler's end (or of a dead letter) and noting it.

    `run` ends at once, and nothing comes again.
    """
    send("a")
    ended: list[float] = []
    heard_of: list[int] = []
    name = "finished" if owner is Workers else "ending"
    # With a dead letter the first end is that of the handler, and the second one the letter's.
    last = 2 if on_error == "dead-letter" else 1
    real: Callable[..., Any] = getattr(owner, name)

    def heard(*arguments: Any) -> Any:
        found = real(*arguments)
        if found and len(heard_of) < last:
            heard_of.append(1)
            if len(heard_of) == last:
                raise Interrupted
        return found

    def handle(_: Any) -> None:
        ended.append(time.monotonic())
        if on_error == "dead-letter":
            raise ValueError("no")

    def poll_later(letters: DeadLetterProducer) -> None:
        # On a slow machine the report would come before the handler's end is noted: one end, and not two.
        if heard_of and not skipped:
            skipped.append(1)
        else:
            real_poll(letters)

    skipped: list[int] = []
    real_poll = DeadLetterProducer.poll
    monkeypatch.setattr(DeadLetterProducer, "poll", poll_later)
    monkeypatch.setattr(owner, name, heard)
    consumer = make("orders", revoke_deadline=600)
    with pytest.raises(Interrupted):
        consumer.run(handle, on_error=on_error, attempts=1)

    assert time.monotonic() - ended[0] < 60
    assert consumer.counters.abandoned == 0
    assert progress(consumer) == (1, 0)
    assert poll_quiet(consumer) == []


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_assignment_is_made_good(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, strategy: str, when: str
) -> None:
    """A partition that the client took for itself, because our part of the callback was torn, is read all the same."""
    for partition in (0, 1):
        send("a", "b", topic="pairs", partition=partition)
    raised: list[int] = []
    real = Client.assign

    def torn(client: Client, *arguments: Any, **named: Any) -> None:
        if raised or when == "after":
            real(client, *arguments, **named)
        if not raised:
            raised.append(1)
            raise Interrupted

    monkeypatch.setattr(Client, "assign", torn)
    consumer = make("pairs", config={"partition.assignment.strategy": strategy})

    assert sorted(values(poll_through(consumer, 4))) == ["a", "a", "b", "b"]
    assert raised
    consumer.poll(0)
    assert [progress(consumer, "pairs", partition) for partition in (0, 1)] == [(2, 0)] * 2


def test_an_interrupted_revoke_leaves_nothing_of_the_partition(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is gone is not kept, nor its store: the next owner, here the same member, can open it."""
    send("a", "b", "c")
    consumer = make("orders")
    poll_some(consumer, 1)
    raised: list[int] = []
    real = Session.give_back

    def torn(session: Session, *arguments: Any) -> None:
        if raised:
            real(session, *arguments)
        else:
            raised.append(1)
            raise Interrupted

    monkeypatch.setattr(Session, "give_back", torn)
    consumer.unsubscribe()
    for _ in range(400):
        try:
            consumer.poll(0.1)
        except Interrupted:
            break
    assert raised
    consumer.poll(0)
    assert consumer.partition_statuses == []
    consumer.subscribe(["orders"])
    assert values(poll_through(consumer, 3)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("owner", "name"), [(Fetcher, "listen"), (Fetcher, "fetch"), (Interruption, "schedule_maintenance")]
)
def test_what_was_out_at_an_interruption_is_released(
    *, make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Wherever it strikes, messages in flight come again, as after a crash.

    A completion from before counts as stale.
    """
    send("a", "b")
    consumer = make("orders", completion="explicit")
    before = poll_some(consumer, 2)
    raised = once_after(monkeypatch, owner, name, Interrupted())
    inside.let_time_pass(consumer)
    while not raised:
        assert poll_through(consumer, 1, calls=1) == []
    send("c")
    again = poll_through(consumer, 3)

    assert sorted(values(again)) == ["a", "b", "c"]
    for message in before:
        consumer.complete(message)
    assert consumer.counters.stale == 2
    assert inside.next_offset(consumer) == 0
    for message in again:
        consumer.complete(message)
    assert progress(consumer) == (3, 0)


@pytest.mark.parametrize(("count", "timeout", "error"), [(10**7, 0.0, ValueError), (1, "soon", TypeError)])
def test_a_wrong_argument_is_no_interruption(
    *, make: Make, send: Send, count: int, timeout: Any, error: type[Exception]
) -> None:
    """Messages in flight stay in flight."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    [first, second] = poll_some(consumer, 2)
    with pytest.raises(error):
        consumer.consume(count, timeout)
    assert poll_quiet(consumer) == []
    for message in (first, second):
        consumer.complete(message)
    assert progress(consumer) == (2, 0)


def test_an_error_of_a_callback_is_no_interruption(make: Make, send: Send) -> None:
    """Messages in flight stay in flight."""

    def failing(*_: object) -> None:
        if len(out) == 2 and not raised:
            raise LookupError("of the callback")

    out: list[Any] = []
    raised: list[LookupError] = []
    send("a", "b")
    consumer = make(
        "orders", completion="explicit", config={"stats_cb": failing, "statistics.interval.ms": 50}
    )
    out += poll_some(consumer, 2)
    while not raised:
        try:
            assert consumer.poll(0.1) is None
        except LookupError as error:
            raised.append(error)
    for message in out:
        consumer.complete(message)
    assert consumer.counters.stale == 0
    assert progress(consumer) == (2, 0)


@pytest.mark.parametrize("step", ["admit", "complete_chunk"])
def test_an_error_that_comes_back_costs_one_partition(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The second time, with nothing completed in between, the partition is closed.

    The other one goes on, and a seek opens it again.
    """
    for partition in (0, 1):
        send(*(f"{partition}-{each}" for each in range(20)), topic="pairs", partition=partition)
    real: Callable[..., Any] = getattr(Partition, step)

    def failing(self: Partition, *arguments: Any, **named: Any) -> Any:
        if self.partition == 0:
            raise ValueError("a bug")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Partition, step, failing)
    # Else a message that the client returns alone makes progress between two errors of `admit`.
    monkeypatch.setattr(judge, "MOST_ALONE", 0)
    consumer = make("pairs")
    raised, got = 0, list[str]()
    while raised < 2 or "1-19" not in got:
        try:
            message = consumer.poll(0.1)
        except ValueError:
            raised += 1
            continue
        got += [] if message is None else values([message])
    assert raised == 2
    wait_for(
        consumer, lambda: consumer.partition_statuses[0].hindrances == ("failed",), "the partition's end"
    )

    monkeypatch.setattr(Partition, step, real)
    consumer.seek(TopicPartition("pairs", 0, 0))
    assert "0-19" in values(poll_quiet(consumer))


def test_an_error_after_progress_is_another_one(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes once at its place: the partition is opened again each time, and goes on."""
    send(*map(str, range(5)))
    consumer = make("orders")
    # All of a batch was given out: the next poll completes it as one chunk.
    got = poll_through(consumer, 5)
    for each in range(5, 10):
        raised = once_after(monkeypatch, Partition, "complete_chunk", ValueError("a bug"))
        send(str(each))
        while not raised or str(each) not in values(got):
            try:
                got += filter(None, [consumer.poll(0.1)])
            except ValueError:
                continue
        monkeypatch.undo()
    assert consumer.partition_statuses[0].hindrances == ()


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_nothing_is_called_between_the_delivery_and_the_return(
    make: Make, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A signal is handled in a call: there its exception would drop the message, and nobody would know."""
    consumer = make("orders")
    message = Mock(error=Mock(side_effect=Interrupted))
    monkeypatch.setattr(poller.Poller, "messages", lambda *_: [message])

    got: Any = [consumer.poll(0)] if call == "poll" else consumer.consume(1, 0)
    assert got == [message]
