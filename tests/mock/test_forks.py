"""A fork.

The child may touch neither its parent's client nor its stores, and harms neither, also when it ends in order.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.mock.conftest import QUICK_CLIENT
from tests.support.consuming import PATIENCE_S, make_consumer, poll_quiet, poll_some, values
from tests.support.forking import HANGS_S, in_a_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dedup_sdk import DedupConsumer, VerdictEvent
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Collect the garbage of other tests where that may be done: clients of theirs may not be taken down in a child."""
    gc.collect()


def refused(consumer: DedupConsumer, message: Any) -> str:
    """Call an application's methods; return those not refused with a word of the fork."""
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(0),
        "consume": lambda: consumer.consume(1, 0),
        "iter": lambda: next(iter(consumer)),
        "run": lambda: consumer.run(print),
        "complete": lambda: consumer.complete(message),
        "release": lambda: consumer.release(message),
        "once": lambda: ExitStack().enter_context(consumer.once(message)),
        "commit": consumer.commit,
        "assignment": consumer.assignment,
        "subscribe": lambda: consumer.subscribe(["orders"]),
    }
    passed = []
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            if "before the fork" in str(error):
                continue
        passed.append(name)
    return " ".join(passed)


def test_a_child_is_refused_and_its_parent_goes_on(
    kafka: MockKafka, make: Make, send: Send, tmp_path: Path
) -> None:
    """Each call says why; closing and taking down do nothing.

    A message completed by the child is not so for the parent.
    """
    send("a", "b")
    # Not by the fixture, which would keep it: the child takes its last reference away.
    made = [
        make_consumer(kafka.bootstrap, "g", tmp_path / "store", dict(QUICK_CLIENT), completion="explicit")
    ]
    made[0].subscribe(["orders"])
    first, second = poll_some(made[0], 2)

    def work() -> str:
        passed = refused(made[0], first)
        with made.pop() as consumer:
            consumer.stop()
        del consumer
        gc.collect()
        return passed

    try:
        assert in_a_child(work) == ""
        made[0].complete(second)
    finally:
        made.pop().close()
    assert values(poll_quiet(make("orders", store=tmp_path / "store"))) == ["a"]


def test_a_child_waits_for_no_lock_of_its_parent(make: Make, send: Send) -> None:
    """Where another thread has the consumer's lock at the fork, nobody in the child ever gives it back."""
    held, over = threading.Event(), threading.Event()

    def observe(event: VerdictEvent) -> None:
        if event.offset == 1:
            # An observer is called with the lock.
            held.set()
            over.wait()

    send("a")
    consumer = make("orders", completion="explicit", observers=[observe])
    (message,) = poll_some(consumer, 1)
    send("b")
    holder = threading.Thread(target=poll_some, args=(consumer, 1))
    holder.start()
    assert held.wait(PATIENCE_S)

    def work() -> str:
        passed = refused(consumer, message)
        with consumer:
            pass
        return passed

    try:
        assert in_a_child(work) == ""
    finally:
        over.set()
        holder.join()


@pytest.mark.slow
def test_a_child_that_ends_as_programs_end_leaves_the_store_alone(
    kafka: MockKafka, send: Send, tmp_path: Path
) -> None:
    """With the interpreter's own end, in a program of its own.

    The parent goes on, and its later marks are there.
    """
    send("a", "b")
    program = f"""
import os, signal, sys
from tests.support.consuming import make_consumer, poll_quiet, poll_some, values
def consumer():
    return make_consumer({kafka.bootstrap!r}, "g", {str(tmp_path / "store")!r}, {{"session.timeout.ms": 1200}})
first = consumer()
first.subscribe(["orders"])
assert values(poll_some(first, 1)) == ["a"]
if os.fork() == 0:
    signal.alarm({HANGS_S})
    sys.exit(0)
assert os.wait()[1] == 0
assert values(poll_quiet(first)) == ["b"]
with first:
    pass
again = consumer()
again.subscribe(["orders"])
assert poll_quiet(again) == []
again.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, timeout=150, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
