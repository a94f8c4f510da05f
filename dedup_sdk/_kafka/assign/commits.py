"""Offset commits.

Invariants:

- A commit covers only a prefix of completed records, never goes back, and always has metadata (the commit's text).
- A commit goes back only after a seek back, and only when that has brought a message: see `CommitState.before_move`.
- Each partition has at most one unanswered asynchronous commit, but for the last one (`Commits.are_last`). While the
  coordinator is unavailable, the client keeps commits and may send them after a later one, with the group generation of
  that time: the committed offset would go back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._commit_text import CommitMetadata, done_part
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._observe import Counters, of_partition

if TYPE_CHECKING:
    from dedup_sdk._kafka.assign.assignment import Assigned

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]
_TOO_LONG: Final = KafkaError.OFFSET_METADATA_TOO_LARGE
_FOR_GOOD: Final = frozenset({
    _TOO_LONG, KafkaError.INVALID_COMMIT_OFFSET_SIZE,
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
})  # fmt: skip
"""Errors that each further commit meets until somebody changes a setting or a right of the broker."""


class Beginning(Enum):
    """The progress of the commit that says where a partition's history begins."""

    TO_ASK = "not sent"
    ASKED = "sent"
    KNOWN = "acknowledged"
    REFUSED = "refused for good"

    @property
    def may_deliver(self) -> bool:
        """Whether the partition need not wait for an answer any more."""
        return self in (Beginning.KNOWN, Beginning.REFUSED)


@dataclass(slots=True)
class CommitState:
    """The commits of one partition: requested and acknowledged. Offsets are -1 where there is none."""

    requested: int = -1
    """The highest offset sent to the group coordinator."""
    confirmed: int = -1
    """The group's offset that the broker confirmed last; where the user gave the start, only a commit by the user."""
    done_asked: str = ""
    """The offsets completed above it (`done_part`), from the last commit or from the one found at the start."""
    beginning: Beginning = Beginning.TO_ASK
    """Whether the group's commit says where the partition's history begins."""
    is_new_group: bool = False
    """Whether the group is known to have no commit of the partition."""
    is_refused: bool = False
    """Whether the broker refused the last answered commit for a reason that stays."""
    before_move: TopicPartition | None = None
    """After a move, until a message comes from the new place: the commit of what was completed before it."""

    def moved(self, offset: int, before_move: TopicPartition | None = None) -> CommitState:
        """Return the state for the new `Assigned` after a move to ``offset``.

        Offsets from ``offset`` on may be committed again: at once, or when ``before_move`` counts no more.
        """
        if before_move is None:
            return CommitState(
                requested=min(self.requested, offset),
                confirmed=self.confirmed,
                is_new_group=self.is_new_group,
            )
        return replace(self, before_move=before_move, beginning=Beginning.TO_ASK)

    def leave_behind(self, start: int) -> None:
        """Commit what is completed from ``start`` on, the place of the last move: a message came from there.

        After a move back ``start`` itself is new to the group: its commit lies above it, or lists more as completed.
        """
        before, self.before_move = self.before_move, None
        if before is not None and start <= before.offset:
            self.requested, self.done_asked = min(self.requested, start - 1), ""

    def forget_move(self) -> None:
        """Commit only what is completed at the new place, as if nothing had been completed before the move."""
        self.before_move = None

    def note_done(self, done: str) -> None:
        """Set the completions above its offset that the group's commit has (`done_part`)."""
        self.done_asked = done

    def ask_again(self) -> None:
        """Forget the requested offset: the broker refused it, or the partition starts before it."""
        self.requested = -1


