"""Calls that come in the middle of another one: of a signal's handler, a callback, an observer, or another thread."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.client import reader
from dedup_sdk._kafka.client.closing import ClientEnd
from dedup_sdk._kafka.deliver.batch import Batch
from dedup_sdk._kafka.deliver.maintenance import Maintenance
from dedup_sdk._kafka.deliver.positions import Positions
from tests.support import inside
from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

PLACE, FIRST = TopicPartition("orders", 0), TopicPartition("orders", 0, 0)


@contextmanager
def on_signal(handler: Callable[[], object], number: signal.Signals = signal.SIGUSR1) -> Iterator[None]:
    """Have a signal call a function in the block."""
    before = signal.signal(number, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(number, before)


def struck_in(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, *, behind: bool = False) -> None:
    """Send this process a signal right before, or right behind, the next call of a method."""
    real = getattr(owner, name)

    def method(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        if not behind:
            signal.raise_signal(signal.SIGUSR1)
        result = real(*arguments, **named)
        if behind:
            signal.raise_signal(signal.SIGUSR1)
        return result

    monkeypatch.setattr(owner, name, method)


@pytest.mark.parametrize("carried_out", ["close", "resume", "consume(0)"])
@pytest.mark.parametrize("caller", ["observer", "signal"])
def test_a_commit_in_the_middle_of_a_call_completes_nothing_that_comes_later(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, caller: str, carried_out: str
) -> None:
    """It is carried out while the loop has the next message in hand, whose handler fails then."""
    send("a", "b")
    store, calls = MemoryStore(), list[int]()

    def commit(*_: object) -> None:
        if not calls:
            calls.append(1)
            consumer.commit()

    observers = [commit] if caller == "observer" else []
    consumer = make("orders", store=store, observers=observers)
    with suppress(ValueError), on_signal(commit), consumer:
        if caller == "signal":
            struck_in(monkeypatch, Maintenance, "run")
        assert values(poll_some(consumer, 1)) == ["a"]
        assert calls
        if carried_out == "resume":
            thread = threading.Thread(target=consumer.resume, args=([PLACE],))
            thread.start()
            thread.join()
        elif carried_out == "consume(0)":
            consumer.consume(0)
        raise ValueError
    assert values(poll_some(make("orders", store=store), 2)) == ["a", "b"]


@pytest.mark.parametrize("config", [{}, {"enable.auto.commit": False}])
def test_a_synchronous_commit_in_a_step_of_a_callback_is_refused(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    """While messages are withdrawn from their queue, a commit would take all of them for delivered."""
    send(*(f"message {number}" for number in range(20)))
    store, refused = MemoryStore(), list[str]()

    def commit() -> None:
        try:
            consumer.commit(asynchronous=False)
        except RuntimeError as error:
            refused.append(str(error))

    consumer = make("orders", store=store, config=config)
    assert values(poll_some(consumer, 1)) == ["message 0"]
    struck_in(monkeypatch, Batch, "_empty", behind=True)
    with on_signal(commit):
        inside.run_as_callback(consumer, lambda: consumer.pause([PLACE]))
    assert len(refused) == 1
    assert "in the middle of a call" in refused[0]
    consumer.close()
    assert values(poll_some(make("orders", store=store, config=config), 20))[0] == "message 0"


IN_CALLBACK = """
import sys, time
from dedup_sdk import DedupConsumer, Lookup, MemoryStore

calls, errors = [], []

def call(*_):
    calls.append(1)
    try:
        if sys.argv[2] == "consume":
            consumer.consume(0)
        else:
            consumer.set_sasl_credentials("user", "new")
    except RuntimeError as error:
        errors.append(str(error))
    if sys.argv[3] == "assign":
        time.sleep(0.1)  # statistics come meanwhile

