"""Consumers of one or two groups, the topics that they read, and the memory that they share.

Time passes when somebody says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dedup_sdk import MemoryStore, Window
from dedup_sdk.ids import digest_one
from dedup_sdk.shared import Shared, scoped_ids
from tests.support.broken_promise import BrokenPromiseError
from tests.support.sharing.line import Line, Memory, State
from tests.support.sharing.member import Life, Member
from tests.support.sharing.truth import Coordinates, Entry, Ident, Truth

if TYPE_CHECKING:
    from dedup_sdk.shared._scope import Scope
    from dedup_sdk.shared._settings import InFlight, OnOutage
    from tests.support.sharing.watched import Given, Where

LEASE_S = 60.0
WINDOW_MS = 600_000
STEP_S = 4.0
"""A lease is renewed three times while it lasts, so that whoever lives gets his turn in time."""
DRAINING_ROUNDS = 300
"""Rounds of a second after which a message is not coming any more: some leases, and questions asked once a second."""


@dataclass(frozen=True)
class Plan:
    """Which topics there are (partitions by name), who reads them, and how the memory is used."""

    topics: dict[str, int]
    scope: Scope
    groups: int = 1
    origins: dict[str, str] = field(default_factory=dict)
    in_flight: InFlight = "park"
    on_outage: OnOutage = "deliver"


class World:
    """Everything that outlives a consumer."""

    def __init__(self, plan: Plan, *, calm: bool) -> None:
        self.plan = plan
        self.now_s = 0.0
        self.memory = Memory(lambda: self.now_s)
        self.shared = Shared(
            self.memory,
            scope=plan.scope,
            origins=plan.origins,
            in_flight=plan.in_flight,
            on_outage=plan.on_outage,
            lease=LEASE_S,
        )
        self.truth = Truth(WINDOW_MS, calm=calm)
        self.log: dict[Where, list[Entry]] = {
            (topic, number): [] for topic, count in plan.topics.items() for number in range(count)
        }
        self.groups = [f"g{number}" for number in range(plan.groups)]
        self.commits: dict[Coordinates, int] = {}
        self.owners: dict[Coordinates, Member] = {}
        self.members: list[Member] = []
        self.idents: dict[bytes, Ident] = {}
        self._keys: dict[Ident, bytes] = {}
        self._made = 0
        self.backup = self.memory.backup()

    # --- IDs -----------------------------------------------------------------------------------------------------

    def ident(self, group: str, at: Where, entry: Entry) -> Ident | None:
        """The name of a record's message, for a group."""
        if entry.name is None:
            return None
        topic = self.plan.origins.get(at[0], at[0])
        parts = {
            "partition": (group, topic, str(at[1])),
            "topic": (group, topic),
            "group": (group,),
            "global": (),
        }
        ident = Ident(parts[self.plan.scope], entry.name)
        if ident not in self._keys:
            [key] = scoped_ids(
                self.shared.scope_of(group, *at, cluster="", id_spec="key"), [digest_one(entry.name.encode())]
            )
            self._keys[ident], self.idents[key] = key, ident
        return ident

    def key(self, ident: Ident) -> bytes:
        """The key of a message in the memory."""
        return self._keys[ident]

    # --- events --------------------------------------------------------------------------------------------------

    def send(self, at: Where, name: str | None, timestamp_ms: int) -> None:
        """Append a record to the log."""
        entry = Entry(len(self.log[at]), name, timestamp_ms)
        self.log[at].append(entry)
        for group in self.groups:
            self.truth.send(self.ident(group, at, entry), entry.timestamp_ms)

    def join(self, group: str, life: Life, disk: MemoryStore | None = None) -> Member:
        """Start a consumer, which has no partition yet."""
        self._made += 1
        line = Line(self.memory, lambda: self.now_s)
        shared = replace(self.shared, store=line)
        member = Member(
            self, f"m{self._made}", group, life, shared, Window(milliseconds=WINDOW_MS), disk or MemoryStore()
        )
        self.members.append(member)
        return member

    def give(self, where: Coordinates, to: Member) -> None:
        """Have the group give a partition to one of its consumers; one that stands still does not hear of it."""
        at = (where.topic, where.partition)
        owner = self.owners.get(where)
        if owner is to or to.stopped:
            return
        if at in to.ghosts:
            # Before it joins anew it hears that it was out.
            to.leave(at, writes=False)
        if owner is not None:
            if owner.stopped:
                owner.ghosts.add(at)
            else:
                owner.leave(at, writes=True)
        self.look()
        self.owners[where] = to
        to.take(at)

    def give_free(self, to: Member) -> None:
        """Give a partition that nobody has to one of its group."""
        for where in self.names():
            if where.group == to.group and where not in self.owners:
                self.give(where, to)

    def kill(self, member: Member, handling: Given | None = None) -> None:
        """End a consumer without a word; ``handling``: the message that its handler was done with."""
        member.line.state = State.DEAD
        if handling is not None:
            member.die_handling(handling)
        member.kill()
        self._forget(member)

    def close(self, member: Member) -> None:
        """End a consumer in order."""
        member.close()
        self.look()
        self._forget(member)

    def _forget(self, member: Member) -> None:
        self.members.remove(member)
        self.owners = {where: owner for where, owner in self.owners.items() if owner is not member}

    def restart_memory(self, *, empty: bool) -> None:
        """The server starts again, with nothing or with the entries of its last backup."""
        claims, marks = self.memory.restart({} if empty else self.backup)
        for key in marks:
            self.truth.excuse(self.idents[key], "the server forgot it")
        for member in self.members:
            member.note_forgotten(claims)

    def pass_time(self, seconds: float, *, asking: bool) -> None:
        """Let time pass; who lives renews his claims. ``asking``: and goes on asking for messages."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s = min(until, self.now_s + STEP_S)
            for member in self._running():
                if asking:
                    member.polled_at = self.now_s
                    member.settle()
                else:
                    member.claims.leases.renew_while_alive()
            self.look()

    def _running(self) -> list[Member]:
        return [member for member in self.members if not member.stopped]

    def look(self) -> None:
        """See that all promises are kept."""
        for member in self.members:
            member.note_told()
            member.note_lapses()
        self.truth.look(self.log)

    def check(self) -> None:
        """The same, and the counters."""
        self.look()
        for member in self.members:
            member.check()
            owned = self.memory.claims(member.claims.acks.owner)
            if stolen := member.sure() - owned:
                raise BrokenPromiseError(
                    "claim", f"{member.name} has {sorted(self.idents[key] for key in stolen)} no more"
                )
        if self.truth.calm:
            known = {key for member in self.members for key in member.books()}
            if left := self.memory.claims() - known:
                raise BrokenPromiseError("left", f"claims of {sorted(self.idents[key] for key in left)}")

    # --- the end -------------------------------------------------------------------------------------------------

    def drain(self, life: Life) -> None:
        """End all faults, let everything be handled, and see that it is."""
        for member in self.members:
            member.line.state = State.UP
            self.resume(member)
        for group in self.groups:
            some = [member for member in self.members if member.group == group]
            self.give_free(some[0] if some else self.join(group, life))
        for _ in range(DRAINING_ROUNDS):
            for member in self.members:
                member.poll(10, [10] * len(self.log))
                for given in list(member.has.values()):
                    member.complete(given)
                for at in list(member.assigned):
                    member.commit(at)
            self.pass_time(1.0, asking=False)
            if not self._open():
                break
        if left := self._open():
            raise BrokenPromiseError("stuck", f"{left} of {self.commits}")
        self.check()

    def resume(self, member: Member) -> None:
        """Let one that stood still go on."""
        if member.stopped:
            member.stopped, member.resumed_at = False, self.now_s

    def _open(self) -> list[Coordinates]:
        return [where for where in self.names() if self.commits.get(where, 0) < len(self.log[where[1:]])]

    def end(self) -> None:
        """See that nobody holds anything, and close all of them."""
        # A claim given back that did not arrive ends with its lease.
        waits_s = 0.0 if self.truth.calm else LEASE_S + STEP_S
        self.pass_time(waits_s, asking=True)
        for member in self.members:
            for at in sorted(member.ghosts):
                member.leave(at, writes=False)
            member.check_idle()
            shared = member.engine.counters.shared
            if self.truth.calm and (odd := shared.keys() - {"claimed"}):
                raise BrokenPromiseError("counters", f"{odd} without a fault: {shared}")
        if left := self.memory.claims():
            raise BrokenPromiseError("left", f"claims of {sorted(self.idents[key] for key in left)}")
        for member in list(self.members):
            self.close(member)
        self.check()

    def names(self) -> list[Coordinates]:
        """Every partition, as each group reads it."""
        return [Coordinates(group, *at) for group in self.groups for at in self.log]
