"""The states of an assigned partition, walked at random over a cluster in a list."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dedup_sdk import Lookup, MemoryStore, Window
from dedup_sdk._commit_text import parse_metadata
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import OURS, TRANSITIONS, Assigned, Pause, Recovering, State
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.recover import attempt, recovery, replay, scheduler, session, store, upkeep
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk.ids import key
from tests.support.one_partition import TOPIC, Cluster, ListClient, ids_of

HERE = TopicPartition(TOPIC, 0)
CLOCK = SimpleNamespace(monotonic=time.monotonic)


@pytest.fixture(autouse=True)
def _a_clock_that_ticks_with_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a busy machine makes longer than a slice leads elsewhere. The same steps have to lead to the same."""
    for module in (attempt, recovery, replay, scheduler, session, store, upkeep):
        monkeypatch.setattr(module, "time", CLOCK)


class Assignment(RuleBasedStateMachine):
    """One consumer that gets, loses and moves a partition while it works, completes out of order, and commits.

    ``handled`` are the offsets whose handler ended and was believed, over all epochs.
    """

    @initialize(records=st.integers(4, 12))
    def begin(self, records: int) -> None:
        """Make the cluster, the consumer and its disk."""
        ticks = itertools.count()
        CLOCK.monotonic = lambda: next(ticks) / 1000
        self.cluster = Cluster([b"%d" % (number % 5) for number in range(records)])
        self.memory = MemoryStore()
        self.seen: list[Assigned] = []
        self.handled: set[int] = set()
        self.delivered: list[int] = []
        """Records in flight, now or in an epoch that is over."""
        self.moved = False
        self.restart()

    def restart(self) -> None:
        """A new process on the same disk."""
        config = client_settings({"group.id": "g", "auto.offset.reset": "earliest"})
        engine = Deduplicator(Lookup(id=key(), window=Window(days=1)), store=self.memory, group="g")
        self.client = ListClient(self.cluster)
        self.callback_errors = CallbackErrors()
        self.session = Session(engine, self.client, config)
        self.upkeep = Upkeep(self.session, self.client, config, Recovery(), self.callback_errors)

    @property
    def assigned(self) -> Assigned | None:
        """The partition, if it is ours."""
        return self.session.assigned.get((TOPIC, 0))

    @property
    def active(self) -> Any:
        """The engine's partition, if it delivers."""
        assigned = self.assigned
        return assigned.engine_partition if assigned is not None and assigned.state is State.ACTIVE else None

    @rule(count=st.integers(1, 5))
    def produce(self, count: int) -> None:
        """More records come."""
        self.cluster.log += [
            b"%d" % (number % 7) for number in range(len(self.cluster.log), len(self.cluster.log) + count)
        ]

    @precondition(lambda self: self.assigned is None)
    @rule(quick=st.booleans())
    def take(self, *, quick: bool) -> None:
        """The group gives us the partition; maybe there is time to come up to date before anything else happens."""
        self.session.take([HERE])
        assert self.assigned is not None
        self.seen.append(self.assigned)
        for _ in range(20 if quick else 0):
            self.work()
            if self.client.unanswered:
                self.answer(accepted=True)

    @precondition(lambda self: self.assigned is not None)
    @rule()
    def work(self) -> None:
        """A poll looks after recovery."""
        self.upkeep.work()
        assert self.callback_errors.kept is None

    @precondition(lambda self: self.client.unanswered)
    @rule(accepted=st.booleans())
    def answer(self, *, accepted: bool) -> None:
        """The broker answers the oldest commit that nobody has heard of yet."""
        offsets = self.client.unanswered.pop(0)
        if accepted:
            [self.cluster.committed] = offsets
            self.session.commits.answered(None, offsets)
        else:
            self.session.commits.answered(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), offsets)
            for assigned in self.session.assigned.values():
                assigned.retry.at = 0.0

    @precondition(lambda self: self.active is not None)
    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        """Records are judged; those that are to be delivered are in flight."""
        start = self.active.flight.position
        end = min(start + count, len(self.cluster.log))
        if start < end:
            offsets = list(range(start, end))
            [*_, chunk] = self.active.admit(
                offsets,
                np.asarray(offsets, np.int64),
                ids_of(self.cluster, start, end),
                offsets,
                discard_unkeyed=False,
            )
            self.delivered += [offset for offset in offsets if self.active.flight.place(offset) is not None]
            del chunk

    @precondition(lambda self: self.delivered and self.seen)
    @rule(choice=st.integers(0, 20), late=st.booleans())
    def complete(self, choice: int, *, late: bool) -> None:
        """A handler ends, of this epoch or of one that is over."""
        held = self.seen[choice % len(self.seen)].engine_partition if late else self.active
        if held is None:
            return
        offset = self.delivered[choice % len(self.delivered)]
        before = self.session.engine.counters.stale
        held.complete([offset])
        held.persist()
        if held is self.active:
            if held.flight.is_completed(offset):
                self.handled.add(offset)
        else:
            assert self.session.engine.counters.stale == before + 1, (
                "a partition that was lost accepted a completion"
            )

    @precondition(lambda self: self.assigned is not None)
    @rule(writable=st.booleans())
    def revoke(self, *, writable: bool) -> None:
        """The group takes the partition in order; the coordinator takes the commit, or not."""
        self.cluster.writable = writable
        self.session.give_back([HERE])
        self.cluster.writable = True

    @precondition(lambda self: self.assigned is not None)
    @rule()
    def lose(self) -> None:
        """The group has given the partition to somebody else already."""
        before = self.cluster.committed
        unanswered = len(self.client.unanswered)
        self.session.lose([HERE])
        assert self.cluster.committed is before
        assert len(self.client.unanswered) == unanswered

    @precondition(lambda self: self.active is not None)
    @rule(share=st.floats(0, 1))
    def seek(self, share: float) -> None:
        """The application goes elsewhere."""
        self.moved = True
        self.session.move(TOPIC, 0, round(share * len(self.cluster.log)))
        assert self.assigned is not None
        self.seen.append(self.assigned)

    @precondition(lambda self: self.assigned is not None)
    @rule()
    def crash(self) -> None:
        """The process dies; another one begins on the same disk."""
        for assigned in list(self.session.assigned.values()):
            self.session.engine.lose(assigned.topic, assigned.partition)
        self.seen.clear()
        self.restart()

    @invariant()
    def states_are_where_they_may_be(self) -> None:
        """Records not in hand are over; those in hand are ours; only an active partition delivers."""
        held = self.assigned if hasattr(self, "session") else None
        for assigned in getattr(self, "seen", ()):
            assert (assigned.state in OURS) == (assigned is held)
        if held is not None:
            assert self.client.delivers <= (held.state is State.ACTIVE)

    @invariant()
    def commits_are_behind_what_is_handled(self) -> None:
        """No commit of ours passes a record that nobody handled, unless the application jumped."""
        committed = getattr(self, "cluster", Cluster()).committed
        if committed is None or self.moved:
            return
        metadata = parse_metadata(committed.metadata, committed=committed.offset)
        assert metadata is not None
        ids = {self.cluster.log[offset] for offset in self.handled}
        for offset in range(metadata.low, committed.offset):
            assert offset in self.handled or self.cluster.log[offset] in ids, f"{offset} was passed by"


