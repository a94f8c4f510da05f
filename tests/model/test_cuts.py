"""Logs that are cut at the worst moment, and grow again: the new records are handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._kafka.assign.assignment import Recovering
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._window import Window
from tests.model.worlds.broker import TOPIC, Broker, Log
from tests.model.worlds.client import OutOfRange
from tests.model.worlds.disk import Disk
from tests.model.worlds.member import Member
from tests.model.worlds.quiet import quiet
from tests.model.worlds.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

WORLD = World(window=Window(days=1))
COMMITTED = 100
CUT_AT = 60


class Group:
    """A broker, and members that handle all there is, one after the other."""

    def __init__(self) -> None:
        self.broker = Broker([Log()])
        self.handled: set[int] = set()
        self.write(COMMITTED)
        self.disk = Disk(MemoryStore)
        member = self.member(self.disk)
        member.take(0)
        self.handle(member)
        member.give_back(0)
        member.die()
        assert self.broker.committed["g", 0].offset == COMMITTED

    def write(self, count: int) -> None:
        """Write records of new IDs."""
        for _ in range(count):
            self.broker.append(0, f"id-{self.broker.written}", 1_000 + self.broker.written)

    def cut(self) -> None:
        """Cut the log back, and let it grow beyond where it ended."""
        self.broker.logs[0].truncate(CUT_AT)
        self.write(80)

    def member(self, disk: Disk) -> Member:
        """Start a process on a disk."""
        disk.reopen()
        return Member(
            WORLD, self.broker, "g", disk, recent_marks=1_000, durability="batch", impatient=False, in_time=False,
            tell=lambda *_: None,
        )  # fmt: skip

    def handle(self, member: Member) -> None:
        """Handle and commit everything."""
        for _ in range(60):
            member.work()
            while member.client.unanswered:
                member.arrive()
            member.fetch(0, 20)
            for message in list(member.in_flight):
                value: Any = message.value()
                self.handled.add(int(value))
                member.end(message, dead=False)
            member.persist()
            member.commit()

    def missed(self) -> list[int]:
        """The offsets of records that are in the log now, and that nobody handled."""
        return [entry.offset for entry in self.broker.logs[0].entries if entry.serial not in self.handled]


@pytest.fixture
def group() -> Iterator[Group]:
    """A group that has handled and committed a hundred records."""
    with quiet(WORLD):
        yield Group()


def step_until(member: Member, high: int) -> None:
    """Let a recovery go on until so much is folded, or it is over."""
    assigned = member.session.assigned[TOPIC, 0]
    while assigned.engine_partition is None:
        held = member.engine.partitions.get((TOPIC, 0))
        if held is not None and held.started and held.flight.high >= high:
            return
        member.upkeep.recoveries.step(assigned)
        if not isinstance(assigned.phase, Recovering) or assigned.phase.steps is None:
            return


@pytest.mark.parametrize("folded", [80, COMMITTED])
@pytest.mark.parametrize("end", ["kill", "lose", "give_back", "error"])
def test_nothing_of_a_log_that_was_cut_during_a_replay_outlives_it(
    group: Group, folded: int, end: str
) -> None:
    """Whatever ends the replay, its store does not hold unhandled records for handled."""
    disk = Disk(MemoryStore)
    member = group.member(disk)
    member.take(0)
    step_until(member, 30)
    group.cut()
    step_until(member, folded)
    if end == "kill":
        member.die()
        member = group.member(disk)
        member.take(0)
    elif end == "error":
        ask = member.client.tail_reader

        def silent(*_: object) -> Any:
            member.client.tail_reader = ask  # type: ignore[method-assign]
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        member.client.tail_reader = silent  # type: ignore[assignment, method-assign]
        step_until(member, COMMITTED + 1)
    else:
        getattr(member, end)(0)
        member.take(0)
    group.handle(member)
    assert group.missed() == []


def test_a_coordinator_that_does_not_answer_at_first_hides_no_cut(group: Group) -> None:
    """The epoch of the commit is asked about also where the commit was known late."""
    group.cut()
    member = group.member(group.disk)
    ask, asked = member.client.committed, []

    def late(*arguments: Any, **more: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))
        return ask(*arguments, **more)

    member.client.committed = late  # type: ignore[method-assign]
    member.take(0)
    group.handle(member)
    assert len(asked) > 1
    assert group.missed() == []


def test_a_log_that_is_short_while_a_partition_recovers_and_grows_then(group: Group) -> None:
    """An offset that was out of range for a moment is read from with the epoch of the record before it."""
    group.broker.logs[0].truncate(CUT_AT)
    member = group.member(group.disk)
    member.take(0)
    out_of_range: Any = OutOfRange(0, "Offset out of range")
    assert member.upkeep.handle_offset_reset(out_of_range)
    group.write(80)
    group.handle(member)
    assert group.missed() == []


@pytest.mark.parametrize("cut_at", [COMMITTED + 1, COMMITTED + 10])
def test_a_log_that_is_cut_below_what_a_commit_told_of_hides_nothing(group: Group, cut_at: int) -> None:
    """The next owner has looked at the last record that was completed above the commit.

    Then the log is cut before it comes to read it.
    """
    group.write(20)
    member = group.member(group.disk)
    member.take(0)
    while not member.in_flight:
        member.work()
        member.fetch(0, 20)
    for message in member.in_flight[1:]:
        value: Any = message.value()
        group.handled.add(int(value))
        member.end(message, dead=False)
    member.give_back(0)
    member.die()
    assert group.broker.committed["g", 0].offset == COMMITTED

    member = group.member(Disk(MemoryStore))
    member.take(0)
    while member.held(0) is None:
        member.work()
    group.broker.logs[0].truncate(cut_at)
    group.write(30)
    group.handle(member)
    assert group.missed() == []
