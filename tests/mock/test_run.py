from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from dedup_sdk import ConfigurationError
from dedup_sdk._kafka.deliver import poller, worker_session
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


class Handled:
    """A handler that notes its messages, and how many run at the same time."""

    def __init__(self, work: Callable[[], object] = lambda: None) -> None:
        self.values: list[str] = []
        self.most_at_once = 0
        self._work = work
        self._at_once = 0
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        """Handle a message."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self._work()
        with self._lock:
            self._at_once -= 1
            self.values.append(message.value().decode())


@pytest.mark.parametrize("completion", ["on-next-call", "explicit"])
def test_each_message_is_handled_once(make: Make, send: Send, kafka: MockKafka, completion: str) -> None:
    """Whatever the completion mode: duplicates do not reach the handler, and all of it is completed and committed."""
    send(*map(str, range(50)), *map(str, range(50)))
    handled = Handled()
    with make("orders", completion=completion) as consumer:
        run_all(consumer, handled, workers=4)

    assert sorted(handled.values, key=int) == [str(number) for number in range(50)]
    assert committed(kafka.bootstrap, "g", "orders").offset == 100
    assert consumer.counters.verdicts["duplicate"] == 50


def test_workers_work_at_the_same_time(make: Make, send: Send) -> None:
    """So many handlers run at once as there are workers, and no more."""
    send(*map(str, range(30)))
    together = threading.Barrier(3, timeout=PATIENCE_S)
    handled = Handled(together.wait)
    run_all(make("orders"), handled, workers=3)

    assert handled.most_at_once == 3
    assert len(handled.values) == 30


def send_keyed(kafka: MockKafka, keys: list[str | None]) -> None:
    """Send one record a key; its value says which one of its key it is."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    counts: dict[str | None, int] = defaultdict(int)
    for number, key in enumerate(keys):
        producer.produce(
            "orders", f"{key}-{counts[key]}", key=key, headers={"dedup-id": str(number)}, partition=0
        )
        counts[key] += 1
    assert producer.flush(PATIENCE_S) == 0


def test_the_order_of_each_key_is_kept(make: Make, kafka: MockKafka) -> None:
    """With many workers and handlers of uneven length the messages of a key come one after the other."""
    send_keyed(kafka, [f"key{number % 5}" for number in range(100)])
    handled: dict[str, list[str]] = defaultdict(list)
    at_work: set[str] = set()

    def handle(message: Any) -> None:
        key = message.key().decode()
        assert key not in at_work
        at_work.add(key)
        time.sleep(0.001 * (hash(message.value()) % 5))
        handled[key].append(message.value().decode())
        at_work.discard(key)

    run_all(make("orders"), handle, workers=8)

    assert handled == {f"key{number}": [f"key{number}-{count}" for count in range(20)] for number in range(5)}


@pytest.mark.parametrize(("keys", "order"), [(["same"] * 4, "none"), ([None] * 4, "key")])
def test_without_order_nothing_waits(
    make: Make, kafka: MockKafka, keys: list[str | None], order: Any
) -> None:
    """With order="none", and among messages without a key, handlers do not wait for each other."""
    send_keyed(kafka, keys)
    together = threading.Barrier(4, timeout=PATIENCE_S)

    run_all(make("orders"), lambda _: together.wait(), workers=4, order=order)

    assert together.n_waiting == 0
    assert not together.broken


