"""A consumer that closes while its group assigns partitions.

This is librdkafka 4041: an assignment that arrives inside its `close`.
"""

from __future__ import annotations

import gc
import logging
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._kafka import consumer as roof
from dedup_sdk._kafka.client import closing
from dedup_sdk._kafka.client.closing import close_client
from dedup_sdk._kafka.client.guards import ClientLock
from dedup_sdk._kafka.client.reader import close_readers
from dedup_sdk._kafka.deliver import assignment_api
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from dedup_sdk.testing import MockKafka
from tests.support.consuming import committed, make_consumer, poll_some, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

RACES = 120
DEADLINE_S = 4.0
PATIENCE_S = 20.0
"""A close that takes longer is taken for one that never ends; a good one takes some milliseconds."""
QUICK = {
    "session.timeout.ms": 1200,
    "heartbeat.interval.ms": 100,
    "partition.assignment.strategy": "cooperative-sticky",
}


def is_closed(consumer: DedupConsumer) -> bool:
    """Whether calls are refused because the consumer is closed."""
    try:
        consumer.position([])
    except RuntimeError:
        return True
    return False


def drop(held: list[DedupConsumer]) -> None:
    """Let go of consumers without `close`, and have the collector find them."""
    held.clear()
    gc.collect()


@pytest.mark.slow
def test_a_close_that_meets_an_assignment_ends() -> None:
    """Consumers are closed at a random moment of their joining, many times.

    Assignments arrive inside `close`, and none hangs.
    """
    rng = random.Random(4041)
    met = 0
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=4)
        for race in range(RACES):
            consumer = make_consumer(kafka.bootstrap, f"g{race}", MemoryStore(), QUICK)
            heard: list[str] = []
            consumer.subscribe(["orders"], on_assign=lambda *_, heard=heard: heard.append("assigned"))
            moment_s = rng.random() * 0.03
            if rng.random() < 0.5:
                consumer.poll(moment_s)
            time.sleep(moment_s)
            before = len(heard)
            ended = threading.Thread(target=consumer.close, daemon=True)
            ended.start()
            ended.join(PATIENCE_S)
            assert not ended.is_alive(), f"the close of consumer {race} hangs"
            met += len(heard) > before
    assert met, "no close met an assignment, so this test showed nothing"


def test_a_client_that_does_not_close_is_left(kafka: MockKafka, caplog: pytest.LogCaptureFixture) -> None:
    """A rebalance callback inside the client's `close` that never comes back, as in librdkafka 4041.

    The thread of `close` is left, and one line says so.
    """
    kafka.create_topic("held", partitions=1)
    never = threading.Event()
    inside = threading.Event()

    def hold(*_: object) -> None:
        inside.set()
        never.wait(PATIENCE_S)

    plain = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})
    plain.subscribe(["held"], on_revoke=hold)
    until = time.monotonic() + PATIENCE_S
    while not plain.assignment() and time.monotonic() < until:
        plain.poll(0.05)
    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        close_client(plain, within_s=0.2)
    assert inside.is_set(), "the close met no callback"
    assert "did not close within 0.2 s" in caplog.text
    never.set()


def test_all_steps_of_a_close_share_one_deadline(make: Make, send: Send, kafka: MockKafka) -> None:
    """No broker answers: the commit, the group and the client's own close each wait for a part of what is left."""
    send("a", "b")
    consumer = make("orders", config={"session.timeout.ms": 60_000}, revoke_deadline=DEADLINE_S)
    wait_for(consumer, lambda: consumer.counters.delivered >= 2, "both messages")
    assert consumer.counters.delivered == 2
    kafka.set_rtt(int(PATIENCE_S * 1_000))
    began = time.monotonic()
    consumer.close()
    took_s = time.monotonic() - began
    kafka.set_rtt(0)

    assert took_s < 1.5 * DEADLINE_S


def test_readers_that_do_not_close_are_left(kafka: MockKafka, caplog: pytest.LogCaptureFixture) -> None:
    """No poll waits for the end of a reader's close without a limit; the next reader is another one."""
    never = threading.Event()
    held = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})

    def hold(*_: object) -> None:
        never.wait(PATIENCE_S)

    held.subscribe(["orders"], on_revoke=hold)
    until = time.monotonic() + PATIENCE_S
    while not held.assignment() and time.monotonic() < until:
        held.poll(0.05)
    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        close_readers(held, within_s=0.2)
    assert "1 readers did not close within 0.2 s" in caplog.text
    never.set()


