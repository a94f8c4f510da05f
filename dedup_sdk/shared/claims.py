"""What a consumer claims in a memory that it shares with others: which messages it may hand out, and what becomes of the others.

`dedup_sdk.shared.gate` has the words *owned* and *waiting*, `dedup_sdk.shared.acknowledgements` has *pending*.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dedup_sdk.core.flight import DUPLICATE, UNVERIFIED, Chunk, RecordRef, digest_of
from dedup_sdk.engine.gates import Unseen
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.marks import Marks, cut_digests
from dedup_sdk.observe import Counters
from dedup_sdk.shared.acknowledgements import Acknowledgements, PendingAck
from dedup_sdk.shared.gate import ClaimGate, OwnedClaim, Waiting, near
from dedup_sdk.shared.leases import Leases
from dedup_sdk.shared.protocol import Claim, ClaimKind
from dedup_sdk.shared.scope import scoped_ids
from dedup_sdk.shared.settings import Shared
from dedup_sdk.window import Window

if TYPE_CHECKING:
    from dedup_sdk.engine.partition import Partition

logger = logging.getLogger("dedup_sdk")


class Claims:
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
        self.in_order = shared.in_flight == "wait"
        self.acks = Acknowledgements(shared, counters, clock)
        self.leases = Leases(shared, self.acks, clock, silence_s=silence_s)
        self._shared = shared
        self._clock = clock
        self._group = group
        self._holders: set[bytes] = set()

    def gate(
        self, topic: str, partition: int, window: Window, *, cluster: str, id_spec: str
    ) -> ClaimGate | None:
        """Return the gate of a partition; None where nothing is looked up. Raises `ConfigurationError` for a window by count."""
        if window.is_off:
            return None
        if window.time_ms is None or window.count is not None:
            raise ConfigurationError(
                f"{topic}[{partition}] has the window {window}: a shared memory forgets by time alone; give e.g. Window(days=7)"
            )
        scope = self._shared.scope_of(self._group, topic, partition, cluster=cluster, id_spec=id_spec)
        return ClaimGate(self, scope, window.time_ms)

    @property
    def is_sure(self) -> bool:
        """Whether nobody else can have what is claimed here."""
        return self.leases.is_sure

    @property
    def is_out(self) -> bool:
        """Whether the store did not answer last."""
        return self.acks.is_out

    @property
    def pauses(self) -> bool:
        """Whether nothing is handed out for that."""
        return self.acks.pauses

    def rewound(self, topic: str, partition: int) -> None:
        """Warn that a rewind has no effect here: the shared memory is not set back with the group."""
        logger.warning(
            "%s[%d] was rewound, but the shared memory still knows the completed IDs: their records stay hidden; to "
            "handle them again, give Shared another prefix", topic, partition,
        )  # fmt: skip

    def close(self) -> None:
        """Renew no more, and send the pending completions a last time."""
        with self.leases.lock:
            self.leases.stop()
            self.acks.close()

    # --- records that come ---------------------------------------------------------------------------------------

    def admit(self, partitions: Sequence[Partition]) -> None:
        """Claim what was judged and is to be handed out, by one call; what may not be handed out now is kept back."""
        gates = list(dict.fromkeys(_gates_of(partitions)))
        with self.leases.lock:
            asked: list[Waiting] = []
            for gate in gates:
                # Else it began anew while its batch was judged: nobody would give back what is claimed for it now.
                if not gate.left:
                    # Not before: a store that cannot be opened is tried again and again.
                    self.leases.enter(gate)
                    asked += gate.take_unclaimed()
            duplicates = self._decide(asked) if asked else []
            for gate in gates:
                gate.count_claimed()
            _complete_duplicates(duplicates)

    def keep(self, unseen: Unseen) -> None:
        """Renew leases where it is time. What another consumer may have by now, and nobody was given here, waits to be asked for again.

        A process that was stopped is the last one to learn of it, so that a lease which is over by the clock of this
        process is not trusted. A machine that was suspended has a clock that stood still, too: there only the next
        renewal shows it, a third of a lease later.
        """
        with self.leases.lock:
            self.leases.note_alive()
            if not self.is_sure:
                self._take_back(unseen)

    def settle(self, partitions: Sequence[Partition]) -> None:
        """Send the pending completions, and ask again for the IDs that wait. Records that may be handed out now are due."""
        with self.leases.lock:
            self.acks.send_pending()
            if self.pauses and not self.acks.may_ask():
                return
            while due := self._due(partitions):
                _complete_duplicates(self._decide(due))
                over = [each for each in due if not each.is_held_back]
                for each in over:
                    each.gate.settle(RecordRef(each.chunk, each.row))
                for gate in {each.gate for each in over}:
                    gate.drop_claimed()
                if not over or not self.in_order:
                    return

    def _due(self, partitions: Iterable[Partition]) -> list[Waiting]:
        """Return what is to be asked for again. In order that is the first of each partition, and when that is over those behind it."""
        now = self._clock()
        due: list[Waiting] = []
        for gate in _gates_of(partitions):
            if not gate.waiting:
                continue
            if not self.in_order:
                due += [each for each in gate.waiting if each.retry_at <= now]
            elif gate.waiting[0].retry_at <= now:
                due += gate.waiting if gate.waiting[0].retry_at == 0 else gate.waiting[:1]
        return due

    def _decide(self, asked: list[Waiting]) -> list[Waiting]:
        """Ask for records, and give each its verdict or have it wait; return the duplicates, which are to be completed."""
        answers = self._ask(asked)
        duplicates: list[Waiting] = []
        stopped: set[ClaimGate] = set()
        too_early: list[Waiting] = []
        now = self._clock()
        for each, answer in zip(asked, answers, strict=True):
            gate = each.gate
            if answer is not None and answer.kind is ClaimKind.FRESH:
                gate.own(digest_of(each.chunk, each.row), OwnedClaim(each.key, answer.token, each.offset))
                self._holders.add(each.key)
            if answer is not None and answer.kind is ClaimKind.DUPLICATE:
                each.judge(DUPLICATE, "shared", seen=(-1, answer.seen_ms))
                duplicates.append(each)
            elif gate in stopped:
                too_early.append(each)
                each.have_wait(0.0)
            elif answer is not None and answer.kind is ClaimKind.IN_FLIGHT:
                each.have_wait_for(answer.left_ms / 1000, now)
                if self.in_order:
                    stopped.add(gate)
            elif answer is None and (self.pauses or now < each.lease_ends):
                each.have_wait(0.0)
                if self.in_order or self.pauses:
                    stopped.add(gate)
            else:
                self._deliver(each, answer)
        if too_early:
            self._release_early(too_early)
        return duplicates

    def _deliver(self, each: Waiting, answer: Claim | None) -> None:
        kind, reason = each.kind, each.reason
        if answer is None:
            self.acks.count("unasked")
            kind, reason = UNVERIFIED, "shared-outage"
            each.gate.own(digest_of(each.chunk, each.row), OwnedClaim(each.key, 0, each.offset))
            self._holders.add(each.key)
        elif answer.kind is ClaimKind.FOREIGN:
            self.acks.count("foreign")
            kind, reason = UNVERIFIED, "shared-foreign"
        else:
            self.acks.count("claimed")
        each.judge(kind, reason)
        each.chunk.unhold(each.row)

    def _release_early(self, too_early: list[Waiting]) -> None:
        """Give back what stands behind a record that waits: two consumers that keep what the other waits for would wait for ever."""
        by_gate: dict[ClaimGate, list[bytes]] = {}
        for each in too_early:
            digest = digest_of(each.chunk, each.row)
            owned = each.gate.owned.get(digest)
            # Else it is that of an earlier record, which is completed and of which the store is not told yet.
            if owned is not None and owned.offset == each.offset:
                by_gate.setdefault(each.gate, []).append(digest)
        for gate, digests in by_gate.items():
            self.release(gate, digests)

    def _ask(self, asked: list[Waiting]) -> list[Claim | None]:
        """Return the answers of the shared store; None where it gives none. What this consumer has itself is in flight, or a duplicate."""
        _name(asked)
        # First of all: what is claimed again while its completion is still to be told would be completed by that.
        self.acks.send_pending()
        answers: list[Claim | None] = [None] * len(asked)
        rows: list[int] = []
        claimed: set[bytes] = set()
        for row, each in enumerate(asked):
            pending = self.acks.pending.get(each.key)
            if pending is not None and abs(each.timestamp_ms - pending.timestamp_ms) <= each.gate.window_ms:
                answers[row] = Claim(ClaimKind.DUPLICATE, seen_ms=pending.timestamp_ms)
            elif each.key in self._holders or each.key in claimed:
                answers[row] = Claim(ClaimKind.IN_FLIGHT, left_ms=self._shared.lease_ms)
            elif pending is None:
                claimed.add(each.key)
                rows.append(row)
        if rows:
            self.leases.keep_renewed()
        rows.sort(key=lambda row: asked[row].gate.window_ms)
        for window_ms, group in groupby(rows, key=lambda row: asked[row].gate.window_ms):
            part = list(group)
            if self.acks.may_ask():
                with self.acks.answered():
                    given = self.acks.store.claim(
                        [asked[row].key for row in part],
                        self.acks.owner,
                        self._shared.lease_ms,
                        timestamps_ms=[asked[row].timestamp_ms for row in part],
                        window_ms=window_ms,
                    )
                    for row, answer in zip(part, given, strict=True):
                        answers[row] = answer
        return answers

    # --- records that end ----------------------------------------------------------------------------------------

    def complete(self, gate: ClaimGate, marks: Marks) -> None:
        """Complete IDs in the store; completions that it does not take now are pending."""
        columns = zip(
            cut_digests(marks.digests), marks.offsets.tolist(), marks.timestamps.tolist(), strict=True
        )
        with self.leases.lock:
            for digest, offset, timestamp_ms in columns:
                owned = gate.owned.get(digest)
                # A mark below it is that of an older record, out of whose window this one was claimed.
                if owned is not None and offset >= owned.offset:
                    # In this order: whatever is interrupted, no ID stays with nobody who gives it back.
                    self.acks.enqueue(owned.key, PendingAck(owned.token, near(timestamp_ms), gate.window_ms))
                    self._holders.discard(owned.key)
                    gate.disown(digest)
            self.acks.send_pending()

    def release(self, gate: ClaimGate, digests: Sequence[bytes]) -> None:
        """Give claims back; where the store does not take that, they end with their lease."""
        with self.leases.lock:
            given = [gate.owned[digest] for digest in digests]
            # First: of what is interrupted here the partition still knows, and gives it back when it goes.
            self._holders.difference_update([each.key for each in given])
            for digest in digests:
                gate.disown(digest)
            given = [each for each in given if each.token and not each.lost]
            if given and self.acks.may_ask():
                with self.acks.answered():
                    self.acks.store.release([each.key for each in given], [each.token for each in given])

    def leave(self, gate: ClaimGate) -> None:
        """Let a partition go, with all that is claimed for it."""
        with self.leases.lock:
            self.leases.leave(gate)
            self.release(gate, list(gate.owned))

    # --- claims that are lost --------------------------------------------------------------------------------------

    def holds(self, partition: Partition, place: RecordRef) -> bool:
        """Whether nobody else can have a message that was given out; else it is asked for again, and comes again where nobody completed it.

        Without that a message that the application gives up for this answer would stay in flight for ever. A claim that
        was lost stays in doubt until its message ends.
        """
        gate, digest = partition.gate(ClaimGate), place.chunk.digests[place.row]
        with self.leases.lock:
            if gate is None or digest is None or not gate.has_claimed(digest):
                return True
            if not self.leases.is_in_time:
                self.leases.renew()
            if not gate.owned[digest].lost and self.leases.is_in_time:
                return True
            self._ask_again(gate, [place])
            return False

    def _take_back(self, unseen: Unseen) -> None:
        """Take queued messages back whose lease may be over, and claim them again; where order is kept, also the messages behind them."""
        unsure = not self.leases.is_in_time

        def is_doubtful(partition: Partition, place: RecordRef) -> bool:
            gate, digest = partition.gate(ClaimGate), place.chunk.digests[place.row]
            return (
                gate is not None
                and digest is not None
                and gate.has_claimed(digest)
                and (unsure or gate.owned[digest].lost)
            )

        taken = unseen(is_doubtful)
        if self.in_order and taken:
            first: dict[Partition, int] = {}
            for partition, place in taken:
                first[partition] = min(place.offset, first.get(partition, place.offset))
            taken += unseen(
                lambda partition, place: (
                    partition in first
                    and place.offset > first[partition]
                    and place.row not in place.chunk.unmarked
                )
            )
        by_gate: dict[ClaimGate, list[RecordRef]] = {}
        for partition, place in taken:
            gate = partition.gate(ClaimGate)
            if gate is not None:
                by_gate.setdefault(gate, []).append(place)
        for gate, places in by_gate.items():
            self._ask_again(gate, places)
        # What the application has may be handed back, or put back, at any time.
        self.leases.note_given_back()

    def _ask_again(self, gate: ClaimGate, places: list[RecordRef]) -> None:
        """Have records of a partition wait that were offered, and let their claims go."""
        claimed: list[bytes] = []
        for place in places:
            gate.partition.verdicts.uncount(place)
            gate.hold_back(place)
            digest = digest_of(*place)
            if digest in gate.owned:
                claimed.append(digest)
        self.release(gate, claimed)


def _gates_of(partitions: Iterable[Partition]) -> list[ClaimGate]:
    gates = (partition.gate(ClaimGate) for partition in partitions)
    return [gate for gate in gates if gate is not None]


def _name(asked: list[Waiting]) -> None:
    """Note what records are called in the shared store."""
    unnamed = (each for each in asked if not each.key)
    for scope, group in groupby(unnamed, key=lambda each: each.gate.scope):
        part = list(group)
        digests = (digest_of(each.chunk, each.row) for each in part)
        for each, key in zip(part, scoped_ids(scope, digests), strict=True):
            each.call(key)


def _complete_duplicates(duplicates: list[Waiting]) -> None:
    rows: dict[int, tuple[ClaimGate, Chunk, list[int]]] = {}
    for each in duplicates:
        each.chunk.unhold(each.row)
        rows.setdefault(id(each.chunk), (each.gate, each.chunk, []))[2].append(each.row)
    for gate, chunk, indexes in rows.values():
        gate.partition.complete_hidden(chunk, indexes)