class Commits:
    """Commits the partitions in ``assigned``.

    An offset counts as committed, in memory and in the store, only when the broker has acknowledged it, also where a
    partition is reopened (`dedup_sdk._kafka.assign.assignment.Start`). Otherwise, after a kill, the group's older
    offset would look like a rewind.
    """

    def __init__(
        self,
        assigned: Mapping[Coordinates, Assigned],
        client: Client,
        counters: Counters,
        *,
        only_hidden: bool = False,
    ) -> None:
        self._assigned = assigned
        self._client = client
        self._counters = counters
        self._sent_at: dict[Coordinates, float] = {}
        """When (monotonic seconds) the last commit of each partition was sent that has no answer yet."""
        self._only_hidden = only_hidden
        self._by_transactions = False
        """Whether transactions may commit, which this client cannot see: a commit of hidden records could go back."""
        self._with_texts = False
        """Whether the application commits our texts in transactions, and tells how each has ended."""
        self._is_told = False
        """Whether it was told that its transactions do not."""
        self._in_doubt: set[Coordinates] = set()
        """Partitions whose offsets are in a transaction that has not ended, as far as is known.

        Nothing else may commit them meanwhile: when the transaction ends, the commit that reached the group's
        coordinator last wins, be its offset the lower one."""
        self._open: Mapping[Coordinates, Collection[int]] = {}
        """The records that end in that transaction."""
        self.are_last = False
        """Whether the client ends with these commits, as a member of its group.

        A commit is then sent also where no answer comes in time, and though an earlier one has no answer (if the client
        sends that one again behind it, the group is where it would be without it). The client leaves its group behind
        the answers, and the group refuses the commit of a member that it has put out. At any other time the client
        might send it in a later generation, when the partition has another owner; and of partitions that the user
        assigns, a group refuses no commit."""
        self.is_subscribed = False
        """Whether the client is a member of its group, or is about to be."""
        self._refused: set[Coordinates] = set()
        """Partitions of which the application was told that the group accepts no commits."""
        self._unanswered: set[Coordinates] = set()
        """Partitions with an asynchronous commit that has no answer yet."""
        self.pending: dict[Coordinates, tuple[Assigned, TopicPartition]] = {}
        """Commits that wait for the answer to an earlier one; `send_pending` sends them."""

    def completed(
        self, partitions: Iterable[Assigned], *, asynchronous: bool, until: float | None = None
    ) -> None:
        """Commit the completed offsets that were not requested yet; raises `KafkaException` or `StoreError`.

        Where only the user commits, these are the hidden records directly after the committed offset: the user never
        sees them and cannot commit them, and the lag would count them for ever.

        ``until``: the deadline (monotonic seconds) for the answer.
        """
        if self._only_hidden and self._by_transactions and not self._with_texts:
            return
        prefix = _hidden_prefix if self._only_hidden else _completed_prefix
        ready = [offset for offset in map(prefix, partitions) if offset is not None]
        due = [
            tp
            for tp in ready
            if self._is_new_to_group(tp, asynchronous=asynchronous)
            and not (asynchronous and (tp.topic, tp.partition) in self._unanswered)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def send_pending(self, *, asynchronous: bool = True, until: float | None = None) -> None:
        """Send the pending commits; raises `KafkaException`.

        Asynchronously only those whose earlier commit is answered by now, else all of them.
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
            and self._is_new_to_group(tp, asynchronous=asynchronous)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def before_move(self, assigned: Assigned) -> TopicPartition | None:
        """Commit what is completed of a partition that the application moves; return that commit.

        It is repeated, until a message comes from the new place, wherever completed records are committed: the new
        place has no completed records yet, so that an end of the assignment would leave the older ones uncommitted.
        None where only the user commits, and where nothing is known to be completed.
        """
        if self._only_hidden:
            return None
        if assigned.recovers and settle_move(assigned) is None:
            return _prefix_at_start(assigned)
        prefix = _completed_prefix(assigned)
        try:
            self.completed([assigned], asynchronous=True)
        except KafkaException as error:
            logger.debug(
                "commit before a seek failed (%s); the next commit repeats it",
                error,
                extra={"event": "commit-before-seek-failed"},
            )
        return prefix

    def hand_on(self, before: Assigned, after: Assigned) -> None:
        """Keep the pending commit of a partition that was moved: as in the plain client, a seek cancels no commit.

        Not where a later one takes its place (`before_move`).
        """
        coordinates = before.topic, before.partition
        owner, pending = self.pending.get(coordinates, (None, None))
        if owner is before and pending is not None:
            if after.commits.before_move is None:
                self.pending[coordinates] = after, pending
            else:
                del self.pending[coordinates]

    def begin_transactions(self) -> bool:
        """Record that transactions may commit; return whether to say that one before has committed other offsets.

        Nobody sees the commit of a transaction. A loop that asks for the metadata of the second one, and did not ask
        for `in_transaction` in the first, has given offsets of its own there.
        """
        if not self._by_transactions:
            self._by_transactions = True
            return False
        is_new = not (self._with_texts or self._is_told)
        self._is_told |= is_new
        return is_new

    def has_other_transaction(self, ended: Mapping[Coordinates, Collection[int]]) -> bool:
        """Whether a transaction in which other records end has not ended: of two, the lower offset could win."""
        return bool(self._in_doubt) and self._open != ended

    def is_in_doubt(self, coordinates: Coordinates) -> bool:
        """Whether offsets of a partition are in a transaction that has not ended."""
        return coordinates in self._in_doubt

    def can_end(self, coordinates: Coordinates, ended: Collection[int]) -> Collection[int]:
        """Return those of a partition's offsets that can end in one transaction: its text must name each.

        The next owner would take the others for unhandled, and their output is committed.
        """
        assigned = self._assigned.get(coordinates)
        recovered = None if assigned is None else assigned.recovered
        return ended if recovered is None else recovered.can_end(ended)

    def in_transaction(self, ended: Mapping[Coordinates, Collection[int]]) -> list[TopicPartition] | None:
        """Return the commits of a transaction in which the records at these offsets end, of all partitions.

        Partitions without something new for the group are left out. None while a commit has no answer yet: the broker
        may get it after the transaction's offsets. Until `transaction_ended` these partitions are in doubt.
        """
        self._with_texts = True
        if self._unanswered & self._assigned.keys():
            return None
        offsets = []
        for coordinates, assigned in self._assigned.items():
            recovered = assigned.recovered
            if recovered is None or not assigned.is_ours or assigned.recovers:
                continue
            if coordinates in ended:
                assigned.commits.forget_move()
            recovered.partition.persist()
            offset = recovered.commit_as_if(ended.get(coordinates, ()))
            if offset.offset >= assigned.commits.confirmed and self._is_new_to_group(
                offset, asynchronous=False
            ):
                offsets.append(offset)
        self._in_doubt, self._open = {(tp.topic, tp.partition) for tp in offsets}, ended
        return self._client.with_seals(offsets)

    def transaction_ended(self, committed: Iterable[TopicPartition] = ()) -> None:
        """Note that a transaction has ended, and which offsets it has committed."""
        self._in_doubt, self._open = set(), {}
        answered = [tp for tp in committed if (tp.topic, tp.partition) in self._assigned]
        for tp in answered:
            commits = self._assigned[tp.topic, tp.partition].commits
            commits.requested = max(commits.requested, tp.offset)
            commits.note_done(done_part(tp.metadata))
        self._apply_answer(None, answered)

    def become_last(self) -> None:
        """Note that the client ends with the commits that come: see ``are_last``."""
        self.are_last = True

    @property
    def has_unanswered(self) -> bool:
        """Whether commits have no answer yet."""
        return bool(self._unanswered)

    def await_nothing(self) -> None:
        """Stop waiting for answers: an interruption may have swallowed them."""
        self._unanswered.clear()

    def _is_new_to_group(self, tp: TopicPartition, *, asynchronous: bool) -> bool:
        """Whether a commit has something new for the group: its offset, or the completions above it."""
        assigned = self._assigned[tp.topic, tp.partition]
        known = self._known_offset(assigned, asynchronous)
        return bool(
            tp.offset > known
            or (tp.offset == known and done_part(tp.metadata) != assigned.commits.done_asked)
        )

    @staticmethod
    def _known_offset(assigned: Assigned, asynchronous: bool) -> int:  # noqa: FBT001 (the plain client's word)
        """Return the offset that need not be committed again: requested, or for a synchronous commit acknowledged."""
        commits, partition = assigned.commits, assigned.engine_partition
        if asynchronous:
            return commits.requested
        if commits.before_move is not None:
            return min(commits.requested, commits.confirmed)
        if partition is None or partition.flight.committed is None:
            return commits.requested
        return min(commits.requested, partition.flight.committed)

    def beginnings(self, partitions: Iterable[Assigned]) -> None:
        """Commit where histories begin, also where nothing is completed yet; raises `KafkaException`.

        If the process crashed before the broker accepts these commits, the group would look new, and the store would
        look as if it belonged to another group.
        """
        asked: list[Assigned] = []
        offsets: list[TopicPartition] = []
        for each in partitions:
            waits = each.coordinates in self._unanswered or each.coordinates in self._in_doubt
            prefix = None if waits else _prefix_here(each)
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

        Without ``ends`` only those with something new for the group (an offset, or completions above it). Never below
        the offset already requested: the group would look rewound.
        """
        ready = []
        for coordinates, assigned in self._assigned.items():
            offset = None
            if ends is None:
                offset = _completed_prefix(assigned)
            elif coordinates in ends:
                # What the user commits takes the place of what was completed before a seek.
                assigned.commits.forget_move()
                offset = _prefix_here(assigned)
            if offset is None:
                continue
            if ends is None and not self._is_new_to_group(offset, asynchronous=asynchronous):
                continue
            if ends is not None and (recovered := assigned.recovered) is not None:
                known = max(
                    assigned.commits.requested,
                    recovered.partition.flight.committed or 0,
                    self._pending_up_to(assigned),
                )
                offset = recovered.commit_of(min(offset.offset, max(ends[coordinates], known)))
            ready.append(offset)
        return ready

    def _pending_up_to(self, assigned: Assigned) -> int:
        """Return the offset of the pending commit, -1 without one."""
        owner, pending = self.pending.get((assigned.topic, assigned.partition), (None, None))
        return -1 if pending is None or owner is not assigned else pending.offset

    def note(self, offsets: Iterable[TopicPartition]) -> None:
        """Queue commits for `send_pending`. Of two commits of one partition, the one with the higher offset stays."""
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            assigned = self._assigned[coordinates]
            owner, pending = self.pending.get(coordinates, (None, tp))
            self.pending[coordinates] = (
                assigned,
                pending if owner is assigned and pending.offset > tp.offset else tp,
            )

    def exactly(
        self, offsets: list[TopicPartition], *, asynchronous: bool, until: float | None = None
    ) -> list[TopicPartition] | None:
        """Commit these offsets, which have metadata; None when the answer comes later.

        An asynchronous commit of a partition whose earlier commit is not answered is sent after that answer
        (`send_pending`).
        """
        offsets = [tp for tp in offsets if (tp.topic, tp.partition) not in self._in_doubt]
        if asynchronous:
            offsets = self._queue_unanswered(offsets)
        if not offsets:
            return None if asynchronous else []
        if asynchronous:
            self._unanswered.update((tp.topic, tp.partition) for tp in offsets)
        for tp in offsets:
            assigned = self._assigned[tp.topic, tp.partition]
            assigned.commits.requested = max(assigned.commits.requested, tp.offset)
            assigned.commits.note_done(done_part(tp.metadata))
        self._sent_at |= dict.fromkeys(((tp.topic, tp.partition) for tp in offsets), time.monotonic())
        try:
            if until is None:
                answer = self._client.commit(offsets, asynchronous=asynchronous)
            else:
                by_hand = any(self._assigned[tp.topic, tp.partition].by_hand for tp in offsets)
                answer = self._client.commit_until(offsets, until, in_any_case=self.are_last and not by_hand)
        except KafkaException as error:
            self._reset_refused(offsets, asynchronous=asynchronous)
            code = error.args[0].code()
            if code != _TOO_LONG or not (shorter := self._without_done(offsets)):
                self._note_refusal(offsets, code)
                raise
            return self.exactly(shorter, asynchronous=asynchronous, until=until)
        if answer is None:
            self._unanswered.update((tp.topic, tp.partition) for tp in offsets)
        else:
            self._apply_answer(None, answer)
            refused = [tp for tp in answer if tp.error is not None and tp.error.code() == _TOO_LONG]
            if shorter := self._without_done(refused):
                again = self.exactly(shorter, asynchronous=asynchronous, until=until) or []
                answer = [tp for tp in answer if tp not in refused] + again
        return answer

    def _queue_unanswered(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Queue the offsets of partitions with an unanswered commit for `send_pending`; return the others."""
        ready = []
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            if coordinates in self._unanswered:
                self.note([tp])
            else:
                ready.append(tp)
        return ready

    def _reset_refused(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        for tp in offsets:
            self._assigned[tp.topic, tp.partition].commits.ask_again()
            self._count_failure(tp)
            if asynchronous:
                self._unanswered.discard((tp.topic, tp.partition))

    def _note_refusal(self, offsets: list[TopicPartition], code: int) -> None:
        for tp in offsets:
            self._assigned[tp.topic, tp.partition].commits.is_refused = code in _FOR_GOOD

    def _count_failure(self, tp: TopicPartition) -> None:
        self._sent_at.pop((tp.topic, tp.partition), None)
        of_partition(self._counters, tp.topic, tp.partition).failed_commits += 1

    def _observe_answer(self, partitions: Iterable[TopicPartition]) -> None:
        """Count the time of one answer, which may be for many partitions."""
        sent = [self._sent_at.pop((tp.topic, tp.partition), None) for tp in partitions]
        if began := min((at for at in sent if at is not None), default=None):
            self._counters.commit.observe(time.monotonic() - began)

    def _without_done(self, refused: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the commits that the broker refused for their size, now without the completions above the offset.

        Commits that had no such completions are left out.
        """
        owners = ((tp, self._assigned[tp.topic, tp.partition].recovered) for tp in refused)
        shorter = (None if owner is None else owner.shorter(tp) for tp, owner in owners)
        return [tp for tp in shorter if tp is not None]

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Apply the broker's answer to an asynchronous commit; return the offsets to report to the user's callback.

        Commits that only say where a history begins are not reported: the user did not request them.
        """
        answered = {(tp.topic, tp.partition) for tp in partitions}
        # An answer that names no partition may be for any: waiting for another one could last for ever.
        self._unanswered = self._unanswered - answered if partitions else set()
        return self._apply_answer(error, partitions)

    def _apply_answer(
        self, error: KafkaError | None, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        others = [tp for tp in partitions if not self._is_beginning(tp)]
        self._observe_answer(partitions)
        for tp in partitions:
            assigned = self._assigned.get((tp.topic, tp.partition))
            if assigned is None:
                continue
            refusal = tp.error or error
            if refusal is not None:
                is_shortened = refusal.code() == _TOO_LONG and bool(self._without_done([tp]))
                assigned.commits.is_refused = refusal.code() in _FOR_GOOD and not is_shortened
                assigned.commits.ask_again()
                self._count_failure(tp)
                if self._is_outside(assigned, refusal):
                    assigned.commits.beginning = Beginning.REFUSED
                    self._tell_outside(assigned.coordinates)
                    continue
                assigned.commits.beginning = Beginning.TO_ASK
                logger.warning(
                    "%s[%d]: commit of offset %d failed (%s); the next commit includes it",
                    tp.topic,
                    tp.partition,
                    tp.offset,
                    refusal,
                    extra={"event": "commit-refused"},
                )
                continue
            assigned.commits.is_new_group = assigned.commits.is_refused = False
            if not (assigned.is_placed and self._is_beginning(tp)):
                assigned.commits.confirmed = tp.offset
            partition = assigned.engine_partition
            if partition is not None and tp.offset <= partition.flight.high:
                # Above the watermark it is the late answer to a commit from before a seek.
                flight = partition.flight
                if flight.committed is not None and tp.offset < flight.committed <= flight.high:
                    self._repeat_commit(assigned, tp.offset, flight.committed)
                flight.note_committed(tp.offset)
                # The late answer to a commit from before a move says nothing of where the history begins now.
                if not assigned.recovers or tp.offset == partition.committable:
                    assigned.commits.beginning = Beginning.KNOWN
        return others

    def note_subscription(self, *, is_subscribed: bool) -> None:
        """Note whether the client subscribes; else it is not a member of its group."""
        self.is_subscribed = is_subscribed

    def _is_outside(self, assigned: Assigned, refusal: KafkaError) -> bool:
        """Whether a group refuses commits because this client is not a member: that may never end.

        As without any commit, only the store tells this consumer where to go on.
        """
        return assigned.by_hand and not self.is_subscribed and refusal.code() == KafkaError.UNKNOWN_MEMBER_ID

    def _tell_outside(self, coordinates: Coordinates) -> None:
        if coordinates not in self._refused:
            self._refused.add(coordinates)
            logger.warning(
                "%s[%d]: your program assigned it, and the group accepts no commits of this consumer, which is not a "
                "member: the group has members, or this consumer has left it. Messages are delivered all the same. "
                "After a restart this store knows those that were handled, unless the group has a commit of another "
                "client. Assign partitions with a group.id that nobody subscribes with, and after unsubscribe() with a "
                "new consumer", *coordinates,
                extra={"event": "commits-not-accepted"},
            )  # fmt: skip

    def _repeat_commit(self, assigned: Assigned, offset: int, committed: int) -> None:
        """Queue ``committed`` again after a late answer for the lower ``offset``, which may have undone it.

        Usually only the answer was late; the broker does not say which commit it applied last. The next commit with
        progress would repair it too.
        """
        where = assigned.topic, assigned.partition
        logger.debug(
            "%s[%d]: the answer for offset %d came after the one for %d, which is committed again",
            *where,
            offset,
            committed,
            extra={"event": "commit-answer-late"},
        )
        recovered = assigned.recovered
        if recovered is not None and assigned.commits.requested <= committed:
            assigned.commits.ask_again()
            again = recovered.commit_of(committed)
            self.pending.setdefault(where, (assigned, again))

    def _is_beginning(self, tp: TopicPartition) -> bool:
        assigned = self._assigned.get((tp.topic, tp.partition))
        return assigned is not None and assigned.recovers


def commit_at(coordinates: Coordinates, offset: int, metadata: CommitMetadata) -> TopicPartition:
    """Return the commit of an offset with its text."""
    epoch = -1 if metadata.epoch is None else metadata.epoch
    return TopicPartition(*coordinates, offset, metadata.text(offset), epoch)


def _completed_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the commit of a partition's completed prefix; after a move, the earlier one until a message comes."""
    before = None if assigned.commits.before_move is None else settle_move(assigned)
    return before or _prefix_here(assigned) or _prefix_at_reopening(assigned)


def settle_move(assigned: Assigned) -> TopicPartition | None:
    """Leave a move behind as soon as it has brought a message; until then return the commit from before it."""
    commits = assigned.commits
    before = commits.before_move
    if before is None or not assigned.is_ours or (start := assigned.start) is None:
        return None
    partition = assigned.engine_partition
    if partition is not None and (partition.has_offered or partition.committable > before.offset):
        commits.leave_behind(start.offset)
        return None
    return before


def _prefix_here(assigned: Assigned) -> TopicPartition | None:
    """Return the commit of a partition's contiguous completed prefix, after it was written to the store."""
    recovered = assigned.recovered
    if recovered is None or not assigned.is_ours:
        return None
    # The store before the broker: a committed record must be in the store after a crash.
    recovered.partition.persist()
    return recovered.commit_of(recovered.partition.committable)


def _prefix_at_reopening(assigned: Assigned) -> TopicPartition | None:
    """Return the commit of what was completed when a partition began to be opened again; None if it did not.

    None, too, if its log has changed since.
    """
    start = assigned.start
    is_reopened = start is not None and start.reopened and start.log_change is None
    return _prefix_at_start(assigned) if is_reopened and assigned.is_ours else None


def _prefix_at_start(assigned: Assigned) -> TopicPartition | None:
    """Return the commit of what was completed when a partition started; None where nothing is known of it."""
    known = assigned.history_at_start()
    return None if known is None else commit_at(assigned.coordinates, known.high, known.told)


def _hidden_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the commit of the hidden records directly after the committed offset; None where there are none."""
    recovered, confirmed = assigned.recovered, assigned.commits.confirmed
    # Before a start that is not committed lie records that the user skipped. In observe mode every record is visible.
    if recovered is None or recovered.start.offset > confirmed:
        return None
    partition = recovered.partition
    if partition.flight.shows_duplicates:
        return None
    handled = partition.handled_since(confirmed)
    if partition.committable <= confirmed or handled == confirmed:
        return None
    prefix = _completed_prefix(assigned)
    if prefix is None or handled is None or prefix.offset <= handled:
        return prefix
    return recovered.commit_of(handled)
