"""Transactions of members: what they produce is seen once, whatever becomes of a member, its disk, or an answer.

A transaction goes through steps, between which anything may happen: it begins with the group's metadata, its offsets
are sent, its commit is asked for, that arrives, and its answer is heard. The coordinator looks at the epoch of the
member when offsets are sent, and not at its partitions; from then on only at the epoch of the producer. Who gets a
partition waits for the end of a transaction that has offsets of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition

    from tests.model.worlds.life import Life, Seat
    from tests.model.worlds.member import Member

_MOST = 6
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRules:
    """The design, and one way of breaking each of its rules."""

    marks_before_the_commit: bool = False
    offsets_outside: bool = False
    metadata_are_taken_late: bool = False
    an_unknown_end_is_an_abort: bool = False
    an_unknown_end_is_a_commit: bool = False
    a_fenced_end_is_an_abort: bool = False
    every_offset_proves_a_commit: bool = False
    asked_before_the_old_one_is_fenced: bool = False
    others_commit_meanwhile: bool = False


@dataclass(slots=True)
class Transaction:
    """``epoch``: the producer's. ``offsets``: None until they are sent."""

    messages: list[Message]
    member_epoch: int | None
    epoch: int
    offsets: list[TopicPartition] | None = None
    is_asked: bool = False
    """Whether the commit is on its way."""


@dataclass(slots=True)
class Coordinator:
    """What brokers know of transactions: of producers, by seat, and of members."""

    outputs: dict[str, Counter[int]] = field(default_factory=dict)
    """Of each group: how often the output of a record is seen."""
    pending: dict[Seat, tuple[int, list[TopicPartition], list[int]]] = field(default_factory=dict)
    """Transactions that have not ended, by producer: its epoch, the offsets, and the records whose output they have."""
    producers: dict[Seat, int] = field(default_factory=dict)
    members: dict[Seat, int] = field(default_factory=dict)
    """The epochs of members; one that was removed has none."""
    group_epoch: int = 0

    def initialise(self, seat: Seat) -> int:
        """End what a producer of this ID has left, and fence it; return the new epoch."""
        self.pending.pop(seat, None)
        self.producers[seat] = self.producers.get(seat, 0) + 1
        return self.producers[seat]

    def add_offsets(
        self, seat: Seat, transaction: Transaction, offsets: list[TopicPartition], serials: list[int]
    ) -> bool:
        """Take the offsets of a transaction, if the epochs are right."""
        if transaction.epoch != self.producers[seat]:
            return False
        if transaction.member_epoch is None or transaction.member_epoch != self.members.get(seat):
            return False
        self.pending[seat] = transaction.epoch, offsets, serials
        return True


