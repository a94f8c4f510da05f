from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._kafka.deliver.handover import Handover
from dedup_sdk._kafka.deliver.worker_session import WorkerSession
from tests.mock.conftest import SHARED_GROUP
from tests.support.consuming import PATIENCE_S, committed, poll_quiet, run_all, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


class Run:
    """A run on a thread of its own."""

    def __init__(self, consumer: DedupConsumer, handler: Any, **settings: Any) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(handler, settings))
        self._thread.start()

    def _run(self, handler: Any, settings: dict[str, Any]) -> None:
        try:
            self.consumer.run(handler, **settings)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            self.error = error

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.error is None
            assert time.monotonic() < until
            time.sleep(0.005)

    def stop(self) -> None:
        """End it in order."""
        self.consumer.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when the first partitions begin to go."""
    going, give_back = threading.Event(), Handover.give_back

    def noted(assignment: Handover, partitions: list[TopicPartition]) -> None:
        if partitions:
            going.set()
        give_back(assignment, partitions)

    monkeypatch.setattr(Handover, "give_back", noted)
    return going


def test_a_partition_that_goes_waits_for_its_handlers(make: Make, send: Send, going: threading.Event) -> None:
    """A message in a handler when the group takes its partition away is completed and committed.

    Its next owner does not see it.
    """
    for partition in (0, 1):
        send(*(f"{partition}-{number}" for number in range(6)), topic="pairs", partition=partition)
    first, second = make("pairs", config=SHARED_GROUP), make(config=SHARED_GROUP)
    handled: list[str] = []
    joined = threading.Event()

    def slow(message: Any) -> None:
        # A handler that asks for something needs the lock that the polling thread holds in its callback.
        first.verdict(message)
        joined.set()
        assert going.wait(PATIENCE_S)
        first.verdict(message)
        handled.append(message.value().decode())

    run = Run(first, slow, workers=2, order="none")
    assert joined.wait(PATIENCE_S)
    second.subscribe(["pairs"])
    others = values(poll_quiet(second))
    run.stop()
    rest = values(poll_quiet(first)) if not run.error else []

    assert run.error is None
    everything = [*handled, *others, *rest]
    assert sorted(everything) == sorted({f"{partition}-{n}" for partition in (0, 1) for n in range(6)})
    assert others
    assert first.counters.abandoned == 0


@pytest.mark.slow
def test_a_handler_that_commits_does_not_hold_up_a_rebalance(
    make: Make, send: Send, going: threading.Event
) -> None:
    """Its commit is noted while the partition goes, so that the handler ends, and is not given up at the deadline."""
    for partition in (0, 1):
        send(*(f"{partition}-{number}" for number in range(4)), topic="pairs", partition=partition)
    config = {**SHARED_GROUP, "enable.auto.commit": False}
    first, second = make(config=config, revoke_deadline=4 * PATIENCE_S), make(config=config)
    joined = threading.Event()
    first.subscribe(["pairs"])

    def slow(_: Any) -> None:
        joined.set()
        assert going.wait(PATIENCE_S)
        with contextlib.suppress(KafkaException):
            # Nothing is to commit before the first message is over.
            first.commit(asynchronous=False)

    run = Run(first, slow, workers=2, order="none")
    assert joined.wait(PATIENCE_S)
    second.subscribe(["pairs"])
    wait_for(second, lambda: bool(second.assignment()), "the partition")
    run.stop()

    assert run.error is None
    assert first.counters.abandoned == 0


def test_what_does_not_come_to_an_end_is_abandoned_and_counted(make: Make, send: Send) -> None:
    """A handler that outlives the deadline of a revoke loses its partition.

    The message comes again, its end changes nothing.
    """
    send("a", "b")
    consumer = make(revoke_deadline=0.3)
    consumer.assign([TopicPartition("orders", 0)])
    busy, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        busy.set()
        assert go_on.wait(PATIENCE_S)
        ended.set()

    run = Run(consumer, handle)
    assert busy.wait(PATIENCE_S)
    consumer.unassign()
    go_on.set()
    assert ended.wait(PATIENCE_S)
    run.stop()

    assert run.error is None
    assert consumer.counters.abandoned == 1
    consumer.assign([TopicPartition("orders", 0)])
    assert values(poll_quiet(consumer)) == ["a", "b"]


def test_a_partition_that_goes_waits_for_its_dead_letters(make: Make, send: Send, kafka: MockKafka) -> None:
    """A message that was just given up is over when its partition goes.

    Its dead letter is delivered, its offset committed.
    """
    kafka.create_topic("letters")
    send("a")
    consumer = make()
    consumer.assign([TopicPartition("orders", 0)])
    failed = threading.Event()

    def fail(_: Any) -> None:
        # The broker refuses the letter for a while; the producer repeats it.
        kafka.push_errors("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 5)
        failed.set()
        raise ValueError("no")

    run = Run(consumer, fail, on_error="dead-letter", dead_letters="letters", attempts=1)
    assert failed.wait(PATIENCE_S)
    # The letter is on its way, and refused: the client repeats it without a word.
    time.sleep(0.1)
    consumer.unassign()

    assert consumer.counters.dead_lettered == 1
    assert consumer.counters.abandoned == 0
    assert committed(kafka.bootstrap, "g", "orders").offset == 1
    run.stop()
    assert run.error is None


def test_a_lost_partition_is_neither_waited_for_nor_written(make: Make, send: Send, kafka: MockKafka) -> None:
    """A handler's work after its partition was lost leaves no trace in store or commits."""
    send("a")
    consumer = make()
    busy, go_on = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        busy.set()
        assert go_on.wait(PATIENCE_S)

    # It ends with the loss: the member would get the partition again.
    consumer.subscribe(["orders"], on_lost=lambda *_: consumer.stop())
    run = Run(consumer, handle)
    assert busy.wait(PATIENCE_S)
    kafka.push_errors("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID, 1)
    until = time.monotonic() + PATIENCE_S
    while consumer.counters.abandoned < 1:
        assert time.monotonic() < until, "the partition is not lost"
        time.sleep(0.01)
    go_on.set()
    run.stop()

    assert run.error is None
    assert consumer.counters.abandoned == 1
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 0
    assert values(poll_quiet(make("orders"))) == ["a"]


def test_a_seek_hands_out_again_what_no_handler_had(make: Make, send: Send) -> None:
    """A handler may move the consumer: messages that waited for a worker are read again from there."""
    send(*map(str, range(6)))
    consumer = make("orders")
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.value().decode())
        if message.offset() == 1:
            consumer.seek(TopicPartition("orders", 0, 4))

    run_all(consumer, handle)
    assert handled == ["0", "1", "4", "5"]


