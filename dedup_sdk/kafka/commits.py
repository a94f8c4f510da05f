"""Committed offsets: only over a completed prefix, never back, always with metadata.

One asynchronous commit of a partition is under way at a time. While the coordinator is away the client keeps those that it is
given, and may send them after a later one, in the name of whatever generation the group has by then: the group would go back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commit_text import done_part

if TYPE_CHECKING:
    from dedup_sdk.kafka.assignment import Assigned

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]
_TOO_LONG: Final = KafkaError.OFFSET_METADATA_TOO_LARGE


class Beginning(Enum):
    """How far the commit is that says where a history begins."""

    TO_ASK = "to ask"
    ASKED = "asked"
    KNOWN = "known"


@dataclass(slots=True)
class CommitState:
    """The commits of one partition: those asked of the group, and its answers. Offsets are -1 where there is none."""

    requested: int = -1
    """The last offset that a commit was asked for."""
    confirmed: int = -1
    """The offset that the broker has confirmed last as the group's. Where the user said where to start, a commit of theirs."""
    done_asked: str = ""
    """The offsets completed above it, as the last commit, or the one that the group had before, tells them (`done_part`)."""
    beginning: Beginning = Beginning.TO_ASK
    """Whether the group knows where the partition's history begins."""
    has_room_for_done: bool = True
    """Whether the broker takes texts as long as `dedup_sdk.kafka.commit_text.MOST_CHARACTERS`."""

    def moved(self, offset: int) -> CommitState:
        """Return the state after a move to an offset, in another epoch of the partition: offsets from there on may be committed again."""
        return CommitState(requested=min(self.requested, offset), confirmed=self.confirmed)

    def note_done(self, done: str) -> None:
        """Take note of the completions above its offset that the group's commit tells (`done_part`)."""
        self.done_asked = done

    def ask_again(self) -> None:
        """Take nothing for asked: the answer was a refusal, or the partition starts before the offset that was asked for."""
        self.requested = -1


