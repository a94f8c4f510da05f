"""A topic that was deleted and made again, and a commit that a consumer made in it before it heard of that."""

from __future__ import annotations

import pytest

from dedup_sdk import MemoryStore, RecoveryError, VerdictKind
from dedup_sdk._kafka.assign.assignment import State
from dedup_sdk._kafka.client.settings import Reset
from tests.support.machine import LOG, Machine, lived
from tests.support.one_partition import TOPIC, Cluster

NEW = [b"p", b"q", b"r", b"s", b"t", b"u", b"a", b"v"]
ALL_OF_IT = [(offset, VerdictKind.UNVERIFIED) for offset in range(len(NEW))]


def made_anew() -> tuple[Cluster, MemoryStore]:
    """A topic that is longer than the group's offset, which is of the one before it.

    And the disk on which that was read.
    """
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    assert cluster.committed is not None
    assert 0 < cluster.committed.offset < len(NEW)
    cluster.topic_id, cluster.log = "another", [*NEW]
    return cluster, memory


@pytest.mark.parametrize("disk", ["one", "another"])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_it_is_read_from_its_beginning(disk: str, reset: Reset) -> None:
    """The text beside the commit says so, also where nobody has the old store.

    And once it was read it is not read again.
    """
    cluster, memory = made_anew()
    machine = Machine(cluster, memory if disk == "one" else None, reset)
    assert machine.handle_all() == ALL_OF_IT
    names = [event.name for event in machine.listener.seen]
    assert names == (["topic-recreated"] if disk == "one" else []) + ["log-truncated"]
    machine.leave()
    assert Machine(cluster, machine.memory, reset).handle_all() == []
    assert Machine(cluster, None, reset).handle_all() == []


def test_a_kill_before_its_beginning_is_committed_changes_nothing() -> None:
    """By then the store is the new topic's: only the commit tells of the old one."""
    cluster, memory = made_anew()
    killed = Machine(cluster, memory)
    while not killed.client.unanswered:
        killed.upkeep.work()
        killed.callback_errors.raise_kept()
    killed.engine.lose(TOPIC, 0)

    assert Machine(cluster, memory).handle_all() == ALL_OF_IT


def test_without_a_policy_it_is_an_error_after_which_nothing_is_passed_over() -> None:
    """auto.offset.reset=error: the next start knows as much as this one."""
    cluster, memory = made_anew()
    for _ in range(2):
        stopped = Machine(cluster, memory, "error")
        with pytest.raises(RecoveryError, match="committed 6, but in a log that the broker no longer has"):
            stopped.up_to_date()
        stopped.leave()

    assert Machine(cluster, memory).handle_all() == ALL_OF_IT


@pytest.mark.parametrize("target", [0, 2])
def test_a_seek_is_a_way_out_of_that_error(target: int) -> None:
    """The user has said where to go on: nothing of the old topic stands against it."""
    cluster, memory = made_anew()
    machine = Machine(cluster, memory, "error")
    with pytest.raises(RecoveryError):
        machine.up_to_date()
    machine.session.move(TOPIC, 0, target)
    assert machine.handle_all() == ALL_OF_IT[target:]


def test_one_that_begins_behind_the_old_place_is_read_from_there() -> None:
    """Retention has taken its first records, the old place among them: no policy for that skips the others."""
    cluster, memory = made_anew()
    cluster.first = 7
    machine = Machine(cluster, memory, "latest")
    assert machine.up_to_date().flight.position == 7
    assert machine.session.assigned[TOPIC, 0].state is State.ACTIVE
    assert [event.name for event in machine.listener.seen] == ["topic-recreated", "log-truncated"]


def test_brokers_that_begin_to_tell_ids_have_made_no_topic_anew() -> None:
    """They were brought up to date.

    The commit is believed, and records the store does not vouch for any more are read again, not delivered.
    """
    cluster = Cluster([*LOG], topic_id="")
    memory = lived(cluster)
    cluster.topic_id = "T"
    cluster.log += [b"a", b"new"]
    machine = Machine(cluster, memory)
    assert machine.handle_all() == [(len(LOG) + 1, VerdictKind.FRESH)]
    assert "log-truncated" not in [event.name for event in machine.listener.seen]