def test_a_seek_below_the_position_skips_nothing_that_no_handler_had(make: Make, send: Send) -> None:
    """Messages that wait for a worker are not delivered yet, neither for `position` nor for `seek`."""
    send(*map(str, range(20)))
    consumer = make("orders")
    handled: list[int] = []
    full, moved = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.offset())
        if message.offset() == 3:
            full.set()
            assert moved.wait(PATIENCE_S)

    run = Run(consumer, handle)
    assert full.wait(PATIENCE_S)
    # The handler has the first of them.
    run.until(lambda: consumer.partition_statuses[0].in_flight == 17)
    [place] = consumer.position([TopicPartition("orders", 0)])
    consumer.seek(TopicPartition("orders", 0, place.offset - 2))
    moved.set()
    run.until(lambda: handled[-1] == 19)
    run.stop()

    assert place.offset == 4
    assert sorted({*handled}) == list(range(20))
    assert handled == [0, 1, 2, 3, *range(2, 20)]


def test_a_seek_to_the_position_is_no_move_for_a_message_on_its_way_to_a_worker(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the call that returned the message and the task that is made of it, no handler has the message."""
    send(*map(str, range(6)))
    consumer = make("orders")
    handled: list[int] = []
    seen: list[int] = []
    poll = WorkerSession.poll

    def late(session: WorkerSession, timeout_s: float) -> Any:
        message = poll(session, timeout_s)
        # Without the lock: in a step the position would be the watermark.
        if message is not None and message.offset() == 3 and not seen:
            [place] = consumer.position([TopicPartition("orders", 0)])
            seen.append(place.offset)
        return message

    monkeypatch.setattr(WorkerSession, "poll", late)
    run_all(consumer, lambda message: handled.append(message.offset()))
    assert seen[0] <= 3
    assert handled == list(range(6))


def test_closing_a_consumer_at_work_ends_its_run(make: Make, send: Send) -> None:
    """close() from another thread waits for the running handler; the run ends with the client's own error."""
    send("a", "b")
    before = set(threading.enumerate())
    consumer = make("orders")
    busy = threading.Event()
    handled: list[str] = []

    def handle(message: Any) -> None:
        busy.set()
        # Longer than `close` takes to begin to wait, which no event says.
        time.sleep(0.3)
        handled.append(message.value().decode())

    run = Run(consumer, handle)
    assert busy.wait(PATIENCE_S)
    consumer.close()
    run.stop()
    assert isinstance(run.error, RuntimeError | KafkaException)
    rest = values(poll_quiet(make("orders")))
    assert sorted({*handled, *rest}) == ["a", "b"]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("call", ["close", "unassign"])
def test_a_handler_that_lets_partitions_go_does_not_wait_for_itself(
    make: Make, send: Send, call: str
) -> None:
    """However long handlers are waited for elsewhere: messages in handlers are abandoned, and come again."""
    send(*"abc")
    consumer = make("orders", revoke_deadline=4 * PATIENCE_S)
    left = threading.Event()

    def leaving(message: Any) -> None:
        if message.value() == b"b" and not left.is_set():
            getattr(consumer, call)()
            left.set()

    run = Run(consumer, leaving)
    assert left.wait(PATIENCE_S), "it waits for the handler that called it"
    if call == "unassign":
        run.stop()
        assert run.error is None
    consumer.close()
    assert consumer.counters.as_dict()["abandoned"] == 1
    assert values(poll_quiet(make("orders"))) == ["b", "c"]