class Desk:
    """The transactions of all members of a life."""

    def __init__(self, life: Life, rules: TransactionRules) -> None:
        self._life, self._rules = life, rules
        self.coordinator = Coordinator()
        self._open: dict[Seat, Transaction] = {}
        self._epochs: dict[Seat, int] = {}
        """The epoch of each producer, as that knows it."""
        self._known: dict[Seat, int | None] = {}
        """The epoch of each member, as that knows it."""

    # --- the group ---------------------------------------------------------------------------------------------------

    def rebalanced(self, taker: Seat, removed: Seat | None) -> None:
        """Note a rebalance: everybody hears of it but who was ``removed``, until that awakes."""
        coordinator = self.coordinator
        coordinator.group_epoch += 1
        asleep = {seat for seat, _ in self._life.zombies} | ({removed} if removed else set())
        for seat in {*self._life.members, taker} - asleep:
            coordinator.members[seat] = self._known[seat] = coordinator.group_epoch
        for seat in asleep:
            coordinator.members.pop(seat, None)

    def awoken(self, seat: Seat) -> None:
        """Note that a removed member joins again."""
        self.coordinator.members[seat] = self._known[seat] = self.coordinator.group_epoch

    def started(self, seat: Seat) -> None:
        """A process begins: its producer ends what the one before has left."""
        self._epochs[seat] = self.coordinator.initialise(seat)

    def died(self, seat: Seat) -> None:
        """A process ends; a commit that is on its way may arrive."""
        transaction = self._open.pop(seat, None)
        if transaction is not None and transaction.is_asked and self._life.chance(0.5):
            self._arrive(seat, transaction)

    def wait(self, group: str, number: int) -> None:
        """Who gets a partition waits for the end of transactions: their commits arrive, or they take too long."""
        for seat, (_, offsets, _) in list(self.coordinator.pending.items()):
            if seat[0] != group or all(tp.partition != number for tp in offsets):
                continue
            transaction = self._open.get(seat)
            if transaction is not None and transaction.is_asked and self._life.chance(0.5):
                self._arrive(seat, transaction)
            self.coordinator.initialise(seat)

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self, seat: Seat, member: Member) -> None:
        """Have a member go one step."""
        transaction = self._open.get(seat)
        if transaction is None:
            self._begin(seat, member)
        elif not transaction.is_asked and self._life.chance(0.1):
            self._abort(seat, member, transaction)
        elif transaction.offsets is None:
            self._send(seat, member, transaction)
        elif not transaction.is_asked:
            transaction.is_asked = True
        else:
            self._end(seat, member, transaction)

    def finish(self, seat: Seat, member: Member) -> None:
        """Commit all that a member has in hand, without an accident."""
        for _ in range(_TRIES):
            transaction = self._open.get(seat)
            if transaction is None and not member.in_flight:
                return
            if transaction is None:
                self._begin(seat, member, is_all=True)
            elif transaction.offsets is None:
                self._send(seat, member, transaction)
            else:
                transaction.is_asked = True
                self._end(seat, member, transaction, surely=True)
        raise BrokenPromiseError("stuck", "no transaction comes to an end")

    def _begin(self, seat: Seat, member: Member, *, is_all: bool = False) -> None:
        if member.in_flight:
            most = len(member.in_flight) if is_all else self._life.random.randint(1, _MOST)
            messages = self._life.random.sample(member.in_flight, min(most, len(member.in_flight)))
            self._open[seat] = Transaction(messages, self._known.get(seat), self._epochs[seat])

    def _in_hand(self, member: Member, messages: list[Message]) -> list[Message]:
        return [
            message
            for message in messages
            if any(message is each for each in member.in_flight) and member.session.is_current(message)
        ]

    def _send(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        messages = transaction.messages
        if self._rules.metadata_are_taken_late:
            transaction.member_epoch = self._known.get(seat)
        elif len(self._in_hand(member, messages)) < len(messages):
            self._abort(seat, member, transaction)
            return
        ended: dict[tuple[str, int], list[int]] = {}
        for message in messages:
            place: Any = (message.topic(), message.partition())
            ended.setdefault(place, []).append(int(message.offset() or 0))
        if self._rules.offsets_outside:
            offsets: list[TopicPartition] | None = []
        else:
            offsets = member.session.commits.in_transaction(ended)
        if offsets is None:
            # A commit before has no answer yet.
            self._life.arrive(member)
            return
        serials = [int(message.value() or b"") for message in messages]
        if not self.coordinator.add_offsets(seat, transaction, offsets, serials):
            self._abort(seat, member, transaction)
            return
        transaction.offsets = offsets
        if self._rules.others_commit_meanwhile:
            member.session.commits.transaction_ended()
        if self._rules.marks_before_the_commit:
            self._complete(seat, member, transaction)
            member.persist()

    def _arrive(self, seat: Seat, transaction: Transaction) -> bool:
        """Have a commit arrive; return whether it was made."""
        coordinator, life = self.coordinator, self._life
        pending = coordinator.pending.get(seat)
        if pending is None or pending[0] != transaction.epoch:
            return False
        del coordinator.pending[seat]
        group, (_, offsets, serials) = seat[0], pending
        seen = coordinator.outputs.setdefault(group, Counter())
        numbers = {serial: number for number, of in life.oracle.entries.items() for serial in of}
        for serial in serials:
            seen[serial] += 1
            if seen[serial] > 1:
                raise BrokenPromiseError("doubled", f"the output of {serial} is seen again")
            life.oracle.handle(group, numbers[serial], serial)
            life.oracle.met(group, serial)
        for tp in offsets:
            before = life.broker.committed.get((group, tp.partition))
            life.broker.committed[group, tp.partition] = tp
            life.look_at_commit(group, tp.partition, before)
        return True

    def _end(self, seat: Seat, member: Member, transaction: Transaction, *, surely: bool = False) -> None:
        rules, life = self._rules, self._life
        if surely or life.chance(0.8):
            if self._arrive(seat, transaction):
                self._committed(seat, member, transaction)
            elif rules.a_fenced_end_is_an_abort:
                self._abort(seat, member, transaction)
            else:
                # It is fenced, perhaps behind a commit that arrived before, and whose answer nobody heard.
                self._settle(seat, member, transaction)
            return
        # Nobody hears whether it has arrived.
        on_its_way = life.chance(0.5)
        if not on_its_way:
            self._arrive(seat, transaction)
        if rules.asked_before_the_old_one_is_fenced:
            is_committed = self._is_committed(seat, transaction)
            if on_its_way:
                self._arrive(seat, transaction)
            self._epochs[seat] = self.coordinator.initialise(seat)
            self._conclude(seat, member, transaction, is_committed=is_committed)
        else:
            self._settle(seat, member, transaction)

    def _settle(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        """Find out how a transaction ended: by the group's offsets, once the next producer has fenced the old one."""
        self._epochs[seat] = self.coordinator.initialise(seat)
        is_committed = self._is_committed(seat, transaction)
        if self._rules.an_unknown_end_is_a_commit or self._rules.an_unknown_end_is_an_abort:
            is_committed = self._rules.an_unknown_end_is_a_commit
        self._conclude(seat, member, transaction, is_committed=is_committed)

    def _conclude(self, seat: Seat, member: Member, transaction: Transaction, *, is_committed: bool) -> None:
        (self._committed if is_committed else self._released)(seat, member, transaction)

    def _is_committed(self, seat: Seat, transaction: Transaction) -> bool:
        ended = {message.partition() for message in transaction.messages}
        for tp in transaction.offsets or ():
            if tp.partition not in ended and not self._rules.every_offset_proves_a_commit:
                # The group may have had the same before.
                continue
            found = self._life.broker.committed.get((seat[0], tp.partition))
            if found is not None and (found.offset, found.metadata) == (tp.offset, tp.metadata):
                return True
        return False

    def _committed(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        self._complete(seat, member, transaction)
        member.session.commits.transaction_ended(transaction.offsets or ())
        del self._open[seat]

    def _complete(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        for message in self._in_hand(member, transaction.messages):
            number: Any = message.partition()
            if member.held(number) is not None:
                self._life.ended[seat].add(int(message.value() or b""))
            member.end(message, dead=False)

    def _abort(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        self._epochs[seat] = self.coordinator.initialise(seat)
        self._released(seat, member, transaction)

    def _released(self, seat: Seat, member: Member, transaction: Transaction) -> None:
        member.session.commits.transaction_ended()
        for message in self._in_hand(member, transaction.messages):
            member.release(message)
        del self._open[seat]
