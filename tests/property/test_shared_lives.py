"""Consumers that share a memory, through anything that may happen to them.

Nothing is lost, stuck, or doubled without a fault.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.sharing.line import State
from tests.support.sharing.member import Life
from tests.support.sharing.watched import SILENCE_S
from tests.support.sharing.world import LEASE_S, WINDOW_MS, Plan, World

if TYPE_CHECKING:
    from dedup_sdk.shared._settings import InFlight, OnOutage
    from tests.support.sharing.member import Member
    from tests.support.sharing.watched import Given

    Row = tuple[int, str | None, int, int]

PLANS = [
    Plan({"orders": 2}, "topic"),
    Plan({"orders": 1, "refunds": 1}, "group"),
    Plan({"orders": 1, "orders.retry": 1}, "topic", origins={"orders.retry": "orders"}),
    Plan({"orders": 1, "orders.retry": 1}, "group"),
    Plan({"orders": 1, "refunds": 1}, "global", groups=2),
    Plan({"orders": 2}, "partition"),
]
MOST_MEMBERS = 4
HANDOUT = 50

picks = st.integers(0, 11)
lives = st.builds(Life, implicit=st.sampled_from([False, False, True]), lazy=st.booleans())
lines = st.sampled_from([State.UP, State.AWAY, State.DEAF])
counts = st.sampled_from([1, 2, HANDOUT])
amounts = st.lists(st.integers(0, 3), min_size=1, max_size=5)
whiles_s = st.sampled_from([0.05, 0.2, 1.0, 7.0, 25.0, LEASE_S + 1, WINDOW_MS / 1000 + 1])
stops_s = st.sampled_from([1.0, LEASE_S + 1, LEASE_S + 1, WINDOW_MS / 1000 + 1])
rows = st.tuples(
    picks,
    st.sampled_from(["a", "a", "a", "b", "again", None]),
    st.sampled_from([0, 1, 5_000, WINDOW_MS // 2, WINDOW_MS]),
    st.sampled_from([0, 0, WINDOW_MS + 1, 2 * WINDOW_MS + 1]),
)
"""Where, an ID, and its timestamp: within one window, but of the one ID that comes again after it."""


class Sharing(RuleBasedStateMachine):
    """Any order of reading, completing, failing, moving, and of faults where those are wanted."""

    calm = True

    @initialize(
        plan=st.sampled_from(PLANS),
        in_flight=st.sampled_from(["park", "wait"]),
        on_outage=st.sampled_from(["deliver", "pause"]),
        some=st.lists(lives, min_size=2, max_size=3),
        sent=st.lists(rows, min_size=4, max_size=16),
    )
    def begin(
        self, plan: Plan, in_flight: InFlight, on_outage: OnOutage, some: list[Life], sent: list[Row]
    ) -> None:
        """Start groups on topics that have something."""
        self.world = World(replace(plan, in_flight=in_flight, on_outage=on_outage), calm=self.calm)
        self.send(sent)
        for number, life in enumerate(some):
            self.world.join(self.world.groups[number % plan.groups], life)
        for number, where in enumerate(self.world.names()):
            able = [member for member in self.world.members if member.group == where.group]
            self.world.give(where, able[number % len(able)])

    # --- choosing ------------------------------------------------------------------------------------------------

    def _running(self) -> list[Member]:
        return [member for member in self.world.members if not member.stopped]

    def _member(self, which: int) -> Member | None:
        some = self._running()
        return some[which % len(some)] if some else None

    def _given(self, which: int) -> tuple[Member, Given] | None:
        some = [(member, given) for member in self._running() for given in member.has.values()]
        return some[which % len(some)] if some else None

    # --- without a fault -----------------------------------------------------------------------------------------

    @rule(sent=st.lists(rows, min_size=1, max_size=6))
    def send(self, sent: list[Row]) -> None:
        """More records come."""
        places = list(self.world.log)
        for which, name, timestamp_ms, later_ms in sent:
            at = places[which % len(places)]
            self.world.send(at, name, timestamp_ms + (later_ms if name == "again" else 0))

    @rule(which=picks, count=counts, amounts=amounts, prefetched=st.booleans())
    def poll(self, which: int, count: int, amounts: list[int], *, prefetched: bool) -> None:
        """An application asks for messages."""
        if member := self._member(which):
            member.poll(count, amounts, prefetched=prefetched)

    @rule(count=counts, amounts=amounts)
    def poll_all(self, count: int, amounts: list[int]) -> None:
        """All of them do."""
        for member in self._running():
            member.poll(count, amounts)

    @rule(which=picks, count=st.integers(1, 4), asks=st.booleans())
    def complete(self, which: int, count: int, *, asks: bool) -> None:
        """Handlers are done, not always the oldest ones; some ask first whether they may begin."""
        for _ in range(count):
            if chosen := self._given(which):
                member, given = chosen
                if not asks or member.holds(given):
                    member.complete(given)

    @rule(which=picks)
    def fail(self, which: int) -> None:
        """A handler wants another try."""
        if chosen := self._given(which):
            member, given = chosen
            member.release(given)

    @rule(which=picks)
    def commit(self, which: int) -> None:
        """Completed records are committed."""
        if member := self._member(which):
            for at in sorted(member.assigned.keys() - member.ghosts):
                member.commit(at)

    @rule(which=picks, to=picks)
    def move(self, which: int, to: int) -> None:
        """A group moves a partition."""
        places = list(self.world.names())
        where = places[which % len(places)]
        able = [member for member in self._running() if member.group == where.group]
        if able:
            self.world.give(where, able[to % len(able)])

    @rule(which=picks, life=lives, ends=st.booleans())
    def staff(self, which: int, life: Life, *, ends: bool) -> None:
        """Another consumer starts; one may end in order before."""
        member = self._member(which)
        if ends and member:
            self.world.close(member)
        if len(self.world.members) < MOST_MEMBERS:
            heir = self.world.join(self.world.groups[which % len(self.world.groups)], life)
            self.world.give_free(heir)

    @rule(seconds=whiles_s, asking=st.booleans())
    def wait(self, seconds: float, *, asking: bool) -> None:
        """Time passes; for long only where the applications go on asking."""
        self.world.pass_time(seconds, asking=asking or seconds > SILENCE_S)

    # --- faults --------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.calm)
    @rule(which=picks, handling=st.booleans(), again=st.booleans(), life=lives)
    def kill(self, which: int, life: Life, *, handling: bool, again: bool) -> None:
        """A process is killed, perhaps when its handler was just done; perhaps it starts again on its disk."""
        if member := self._member(which):
            given = next(iter(member.has.values()), None) if handling else None
            self.world.kill(member, given)
            heir = self.world.join(member.group, life, member.disk if again else None)
            self.world.give_free(heir)

    @precondition(lambda self: not self.calm)
    @rule(
        which=picks,
        replaced=st.booleans(),
        seconds=stops_s,
        count=counts,
        amounts=amounts,
        goes_on=st.sampled_from([True, True, False]),
    )
    def stop(
        self, which: int, seconds: float, count: int, amounts: list[int], *, replaced: bool, goes_on: bool
    ) -> None:
        """A process stands still with messages; the group may give its partitions to others, who begin with them."""
        self.poll_all(count, amounts)
        member = self._member(which)
        if member is None:
            return
        member.stopped = True
        others = [other for other in self._running() if other.group == member.group]
        for number, where in enumerate(list(self.world.names())):
            if replaced and others and self.world.owners.get(where) is member:
                self.world.give(where, others[number % len(others)])
        self.world.pass_time(seconds, asking=True)
        self.poll_all(HANDOUT, amounts)
        if goes_on:
            self.world.resume(member)

    @precondition(lambda self: not self.calm)
    @rule()
    def go_on(self) -> None:
        """Those that stood still go on."""
        for member in self.world.members:
            self.world.resume(member)

    @precondition(lambda self: not self.calm)
    @rule(which=picks, state=lines, everybody=st.booleans(), seconds=whiles_s)
    def connect(self, which: int, state: State, seconds: float, *, everybody: bool) -> None:
        """The store is away, or its answers are lost, or it is back: for everybody or for one."""
        chosen = self._member(which)
        for member in self.world.members:
            if everybody or member is chosen:
                member.line.state = state
        self.world.pass_time(seconds, asking=seconds > SILENCE_S)

    @precondition(lambda self: not self.calm)
    @rule(saves=st.booleans(), empty=st.booleans())
    def restart_memory(self, *, saves: bool, empty: bool) -> None:
        """The server saves its entries, or starts again with them, or with nothing."""
        if saves:
            self.world.backup = self.world.memory.backup()
        else:
            self.world.restart_memory(empty=empty)

    # --- promises ------------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        """The invariants hold at every moment."""
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """In the end everything is handled, and nobody holds anything."""
        if hasattr(self, "world") and sys.exc_info()[0] is None:
            self.world.drain(Life(implicit=False, lazy=False))
            self.world.end()


class Troubled(Sharing):
    """The same with faults."""

    calm = False


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Sharing, Troubled])
def test_whatever_happens_to_consumers_that_share_a_memory(machine: type[Sharing]) -> None:
    """Nothing is lost or stuck, a double has a fault to show for it, and nothing stays behind."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=200, stateful_step_count=40, deadline=None, report_multiple_bugs=False
        ),
    )