config = {
    "bootstrap.servers": sys.argv[1], "group.id": "calling", "auto.offset.reset": "earliest",
    "statistics.interval.ms": 20, "stats_cb": call if sys.argv[3] == "stats" else lambda _: None, "log_level": 0,
}
with DedupConsumer(config, dedup=Lookup(id="key", window="1h"), store=MemoryStore()) as consumer:
    consumer.subscribe(["orders"], on_assign=call if sys.argv[3] == "assign" else None)
    until = time.monotonic() + 60
    got = 0
    while not (got and calls):
        assert time.monotonic() < until
        got += consumer.poll(0.2) is not None
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        consumer.poll(0.1)
print(len(set(errors)))
"""


@pytest.mark.parametrize("where", ["stats", "assign"])
@pytest.mark.parametrize(("call", "refused"), [("consume", 1), ("login", 0)])
def test_no_call_of_the_client_begins_in_a_callback(
    kafka: MockKafka, send: Send, call: str, refused: int, where: str
) -> None:
    """The next callback would end the process: `consume(0)` is refused, new credentials wait for the next call."""
    send("a")
    ran = subprocess.run(
        [sys.executable, "-c", IN_CALLBACK, kafka.bootstrap, call, where],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, f"{refused}\n"), ran.stderr


def test_a_heartbeat_of_another_thread_is_refused_beside_a_poll(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives it messages, too: between two lines of a fetch these would come before those of the fetch."""
    consumer = make("orders")
    send("first")
    poll_some(consumer, 1)
    real, refused, polling = Consumer.poll, list[str](), threading.get_ident()

    def beat() -> None:
        try:
            consumer.consume(0)
        except RuntimeError as error:
            refused.append(str(error))

    def poll(client: Any, timeout: float = -1) -> Any:
        message = real(client, timeout)
        if message is not None and threading.get_ident() == polling:
            send("c", "d")
            time.sleep(0.1)
            beating.start()
            beating.join(0.5)
        return message

    beating = threading.Thread(target=beat)
    monkeypatch.setattr(
        "dedup_sdk._kafka.deliver.fetcher.Consumer", type("Polled", (Consumer,), {"poll": poll})
    )
    send("b")
    got = values(poll_some(consumer, 1))
    monkeypatch.undo()
    beating.join()
    assert [*got, *values(poll_some(consumer, 2))] == ["b", "c", "d"]
    assert len(refused) == 1
    assert "another thread" in refused[0]


def test_a_change_inside_the_client_is_carried_out_behind_it(make: Make, send: Send) -> None:
    """A handler that strikes in the client's `poll` begins no other call: its end would count as that of the first."""
    send("a", "b")
    consumer = make("orders")
    assert values(poll_some(consumer, 1)) == ["a"]
    seen = list[Any]()

    def leave() -> None:
        if inside.lock_of(consumer).client_thread == threading.get_ident():
            consumer.unsubscribe()
            seen.append(inside.lock_of(consumer).client_thread)

    assert values(poll_some(consumer, 1)) == ["b"]
    until, here = time.monotonic() + PATIENCE_S, threading.get_ident()

    def strike() -> None:
        while not seen and time.monotonic() < until:
            signal.pthread_kill(here, signal.SIGUSR1)
            time.sleep(0.1)

    with on_signal(leave):
        striking = threading.Thread(target=strike)
        striking.start()
        while not seen and time.monotonic() < until:
            consumer.poll(0.5)
        striking.join()
    assert seen == [threading.get_ident()], "the client is still taken"
    while consumer.assignment() and time.monotonic() < until:
        consumer.poll(0.1)
    assert consumer.assignment() == []