class Commits:
    """Commits of the partitions in ``assigned``.

    An offset counts as committed, in memory and in the store, only when the broker has acknowledged it, also where a
    partition is opened again (`dedup_sdk.kafka.assignment.Start`). Otherwise, after a kill, the older offset of the
    group would look like a rewind.
    """

    def __init__(
        self, assigned: Mapping[Coordinates, Assigned], client: Client, *, only_hidden: bool = False
    ) -> None:
        self._assigned = assigned
        self._client = client
        self._only_hidden = only_hidden
        self._by_transactions = False
        """Whether a transaction may commit, of which nobody tells: a commit of hidden records could set the group back."""
        self._unanswered: set[Coordinates] = set()
        self.pending: dict[Coordinates, tuple[Assigned, TopicPartition]] = {}
        """Commits that wait for the answer to an earlier one; see `send_pending`."""

    def completed(
        self, partitions: Iterable[Assigned], *, asynchronous: bool, until: float | None = None
    ) -> None:
        """Commit completed offsets that were not asked for yet; raises `KafkaException` or `StoreError`.

        Where only the user commits these are the hidden records directly behind the committed offset: nobody else can commit them,
        and the lag would count them for ever.

        ``until``: when (monotonic seconds) nobody waits for the answer any more.
        """
        if self._only_hidden and self._by_transactions:
            return
        prefix = _hidden_prefix if self._only_hidden else _completed_prefix
        ready = [offset for offset in map(prefix, partitions) if offset is not None]
        due = [
            tp
            for tp in ready
            if self._says_more(tp, asynchronous=asynchronous)
            and not (asynchronous and (tp.topic, tp.partition) in self._unanswered)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def send_pending(self, *, asynchronous: bool = True, until: float | None = None) -> None:
        """Send the commits that had to wait for the answer to an earlier one; raises `KafkaException`.

        Asynchronously those that have that answer by now, else all of them.
        """
        if not self.pending:
            return
        ready = [c for c in self.pending if not (asynchronous and c in self._unanswered)]
        pending = [self.pending.pop(coordinates) for coordinates in ready]
        due = [
            tp
            for assigned, tp in pending
            if self._assigned.get((tp.topic, tp.partition)) is assigned
            and assigned.is_ours
            and self._says_more(tp, asynchronous=asynchronous)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def hand_on(self, before: Assigned, after: Assigned) -> None:
        """Keep the pending commit of a partition that was moved: as with the plain client, a seek takes no commit back."""
        coordinates = before.topic, before.partition
        held, pending = self.pending.get(coordinates, (None, None))
        if held is before and pending is not None:
            self.pending[coordinates] = after, pending

    def begin_transactions(self) -> bool:
        """Take note that transactions may commit; return whether that is new."""
        before, self._by_transactions = self._by_transactions, True
        return not before

    def await_nothing(self) -> None:
        """Expect no answers any more: an interruption may have swallowed them."""
        self._unanswered.clear()

    def _says_more(self, tp: TopicPartition, *, asynchronous: bool) -> bool:
        """Whether the group does not know all of a commit yet: its offset, or the completions above it."""
        assigned = self._assigned[tp.topic, tp.partition]
        known = self._known(assigned, asynchronous)
        return bool(
            tp.offset > known
            or (tp.offset == known and done_part(tp.metadata) != assigned.commits.done_asked)
        )

    @staticmethod
    def _known(assigned: Assigned, asynchronous: bool) -> int:  # noqa: FBT001 (the plain client's word)
        """Return the offset that need not be committed again: asked for, or, where the answer is waited for, acknowledged."""
        if asynchronous or assigned.held is None or assigned.held.flight.committed is None:
            return assigned.commits.requested
        return min(assigned.commits.requested, assigned.held.flight.committed)

    def beginnings(self, partitions: Iterable[Assigned]) -> None:
        """Ask for the commits that say where histories begin, also where nothing is completed yet.

        Until the broker has taken them a crash would make the group look new, and its store foreign to it.
        """
        asked: list[Assigned] = []
        offsets: list[TopicPartition] = []
        for each in partitions:
            prefix = None if each.coordinates in self._unanswered else _completed_prefix(each)
            if prefix is not None:
                each.commits.beginning = Beginning.ASKED
                asked.append(each)
                offsets.append(prefix)
        try:
            if offsets:
                self.exactly(offsets, asynchronous=True)
        except KafkaException:
            for each in asked:
                each.commits.beginning = Beginning.TO_ASK
            raise

    def below(self, ends: Mapping[Coordinates, int] | None, *, asynchronous: bool) -> list[TopicPartition]:
        """Return the offsets of a commit by the user: each partition's completed prefix, at most up to ``ends``.

        Without ``ends`` only those not committed yet, also where only the completions above them are new. Never less than was asked for already: a group that went back
        would look rewound.
        """
        ready = []
        for coordinates, assigned in self._assigned.items():
            offset = _completed_prefix(assigned) if ends is None or coordinates in ends else None
            if offset is None or assigned.held is None:
                continue
            if ends is None and not self._says_more(offset, asynchronous=asynchronous):
                continue
            if ends is not None:
                known = max(
                    assigned.commits.requested,
                    assigned.held.flight.committed or 0,
                    self._pending_up_to(assigned),
                )
                offset = assigned.commit_of(assigned.held, min(offset.offset, max(ends[coordinates], known)))
            ready.append(offset)
        return ready

    def _pending_up_to(self, assigned: Assigned) -> int:
        """Return the offset of a commit that waits for an earlier one to be answered, -1 without one."""
        held, pending = self.pending.get((assigned.topic, assigned.partition), (None, None))
        return -1 if pending is None or held is not assigned else pending.offset

    def note(self, offsets: Iterable[TopicPartition]) -> None:
        """Remember commits that cannot be sent now; `send_pending` sends them. Of two of one partition the further one stays."""
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            assigned = self._assigned[coordinates]
            held, pending = self.pending.get(coordinates, (None, tp))
            self.pending[coordinates] = (
                assigned,
                pending if held is assigned and pending.offset > tp.offset else tp,
            )

    def exactly(
        self, offsets: list[TopicPartition], *, asynchronous: bool, until: float | None = None
    ) -> list[TopicPartition] | None:
        """Commit these offsets, which carry metadata; None when the answer comes later.

        An asynchronous commit of a partition whose earlier commit is not answered is sent after that answer (`send_pending`).
        """
        if asynchronous:
            offsets = self._put_off(offsets)
            if not offsets:
                return None
            self._unanswered.update((tp.topic, tp.partition) for tp in offsets)
        for tp in offsets:
            assigned = self._assigned[tp.topic, tp.partition]
            assigned.commits.requested = max(assigned.commits.requested, tp.offset)
            assigned.commits.note_done(done_part(tp.metadata))
        try:
            if until is None:
                answer = self._client.commit(offsets, asynchronous=asynchronous)
            else:
                answer = self._client.commit_until(offsets, until)
        except KafkaException as error:
            self._note_refusal(offsets, asynchronous=asynchronous)
            if error.args[0].code() != _TOO_LONG or not (shorter := self._shortened(offsets)):
                raise
            return self.exactly(shorter, asynchronous=asynchronous, until=until)
        if answer is not None:
            self._note(None, answer)
            refused = [tp for tp in answer if tp.error is not None and tp.error.code() == _TOO_LONG]
            if shorter := self._shortened(refused):
                again = self.exactly(shorter, asynchronous=asynchronous, until=until) or []
                answer = [tp for tp in answer if tp not in refused] + again
        return answer

    def _put_off(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Note those whose partition waits for an answer, to be sent after it (`send_pending`); return the others."""
        ready = []
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            if coordinates in self._unanswered:
                self.note([tp])
            else:
                ready.append(tp)
        return ready

    def _note_refusal(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        for tp in offsets:
            self._assigned[tp.topic, tp.partition].commits.ask_again()
            if asynchronous:
                self._unanswered.discard((tp.topic, tp.partition))

    def _shortened(self, refused: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return commits again that the broker refused for their size, without the completions above them; none that had none."""
        again = []
        for tp in refused:
            assigned = self._assigned[tp.topic, tp.partition]
            if assigned.commits.has_room_for_done and assigned.held is not None and done_part(tp.metadata):
                logger.warning(
                    "%s[%d]: the broker refused a text of %d characters beside its offset (offset.metadata.max.bytes): what is completed above "
                    "the offset is left out, and is handled again after a rebalance", tp.topic, tp.partition, len(tp.metadata or ""),
                )  # fmt: skip
                assigned.commits.has_room_for_done = False
                again.append(assigned.commit_of(assigned.held, tp.offset))
        return again

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Take note of the broker's answer to an asynchronous commit; return the offsets that are no beginnings, which only we asked for."""
        answered = {(tp.topic, tp.partition) for tp in partitions}
        # An answer that names nobody could be anybody's: to wait for another one might be to wait for ever.
        self._unanswered = self._unanswered - answered if partitions else set()
        return self._note(error, partitions)

    def _note(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        others = [tp for tp in partitions if not self._is_beginning(tp)]
        for tp in partitions:
            assigned = self._assigned.get((tp.topic, tp.partition))
            if assigned is None:
                continue
            if error is not None or tp.error is not None:
                if _TOO_LONG in {each.code() for each in (error, tp.error) if each is not None}:
                    self._shortened([tp])
                assigned.commits.ask_again()
                assigned.commits.beginning = Beginning.TO_ASK
                logger.warning(
                    "%s[%d]: commit of %d failed: %s", tp.topic, tp.partition, tp.offset, error or tp.error
                )
                continue
            if not (assigned.is_placed and self._is_beginning(tp)):
                assigned.commits.confirmed = tp.offset
            if assigned.held is not None and assigned.held.started and tp.offset <= assigned.held.flight.high:
                # Above that it is the late answer to a commit from before a seek.
                flight = assigned.held.flight
                if flight.committed is not None and tp.offset < flight.committed <= flight.high:
                    self._went_back(assigned, tp.offset, flight.committed)
                flight.note_committed(tp.offset)
                assigned.commits.beginning = Beginning.KNOWN
        return others

    def _went_back(self, assigned: Assigned, offset: int, committed: int) -> None:
        """Have an offset committed again that an earlier commit, taken late, may have undone; the next progress does it as well.

        As a rule only its answer was served late; which of the two the broker took last it does not say.
        """
        where = assigned.topic, assigned.partition
        logger.debug(
            "%s[%d]: answered that %d is committed after %d was: that is repeated", *where, offset, committed
        )
        if assigned.held is not None and assigned.commits.requested <= committed:
            assigned.commits.ask_again()
            again = assigned.commit_of(assigned.held, committed)
            self.pending.setdefault(where, (assigned, again))

    def _is_beginning(self, tp: TopicPartition) -> bool:
        assigned = self._assigned.get((tp.topic, tp.partition))
        return assigned is not None and assigned.recovers


def _completed_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the contiguous completed prefix of a partition, with metadata, once the store has it."""
    if assigned.held is None or not assigned.is_ours:
        return None
    # First the store, then the broker: a committed record must be known after a crash.
    assigned.held.persist()
    return assigned.commit_of(assigned.held, assigned.held.committable)


def _hidden_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the end of the hidden records directly behind the committed offset, with metadata; None where there are none."""
    start, held, confirmed = assigned.start, assigned.held, assigned.commits.confirmed
    # The user jumped over the records before a start that is not committed. In observe mode the application sees every record.
    if start is None or held is None or start.offset > confirmed or held.flight.shows_duplicates:
        return None
    handled = held.handled_since(confirmed)
    if held.committable <= confirmed or handled == confirmed:
        return None
    prefix = _completed_prefix(assigned)
    if prefix is None or handled is None or prefix.offset <= handled:
        return prefix
    return assigned.commit_of(held, handled)
