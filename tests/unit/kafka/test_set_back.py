"""A group that a plain tool has moved, and one whose commits are gone: what each host still knows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, VerdictKind
from tests.support.machine import LOG, Machine, lived
from tests.support.one_partition import TOPIC, Cluster, ids_of

if TYPE_CHECKING:
    from dedup_sdk._kafka.recover.settings import HistoryChoice

FRESH, UNVERIFIED = VerdictKind.FRESH, VerdictKind.UNVERIFIED


def plainly_at(cluster: Cluster, offset: int) -> None:
    """Set the group as a plain tool does: without a text."""
    cluster.committed = TopicPartition(TOPIC, 0, offset)


def forget_commits(cluster: Cluster) -> None:
    """The group's offsets expire, or are deleted."""
    cluster.committed = None


def handled(cluster: Cluster, memory: MemoryStore) -> list[int]:
    """Handle everything on a machine and leave; return the offsets that were handled."""
    machine = Machine(cluster, memory)
    offsets = [offset for offset, _ in machine.handle_all()]
    machine.leave()
    return offsets


def test_a_group_set_back_between_two_hosts_handles_its_records_again() -> None:
    """The tool's offset lies above all that the first host knows; the second one has completed more."""
    cluster, one, two = Cluster([b"0", b"1"]), MemoryStore(), MemoryStore()
    assert handled(cluster, one) == [0, 1]
    cluster.log += [b"2", b"3", b"4", b"5", b"6"]
    assert handled(cluster, two) == [2, 3, 4, 5, 6]
    plainly_at(cluster, 3)
    rest, cluster.log = cluster.log[4:], cluster.log[:4]
    assert handled(cluster, one) == [3]
    cluster.log += rest
    assert handled(cluster, two) == [4, 5, 6]


@pytest.mark.parametrize("offset", [0, 2, 4, 6])
def test_a_crash_and_then_a_set_back(offset: int) -> None:
    """The store has not noted the last commit yet: that it knows of no later one proves nothing."""
    cluster, memory = Cluster([*LOG]), MemoryStore()
    machine = Machine(cluster, memory)
    machine.handle_all()
    machine.up_to_date().persist()
    machine.session.commits.completed(machine.session.assigned.values(), asynchronous=False)
    machine.engine.lose(TOPIC, 0)
    plainly_at(cluster, offset)
    assert handled(cluster, memory) == [*range(offset, len(LOG))]


