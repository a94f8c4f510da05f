from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from dedup_sdk import ConfigurationError, DeadLetter, DeadLetterError, StoreError
from dedup_sdk._runner import settings as run_settings
from dedup_sdk._runner.dead_letters import original_headers
from dedup_sdk._runner.runner import EndsAtOnce
from dedup_sdk._runner.workers import Workers
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.errors import StoreCorruptError
from tests.support import inside
from tests.support.consuming import (
    PATIENCE_S,
    QUIET_S,
    committed,
    poll_quiet,
    poll_some,
    progress,
    run_all,
    values,
)
from tests.support.dead_letters import dead_letters

if TYPE_CHECKING:
    from dedup_sdk._runner.tasks import Task
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

QUICK: dict[str, Any] = {"wait_initial": 0.01, "wait_max": 0.02}


class HandlerError(Exception):
    """The error of a handler."""


class Failing:
    """A handler that fails for some values, so many times each."""

    def __init__(self, **times: int) -> None:
        self.times = times
        self.called: list[str] = []
        self.handled: list[str] = []

    def __call__(self, message: Any) -> None:
        """Handle a message, or not."""
        value = message.value().decode()
        self.called.append(value)
        if self.called.count(value) <= self.times.get(value, 0):
            raise HandlerError(f"{value} fails with password=hunter2")
        self.handled.append(value)


def test_by_default_the_first_error_ends_the_run(make: Make, send: Send) -> None:
    """The handler's own exception comes out of run(), and its message comes again, before the later ones."""
    send("a", "b", "c", "d")
    consumer = make("orders")
    handler = Failing(b=1)

    with pytest.raises(HandlerError, match="b fails"):
        consumer.run(handler)

    assert handler.called == ["a", "b"]
    run_all(consumer, handler)
    assert handler.handled == ["a", "b", "c", "d"]
    assert consumer.counters.released == 1


def test_what_follows_a_failure_in_its_line_does_not_overtake_it(make: Make, kafka: MockKafka) -> None:
    """Messages of the failed one's key come after it, also when the run is repeated with many workers."""
    from tests.mock.test_run import send_keyed

    send_keyed(kafka, ["k", "k", "k", "k", None])
    consumer = make("orders")
    handler = Failing(**{"k-1": 2})
    for _ in range(2):
        with pytest.raises(HandlerError):
            consumer.run(handler, workers=4)
    run_all(consumer, handler, workers=4)

    in_line = [value for value in handler.handled if value.startswith("k")]
    assert in_line == ["k-0", "k-1", "k-2", "k-3"]
    assert sorted(handler.handled) == ["None-0", *in_line]


def test_a_failed_message_is_retried(make: Make, send: Send) -> None:
    """The handler is called again until it succeeds; its twin stays a duplicate, another key goes on."""
    send("a", "b", "a", "c")
    handler = Failing(a=3)
    consumer = make("orders")
    run_all(consumer, handler, on_error="retry", workers=2, **QUICK)

    assert handler.called.count("a") == 4
    assert sorted(handler.handled) == ["a", "b", "c"]
    assert consumer.counters.retried == 3
    assert consumer.counters.verdicts["duplicate"] == 1
    assert progress(consumer) == (4, 0)


def test_retries_come_to_an_end(make: Make, send: Send) -> None:
    """After its attempts the error ends the run, and the message is not completed."""
    send("a", "b")
    handler = Failing(a=99)
    consumer = make("orders")
    with pytest.raises(HandlerError):
        consumer.run(handler, on_error="retry", attempts=3, **QUICK)

    assert handler.called.count("a") == 3
    assert inside.next_offset(consumer) == 0


def test_without_a_limit_it_is_tried_for_ever(make: Make, send: Send) -> None:
    """attempts=None goes on until the handler succeeds."""
    send("a")
    handler = Failing(a=20)
    run_all(make("orders"), handler, on_error="retry", attempts=None, wait_initial=0, wait_max=0)
    assert handler.handled == ["a"]


def test_only_errors_that_may_pass_are_retried(make: Make, send: Send, kafka: MockKafka) -> None:
    """Any other is final at once."""
    send("a")
    handler = Failing(a=1)
    run_all(
        make("orders"), handler, on_error="dead-letter", retry_on=(ConnectionError, TimeoutError), **QUICK
    )
    assert handler.called == ["a"]
    assert values(dead_letters(kafka.bootstrap)) == ["a"]


def test_a_function_may_tell_which_errors_pass(make: Make, send: Send, kafka: MockKafka) -> None:
    """It is asked of each error: once it says no, the message is given up."""
    send("a", "b")
    handler = Failing(a=2, b=9)
    asked: list[str] = []

    def may_pass(error: Exception) -> bool:
        asked.append(str(error))
        return "b" not in handler.called

    run_all(make("orders"), handler, on_error="dead-letter", retry_on=may_pass, order="key", **QUICK)
    assert (handler.called, handler.handled) == (["a", "a", "a", "b"], ["a"])
    assert values(dead_letters(kafka.bootstrap)) == ["b"]
    assert asked


