"""How long a recovery lasts, as a status tells while it goes on."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from dedup_sdk._kafka.assign.assignment import State
from dedup_sdk._kafka.assign.health import status_of
from tests.support.machine import LOG, Machine, text_at
from tests.support.one_partition import TOPIC, Cluster


def test_a_replay_is_counted_while_it_runs() -> None:
    """From the assignment on, and not only when it is over."""
    cluster = Cluster([*LOG])
    cluster.committed = TopicPartition(TOPIC, 0, 4, text_at(4))
    machine = Machine(cluster)
    assigned = machine.session.assigned[TOPIC, 0]
    while assigned.state is not State.REPLAYING:
        machine.upkeep.recoveries.step(assigned)
    assert status_of(assigned, machine.engine).recovery_seconds > 0
    assert status_of(assigned, machine.engine).recovery_left > 0
