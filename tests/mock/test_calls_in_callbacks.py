from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.support import inside
from tests.support.consuming import poll_quiet, poll_some, values

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

# Statistics come during the call that assigned: the plain client ends the process there.
PROGRAM = """
import sys, time
from dedup_sdk import DedupConsumer, Lookup, MemoryStore

counted = []
config = {
    "bootstrap.servers": sys.argv[1], "group.id": "asking", "auto.offset.reset": "earliest",
    "statistics.interval.ms": 20, "stats_cb": counted.append, "log_level": 0,
}
if sys.argv[3] == "static":
    config["group.instance.id"] = "one"
answers = []

def ask(consumer, partitions):
    if sys.argv[3] == "unsubscribe":
        consumer.unsubscribe()
    answers.append({
        "list_topics": lambda: "orders" in consumer.list_topics(timeout=10).topics,
        "one topic": lambda: list(consumer.list_topics("orders", 10).topics) == ["orders"],
        "cluster_id": lambda: consumer.cluster_id(10).startswith("mockCluster"),
    }[sys.argv[2]]())
    counted.clear()
    time.sleep(0.1)

def nothing(consumer, partitions):
    pass

with DedupConsumer(config, dedup=Lookup(id="key", window="1h"), store=MemoryStore()) as consumer:
    first, last = (ask, nothing) if sys.argv[3] == "assign" else (nothing, ask)
    consumer.subscribe(["orders"], on_assign=first, on_revoke=last)
    until = time.monotonic() + 60
    while len(counted) < 3 or not (answers or consumer.assignment()):
        assert time.monotonic() < until
        consumer.poll(1)
print(answers)
"""


# A commit is refused while another member joins: outside of callbacks `unsubscribe` polls until it is accepted.
LEAVING = """
import sys, time
from confluent_kafka import Consumer
from dedup_sdk import DedupConsumer, Lookup, MemoryStore

counted, left = [], []
config = {
    "bootstrap.servers": sys.argv[1], "group.id": "leaving", "session.timeout.ms": 4000, "log_level": 0,
    "heartbeat.interval.ms": 100,
}
ours = {**config, "auto.offset.reset": "earliest", "statistics.interval.ms": 20, "stats_cb": counted.append}

def leave(consumer, partitions):
    if not left:
        left.append(True)
        consumer.unsubscribe()
        counted.clear()
        time.sleep(0.1)

with DedupConsumer(ours, dedup=Lookup(id="key", window="1h"), store=MemoryStore()) as consumer:
    consumer.subscribe(["orders"], on_revoke=leave)
    while consumer.poll(1) is None:
        pass
    other = Consumer(config)
    other.subscribe(["orders"])
    until = time.monotonic() + 60
    while len(counted) < 3 or not left:
        assert time.monotonic() < until
        other.poll(0.05)
        consumer.poll(0.3)
other.close()
print("left")
"""


def test_a_callback_may_unsubscribe_while_another_member_joins(kafka: MockKafka, send: Send) -> None:
    """The client is not polled in the callback, so that the next one finds it as it was."""
    send("a")
    ran = subprocess.run(
        [sys.executable, "-c", LEAVING, kafka.bootstrap],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "left\n"), ran.stderr


@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("list_topics", "assign"),
        ("one topic", "assign"),
        ("cluster_id", "assign"),
        ("list_topics", "close"),
        ("list_topics", "static"),
        ("cluster_id", "static"),
        ("list_topics", "unsubscribe"),
    ],
)
def test_the_cluster_may_be_asked_in_a_callback(kafka: MockKafka, call: str, when: str) -> None:
    """The next callback of the same call finds the client as it was.

    ``close``: while the consumer closes; ``static``: as a static member, which the client's own ``close`` revokes;
    ``unsubscribe``: after another call in the same callback.
    """
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, kafka.bootstrap, call, when],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "[True]\n"), ran.stderr


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda consumer: consumer.poll(0), "in your loop only"),
        (lambda consumer: consumer.consume(1, 0), "in your loop only"),
        (lambda consumer: next(iter(consumer)), "in your loop only"),
        (lambda consumer: consumer.close(), r"call stop\(\) there"),
    ],
    ids=["poll", "consume", "iteration", "close"],
)
def test_a_callback_that_asks_for_messages_or_closes_is_refused(
    make: Make, send: Send, call: Any, advice: str
) -> None:
    """Its error is raised by the call that ran it, which does not hang, and no message is lost."""
    send("a", "b")
    consumer = make()
    refused: list[bool] = []

    def assigned(consumer: Consumer, _: list[TopicPartition]) -> None:
        if not refused:
            refused.append(True)
            call(consumer)

    consumer.subscribe(["orders"], on_assign=assigned)

    with pytest.raises(RuntimeError, match=advice):
        poll_some(consumer, 1)
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    assert poll_quiet(consumer) == []


def test_the_cluster_may_be_asked_outside_of_callbacks(make: Make) -> None:
    """As with the plain client."""
    consumer = make("orders")
    assert "orders" in consumer.list_topics(timeout=10).topics
    assert list(consumer.list_topics("orders").topics) == ["orders"]
    assert consumer.cluster_id().startswith("mockCluster")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda consumer: consumer.poll(0), pytest.raises(RuntimeError, match="in your loop only")),
        (lambda consumer: consumer.close(), nullcontext()),
    ],
    ids=["poll", "close"],
)
def test_a_callback_of_close_does_not_hang_it(make: Make, send: Send, call: Any, expected: Any) -> None:
    """Asking for messages there is refused; a second ``close`` has nothing to do."""
    send("a")
    consumer = make(config={"group.instance.id": "one"})
    asked: list[bool] = []

    def revoked(consumer: Consumer, _: list[TopicPartition]) -> None:
        asked.append(True)
        call(consumer)

    consumer.subscribe(["orders"], on_revoke=revoked)
    poll_some(consumer, 1)
    with expected:
        consumer.close()
    assert asked == [True]
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)


def test_an_observer_that_asks_for_messages_takes_none_away(make: Make, send: Send) -> None:
    """Its error is logged, as each of an observer, and the call that it disturbs gives all its messages."""
    send(*map(str, range(100)))
    asked: list[Any] = []

    def observe(_: object) -> None:
        asked.append(True)
        consumer.poll(0)

    consumer = make(observers=[observe])
    consumer.subscribe(["orders"])

    assert values(poll_some(consumer, 100)) == [str(number) for number in range(100)]
    assert consumer.counters.observer_errors == len(asked) == 100


def test_an_interruption_leaves_no_call_refused(make: Make, send: Send) -> None:
    """A signal that ends a call of the client between two of its steps is not taken for a callback that goes on."""
    send("a", "b")
    consumer = make("orders")
    inside.lock_of(consumer).client_thread = threading.get_ident()

    assert values(poll_some(consumer, 2)) == ["a", "b"]
    consumer.close()
