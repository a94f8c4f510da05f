"""Partitions that are read again from where they stood: after an interruption, or because a store was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk._store.memory import MemoryPartition, MemoryStore
from tests.support.machine import LOG, Machine
from tests.support.one_partition import TOPIC, Cluster

if TYPE_CHECKING:
    from dedup_sdk._store.protocol import Identity
    from dedup_sdk._window import Window


class Replaceable(MemoryStore):
    """A disk in whose place another one can be put: stores opened from then on are there."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()

    def open(self, identity: Identity, window: Window) -> MemoryPartition:
        """See `KeyStore.open`."""
        return self.store.open(identity, window)


def kill(machine: Machine) -> None:
    """Leave the disk as it is: nothing is written, committed or handed over."""
    machine.engine.lose(TOPIC, 0)


def test_a_kill_after_a_reopening_repeats_nothing() -> None:
    """Messages not committed yet are not taken for committed: its older offset is no rewind after a kill."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    assert len(first.handle_all()) == len(LOG)
    first.session.reopen_all()
    assert first.handle_all() == []
    first.session.reopen_all()
    assert first.handle_all() == []
    assert cluster.committed is not None
    assert cluster.committed.offset < len(LOG)
    kill(first)
    assert Machine(cluster, first.memory).handle_all() == []


def test_a_lost_store_after_a_reopening_is_made_again() -> None:
    """The store of a partition that goes while it is held is folded again up to where it stood.

    A kill repeats nothing.
    """
    cluster = Cluster([*LOG])
    first = Machine(cluster, disk := Replaceable())
    first.handle_all()
    disk.store = MemoryStore()
    first.session.reopen_all()
    assert first.handle_all() == []
    kill(first)
    assert Machine(cluster, first.memory).handle_all() == []


def test_an_answer_that_an_interruption_swallowed_is_asked_for_again() -> None:
    """The broker took the commit that says where a history begins, and nobody heard it.

    The partition does not wait for ever.
    """
    cluster = Cluster([*LOG])
    machine = Machine(cluster)
    for _ in range(5):
        machine.upkeep.work()
    assert len(machine.client.unanswered) == 1
    machine.client.unanswered.clear()
    machine.session.reopen_all()
    assert len(machine.handle_all()) == len(LOG)
