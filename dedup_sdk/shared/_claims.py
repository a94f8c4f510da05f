"""ClaimGatekeeper of a consumer in a shared store: which messages it may hand out, and the handling of the others.

`dedup_sdk.shared._gate` defines *owned* and *waiting*, `dedup_sdk.shared._acknowledgements` defines
*pending*.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby

from dedup_sdk._core.flight import DUPLICATE, UNVERIFIED, Chunk, RecordRef, digest_of
from dedup_sdk._engine.gates import TakeBack
from dedup_sdk._engine.partition import Partition
from dedup_sdk._marks import Marks, cut_digests
from dedup_sdk._observe import Counters
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.shared._acknowledgements import Acknowledgements, PendingAck
from dedup_sdk.shared._gate import ClaimGate, OwnedClaim, WaitingRecord, clamp_timestamp
from dedup_sdk.shared._leases import Leases
from dedup_sdk.shared._protocol import Claim, ClaimKind
from dedup_sdk.shared._scope import scoped_ids
from dedup_sdk.shared._settings import Shared

logger = logging.getLogger("dedup_sdk")


class ClaimGatekeeper:
    """All claims of one consumer. Only one thread at a time may call it, apart from the renewal thread.

    ``silence_s``: seconds after `keep` for which the group still waits for the consumer, and its claims are
    renewed.
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
        self.owned_keys: set[bytes] = set()
        """The keys, in the shared store, of the IDs that this consumer owns."""
        self._told: deque[tuple[float, Mapping[bytes, PendingAck]]] = deque()
        """Completions to be sent once more, and when (seconds of the clock)."""

    def gate(
        self, topic: str, partition: int, window: Window, *, cluster: str, id_spec: str
    ) -> ClaimGate | None:
        """Return the gate of a partition; None where the window is off.

        Raises `ConfigurationError` for a window by count.
        """
        if window.is_off:
            return None
        if window.time_ms is None or window.count is not None:
            raise ConfigurationError(
                f"{topic}[{partition}] has the window {window}, but a shared store supports windows by time only; "
                "give e.g. Window(days=7)"
            )
        scope = self._shared.scope_of(self._group, topic, partition, cluster=cluster, id_spec=id_spec)
        return ClaimGate(self, scope, window.time_ms)

    @property
    def is_sure(self) -> bool:
        """Whether no other consumer can own the claimed IDs."""
        return self.leases.is_sure

    @property
    def is_down(self) -> bool:
        """Whether the last call of the store failed."""
        return self.acks.is_down

    @property
    def pauses(self) -> bool:
        """Whether delivery is paused until the store answers again."""
        return self.acks.pauses

    def rewound(self, topic: str, partition: int) -> None:
        """Warn that a rewind has no effect here: the shared memory is not set back with the group."""
        logger.warning(
            "%s[%d] was rewound, but the shared memory still knows the completed IDs: their records stay hidden; to "
            "handle them again, give Shared another prefix", topic, partition,
            extra={"event": "shared-rewound"},
        )  # fmt: skip

    def close(self) -> None:
        """Stop renewing, and send the pending completions a last time."""
        with self.leases.lock:
            self.leases.stop()
            self.acks.close()

    # --- incoming records ----------------------------------------------------------------------------------------

    def admit(self, partitions: Sequence[Partition]) -> None:
        """Claim the judged records that are to be delivered, in one call; hold back those that must wait."""
        gates = list(dict.fromkeys(_gates_of(partitions)))
        with self.leases.lock:
            asked: list[WaitingRecord] = []
            for gate in gates:
                # A gate that left was replaced while its batch was judged: nobody would release new claims of it.
                if not gate.left:
                    # Only here, not when the gate is made: a store that cannot be opened is retried with a
                    # new gate each time.
                    self.leases.enter(gate)
                    asked += gate.take_unclaimed()
            duplicates = self._claim_and_judge(asked) if asked else []
            for gate in gates:
                gate.count_claimed()
            _complete_duplicates(duplicates)

    def keep(self, take_back: TakeBack) -> None:
        """Renew leases if due. Queued messages whose claims may be lost are held back and claimed again.

        A process that was stopped learns of it last, so a lease that is over by this process's own clock
        does not count. The clock of a suspended machine stands still, too: there only the next renewal
        shows it, a third of a lease later.
        """
        with self.leases.lock:
            self.leases.note_alive()
            if not self.is_sure:
                self._reclaim_queued(take_back)

    def retry(self, partitions: Sequence[Partition]) -> None:
        """Send pending completions, and claim waiting records again. Records that may be delivered now are queued."""
        with self.leases.lock:
            self._tell_again()
            self.acks.send_pending()
            if self.pauses and not self.acks.may_call():
                return
            while due := self._due_for_retry(partitions):
                _complete_duplicates(self._claim_and_judge(due))
                over = [each for each in due if not each.is_held_back]
                for each in over:
                    each.gate.settle(RecordRef(each.chunk, each.row))
                for gate in {each.gate for each in over}:
                    gate.drop_decided()
                if not over or not self.in_order:
                    return

    def _due_for_retry(self, partitions: Iterable[Partition]) -> list[WaitingRecord]:
        """Return the waiting records to claim now.

        Where order is kept: the first of each partition, and once that is decided, those behind it.
        """
        now = self._clock()
        due: list[WaitingRecord] = []
        for gate in _gates_of(partitions):
            if not gate.waiting:
                continue
            if not self.in_order:
                due += [each for each in gate.waiting if each.retry_at <= now]
            elif gate.waiting[0].retry_at <= now:
                # At 0 the first record waits for no lease, and all behind may be claimed with that one.
                due += gate.waiting if gate.waiting[0].retry_at == 0 else gate.waiting[:1]
        return due

    def _claim_and_judge(self, asked: list[WaitingRecord]) -> list[WaitingRecord]:
        """Claim records, and give each its verdict or make it wait; return the duplicates, which must be completed."""
        answers = self._claim_ids(asked)
        duplicates: list[WaitingRecord] = []
        stopped: set[ClaimGate] = set()
        behind_waiting: list[WaitingRecord] = []
        now = self._clock()
        for each, answer in zip(asked, answers, strict=True):
            gate = each.gate
            if answer is not None and answer.kind is ClaimKind.FRESH:
                # Also if the record then waits behind another: only an owned claim is released.
                gate.own(digest_of(each.chunk, each.row), OwnedClaim(each.key, answer.token, each.offset))
                self.owned_keys.add(each.key)
            if answer is not None and answer.kind is ClaimKind.DUPLICATE:
                each.set_verdict(DUPLICATE, "shared", seen=(-1, answer.seen_ms))
                duplicates.append(each)
            elif gate in stopped:
                behind_waiting.append(each)
                each.wait_until(0.0)
            elif answer is not None and answer.kind is ClaimKind.IN_FLIGHT:
                each.wait_for_lease(answer.left_ms / 1000, now)
                if self.in_order:
                    stopped.add(gate)
            # Without an answer the last one counts: until that lease ends, another consumer has the ID.
            elif answer is None and (self.pauses or now < each.lease_ends):
                each.wait_until(0.0)
                if self.in_order or self.pauses:
                    stopped.add(gate)
            else:
                self._deliver(each, answer)
        if behind_waiting:
            self._release_behind_waiting(behind_waiting)
        return duplicates

    def _deliver(self, each: WaitingRecord, answer: Claim | None) -> None:
        kind, reason = each.kind, each.reason
        if answer is None:
            self.acks.count("unasked")
            kind, reason = UNVERIFIED, "shared-outage"
            # Owned without a claim: copies here wait, and the completion is told when the store answers.
            each.gate.own(digest_of(each.chunk, each.row), OwnedClaim(each.key, 0, each.offset))
            self.owned_keys.add(each.key)
        elif answer.kind is ClaimKind.FOREIGN:
            self.acks.count("foreign")
            kind, reason = UNVERIFIED, "shared-foreign"
        else:
            self.acks.count("claimed")
        each.set_verdict(kind, reason)
        each.chunk.unhold(each.row)

    def _release_behind_waiting(self, behind_waiting: list[WaitingRecord]) -> None:
        """Release the claims of records behind one that waits.

        Otherwise two consumers that each hold an ID the other waits for would wait for ever.
        """
        by_gate: dict[ClaimGate, list[bytes]] = {}
        for each in behind_waiting:
            digest = digest_of(each.chunk, each.row)
            owned = each.gate.owned.get(digest)
            # Otherwise the claim belongs to an earlier, completed record whose completion is still to be sent.
            if owned is not None and owned.offset == each.offset:
                by_gate.setdefault(each.gate, []).append(digest)
        for gate, digests in by_gate.items():
            self.release(gate, digests)

    def _claim_ids(self, asked: list[WaitingRecord]) -> list[Claim | None]:
        """Return the store's answers; None where it gave none.

        IDs that this consumer owns itself are in flight, and IDs with a pending completion are duplicates,
        without a call.
        """
        _set_keys(asked)
        # First: a pending completion that is sent after a new claim of its ID would complete that claim.
        self.acks.send_pending()
        answers: list[Claim | None] = [None] * len(asked)
        rows: list[int] = []
        claimed: set[bytes] = set()
        for row, each in enumerate(asked):
            pending = self.acks.pending.get(each.key)
            if pending is not None and abs(each.timestamp_ms - pending.timestamp_ms) <= each.gate.window_ms:
                answers[row] = Claim(ClaimKind.DUPLICATE, seen_ms=pending.timestamp_ms)
            elif each.key in self.owned_keys or each.key in claimed:
                answers[row] = Claim(ClaimKind.IN_FLIGHT, left_ms=self._shared.lease_ms)
            # No claim of an ID whose completion is still to be sent: the completion would end the new claim.
            elif pending is None:
                claimed.add(each.key)
                rows.append(row)
        if rows:
            self.leases.start_renewing()
        # `groupby` joins neighbours only, and each window is a call.
        rows.sort(key=lambda row: asked[row].gate.window_ms)
        for window_ms, group in groupby(rows, key=lambda row: asked[row].gate.window_ms):
            part = list(group)
            if self.acks.may_call():
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

    # --- ending records ------------------------------------------------------------------------------------------

    def complete(self, gate: ClaimGate, marks: Marks) -> None:
        """Complete IDs in the store; completions that it does not confirm now are pending."""
        columns = zip(
            cut_digests(marks.digests), marks.offsets.tolist(), marks.timestamps.tolist(), strict=True
        )
        with self.leases.lock:
            for digest, offset, timestamp_ms in columns:
                owned = gate.owned.get(digest)
                # A mark with a lower offset is that of an older record: this one was claimed outside its window.
                if owned is not None and offset >= owned.offset:
                    # In this order: an interruption at any line leaves no ID without an owner that
                    # completes or releases it.
                    self.acks.enqueue(
                        owned.key, PendingAck(owned.token, clamp_timestamp(timestamp_ms), gate.window_ms)
                    )
                    self.owned_keys.discard(owned.key)
                    gate.disown(digest)
            self.acks.send_pending()

    def tell(self, gate: ClaimGate, completed: Collection[tuple[bytes, int]]) -> None:
        """Complete IDs (digest, timestamp in ms) whose messages are completed by the group's commit.

        And once more a lease later: their owner may have been killed, and have its claims until then.
        """
        keys = scoped_ids(gate.scope, (digest for digest, _ in completed))
        with self.leases.lock:
            told = {
                key: PendingAck(0, clamp_timestamp(timestamp_ms), gate.window_ms)
                for key, (_, timestamp_ms) in zip(keys, completed, strict=True)
            }
            self._enqueue_unowned(told)
            self._told.append((self._clock() + self._shared.lease, told))
            self.acks.send_pending()

    def _tell_again(self) -> None:
        while self._told and self._told[0][0] <= self._clock():
            self._enqueue_unowned(self._told.popleft()[1])

    def _enqueue_unowned(self, told: Mapping[bytes, PendingAck]) -> None:
        for key, ack in told.items():
            # What this consumer has claimed since may be a message of another window.
            if key not in self.owned_keys and key not in self.acks.pending:
                self.acks.enqueue(key, ack)

    def release(self, gate: ClaimGate, digests: Sequence[bytes]) -> None:
        """Release claims; if the store does not answer, they end with their lease."""
        with self.leases.lock:
            given = [gate.owned[digest] for digest in digests]
            # First: after an interruption here the partition still has the claims, and releases them when it leaves.
            self.owned_keys.difference_update([each.key for each in given])
            for digest in digests:
                gate.disown(digest)
            # A claim that was lost is another consumer's by now.
            given = [each for each in given if each.token and not each.lost]
            if given and self.acks.may_call():
                with self.acks.answered():
                    self.acks.store.release([each.key for each in given], [each.token for each in given])

    def leave(self, gate: ClaimGate) -> None:
        """Remove a partition, and release all its claims."""
        with self.leases.lock:
            self.leases.leave(gate)
            self.release(gate, list(gate.owned))

    # --- lost claims -----------------------------------------------------------------------------------------------

    def holds(self, partition: Partition, place: RecordRef) -> bool:
        """Whether no other consumer can own the ID of a delivered message.

        If another consumer can, the message waits for a new claim, and is delivered again unless somebody
        completed it. Without that, a message that the application drops because of the answer False would stay
        in flight for ever.
        A lost claim stays lost until its message ends.
        """
        gate, digest = partition.gate(ClaimGate), place.chunk.digests[place.row]
        with self.leases.lock:
            if gate is None or digest is None or not gate.has_claimed(digest):
                return True
            if not self.leases.is_valid:
                # A process that was stopped learns only from the store which of its claims live.
                self.leases.renew()
            if not gate.owned[digest].lost and self.leases.is_valid:
                return True
            self._hold_for_reclaim(gate, [place])
            return False

    def _reclaim_queued(self, take_back: TakeBack) -> None:
        """Hold back queued messages whose lease may be over, and claim them again.

        Where order is kept, this includes the messages behind them.
        """
        unsure = not self.leases.is_valid

        def is_doubtful(partition: Partition, place: RecordRef) -> bool:
            gate, digest = partition.gate(ClaimGate), place.chunk.digests[place.row]
            return (
                gate is not None
                and digest is not None
                and gate.has_claimed(digest)
                and (unsure or gate.owned[digest].lost)
            )

        taken = take_back(is_doubtful)
        if self.in_order and taken:
            first: dict[Partition, int] = {}
            for partition, place in taken:
                first[partition] = min(place.offset, first.get(partition, place.offset))
            taken += take_back(
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
            self._hold_for_reclaim(gate, places)
        # Recompute, because the application may release its messages, or put them back, at any time.
        self.leases.refresh_lost()

    def _hold_for_reclaim(self, gate: ClaimGate, places: list[RecordRef]) -> None:
        """Make offered records of a partition wait, and release their claims.

        They are judged, and counted, once more.
        """
        claimed: list[bytes] = []
        for place in places:
            gate.hold_back(place)
            digest = digest_of(*place)
            if digest in gate.owned:
                claimed.append(digest)
        self.release(gate, claimed)


def _gates_of(partitions: Iterable[Partition]) -> list[ClaimGate]:
    gates = (partition.gate(ClaimGate) for partition in partitions)
    return [gate for gate in gates if gate is not None]


def _set_keys(asked: list[WaitingRecord]) -> None:
    """Set the keys of records in the shared store."""
    unnamed = (each for each in asked if not each.key)
    for scope, group in groupby(unnamed, key=lambda each: each.gate.scope):
        part = list(group)
        digests = (digest_of(each.chunk, each.row) for each in part)
        for each, key in zip(part, scoped_ids(scope, digests), strict=True):
            each.set_key(key)


def _complete_duplicates(duplicates: list[WaitingRecord]) -> None:
    rows: dict[int, tuple[ClaimGate, Chunk, list[int]]] = {}
    for each in duplicates:
        each.chunk.unhold(each.row)
        rows.setdefault(id(each.chunk), (each.gate, each.chunk, []))[2].append(each.row)
    for gate, chunk, indexes in rows.values():
        gate.partition.complete_hidden(chunk, indexes)