def test_stop_does_not_wait_for_a_pause(make: Make, send: Send) -> None:
    """A message whose handler waits for its next attempt is handed back at once when the run ends."""
    send("a")
    consumer = make("orders")

    def handle(_: Any) -> None:
        threading.Timer(0.1, consumer.stop).start()
        raise HandlerError

    # Who waits for the next attempt outlasts this test's time.
    consumer.run(handle, on_error="retry", wait_initial=3600, wait_max=3600)
    assert values(poll_quiet(consumer)) == ["a"]


def test_a_dead_letter_says_everything(make: Make, send: Send, kafka: MockKafka) -> None:
    """It has the key, value and headers of its message, and where it was, who gave it up, how often, and why."""
    send("a", "b", "c")
    handler = Failing(b=99)
    with make("orders") as consumer:
        run_all(consumer, handler, on_error="dead-letter", attempts=2, **QUICK)

    [letter] = dead_letters(kafka.bootstrap)
    assert (letter.key(), letter.value(), original_headers(letter)) == (None, b"b", [("dedup-id", b"b")])
    said = DeadLetter.read(letter)
    assert said is not None
    assert (said.topic, said.partition, said.offset, said.group, said.attempts) == ("orders", 0, 1, "g", 2)
    assert (said.error_type, said.error) == ("HandlerError", "b fails with password=***")
    assert said.digest is not None
    assert len(said.digest) == 16
    assert handler.handled == ["a", "c"]
    assert consumer.counters.dead_lettered == 1
    assert committed(kafka.bootstrap, "g", "orders").offset == 3


def test_an_error_that_cannot_tell_itself_is_dead_lettered(make: Make, send: Send, kafka: MockKafka) -> None:
    """An exception whose text raises is given up like any other, and does not hold up messages after its own."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise AttributeError("no text")

    send("a", "b")
    handled: list[str] = []

    def handle(message: Any) -> None:
        if message.value() == b"a":
            raise BrokenError
        handled.append(message.value().decode())

    run_all(make("orders"), handle, on_error="dead-letter", attempts=1)

    assert handled == ["b"]
    (sent,) = dead_letters(kafka.bootstrap)
    found = DeadLetter.read(sent)
    assert found is not None
    assert (found.offset, found.error_type) == (0, BrokenError.__qualname__)
    assert found.error == "<str() of the error raised AttributeError>"


def test_a_message_is_over_only_when_its_dead_letter_is_delivered(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A dead letter that the broker refuses ends the run with one line, and its message comes again."""
    kafka.create_topic("refused")
    send("a", "b")
    consumer = make("orders")
    kafka.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 10)

    with pytest.raises(DeadLetterError, match=r"orders\[0\]@0 was not delivered.*check that the") as caught:
        consumer.run(Failing(a=99), on_error="dead-letter", dead_letters="refused", attempts=1)
    assert "\n" not in str(caught.value)
    assert inside.next_offset(consumer) == 0
    assert consumer.counters.dead_lettered == 0
    kafka.clear_errors("Produce")
    consumer.close()
    assert "a" in values(poll_quiet(make("orders")))