def test_another_program_that_went_on_costs_no_memory() -> None:
    """A plain consumer served the group: IDs that were completed before are still duplicates."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log += [b"x", b"a", b"y"]
    plainly_at(cluster, 7)
    machine = Machine(cluster, memory)
    assert machine.handle_all() == [(8, UNVERIFIED)]
    machine.leave()


def test_on_another_host_neither() -> None:
    """Its store lies below the era that began: it keeps its IDs, too."""
    cluster, one, two = Cluster([*LOG]), MemoryStore(), MemoryStore()
    handled(cluster, one)
    cluster.log += [b"x"]
    plainly_at(cluster, 7)
    assert handled(cluster, two) == []
    cluster.log += [b"a", b"y"]
    machine = Machine(cluster, one)
    assert [offset for offset, _ in machine.handle_all()] == [8]
    machine.leave()


def test_completions_above_a_commit_of_another_era_count() -> None:
    """The host whose store is of an earlier era gives its own up, and not those of the commit's text."""
    cluster = Cluster([*LOG, b"g", b"h"])
    memory = lived(cluster)
    plainly_at(cluster, 1)
    other = Machine(cluster, MemoryStore())
    held = other.up_to_date()
    offsets = [*range(1, 8)]
    ids = ids_of(cluster, 1, 8)
    [chunk] = held.admit(offsets, cluster.timestamps(1, 8), ids, offsets, discard_unkeyed=False)
    held.complete([1, 2, 5, 6])
    other.leave()
    assert chunk.offsets == offsets
    assert handled(cluster, memory) == [3, 4, 7]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_commits_that_are_gone_move_nobody(reset: str, caplog: pytest.LogCaptureFixture) -> None:
    """The store goes on where it ends, and says so once."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    forget_commits(cluster)
    cluster.log += [b"a", b"x"]
    machine = Machine(cluster, memory, reset="latest" if reset == "latest" else "earliest")
    assert machine.handle_all() == [(7, FRESH)]
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 8
    lines = [each for each in caplog.messages if "commits are gone" in each]
    assert len(lines) == 1
    assert "delivery goes on at 6" in lines[0]


def test_commits_that_are_gone_after_a_set_back_on_another_host() -> None:
    """The store that goes on was not there when the group was set back: it hides nothing on other hosts."""
    cluster, one, two = Cluster([b"0", b"1"]), MemoryStore(), MemoryStore()
    assert handled(cluster, one) == [0, 1]
    cluster.log += [b"2", b"3", b"4", b"5", b"6"]
    assert handled(cluster, two) == [2, 3, 4, 5, 6]
    plainly_at(cluster, 4)
    rest, cluster.log = cluster.log[5:], cluster.log[:5]
    assert handled(cluster, MemoryStore()) == [4]
    forget_commits(cluster)
    assert handled(cluster, one) == [2, 3, 4]
    cluster.log += rest
    assert handled(cluster, two) == [5, 6]


def test_a_store_that_goes_on_without_commits_keeps_what_it_knows() -> None:
    """Also what it has completed out of order, and also where it stops before anything is committed."""
    cluster, memory = Cluster([*LOG]), MemoryStore()
    machine = Machine(cluster, memory)
    held = machine.up_to_date()
    held.admit(
        [*range(6)], cluster.timestamps(0, 6), ids_of(cluster, 0, 6), [*range(6)], discard_unkeyed=False
    )
    held.complete([0, 1, 4])
    machine.leave()
    forget_commits(cluster)
    killed = Machine(cluster, memory)
    killed.up_to_date()
    killed.engine.lose(TOPIC, 0)
    forget_commits(cluster)
    assert handled(cluster, memory) == [2, 3, 5]
    cluster.log += [b"a"]
    assert handled(cluster, memory) == []


def test_commits_that_are_gone_with_a_part_of_the_log() -> None:
    """A broker that was restored from a backup has lost both: records that took the place of others are handled."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    forget_commits(cluster)
    cluster.log[3:] = [b"x", b"y", b"z", b"w"]
    assert handled(cluster, memory) == [3, 4, 5, 6]


def test_commits_that_are_gone_without_a_store() -> None:
    """Another host begins where ``auto.offset.reset`` says."""
    cluster = Cluster([*LOG])
    lived(cluster)
    forget_commits(cluster)
    assert handled(cluster, MemoryStore()) == [0, 1, 2, 3, 4, 5]


def test_who_wants_it_otherwise_begins_anew() -> None:
    """``Recovery(without_commit="reset")``."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    forget_commits(cluster)
    machine = Machine(cluster, memory, without_commit="reset")
    assert machine.handle_all() == [(offset, FRESH) for offset in range(6)]
    machine.leave()


@pytest.mark.parametrize("history", [None, "none", "assume-processed"])
def test_a_foreign_commit_asks_for_a_choice(
    history: HistoryChoice | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with both ways, and none once the user has chosen."""
    caplog.set_level(logging.INFO, "dedup_sdk")
    cluster = Cluster([*LOG, b"a"])
    plainly_at(cluster, len(LOG))
    again = [] if history == "assume-processed" else [(6, UNVERIFIED)]
    assert Machine(cluster, history=history).handle_all() == again
    lines = [each for each in caplog.records if "the group has committed 6" in each.getMessage()]
    assert [each.levelname for each in lines] == ["WARNING" if history is None else "INFO"]
    both = ('history="assume-processed"', 'history="none"')
    assert all(way in lines[0].getMessage() for way in both) == (history is None)
