from __future__ import annotations

import signal
import threading
import time
from typing import Any, Literal

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._observe import Counters
from dedup_sdk._runner.settings import Retries
from dedup_sdk._runner.tasks import Order, Task, Tasks
from dedup_sdk._runner.workers import Workers


def task(offset: int, key: bytes | None = None, partition: int = 0) -> Task:
    """A task of a message."""
    return Task(Message(topic="t", partition=partition, offset=offset, key=key, value=b""))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([None, b"a", b"b", b"c"]), st.integers(0, 1)),
        st.tuples(
            st.sampled_from(["begin", "end", "back off", "withdraw"]), st.integers(0, 50), st.integers(0, 1)
        ),
    ),
    max_size=60,
)


@pytest.mark.parametrize("order", ["key", "none"])
@given(steps=STEPS)
def test_a_line_has_one_task_that_may_begin(order: Order, steps: list[tuple[str, Any, int]]) -> None:
    """Of a key in a partition only the oldest task has begun, each task begins once, and none is forgotten."""
    tasks = Tasks(order, Counters())
    may: dict[Task, bool] = {}
    offset = 0
    for what, which, partition in steps:
        if what == "add":
            new = task(offset, which, partition)
            offset += 1
            may[new] = tasks.add(new)
        elif what == "withdraw":
            for gone in tasks.withdraw({("t", partition)}):
                del may[gone]
        else:
            begun = [each for each, ready in may.items() if ready]
            if not begun:
                continue
            chosen = begun[which % len(begun)]
            if what == "end":
                chosen.end()
                following = tasks.remove(chosen)
                del may[chosen]
                if following is not None:
                    assert not may[following]
                    may[following] = True
            elif what == "begin":
                assert chosen.begin()
            else:
                assert chosen.back_off()
        assert tasks.of() == list(may)
        for each, ready in may.items():
            key = each.message.key()
            older = [
                other
                for other in may
                if other.coordinates == each.coordinates
                and other.message.key() == key
                and other.offset < each.offset
            ]
            assert ready == (order == "none" or key is None or not older)


@pytest.mark.parametrize("stage", ["waiting", "running", "backing off"])
def test_only_what_is_not_running_can_be_withdrawn(
    stage: Literal["waiting", "running", "backing off"],
) -> None:
    """A withdrawn task's handler is never called (again).

    A running one goes on, and is not called again once abandoned.
    """
    one = task(0)
    if stage != "waiting":
        assert one.begin()
    if stage == "backing off":
        assert one.back_off()

    assert one.withdraw() == (stage != "running")
    if stage == "running":
        one.abandon()
        assert not one.back_off()
    else:
        assert not one.begin()
        assert not one.back_off()
    assert one.attempts == (stage != "waiting")


def test_what_was_withdrawn_and_not_removed_is_never_over() -> None:
    """An interruption between the two leaves it among those in flight.

    Its handler is not called, and nobody takes it for handled.
    """
    called: list[Any] = []
    retries = Retries(attempts=1, on=Exception, wait_initial=0.01, wait_max=0.01)
    workers = Workers(lambda each: called.append(each.message), 1, retries, lambda _: False)
    torn, other = task(0), task(1)
    assert torn.withdraw()
    workers.put(torn)
    workers.put(other)
    over: list[Task] = []
    while not over:
        over = workers.finished(1.0)
    workers.close()
    workers.join(5.0)
    assert workers.finished(0) == [other]
    assert called == [other.message]
    assert torn.withdraw()
    assert not torn.back_off()
    assert not torn.end()


def test_a_signals_handler_that_takes_longer_than_the_wait_does_not_lengthen_it() -> None:
    """The loop that waits for tasks serves the group in between: a wait without an end would end its membership."""
    waiting = Workers(
        lambda _: None, 1, Retries(attempts=1, on=Exception, wait_initial=0.01, wait_max=0.01), bool
    )
    # No alarm: that is how the limit of a test ends one that hangs.
    before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.3))
    timer = threading.Timer(0.05, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1])
    timer.start()
    try:
        assert waiting.finished(0.2) == []
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        waiting.close()


def test_the_error_of_a_task_that_was_withdrawn_meanwhile_ends_nothing() -> None:
    """Its message comes again, e.g. after a seek; workers that let no task begin would wait for ever."""
    called: list[Any] = []
    torn, other = task(0), task(1)

    def handle(called_for: Task) -> None:
        called.append(called_for.message)
        if called_for is torn:
            # As between two attempts, in which the task may be withdrawn.
            assert torn.back_off()
            assert torn.withdraw()
            raise ValueError

    retries = Retries(attempts=1, on=Exception, wait_initial=0.01, wait_max=0.01)
    workers = Workers(handle, 1, retries, lambda _: True)
    workers.put(torn)
    workers.put(other)
    workers.close()
    workers.join(5.0)
    assert called == [torn.message, other.message]