def test_until_the_report_is_there_the_offset_stays(make: Make, send: Send, kafka: MockKafka) -> None:
    """While the broker does not take the dead letter, nothing above its message is committed; then all of it is."""
    kafka.create_topic("late")
    send("a", "b", "c")
    consumer = make("orders")
    seen: list[int | None] = []

    def handle(message: Any) -> None:
        if message.value() == b"a":
            kafka.push_errors("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 1_000)
            raise HandlerError
        if message.value() == b"c":
            # What must not be completed has the time to be.
            time.sleep(QUIET_S)
            seen.append(inside.next_offset(consumer))
            kafka.clear_errors("Produce")

    run_all(consumer, handle, on_error="dead-letter", dead_letters="late", attempts=1)

    assert seen == [0]
    assert progress(consumer) == (3, 0)
    assert values(dead_letters(kafka.bootstrap, "late")) == ["a"]


def test_a_run_that_ends_waits_for_no_broker_that_is_away(make: Make, send: Send, kafka: MockKafka) -> None:
    """It would otherwise wait for the report of the dead letter as long as the producer tries."""
    kafka.create_topic("late")
    send("a")
    consumer = make("orders", revoke_deadline=1)

    def handle(_: Any) -> None:
        kafka.push_errors("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 1_000)
        consumer.stop()
        raise HandlerError

    consumer.run(handle, on_error="dead-letter", dead_letters="late", attempts=1)
    kafka.clear_errors("Produce")
    assert consumer.counters.abandoned == 1
    assert values(poll_some(consumer, 1)) == ["a"]


def test_the_last_error_of_a_handler_ends_the_run_also_if_its_message_comes_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread moves the partition between the look at what has finished and the lock.

    No handler begins behind a last error.
    """
    send(*"ab")
    consumer = make("orders", idle_timeout=PATIENCE_S)
    moves, looked = threading.Event(), threading.Event()
    real_look, real_forget = Workers.finished, EndsAtOnce.forget

    def handle(_: Any) -> None:
        if not moves.is_set():
            mover.start()
            assert moves.wait(PATIENCE_S)
        raise HandlerError

    def look(workers: Workers, timeout_s: float) -> list[Task]:
        finished = real_look(workers, timeout_s)
        if finished and threading.current_thread() is not mover:
            looked.set()
        return finished

    def forget(ends: EndsAtOnce, partitions: Any) -> None:
        if threading.current_thread() is mover:
            moves.set()
            assert looked.wait(PATIENCE_S)
        real_forget(ends, partitions)

    monkeypatch.setattr(Workers, "finished", look)
    monkeypatch.setattr(EndsAtOnce, "forget", forget)
    mover = threading.Thread(target=consumer.seek, args=[TopicPartition("orders", 0, 0)])
    with pytest.raises(HandlerError):
        consumer.run(handle, attempts=1)
    mover.join()


def test_a_message_of_the_dead_letter_topic_is_not_sent_there_again(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Who handles dead letters with the same topic for those that fail would go round in circles.

    The run ends instead.
    """
    kafka.create_topic("letters")
    send("a", topic="letters")
    consumer = make("letters")
    with pytest.raises(DeadLetterError, match="is already in the dead-letter topic"):
        consumer.run(Failing(a=9), on_error="dead-letter", dead_letters="letters", attempts=1)


def test_what_is_no_exception_of_the_handler_is_never_a_dead_letter(make: Make, send: Send) -> None:
    """SystemExit from a handler ends the run, and its message comes again."""
    send("a")
    consumer = make("orders")

    def leave(_: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        consumer.run(leave, on_error="dead-letter")
    assert inside.next_offset(consumer) == 0


def test_without_the_package_for_retries_one_line_says_so(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries name the extra that is missing; a run without retries needs nothing."""
    monkeypatch.setattr(run_settings, "find_spec", lambda _: None)
    send("a")
    consumer = make("orders")
    with pytest.raises(ConfigurationError, match=r"pip install 'dedup-sdk\[retry\]'"):
        consumer.run(print, on_error="retry")
    handler = Failing()
    run_all(consumer, handler)
    assert handler.handled == ["a"]


def test_a_store_that_fails_ends_the_run(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the key store comes out of run(); handled messages are neither handled again nor forgotten."""
    send("a", "b")
    consumer = make("orders")
    run_all(consumer, Failing())
    send("c")

    def fail(*_: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryPartition, "append", fail)
        with pytest.raises(StoreError, match="the disk is full"):
            consumer.run(Failing())
    send("c", "d")
    again = Failing()
    run_all(consumer, again)
    assert again.handled == ["d"]


def test_a_damaged_store_does_not_end_the_run(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged store is opened anew beside the run: nothing is lost, and only messages with a handler come again."""
    send(*map(str, range(20)))
    consumer = make("orders")
    damaged: list[MemoryPartition] = []
    real = MemoryPartition.append

    def append(store: MemoryPartition, *arguments: Any) -> None:
        if not damaged or store is damaged[0]:
            damaged.append(store)
            raise StoreCorruptError("a block has another checksum")
        real(store, *arguments)

    def handle(message: Any) -> None:
        handler(message)
        if message.offset() == 10:
            monkeypatch.setattr(MemoryPartition, "append", append)

    handler = Failing()
    run_all(consumer, handle, max_in_flight=3)

    assert damaged
    assert sorted(set(handler.handled), key=int) == [str(number) for number in range(20)]
    assert progress(consumer) == (20, 0)
    assert len(handler.handled) <= 23


def test_a_poll_of_ones_own_is_refused_in_a_run(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call would recognise the objects that it returns, so that they would be dropped without a word."""
    send("a")
    consumer = make("orders")
    poll = consumer.poll
    monkeypatch.setattr(consumer, "poll", lambda timeout: poll(timeout) and SimpleNamespace(value=b"a"))
    with pytest.raises(
        TypeError, match=r"^poll\(\) returned a SimpleNamespace: run\(\) needs the client's own"
    ):
        consumer.run(print)
    monkeypatch.undo()
    assert values(poll_some(consumer, 1)) == ["a"]
