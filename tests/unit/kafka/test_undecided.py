"""A group that stands behind the beginning of an open transaction.

No log was truncated, and nothing comes before it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import VerdictKind
from dedup_sdk._kafka.assign.health import status_of
from dedup_sdk._kafka.recover import log_check
from tests.support.machine import LOG, Machine, lived, text_at
from tests.support.one_partition import TOPIC, Cluster

if TYPE_CHECKING:
    from dedup_sdk import MemoryStore


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is asked again at once."""
    monkeypatch.setattr(log_check, "UNDECIDED_LOOK_S", 0.0)


def waits(machine: Machine) -> bool:
    """Whether the machine still waits after some polls, and names the cause."""
    for _ in range(5):
        machine.upkeep.work()
        machine.callback_errors.raise_kept()
    assigned = machine.session.assigned[TOPIC, 0]
    return assigned.recovers and "transaction" in status_of(assigned, machine.engine).hindrances


@pytest.mark.parametrize("memory", ["none", "the first two"])
def test_a_group_that_was_set_into_an_open_transaction_waits_for_its_end(
    memory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on where it was set to, as the plain client does, and nothing before that comes again."""
    cluster = Cluster([*LOG[:2]])
    disk: MemoryStore | None = lived(cluster) if memory != "none" else None
    cluster.log = [*LOG]
    cluster.undecided_from = 3
    cluster.committed = TopicPartition(TOPIC, 0, 5)

    machine = Machine(cluster, disk)
    assert waits(machine)
    assert (
        len(
            [record for record in caplog.records if "a transaction that began at 3 is open" in record.message]
        )
        == 1
    )
    cluster.undecided_from = None
    assert machine.handle_all() == [(5, VerdictKind.UNVERIFIED)]
    assert machine.listener.seen == []
    assert cluster.committed.offset == 5
    assert status_of(machine.session.assigned[TOPIC, 0], machine.engine).hindrances in {(), ("uncovered",)}


def test_what_others_committed_of_an_open_transaction_is_replayed_when_it_has_ended() -> None:
    """On another machine: the group's records are known then, and the rest is handled."""
    cluster = Cluster([*LOG, b"d", b"g"], undecided_from=3)
    cluster.committed = TopicPartition(TOPIC, 0, 5, text_at(5))

    machine = Machine(cluster)
    assert waits(machine)
    cluster.undecided_from = None
    assert machine.handle_all() == [(5, VerdictKind.FRESH), (7, VerdictKind.FRESH)]
    assert machine.listener.seen == []


def test_a_recovery_may_be_tired_of_an_open_transaction() -> None:
    """With a timeout the partition starts, in doubt of the group's earlier records, and says so."""
    cluster = Cluster([*LOG], undecided_from=3)
    cluster.committed = TopicPartition(TOPIC, 0, 5, text_at(5))

    machine = Machine(cluster, timeout_s=0.0)
    assert machine.handle_all() == [(5, VerdictKind.UNVERIFIED)]
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("recovery-timeout", 5)]


def test_a_log_that_is_cut_while_its_transaction_is_waited_for_is_truncated() -> None:
    """The group's completed records are gone: the new ones are handled."""
    cluster = Cluster([*LOG], undecided_from=3)
    cluster.committed = TopicPartition(TOPIC, 0, 5)
    machine = Machine(cluster)
    assert waits(machine)
    del cluster.log[2:]
    assert [offset for offset, _ in machine.handle_all()] == [0, 1]
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]