TestAssignment = Assignment.TestCase
TestAssignment.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_is_over_stays_so() -> None:
    """No transition leads out of CLOSED, none from a loss back to a commit, and every state can end."""
    assert TRANSITIONS[State.CLOSED] == frozenset()
    assert TRANSITIONS[State.LOST] == {State.CLOSED}
    assert set(TRANSITIONS) == set(State)
    for state in set(State) - {State.CLOSED}:
        assert TRANSITIONS[state] & {State.LOST, State.CLOSED}


@pytest.mark.parametrize("wrong", [State.OPENING, State.CLOSED])
def test_a_transition_that_is_not_in_the_table_is_refused(wrong: State) -> None:
    """An active partition neither recovers again nor closes without being revoked or lost."""
    assigned = Assigned("t", 0, state=State.ACTIVE)
    with pytest.raises(AssertionError, match="cannot go from ACTIVE"):
        assigned.enter(wrong)


def test_a_partition_delivers_again_when_no_reason_to_pause_is_left() -> None:
    """Whatever the order in which reasons come and go.

    One that is not there is no news, nor is any before it delivers.
    """
    assigned = Assigned("t", 0, state=State.ACTIVE)
    assert [assigned.pause(Pause.USER), assigned.pause(Pause.BACKLOG)] == [True, False]
    assert [assigned.lift(why) for why in (Pause.DISK, Pause.USER, Pause.BACKLOG, Pause.BACKLOG)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert assigned.is_fetched
    assert not Assigned("t", 0).pause(Pause.USER)


def test_the_same_error_twice_without_progress_ends_a_recovery() -> None:
    """One elsewhere begins the count anew; only a loss or a revocation leads out of it."""
    assigned = Assigned("t", 0, Recovering(Start(offset=5)))
    states = []
    for at in (5, 6, 6):
        assigned.note_unexpected_error(at)
        states.append(assigned.state)
    assert states == [State.OPENING, State.OPENING, State.FAILED]
    assert TRANSITIONS[State.FAILED] == {State.REVOKING, State.LOST}
