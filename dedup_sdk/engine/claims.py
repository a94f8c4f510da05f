"""What a consumer claims in a memory that it shares with others: which messages it may hand out, and what becomes of the others.

`dedup_sdk.engine.claiming` has the words *held* and *waiting*, `dedup_sdk.engine.owing` has *owed*.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from dedup_sdk.engine.claiming import Held, PartitionClaims, Waiting, near, waiting_for
from dedup_sdk.engine.leasing import Leasing
from dedup_sdk.engine.owing import Owed
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.lane.chunk import (
    APART,
    DUPLICATE,
    OFFERED,
    PARKED,
    UNVERIFIED,
    Chunk,
    Place,
    digest_of,
)
from dedup_sdk.lane.state import cut_digests
from dedup_sdk.marks import Marks
from dedup_sdk.observe import Counters
from dedup_sdk.shared.protocol import Claim, ClaimKind
from dedup_sdk.shared.scope import scoped_ids
from dedup_sdk.shared.settings import Shared
from dedup_sdk.window import Window

if TYPE_CHECKING:
    from dedup_sdk.engine.counted import Counted
    from dedup_sdk.engine.partition import Partition

LONGEST_RETRY_S: Final = 1.0

Unseen = Callable[[Callable[["Partition", Place], bool]], list[tuple["Partition", Place]]]
"""Takes what the application has not been given yet out of the queues, as far as the function says so of it."""


class Claims(Leasing):
    """A consumer's hold on a shared memory. Its owner takes care that one thread is in here at a time, beside the one that renews.

    ``silence_s``: how long after `keep` the group still waits for the consumer, so that its claims are renewed.
    """

    def __init__(
        self,
        shared: Shared,
        counters: Counters,
        *,
        group: str,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(shared, counters, clock, silence_s=silence_s)
        self._group = group
        self.in_order = shared.in_flight == "wait"
        self._holders: set[bytes] = set()

    def of(
        self, topic: str, partition: int, window: Window, *, cluster: str, id_spec: str
    ) -> PartitionClaims | None:
        """Return what a partition claims with; None where nothing is looked up. Raises `ConfigurationError` for a window by count."""
        if window.is_off:
            return None
        if window.time_ms is None or window.count is not None:
            raise ConfigurationError(
                f"{topic}[{partition}] has the window {window}: a shared memory forgets by time alone; give e.g. Window(days=7)"
            )
        return PartitionClaims(
            self,
            self._shared.scope_of(self._group, topic, partition, cluster=cluster, id_spec=id_spec),
            window.time_ms,
        )

    # --- records that come ---------------------------------------------------------------------------------------

    def admit(self, partitions: Iterable[Partition]) -> None:
        """Claim what was judged and is to be handed out, by one call; what may not be handed out now is kept back."""
        with self.lock:
            asked: list[Waiting] = []
            for held in dict.fromkeys(partitions):
                own = held.claims
                if own is None or own.left:
                    # It began anew while its batch was judged: nobody would give back what is claimed for it now.
                    continue
                # Not before: a store that cannot be opened is tried again and again.
                self.partitions.add(own)
                for chunk in held.unclaimed:
                    rows = [row for row in _offered(chunk) if row not in chunk.unmarked]
                    wanted = [waiting_for(held, own, chunk, row) for row in rows]
                    if own.stands_still:
                        for each in wanted:
                            each.park()
                        own.waiting += wanted
                    else:
                        asked += wanted
            duplicates = self._decide(asked) if asked else []
            for held in dict.fromkeys(partitions):
                held.count_claimed()
            self._complete_duplicates(duplicates)

    def keep(self, unseen: Unseen) -> None:
        """Renew leases where it is time. What another consumer may have by now, and nobody was given here, waits to be asked for again."""
        with self.lock:
            self._alive_until = self._clock() + self._silence_s
            self.renew_if_due()
            if not self.is_sure:
                self._take_back(unseen)

    def settle(self, partitions: Sequence[Partition]) -> None:
        """Tell what is owed, and ask again for what waits. What may be handed out is `Partition.due`."""
        with self.lock:
            now = self._clock()
            self._pay()
            if self.pauses and not self._breaker.allows(now):
                return
            while due := self._due(partitions):
                self._complete_duplicates(self._decide(due))
                over = [each for each in due if each.chunk.states[each.row] != PARKED]
                for each in over:
                    each.held.settle_claimed(Place(each.chunk, each.row))
                for own in {id(each.own): each.own for each in over}.values():
                    own.waiting = [each for each in own.waiting if each.chunk.states[each.row] == PARKED]
                if not over or not self.in_order:
                    return

    def _due(self, partitions: Iterable[Partition]) -> list[Waiting]:
        """Return what is to be asked for again. In order that is the first of each partition, and when that is over those behind it."""
        now = self._clock()
        due: list[Waiting] = []
        for held in partitions:
            own = held.claims
            if own is None or not own.waiting:
                continue
            if not self.in_order:
                due += [each for each in own.waiting if each.retry_at <= now]
            elif own.waiting[0].retry_at <= now:
                due += own.waiting if own.waiting[0].retry_at == 0 else own.waiting[:1]
        return due

    def _decide(self, asked: list[Waiting]) -> list[Waiting]:
        """Ask for records, and give each its verdict or have it wait; return the duplicates, which are to be completed."""
        answers = self._ask(asked)
        duplicates: list[Waiting] = []
        stopped: set[int] = set()
        too_early: list[Waiting] = []
        now = self._clock()
        for each, answer in zip(asked, answers, strict=True):
            own = each.own
            if answer is not None and answer.kind is ClaimKind.FRESH:
                own.held[digest_of(each.chunk, each.row)] = Held(each.key, answer.token, each.offset)
                self._holders.add(each.key)
            if answer is not None and answer.kind is ClaimKind.DUPLICATE:
                each.chunk.seen[each.row] = (-1, answer.seen_ms)
                each.judge(DUPLICATE, "shared")
                duplicates.append(each)
            elif id(own) in stopped:
                too_early.append(each)
                self._have_wait(each, 0.0)
            elif answer is not None and answer.kind is ClaimKind.IN_FLIGHT:
                each.lease_ends = now + answer.left_ms / 1000
                self._have_wait(each, now + min(each.pause_s, max(answer.left_ms / 1000, 0.001)))
                each.pause_s = min(2 * each.pause_s, LONGEST_RETRY_S)
                if self.in_order:
                    stopped.add(id(own))
            elif answer is None and (self.pauses or now < each.lease_ends):
                self._have_wait(each, 0.0)
                if self.in_order or self.pauses:
                    stopped.add(id(own))
            else:
                self._deliver(each, answer)
        if too_early:
            self._release_early(too_early)
        return duplicates

    def _deliver(self, each: Waiting, answer: Claim | None) -> None:
        waited = each.chunk.states[each.row] == PARKED
        kind, reason = each.kind, each.reason
        if answer is None:
            self._tell("unasked")
            kind, reason = UNVERIFIED, "shared-outage"
            each.own.held[digest_of(each.chunk, each.row)] = Held(each.key, 0, each.offset)
            self._holders.add(each.key)
        elif answer.kind is ClaimKind.FOREIGN:
            self._tell("foreign")
            kind, reason = UNVERIFIED, "shared-foreign"
        else:
            self._tell("claimed")
        each.judge(kind, reason)
        if waited:
            each.chunk.states[each.row] = APART

    @staticmethod
    def _have_wait(each: Waiting, retry_at: float) -> None:
        each.retry_at = retry_at
        if each.chunk.states[each.row] != PARKED:
            each.park()
            each.own.waiting.append(each)

    def _release_early(self, too_early: list[Waiting]) -> None:
        """Give back what stands behind a record that waits: two consumers that keep what the other waits for would wait for ever."""
        by_partition: dict[int, tuple[PartitionClaims, list[bytes]]] = {}
        for each in too_early:
            digest = digest_of(each.chunk, each.row)
            held = each.own.held.get(digest)
            # Else it is that of an earlier record, which is completed and of which the store is not told yet.
            if held is not None and held.offset == each.offset:
                by_partition.setdefault(id(each.own), (each.own, []))[1].append(digest)
        for own, digests in by_partition.values():
            self.release(own, digests)

    @staticmethod
    def _complete_duplicates(duplicates: list[Waiting]) -> None:
        rows: dict[int, tuple[Counted, Chunk, list[int]]] = {}
        for each in duplicates:
            if each.chunk.states[each.row] == PARKED:
                each.chunk.states[each.row] = APART
            rows.setdefault(id(each.chunk), (each.held, each.chunk, []))[2].append(each.row)
        for held, chunk, indexes in rows.values():
            held.complete_claimed(chunk, indexes)

    def _ask(self, asked: list[Waiting]) -> list[Claim | None]:
        """Return the answers of the shared store; None where it gives none. What this consumer has itself is in flight, or a duplicate."""
        self._name(asked)
        # First of all: what is claimed again while its completion is still to be told would be completed by that.
        self._pay()
        answers: list[Claim | None] = [None] * len(asked)
        rows: list[int] = []
        claimed: set[bytes] = set()
        for row, each in enumerate(asked):
            owed = self._owed.get(each.key)
            if owed is not None and abs(each.timestamp_ms - owed.timestamp_ms) <= each.own.window_ms:
                answers[row] = Claim(ClaimKind.DUPLICATE, seen_ms=owed.timestamp_ms)
            elif each.key in self._holders or each.key in claimed:
                answers[row] = Claim(ClaimKind.IN_FLIGHT, left_ms=self._shared.lease_ms)
            elif owed is None:
                claimed.add(each.key)
                rows.append(row)
        if rows:
            self.keep_renewed()
        rows.sort(key=lambda row: asked[row].own.window_ms)
        for window_ms, group in groupby(rows, key=lambda row: asked[row].own.window_ms):
            part = list(group)
            if self._breaker.allows(self._clock()):
                with self._answered():
                    given = self._store.claim(
                        [asked[row].key for row in part],
                        self.owner,
                        self._shared.lease_ms,
                        timestamps_ms=[asked[row].timestamp_ms for row in part],
                        window_ms=window_ms,
                    )
                    for row, answer in zip(part, given, strict=True):
                        answers[row] = answer
        return answers

    @staticmethod
    def _name(asked: list[Waiting]) -> None:
        for scope, group in groupby(
            (each for each in asked if not each.key), key=lambda each: each.own.scope
        ):
            part = list(group)
            for each, key in zip(
                part, scoped_ids(scope, (digest_of(e.chunk, e.row) for e in part)), strict=True
            ):
                each.key = key

    # --- records that end ----------------------------------------------------------------------------------------

    def complete(self, own: PartitionClaims, marks: Marks) -> None:
        """Tell the store what is completed; what it does not take now is owed."""
        columns = zip(
            cut_digests(marks.digests), marks.offsets.tolist(), marks.timestamps.tolist(), strict=True
        )
        with self.lock:
            for digest, offset, timestamp_ms in columns:
                held = own.held.get(digest)
                # A mark below it is that of an older record, out of whose window this one was claimed.
                if held is not None and offset >= held.offset:
                    # In this order: whatever is interrupted, no ID stays with nobody who gives it back.
                    self._owed[held.key] = Owed(held.token, near(timestamp_ms), own.window_ms)
                    self._holders.discard(held.key)
                    del own.held[digest]
            self._pay()

    def release(self, own: PartitionClaims, digests: Sequence[bytes]) -> None:
        """Give claims back; where the store does not take that, they end with their lease."""
        with self.lock:
            given = [own.held[digest] for digest in digests]
            # First: of what is interrupted here the partition still knows, and gives it back when it goes.
            self._holders.difference_update([each.key for each in given])
            for digest in digests:
                del own.held[digest]
            given = [each for each in given if each.token and not each.lost]
            if given and self._breaker.allows(self._clock()):
                with self._answered():
                    self._store.release([each.key for each in given], [each.token for each in given])

    def leave(self, own: PartitionClaims) -> None:
        """Let a partition go, with all that is claimed for it."""
        with self.lock:
            self.partitions.discard(own)
            self.release(own, list(own.held))

    # --- claims that are lost --------------------------------------------------------------------------------------

    def holds(self, held: Partition, place: Place) -> bool:
        """Whether nobody else can have a message that was given out; else it is asked for again, and comes again where nobody completed it."""
        own, digest = held.claims, place.chunk.digests[place.row]
        with self.lock:
            if own is None or digest is None or not own.has_claimed(digest):
                return True
            if self._clock() >= self._sure_until:
                self._renew()
            if not own.held[digest].lost and self._clock() < self._sure_until:
                return True
            self._ask_again(own, [(held, place)])
            return False

    def _take_back(self, unseen: Unseen) -> None:
        """Have what is not sure, and nobody was given, wait to be asked for again; in order also what lies behind it."""
        unsure = self._clock() >= self._sure_until

        def is_doubtful(held: Partition, place: Place) -> bool:
            own, digest = held.claims, place.chunk.digests[place.row]
            return (
                own is not None
                and digest is not None
                and own.has_claimed(digest)
                and (unsure or own.held[digest].lost)
            )

        taken = unseen(is_doubtful)
        if self.in_order and taken:
            first: dict[Partition, int] = {}
            for held, place in taken:
                first[held] = min(place.offset, first.get(held, place.offset))
            taken += unseen(
                lambda held, place: (
                    held in first and place.offset > first[held] and place.row not in place.chunk.unmarked
                )
            )
        by_partition: dict[int, tuple[PartitionClaims, list[tuple[Partition, Place]]]] = {}
        for held, place in taken:
            if held.claims is not None:
                by_partition.setdefault(id(held), (held.claims, []))[1].append((held, place))
        for own, places in by_partition.values():
            self._ask_again(own, places)
        # What the application has may be handed back, or put back, at any time.
        self._lost = any(each.lost for own in self.partitions for each in own.held.values())

    def _ask_again(self, own: PartitionClaims, places: list[tuple[Partition, Place]]) -> None:
        """Have records of a partition wait that were offered, and let their claims go."""
        claimed: list[bytes] = []
        for held, place in places:
            held.uncount(place)
            waiting = waiting_for(held, own, *place)
            waiting.park()
            insort(own.waiting, waiting, key=attrgetter("offset"))
            digest = digest_of(*place)
            if digest in own.held:
                claimed.append(digest)
        self.release(own, claimed)


def _offered(chunk: Chunk) -> Iterator[int]:
    at = chunk.states.find(OFFERED)
    while at >= 0:
        yield at
        at = chunk.states.find(OFFERED, at + 1)
