"""One consumer of those that share a memory.

The engine, its claims and its queues, put together as the drop-in consumer does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from confluent_kafka import Message

from dedup_sdk import Lookup, MemoryStore, VerdictKind
from dedup_sdk._advice.ids import IdAdvice
from dedup_sdk._core.flight import OFFERED, SINGLE
from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned, Recovered
from dedup_sdk._kafka.assign.assignment import State as Assignment
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._kafka.deliver.classifier import BatchClassifier
from dedup_sdk._kafka.deliver.completion import ByName, OnNextCall
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk.ids import digest_one, key
from dedup_sdk.shared._claims import ClaimGatekeeper
from tests.support.broken_promise import BrokenPromiseError
from tests.support.sharing.line import LOST, Line
from tests.support.sharing.truth import Coordinates, Entry, Ident
from tests.support.sharing.watched import SILENCE_S, Given, Watched, Where

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import VerdictEvent, Window
    from dedup_sdk._core.flight import RecordRef
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._kafka.recover.session import Session
    from dedup_sdk.shared import Shared
    from tests.support.sharing.world import World

WALL_S = 10**6
"""When the world begins, in seconds since the epoch."""


@dataclass
class Life:
    """How a consumer is used.

    Whether it completes by asking for more, and whether its completions wait for the next commit.
    """

    implicit: bool
    lazy: bool


class Member(Watched):
    """A consumer. ``ghosts``: partitions that others have by now, of which it has not heard."""

    def __init__(
        self,
        world: World,
        name: str,
        group: str,
        life: Life,
        shared: Shared,
        window: Window,
        disk: MemoryStore,
    ) -> None:
        self.world, self.name, self.group, self.life, self.disk = world, name, group, life, disk
        self.line = cast("Line", shared.store)
        self.stopped = False
        self.resumed_at = float("-inf")
        self.polled_at = world.now_s
        self.has: dict[tuple[str, int, int], Given] = {}
        self.untold: dict[bytes, tuple[Where, Ident]] = {}
        self.excused: set[bytes] = set()
        self.ghosts: set[Where] = set()
        self.rows = 0
        self.positions: dict[Where, int] = {}
        self.engine = Deduplicator(
            Lookup(id=key(), window=window),
            store=disk,
            group=group,
            clock=lambda: WALL_S + world.now_s,
            observers=[self._note],
        )
        self.claims = ClaimGatekeeper(
            shared,
            self.engine.counters,
            group=group,
            silence_s=SILENCE_S,
            clock=lambda: world.now_s,
        )
        # The world renews, and no thread.
        self.claims.leases.start_renewing = lambda: None  # type: ignore[method-assign]
        self.engine.share(self.claims)
        self.hand = Delivery(self._partition_of, self.engine.counters)
        self.hand.use((OnNextCall if life.implicit else ByName)(self.hand))
        self.assigned: dict[Where, Any] = {}
        session = SimpleNamespace(assigned=self.assigned)
        self._judge = BatchClassifier(
            self.engine,
            cast("Session", session),
            observing=False,
            watch=partial(IdAdvice, self.engine.strategy),
        )

    def _partition_of(self, topic: str, partition: int) -> Partition | None:
        return self.engine.partitions.get((topic, partition))

    def _where(self, at: Where) -> Coordinates:
        return Coordinates(self.group, *at)

    def _note(self, event: VerdictEvent) -> None:
        if event.verdict.kind in (VerdictKind.DUPLICATE, VerdictKind.REDELIVERED):
            at = event.topic, event.partition
            entry = self.world.log[at][event.offset]
            self.world.truth.hide(self._where(at), entry, self.world.ident(self.group, at, entry), event)

    # --- partitions ----------------------------------------------------------------------------------------------

    def take(self, at: Where) -> None:
        """Take a partition over: with the own disk's marks of it, and the log since."""
        where, log = self._where(at), self.world.log[at]
        committed = self.world.commits.get(where)
        held = self.engine.attach(*at)
        plan = plan_start(
            held.loaded.progress if held.loaded else None,
            committed=committed or 0,
            low=0,
            complete=committed is not None,
            new=committed is None,
        )
        held.start(plan)
        rows = log[plan.replay_from : plan.replay_to]
        if plan.replay_to > plan.replay_from:
            held.fold(
                [entry.offset for entry in rows],
                np.asarray([entry.timestamp_ms for entry in rows], np.int64),
                [None if entry.name is None else digest_one(entry.name.encode()) for entry in rows],
                plan.replay_to,
            )
        self.assigned[at] = Assigned(
            *at, Recovered(Start(offset=held.flight.high), "", held, False, None), state=Assignment.ACTIVE
        )
        self.positions[at] = held.flight.high
        self.commit(at)

    def commit(self, at: Where) -> None:
        """Commit the completions, where the group still takes it."""
        held = self.engine.partitions[at]
        held.persist()
        where = self._where(at)
        if self.world.owners.get(where) is self:
            self.world.look()
            self.world.truth.see_commit(where, held.flight.high)
            assert held.flight.high >= self.world.commits.get(where, 0), "a group that goes back"
            self.world.commits[where] = held.flight.high
            held.flight.note_committed(held.flight.high)

    def leave(self, at: Where, *, writes: bool) -> None:
        """Let a partition go: in order, or because another one has it already."""
        self.hand.purge({at})
        if writes:
            self.commit(at)
        else:
            self.engine.partitions[at].fence()
            self._excuse_untold(at)
        self.rows -= self._parked(self.engine.partitions[at])
        del self.assigned[at], self.positions[at]
        self.has = {where: given for where, given in self.has.items() if where[:2] != at}
        self.ghosts.discard(at)
        (self.engine.close if writes else self.engine.lose)(*at)

    def _excuse_untold(self, at: Where | None) -> None:
        for key_, (where, ident) in list(self.untold.items()):
            owed = key_ in self.claims.acks.pending
            if at is None or (where == at and not owed):
                del self.untold[key_]
                if key_ not in self.excused:
                    self.world.truth.excuse(ident, "its completion was not told")

    def kill(self) -> None:
        """End without a word."""
        self._excuse_untold(None)
        for at in list(self.assigned):
            self.leave(at, writes=False)

    def close(self) -> None:
        """End in order."""
        self.hand.release_all()
        for at in list(self.assigned):
            self.leave(at, writes=at not in self.ghosts)
        self.claims.close()
        self.note_told()
        forgotten = self.engine.counters.shared.get("forgotten", 0)
        # A completion told twice, because the answer was lost, is told all the same.
        if len(self.untold) > forgotten:
            raise BrokenPromiseError(
                "counters", f"{forgotten} forgotten, {len(self.untold)} untold: {self.untold}"
            )
        self._excuse_untold(None)

    # --- asking for messages -------------------------------------------------------------------------------------

    def poll(self, count: int, amounts: list[int], *, prefetched: bool = False) -> None:
        """Ask for messages, at most so many, of those that the client has fetched by then.

        It has so many of each partition, in turns.
        """
        if self.life.implicit:
            for given in self.has.values():
                self._handle(given)
            self.has.clear()
        self._write(list(self.hand.policy.ask_for_more()))
        self.polled_at = self.world.now_s
        self.engine.trim()
        self.settle()
        if not self._hand_over(count):
            for at in sorted(self.ghosts):
                self.leave(at, writes=False)
            if batch := self._fetch(amounts, prefetched=prefetched):
                judged = self._judge.classify(batch)
                assert judged.error is None
                self.rows += sum(len(held.chunk.offsets) for held in judged.chunks)
                self.hand.fill(judged)
                self._offer_due()
            self._hand_over(count)

    def _fetch(self, amounts: list[int], *, prefetched: bool) -> list[Any]:
        batch = []
        parts = sorted(self.assigned)
        for number, amount in enumerate(amounts if parts else ()):
            at = parts[number % len(parts)]
            if self.engine.partitions[at].stands_still and not prefetched:
                continue
            first = self.positions[at]
            entries = self.world.log[at][first : first + amount]
            self.positions[at] = first + len(entries)
            batch += [_message(at, entry) for entry in entries]
        return batch

    def settle(self) -> None:
        """Renew, and ask again for waiting messages."""
        self.claims.keep(self._take_back)
        self.claims.retry(list(self.engine.partitions.values()))
        self._offer_due()

    def _take_back(self, chosen: Callable[[Partition, RecordRef], bool]) -> list[tuple[Partition, RecordRef]]:
        """Take back queued messages, which were counted, and are judged and counted once more."""
        taken = self.hand.take_back(chosen)
        self.rows += len(taken)
        return taken

    def _offer_due(self) -> None:
        for held in self.engine.partitions.values():
            self.hand.offer(place for place in held.take_due() if place.chunk.states[place.row] == SINGLE)

    def _hand_over(self, count: int) -> bool:
        if not self.claims.is_sure:
            self.settle()
        got = self.hand.take(count)
        for message in got:
            self._take(message)
        return bool(got)

    def _take(self, message: Any) -> None:
        at = message.topic(), message.partition()
        entry = self.world.log[at][message.offset()]
        given = Given(message, entry, self.world.ident(self.group, at, entry))
        place = self._place(message)
        if place is None or place.chunk.items[place.row] is not message:
            raise BrokenPromiseError("doubled", f"{at} {entry} is handed out and not in flight")
        verdict = place.chunk.verdict(place.row)
        if not verdict.deliver:
            raise BrokenPromiseError("doubled", f"{at} {entry} is handed out as {verdict}")
        if verdict.reason == "shared-outage":
            if self.world.shared.on_outage == "pause":
                raise BrokenPromiseError("doubled", f"{at} {entry} is handed out while the store is away")
            given.excused = True
            self.world.truth.fault(given.ident, "handed out without a claim")
        elif given.ident is not None:
            ends = self.line.lease_ends.get(self.world.key(given.ident), LOST)
            given.excused = self.world.key(given.ident) in self.line.forgotten
            if ends <= self.world.now_s:
                raise BrokenPromiseError(
                    "lease", f"{at} {entry} is handed out on a lease that ended at {ends}"
                )
        if (*at, entry.offset) in self.has:
            raise BrokenPromiseError("doubled", f"{at} {entry} is handed out twice")
        self.has[*at, entry.offset] = given

    def _place(self, message: Any) -> RecordRef | None:
        held = self._partition_of(message.topic(), message.partition())
        return None if held is None else held.flight.place(message.offset())

    # --- how messages end ----------------------------------------------------------------------------------------

    def _handle(self, given: Given) -> None:
        at = given.message.topic(), given.message.partition()
        if given.excused:
            self.world.truth.excuse(given.ident, "somebody else could claim it")
        self.world.truth.handle(self._where(at), given.entry, given.ident, self.world.now_s)
        if given.ident is not None:
            key_ = self.world.key(given.ident)
            self.untold[key_] = at, given.ident
            self.line.told.discard(key_)
            self.excused.discard(key_)
            if given.excused:
                self.excused.add(key_)

    def _write(self, partitions: list[Partition]) -> None:
        if not self.life.lazy:
            for held in partitions:
                held.persist()

    def complete(self, given: Given) -> None:
        """A handler did its work, and says so."""
        self._handle(given)
        self._end(given)
        self.hand.take_out(given.message)
        held = self.engine.partitions[given.message.topic(), given.message.partition()]
        self.hand.offer(held.complete([given.entry.offset]))
        self._write([held])

    def die_handling(self, given: Given) -> None:
        """A handler did its work, and its process is killed before it can say so."""
        self._handle(given)

    def release(self, given: Given) -> None:
        """A handler wants another try."""
        self._end(given)
        self.hand.take_out(given.message)
        held = self.engine.partitions[given.message.topic(), given.message.partition()]
        offered = held.release([given.entry.offset])
        assert [place.offset for place in offered] == [given.entry.offset]
        self.hand.offer(offered)

    def holds(self, given: Given) -> bool:
        """Ask whether a message is still ours, as a worker does before it begins; it lets go of one that is not."""
        place = self._place(given.message)
        held = self.engine.partitions[given.message.topic(), given.message.partition()]
        assert place is not None
        assert place.chunk.states[place.row] in (OFFERED, SINGLE)
        if self.claims.holds(held, place):
            if given.ident is not None and not given.excused:
                ends = self.line.lease_ends.get(self.world.key(given.ident), LOST)
                if ends <= self.world.now_s:
                    raise BrokenPromiseError(
                        "lease", f"{given.entry} is held on a lease that ended at {ends}"
                    )
            return True
        self.rows += 1
        self.hand.take_out(given.message)
        self._end(given)
        return False

    def _end(self, given: Given) -> None:
        del self.has[given.message.topic(), given.message.partition(), given.entry.offset]


def _message(at: Where, entry: Entry) -> Any:
    return Message(
        topic=at[0],
        partition=at[1],
        offset=entry.offset,
        key=None if entry.name is None else entry.name.encode(),
        timestamp=(1, entry.timestamp_ms),
    )