def test_what_goes_with_a_close_is_revoked_once(make: Make, send: Send) -> None:
    """The user's callback hears of the partitions inside `close`, as with the plain client.

    Completed messages are committed.
    """
    send("a", "b")
    heard: list[str] = []
    consumer = make()
    consumer.subscribe(
        ["orders"], on_revoke=lambda *_: heard.append("revoked"), on_lost=lambda *_: heard.append("lost")
    )
    for _ in range(2):
        assert consumer.poll(20) is not None
    consumer.close()
    assert heard == ["revoked"]
    again = make("orders", store=MemoryStore())
    message = again.poll(20)
    assert message is not None
    assert message.value() == b"b"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_a_consumer_that_is_dropped_leaves_its_group(kafka: MockKafka, protocol: str) -> None:
    """Without `close`, in the middle of a rebalance, collected inside a call of another consumer.

    That one gets all, and nothing hangs.
    """
    rng = random.Random(1)
    for race in range(5):
        group = f"g{race}"
        config = {**QUICK, "partition.assignment.strategy": protocol}
        held = [make_consumer(kafka.bootstrap, group, MemoryStore(), config)]
        held[0].subscribe(["pairs"])
        until = time.monotonic() + PATIENCE_S
        while not held[0].assignment() and time.monotonic() < until:
            held[0].poll(0.05)
        assert held[0].assignment()
        with make_consumer(kafka.bootstrap, group, MemoryStore(), config) as other:
            other.subscribe(["pairs"])
            other.poll(rng.random())
            with pytest.warns(
                ResourceWarning, match=f"a DedupConsumer of group '{group}' was dropped without close"
            ):
                drop(held)
            until = time.monotonic() + PATIENCE_S
            while len(other.assignment()) < 2 and time.monotonic() < until:
                other.poll(0.05)
            assert len(other.assignment()) == 2


def test_a_dropped_consumer_keeps_what_was_completed(
    kafka: MockKafka, send: Send, memory: MemoryStore
) -> None:
    """A dropped consumer is closed: the group stands behind completed messages, and those in hand come again."""
    send("a", "b")
    held = [make_consumer(kafka.bootstrap, "g", memory, QUICK)]
    held[0].subscribe(["orders"])
    for _ in range(2):
        assert held[0].poll(PATIENCE_S) is not None
    with pytest.warns(ResourceWarning, match="dropped without close"):
        drop(held)
    with make_consumer(kafka.bootstrap, "g", MemoryStore(), QUICK) as again:
        again.subscribe(["orders"])
        message = again.poll(PATIENCE_S)
        assert message is not None
        assert message.value() == b"b"


def test_a_consumer_that_could_not_be_made_is_dropped_silently(kafka: MockKafka) -> None:
    """There is nothing to close, and nothing to warn of."""
    with pytest.raises(KafkaException):
        make_consumer(kafka.bootstrap, "g", MemoryStore(), {"no.such.setting": "1"})
    gc.collect()


PROGRAM = """
import gc, sys, time
from dedup_sdk import DedupConsumer, Lookup, Window, header
consumer = DedupConsumer(
    {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "auto.offset.reset": "earliest", "log_level": 0,
     "fetch.wait.max.ms": 50},
    dedup=Lookup(id=header("dedup-id"), window=Window(hours=1)), store=sys.argv[2],
)
consumer.subscribe(["orders"])
while consumer.poll(0.1) is None:
    pass
consumer.poll(0.5)
del consumer
gc.collect()
time.sleep(float(sys.argv[4]))
"""


