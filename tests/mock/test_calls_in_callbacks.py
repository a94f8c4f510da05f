from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from tests.support.consuming import poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
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
answers = []

def ask(consumer, partitions):
    answers.append({
        "list_topics": lambda: "orders" in consumer.list_topics(timeout=10).topics,
        "one topic": lambda: list(consumer.list_topics("orders", 10).topics) == ["orders"],
        "cluster_id": lambda: consumer.cluster_id(10).startswith("mockCluster"),
    }[sys.argv[2]]())
    counted.clear()

with DedupConsumer(config, dedup=Lookup(id="key", window="1h"), store=MemoryStore()) as consumer:
    consumer.subscribe(["orders"], on_assign=ask)
    until = time.monotonic() + 60
    while len(counted) < 3 or not answers:
        assert time.monotonic() < until
        consumer.poll(1)
print(answers)
"""


@pytest.mark.parametrize("call", ["list_topics", "one topic", "cluster_id"])
def test_the_cluster_may_be_asked_in_a_callback(kafka: MockKafka, call: str) -> None:
    """The next callback of the same call finds the client as it was."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, kafka.bootstrap, call],
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
    refused = []

    def assigned(consumer: DedupConsumer, _: list[TopicPartition]) -> None:
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
