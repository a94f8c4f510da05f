"""A member closes while its group's rebalance waits for another member, which sits in a long handler."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from dedup_sdk import MemoryStore
from tests.support.consuming import PATIENCE_S, committed, make_consumer, poll_some, wait_for
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 500}
DEADLINE_S = 18.0
GIVES_UP_MS = 14_000
"""After so long the client gives up a connection on which no answer comes, and asks over another one.

Shortly before the deadline: a commit that is not on its way early is lost.
"""


@pytest.mark.slow
def test_a_member_that_closes_commits_what_it_completed_meanwhile(
    broker: Broker, make_topic: MakeTopic, group: str
) -> None:
    """It has given one of its partitions up and joins again; meanwhile its coordinator answers it nothing."""
    topic, other_topic = make_topic(partitions=2), make_topic(partitions=1)
    plain = {**COOPERATIVE, "bootstrap.servers": broker.bootstrap, "group.id": group}
    config = {**COOPERATIVE, "socket.timeout.ms": GIVES_UP_MS}
    slow, coming = Consumer(plain), Consumer(plain)
    leaving = make_consumer(
        broker.bootstrap, group, MemoryStore(), config, completion="explicit", revoke_deadline=DEADLINE_S
    )
    with closing(slow), closing(coming):
        slow.subscribe([other_topic])
        leaving.subscribe([topic])
        until = time.monotonic() + PATIENCE_S
        while not (len(leaving.assignment()) == 2 and slow.assignment()):
            slow.poll(0.05)
            leaving.poll(0.05)
            assert time.monotonic() < until

        # The new member can only get a partition of the one that leaves; the slow one is in its handler from here on.
        coming.subscribe([topic])
        coming.poll(0.05)
        wait_for(leaving, lambda: len(leaving.assignment()) == 1, "the new member")
        [kept] = [tp.partition for tp in leaving.assignment()]
        produce(broker.bootstrap, topic, with_ids("a", "b", "c", partition=kept))
        leaving.complete(*poll_some(leaving, 3))
        leaving.close()
        assert committed(broker.bootstrap, group, topic, kept).offset == 3