def test_a_client_that_hangs_with_nothing_assigned_is_waited_for_a_few_seconds(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for the whole ``revoke_deadline``, a minute: nobody needs anything of it any more."""
    send("a")
    consumer, goes_on = make(), threading.Event()
    consumer.assign([TopicPartition("orders", 0)])
    poll_some(consumer, 1)

    def hang(client: Consumer) -> None:
        goes_on.wait()
        Consumer.close(client)

    monkeypatch.setattr(closing, "Consumer", type("Hanging", (Consumer,), {"close": hang}))
    monkeypatch.setattr(roof, "CLIENT_END_S", 0.2)
    consumer.close()
    goes_on.set()
    assert "the client did not close within 0.2 s" in caplog.text


@pytest.mark.slow
def test_a_program_that_ends_waits_for_a_dropped_consumer(
    kafka: MockKafka, send: Send, tmp_path: Path
) -> None:
    """Once its close has begun; and at whatever moment a program ends, it ends in order."""
    send("a")
    waits_s = {f"ends-{wait_s:g}": wait_s for wait_s in (0, 0.001, 0.003, 0.005, 5)}
    programs = {
        group: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kafka.bootstrap, str(tmp_path / group), group, str(wait_s)],
            stderr=subprocess.PIPE, text=True,
        )
        for group, wait_s in waits_s.items()
    }  # fmt: skip
    for group, program in programs.items():
        _, stderr = program.communicate(timeout=PATIENCE_S * 3)
        begun = "it is closed now" in stderr
        assert (program.returncode, "Traceback" in stderr) == (0, False), stderr
        assert begun or waits_s[group] < 1
        assert not begun or committed(kafka.bootstrap, group, "orders").offset == 1


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    "call",
    [
        "assign",
        "incremental_assign",
        "unassign",
        "incremental_unassign",
        "subscribe",
        "unsubscribe",
        "seek",
        "close",
    ],
)
def test_a_callback_of_a_close_changes_no_assignment(
    make: Make, send: Send, kafka: MockKafka, protocol: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever `on_revoke` asks for while the consumer closes.

    The close ends, in order, and completed messages are committed.
    """
    send("a", "b")
    called: list[str] = []
    config = {**QUICK, "partition.assignment.strategy": protocol}
    consumer = make(config=config, revoke_deadline=3 * PATIENCE_S)

    def revoke(_: object, partitions: list[TopicPartition]) -> None:
        called.append(call)
        if call in {"unassign", "unsubscribe", "close"}:
            getattr(consumer, call)()
        else:
            taken: Any = {"subscribe": ["orders"], "seek": TopicPartition("orders", 0, 0)}.get(
                call, partitions
            )
            getattr(consumer, call)(taken)

    consumer.subscribe(["orders"], on_revoke=revoke)
    for _ in range(2):
        assert consumer.poll(PATIENCE_S) is not None
    ended = threading.Thread(target=consumer.close, daemon=True)
    ended.start()
    ended.join(PATIENCE_S)
    assert not ended.is_alive(), "the close hangs"
    assert called == [call]
    assert (f"{call}() was ignored: the consumer is closing" in caplog.text) == (call != "close")
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_client_that_ends_owes_no_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """A revocation inside the client's own end, when it has left its group: nothing failed in the application."""
    refused: list[str] = []

    class EndedClient:
        """Does what it is asked for; on the thread that ends it, it has left its group meanwhile."""

        def __getattr__(self, call: str) -> Any:
            def do(*arguments: Any, **named: Any) -> Any:
                done = getattr(Consumer, call)(*arguments, **named)
                if threading.current_thread() is threading.main_thread():
                    return done
                refused.append(call)
                raise KafkaException(KafkaError(KafkaError._DESTROY))

            return do

    monkeypatch.setattr(assignment_api, "Consumer", EndedClient())
    # A static member does not leave: the client revokes the partitions inside its `close`.
    config = {**QUICK, "partition.assignment.strategy": strategy, "group.instance.id": "one"}
    consumer, revoked = make(config=config), list[Any]()
    consumer.subscribe(["orders"], on_revoke=lambda *given: revoked.append(given))
    wait_for(consumer, lambda: bool(consumer.assignment()), "the assignment")
    consumer.close()
    assert refused
    assert revoked


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_interrupted_close_may_be_repeated(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """While the interruption's traceback is kept, as inside `except`: the next `close` closes."""
    send("a", "b")
    consumer = make("orders")
    for _ in range(2):
        assert consumer.poll(PATIENCE_S) is not None
    begin, kept = ClientLock.begin_close, list[BaseException]()

    def interrupted(lock: ClientLock) -> bool:
        begins = begin(lock)
        if len(kept) < times:
            raise KeyboardInterrupt
        return begins

    monkeypatch.setattr(ClientLock, "begin_close", interrupted)
    for _ in range(times):
        try:
            consumer.close()
        except KeyboardInterrupt as interruption:
            kept.append(interruption)
        assert not is_closed(consumer)
    consumer.close()
    assert is_closed(consumer)
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_a_second_close_waits_for_the_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread: when it returns, the consumer is closed."""
    consumer = make("orders")
    wait_for(consumer, lambda: bool(consumer.partition_statuses), "the partition")
    closing, go_on = threading.Event(), threading.Event()
    commit = AssignmentApi.commit_in_group

    def slow(assignment: AssignmentApi) -> None:
        closing.set()
        go_on.wait(PATIENCE_S)
        commit(assignment)

    monkeypatch.setattr(AssignmentApi, "commit_in_group", slow)
    first = threading.Thread(target=consumer.close)
    first.start()
    assert closing.wait(PATIENCE_S)
    closed: list[bool] = []

    def close_too() -> None:
        consumer.close()
        closed.append(is_closed(consumer))

    second = threading.Thread(target=close_too)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(PATIENCE_S)
    assert closed == [True]