def test_no_more_is_taken_in_than_may_be_in_flight(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all that may be in flight is with a handler, the group is served and nothing is read without end."""
    monkeypatch.setattr(worker_session, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(poller, "MOST_FETCHED", 3)
    send(*map(str, range(40)))
    go_on = threading.Event()
    consumer = make("orders")
    started: list[str] = []
    fetcher = inside.fetcher_of(consumer)
    listened, listen = list[float](), fetcher.listen

    def counted(wait_s: float) -> None:
        listened.append(wait_s)
        listen(wait_s)

    monkeypatch.setattr(fetcher, "listen", counted)

    def handle(message: Any) -> None:
        started.append(message.value().decode())
        if not go_on.is_set():
            assert go_on.wait(PATIENCE_S)

    def wait_until(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)

    def look() -> None:
        wait_until(lambda: len(started) >= 2)
        # The client is served as long as this lasts, or the group would drop the member.
        for more in (0, 40):
            send(*map(str, range(40 + more, 40 + more + 40)))
            served = len(listened)
            wait_until(lambda served=served: len(listened) >= served + 20)  # type: ignore[misc]
        seen.append(
            (
                len(started),
                len(fetcher.messages),
                consumer.partition_statuses[0].position or 0,
            )
        )
        go_on.set()

    seen: list[tuple[int, int, int]] = []
    looking = threading.Thread(target=look)
    looking.start()
    run_all(consumer, handle, workers=2, max_in_flight=5, order="none")
    looking.join()

    [(running_now, fetched, position)] = seen
    assert running_now == 2
    assert position <= 40
    assert fetched <= 4
    assert len(listened) >= 40
    assert sorted(started, key=int) == [str(number) for number in range(120)]


def test_twins_wait_for_the_handler(make: Make, send: Send) -> None:
    """A twin of a message that a worker has is judged when that one is over, and is a duplicate then."""
    send("a", "a", "b")
    consumer = make("orders")

    def twin_is_in() -> None:
        until = time.monotonic() + PATIENCE_S
        while progress(consumer)[0] != 3:
            assert time.monotonic() < until
            time.sleep(0.01)

    handled = Handled(twin_is_in)
    run_all(consumer, handled, workers=4)

    assert sorted(handled.values) == ["a", "b"]
    assert consumer.counters.verdicts["duplicate"] == 1


def test_stop_waits_for_what_is_running_and_hands_back_the_rest(make: Make, send: Send) -> None:
    """After stop() the running handlers come to their end and count.

    Messages no handler was called for come again, in order.
    """
    send(*map(str, range(20)))
    consumer = make("orders")
    begun = threading.Event()
    handled: list[str] = []

    def handle(message: Any) -> None:
        if not begun.is_set():
            consumer.stop()
            begun.set()
        # Longer than the run takes to end: it must wait for this handler, and begin no other.
        time.sleep(0.2)
        handled.append(message.value().decode())

    consumer.run(handle, workers=2)

    assert 1 <= len(handled) <= 2
    left = [str(number) for number in range(20) if str(number) not in handled]
    assert values(poll_quiet(consumer)) == left
    assert consumer.counters.abandoned == consumer.counters.released == 0


def test_what_was_handed_back_is_not_completed_with_its_batch(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A consumer that is left after stop() without handling the rest has completed no more than its handlers did."""
    send(*map(str, range(20)))
    consumer = make("orders")
    consumer.run(lambda _: consumer.stop())
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset == 1
    assert values(poll_quiet(make("orders"))) == [str(number) for number in range(1, 20)]


def test_a_run_may_follow_another(make: Make, send: Send) -> None:
    """Messages that one run left the next one handles."""
    send(*map(str, range(10)))
    consumer = make("orders")
    handled = Handled()

    def one(message: Any) -> None:
        handled(message)
        consumer.stop()

    consumer.run(one)
    run_all(consumer, handled)
    assert sorted(handled.values, key=int) == [str(number) for number in range(10)]


def test_what_came_before_a_run_ends_by_the_offsets_after_it(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Also a message that had been released and handed out again.

    A commit completes it, and does not stand before it for ever.
    """
    send("a", "b")
    consumer = make("orders", config={"enable.auto.commit": False})
    consumer.release(poll_some(consumer, 1)[0])
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    send("c")
    handled = Handled(consumer.stop)
    consumer.run(handled)
    consumer.commit(asynchronous=False)

    assert handled.values == ["c"]
    assert committed(kafka.bootstrap, "g", "orders").offset == 3


def test_what_a_run_hands_back_is_not_ended_by_offsets(make: Make, send: Send, kafka: MockKafka) -> None:
    """A message that the application had released, and released again before the run, waits in the run's queue.

    A commit passes neither.
    """
    send("a", "b")
    consumer = make("orders", config={"enable.auto.commit": False})
    consumer.release(poll_some(consumer, 1)[0])
    first, _ = poll_some(consumer, 2)
    consumer.release(first)

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consumer.run(fail)
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 0


def test_commits_stop_at_what_is_in_flight(make: Make, send: Send, kafka: MockKafka) -> None:
    """While one handler is busy the others go on, and the committed offset stays below its message."""
    send(*map(str, range(30)))
    others = threading.Semaphore(0)
    consumer = make("orders", config={"auto.commit.interval.ms": 50})
    seen: list[int] = []

    def handle(message: Any) -> None:
        if message.offset() == 10:
            for _ in range(29):
                assert others.acquire(timeout=PATIENCE_S)
            until = time.monotonic() + PATIENCE_S
            while committed(kafka.bootstrap, "g", "orders").offset < 10 and time.monotonic() < until:
                pass
            # What must not be committed has the time to be.
            time.sleep(QUIET_S)
            seen.append(committed(kafka.bootstrap, "g", "orders").offset)
        else:
            others.release()

    run_all(consumer, handle, workers=3)

    assert seen == [10]
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 30


def test_a_handler_may_ask_and_commit(make: Make, send: Send) -> None:
    """A handler may use the consumer: verdicts, counters, commits, pauses."""
    send("a", "b", "c")
    consumer = make("orders")
    verdicts = []

    def handle(message: Any) -> None:
        verdicts.append(consumer.verdict(message))
        consumer.commit()

    run_all(consumer, handle, workers=2)
    assert [verdict.kind.value for verdict in verdicts if verdict] == ["fresh"] * 3


def test_one_run_at_a_time(make: Make, send: Send) -> None:
    """A second run() of a consumer that is at work is an error, and the first goes on."""
    send("a")
    consumer = make("orders")
    caught: list[str] = []

    def handle(_: Any) -> None:
        try:
            consumer.run(print)
        except RuntimeError as error:
            caught.append(str(error))

    run_all(consumer, handle)
    assert len(caught) == 1
    assert "at work already" in caught[0]


async def _coroutine(_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"on_error": "ignore"}, "on_error='ignore': choose raise, retry or dead-letter"),
        ({"order": "partition"}, "order='partition': choose key or none"),
        ({"workers": 0}, "workers=0: give a number of threads"),
        (
            {"workers": 5, "max_in_flight": 4},
            "max_in_flight=4: some of the 5 workers would be idle; give at least 5",
        ),
        ({"attempts": 0, "on_error": "retry"}, "attempts=0: give at least 1"),
        ({"wait_initial": 9, "on_error": "retry"}, "wait_initial=9, wait_max=5.0: give seconds"),
        (
            {"handler": _coroutine},
            "is async, or has yield: a message would count as handled before its code has run",
        ),
        ({"handler": "print"}, "give a function of a message"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Make, settings: dict[str, Any], said: str) -> None:
    """One line that names the value and the way out; no thread was started."""
    consumer: DedupConsumer = make("orders")
    before = threading.active_count()
    with pytest.raises(ConfigurationError) as caught:
        consumer.run(**{"handler": print, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert threading.active_count() == before


def test_a_run_that_observes_handles_completed_messages_too(make: Make, send: Send, tmp_path: Path) -> None:
    """Messages that another owner completed above the committed offset are shown, as `poll` shows them."""
    send("a", "b", "c")
    with make("orders", completion="explicit", store=tmp_path / "one") as first:
        messages = poll_some(first, 3)
        first.complete(messages[1])
    handled = Handled()
    with make("orders", mode="observe", store=tmp_path / "two") as second:
        run_all(second, handled)
    assert sorted(handled.values) == ["a", "b", "c"]
    assert second.counters.verdicts["redelivered"] == 1
