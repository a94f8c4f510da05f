"""Interruptions at chosen places.

Of `run`, of iteration, and of a start, where a message or a store is on its way from one hand to the next.
"""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.deliver.worker_session import WorkerSession
from dedup_sdk._runner.runner import Runner
from dedup_sdk._runner.tasks import Task, Tasks
from tests.support.consuming import PATIENCE_S, committed, poll_quiet, poll_some, run_all, values
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


@pytest.mark.parametrize("after", ["run", "poll", "the end of the block"])
def test_a_message_that_no_worker_has_taken_comes_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """It was taken out of the queue, and is nobody's: whatever follows does not complete it."""
    send(*"abcdef")
    real, calls, handled = WorkerSession.is_delivered, list[Any](), list[str]()

    def look(session: WorkerSession, message: Any) -> bool:
        calls.append(message)
        if len(calls) == 3:
            raise Interrupted
        return real(session, message)

    def handle(message: Any) -> None:
        handled.append(values([message])[0])

    monkeypatch.setattr(WorkerSession, "is_delivered", look)
    with make("orders") as consumer:
        with pytest.raises(Interrupted):
            consumer.run(handle)
        if after == "run":
            run_all(consumer, handle)
        elif after == "poll":
            handled += values(poll_quiet(consumer))
    handled += values(poll_quiet(make("orders")))
    assert sorted(handled) == list("abcdef")


def test_messages_that_were_withdrawn_and_not_put_back_come_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winding up is interrupted where they are in no queue."""
    send(*"abcdef")
    real, raised, handled = Tasks.withdraw, list[int](), list[str]()
    add, taken, all_taken = Tasks.add, list[Task](), threading.Event()

    def noted(tasks: Tasks, task: Task) -> bool:
        is_first = add(tasks, task)
        taken.append(task)
        if len(taken) == 6:
            all_taken.set()
        return is_first

    def withdraw(tasks: Tasks, partitions: Any = None) -> Any:
        withdrawn = real(tasks, partitions)
        if withdrawn and not raised:
            raised.append(1)
            raise Interrupted
        return withdrawn

    def handle(message: Any) -> None:
        handled.append(values([message])[0])
        if len(handled) == 2:
            assert all_taken.wait(PATIENCE_S)
            consumer.stop()

    monkeypatch.setattr(Tasks, "add", noted)
    monkeypatch.setattr(Tasks, "withdraw", withdraw)
    consumer = make("orders")
    with pytest.raises(Interrupted):
        consumer.run(handle)
    handled += values(poll_quiet(consumer))
    assert sorted(handled) == list("abcdef")


@pytest.mark.slow
def test_an_interrupted_iteration_costs_no_message(make: Make, send: Send) -> None:
    """Wherever it strikes, also between poll's return and the application."""
    consumer = make("orders", idle_timeout=0.3)
    sent, got = 0, set[str]()
    for place in range(1, 400, 7):
        send(*(f"{sent + number}" for number in range(5)))
        sent += 5
        message = None
        try:
            with InterruptedAt(place):
                for message in consumer:
                    got.add(values([message])[0])
                    if len(got) == sent:
                        break
        except Interrupted:
            if message is not None:
                got.add(values([message])[0])
        got.update(values(poll_quiet(consumer, 0.05)) if len(got) < sent else ())
    assert got == {f"{number}" for number in range(sent)}


def test_an_interrupted_start_costs_no_message(make: Make, send: Send) -> None:
    """Joining, opening the store and recovering begin again, and find nothing in their way."""
    send(*"abcde")
    struck, place = True, 1
    while struck:
        consumer = make("orders", config={"group.id": f"g{place}"})
        got = set[str]()
        interruption = InterruptedAt(place)
        try:
            with interruption:
                while len(got) < 5:
                    got |= set(values([each for each in [consumer.poll(0.05)] if each is not None]))
        except (Interrupted, TypeError):
            # The client's constructor calls an interruption a property of the wrong type. Messages not completed
            # come again.
            while len(got) < 5:
                got |= set(values(poll_some(consumer, 1)))
        struck = interruption.struck
        consumer.close()
        assert got == set("abcde"), interruption.where
        place += 29


@pytest.mark.slow
def test_an_interruption_at_the_end_of_a_run_leaves_a_consumer_that_works(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it strikes between the runner's last step and the return.

    `run` may be called again, and polling completes.
    """
    real, place = Runner.run, 0
    while True:
        place += 1
        interrupted = InterruptedAt(place)

        def run(runner: Runner, at: InterruptedAt = interrupted) -> None:
            real(runner)
            at.__enter__()
            here = inspect.currentframe()
            frame = None if here is None else here.f_back
            while frame is not None and frame.f_code.co_filename.endswith("consumer.py"):
                frame.f_trace, frame.f_trace_opcodes = at.stepped, True
                frame = frame.f_back

        topic = kafka.create_topic(f"ending-{place}")
        send(*"abc", topic=topic)
        consumer, handled = make(topic, config={"group.id": topic}, store=MemoryStore()), list[str]()

        def handle(message: Any, consumer: DedupConsumer = consumer, handled: list[str] = handled) -> None:
            handled.append(values([message])[0])
            consumer.stop()

        def collect(message: Any, handled: list[str] = handled) -> None:
            handled.append(values([message])[0])

        monkeypatch.setattr(Runner, "run", run)
        try:  # not `contextlib.suppress`, whose code has places of its own
            consumer.run(handle)
        except Interrupted:
            pass
        finally:
            interrupted.__exit__(None, None, None)
        monkeypatch.setattr(Runner, "run", real)
        run_all(consumer, collect)
        assert sorted(handled) == list("abc"), interrupted.where
        send("d", topic=topic)
        assert values(poll_some(consumer, 1)) == ["d"]
        assert consumer.poll(0) is None
        consumer.close()
        assert committed(kafka.bootstrap, topic, topic).offset == 4, interrupted.where
        if not interrupted.struck:
            return