def test_a_time_limit_strikes_the_call_that_does_a_noted_one(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a later one; and a noted call runs outside of any callback."""
    send("a", "b", "c")
    consumer = make("orders")
    assert values(poll_some(consumer, 1)) == ["a"]
    in_callback = list[bool]()
    real = Positions.pause

    def struck(api: Positions, partitions: list[TopicPartition]) -> None:
        in_callback.append(inside.runs_callback(consumer))
        monkeypatch.setattr(Positions, "pause", real)
        signal.raise_signal(signal.SIGUSR2)
        real(api, partitions)

    def give_up() -> None:
        raise TimeoutError

    monkeypatch.setattr(Positions, "pause", struck)
    with on_signal(lambda: consumer.pause([PLACE])), on_signal(give_up, signal.SIGUSR2):
        struck_in(monkeypatch, Batch, "finish")
        assert values(poll_some(consumer, 1)) == ["b"]
        with pytest.raises(TimeoutError):
            consumer.poll(PATIENCE_S)
    assert in_callback == [False]
    # An interruption in the call for more: the message in hand counts as released.
    assert values(poll_some(consumer, 2)) == ["b", "c"]


def test_nobody_waits_for_a_thread_that_a_signal_took_out_of_the_client(make: Make, send: Send) -> None:
    """Its exception came before the thread could say that it had left, and the thread asks for nothing more."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    inside.leave_mark_in_client(consumer)
    worker = threading.Thread(target=consumer.commit, daemon=True)
    worker.start()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


def test_a_client_is_made_where_no_signal_strikes(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its constructor would swallow the exception of a handler, and raise a `TypeError`: a bug, as it were."""
    made_in = list[int]()

    class Watched(Consumer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made_in.append(threading.get_ident())
            super().__init__(*arguments, **named)

    monkeypatch.setattr(reader, "Consumer", Watched)
    send("a", "b")
    store = MemoryStore()
    with make("orders", store=store) as consumer:
        poll_some(consumer, 2)
    with make("orders") as consumer:
        poll_quiet(consumer)
    assert made_in
    assert threading.get_ident() not in made_in


def test_a_mark_of_a_callback_does_not_outlive_an_exception(make: Make, send: Send) -> None:
    """`assign` by hand would give offsets for the group's partitions, and do nothing."""
    send("a")
    consumer = make("orders")
    inside.strike_next_assignment(consumer)
    with pytest.raises(KeyboardInterrupt):
        poll_some(consumer, 1)
    assert not inside.is_in_on_assign(consumer)
    assert values(poll_some(consumer, 1)) == ["a"]


@pytest.mark.parametrize("call", ["poll", "consume(0)"])
def test_a_loop_that_asks_again_while_another_thread_closes_stands_in_nobodys_way(
    make: Make, send: Send, call: str
) -> None:
    """The closing thread is in the client, in `on_revoke`; a step of the loop would hold the lock and wait for it."""
    send("a", "b")
    revoking, ended = threading.Event(), list[str]()

    def revoke(*_: object) -> None:
        revoking.set()
        time.sleep(0.5)

    consumer = make()
    consumer.subscribe(["orders"], on_revoke=revoke)
    poll_some(consumer, 1)

    def ask() -> None:
        assert revoking.wait(PATIENCE_S)
        inside.let_time_pass(consumer)
        try:
            while True:
                if call == "poll":
                    consumer.poll(0.1)
                else:
                    consumer.consume(0)
        except RuntimeError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=each, daemon=True) for each in (ask, consumer.close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == ["Consumer closed"]


def test_after_a_close_that_was_interrupted_at_its_end_only_close_is_left(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client ends on a thread of its own, in a callback, which a call that waits for it keeps from the lock."""
    send("a")
    consumer = make(config={"group.instance.id": "one"})
    consumer.subscribe(["orders"], on_revoke=lambda *_: time.sleep(1))
    poll_some(consumer, 1)
    real = ClientEnd.wait

    def wait(end: ClientEnd, timeout_s: float) -> None:
        monkeypatch.setattr(ClientEnd, "wait", real)
        real(end, min(timeout_s, 0.2))
        raise KeyboardInterrupt

    monkeypatch.setattr(ClientEnd, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    for call in (consumer.poll, lambda: consumer.consume(0), lambda: consumer.seek(FIRST)):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()
    consumer.close()


def test_a_mark_of_a_close_that_was_struck_twice_is_no_close(make: Make, send: Send) -> None:
    """A seek acts, and another thread can close."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    inside.leave_mark_of_close(consumer)
    consumer.seek(FIRST)
    assert values(poll_some(consumer, 1)) == ["a"]
    inside.leave_mark_of_close(consumer)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


def test_a_mark_in_the_client_that_is_left_has_no_call_wait(make: Make, send: Send) -> None:
    """What an application completes outside of any call is completed when that returns."""
    send("a")
    consumer = make("orders", completion="explicit")
    [message] = poll_some(consumer, 1)
    inside.leave_mark_in_client(consumer)
    consumer.complete(message)
    assert consumer.counters.completed == 1


def test_a_refused_call_of_the_same_thread_forgets_no_refused_thread(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for the other thread may wait no longer: the message comes once more."""
    consumer = make("orders")
    send("first")
    poll_some(consumer, 1)
    real, polling, refused = Consumer.poll, threading.get_ident(), list[str]()

    def ask() -> None:
        try:
            consumer.poll(0)
        except RuntimeError as error:
            refused.append(str(error))

    def poll(client: Any, timeout: float = -1) -> Any:
        message = real(client, timeout)
        if message is not None and threading.get_ident() == polling and not refused:
            other = threading.Thread(target=ask)
            other.start()
            other.join()
            ask()
        return message

    monkeypatch.setattr(
        "dedup_sdk._kafka.deliver.fetcher.Consumer", type("Polled", (Consumer,), {"poll": poll})
    )
    send("a")
    assert values(poll_some(consumer, 2)) == ["a", "a"]
    assert ["another thread" in each for each in refused] == [True, False]
