"""The assigned partitions of a consumer, from assignment to revocation or loss; `upkeep` has the work between polls.

Invariants:

- All code runs on the polling thread, or with the consumer's lock.
- No rebalance callback waits for a recovery.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from threading import RLock
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from dedup_sdk._commit_text import CommitMetadata, parse_metadata
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.assignment import (
    ENDING,
    RECOVERING,
    TRANSITIONS,
    Asking,
    Assigned,
    Pause,
    Reading,
    Recovered,
    Recovering,
    State,
)
from dedup_sdk._kafka.assign.commits import Commits, Coordinates, settle_move
from dedup_sdk._kafka.assign.health import StatusBoard, hindrances_of
from dedup_sdk._kafka.assign.start import History, LogChange, SetBack, Start, Starts, needs_leader, set_back
from dedup_sdk._kafka.client.client import ANSWER_S, Client
from dedup_sdk._kafka.client.closing import JOINING_S
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.recover.backoff import Backoff
from dedup_sdk._masking import counted, masked_text
from dedup_sdk._observe import of_partition
from dedup_sdk.errors import DedupError

logger = logging.getLogger("dedup_sdk")

TAKE_S = 1.0
"""Seconds for requests about start offsets inside a rebalance; the recoveries do the remaining ones later."""
PATIENCE_S: Final = 10.0
"""Seconds that a leaving member waits for a rebalance, and not longer than the revoke deadline.

Before it closes, it may wait longer: see `Session.rebalanced_by`."""
WAITING_SHARE: Final = 0.5
"""Share of a deadline that may be spent on waiting for others, e.g. handlers; the rest is for the steps after it."""
_ANSWER_S: Final = 1.0
_ASK_S: Final = 2.0
"""Seconds for an answer over a connection that has to be opened first, and not longer than `WAITING_SHARE` allows."""
_LAST_STEPS_S: Final = 3.0
"""Seconds for the steps between the wait for a rebalance and the end of the client."""
_POLL_S: Final = 0.05

_REBALANCING: Final = frozenset({
    KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip
"""Errors of a commit by a member that must rejoin the group first."""

_MAX_OFFSET: Final = 2**63 - 1
_coordinates: Callable[[TopicPartition], Coordinates] = attrgetter("topic", "partition")
_state, _is_fetched = attrgetter("state"), attrgetter("is_fetched")


class Session:
    """The assigned partitions by coordinates, and the parts that commit and read them."""

    def __init__(
        self,
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        set_back: SetBack | None = None,
    ) -> None:
        self.engine = engine
        self.assigned: dict[Coordinates, Assigned] = {}
        self.commits = Commits(self.assigned, client, engine.counters, only_hidden=settings.only_user_commits)
        self.reading = Reading(self.assigned, client)
        self.board = StatusBoard(self.assigned, engine, client)
        self.log = RebalanceLog(engine)
        self.has_assignment = False
        """Whether the group or the user ever made an assignment, be it an empty one."""
        self.ended_by: str | None = None
        """The client's fatal error, e.g. of a static member whose ID another process has; None without one."""
        self._is_member = False
        """Whether the client belonged to the group at the last look."""
        self._commits_stopped = False
        """Whether the client is closing: it answers no requests any more, and nothing is committed."""
        self._client = client
        self._settings = settings
        self.starts = Starts(client, settings.reset, set_back)
        self.backoff = Backoff(client.requests, client.readers)
        self._asked: dict[Coordinates, TopicPartition] = {}
        """How each partition that is not active yet was assigned, with the offset that was given."""
        self._by_hand: set[Coordinates] = set()
        """The partitions that the user assigned last, not the group."""
        self._closes_by = float("inf")
        self.is_held = False
        """Whether the coordinator holds back its answers to this member, which closes: a rebalance waits for others."""

    @property
    def of_group(self) -> set[Coordinates]:
        """The partitions that the group assigned."""
        return {coordinates for coordinates, assigned in self.assigned.items() if not assigned.by_hand}

    @property
    def paused_by_user(self) -> set[Coordinates]:
        """The partitions that the application pauses."""
        return {c for c, assigned in self.assigned.items() if Pause.USER in assigned.pauses}

    @property
    def recovering(self) -> bool:
        """Whether some partition does not deliver yet, but will."""
        return any(map(RECOVERING.__contains__, map(_state, self.assigned.values())))

    # --- assigning and moving ----------------------------------------------------------------------------------------

    def take(
        self, partitions: list[TopicPartition], *, incremental: bool | None = None, by_hand: bool = False
    ) -> None:
        """Assign partitions in the client, paused, at their start offsets; `work` recovers them afterwards.

        ``by_hand``: see `Assigned`.
        """
        before = self._asked, self._by_hand
        self.note_asked(partitions)
        asked = {(tp.topic, tp.partition) for tp in partitions}
        self._by_hand = self._by_hand | asked if by_hand else self._by_hand - asked
        self._client.topics.forget()
        starts: list[Start | None] = [None] * len(partitions)
        try:
            self._find_starts(partitions, starts)
        except (KafkaException, DedupError) as error:
            self.backoff.note_silence()
            logger.warning(
                "the group's offsets are not known yet (%s); the request is repeated",
                error,
                extra={"event": "group-offsets-unknown"},
            )
        finally:
            # Also when interrupted: the client would assign them itself, and their messages would be dropped for ever.
            at = [
                TopicPartition(p.topic, p.partition, s.offset if s else 0)
                for p, s in zip(partitions, starts, strict=True)
            ]
            try:
                self._client.assign(at, incremental=incremental)
            except KafkaException as error:
                if not is_interruption(error):
                    # A refusal changes nothing: the partitions go on as they were asked for before.
                    self._asked, self._by_hand = before
                raise
            self.has_assignment = True
            for tp, start, placed in zip(partitions, starts, at, strict=True):
                assigned = Assigned(
                    tp.topic,
                    tp.partition,
                    wanted=tp.offset,
                    reads_from=placed.offset,
                    by_hand=by_hand,
                    taken_at=time.monotonic(),
                )
                if start is not None:
                    assigned.starts_at(start)
                self._succeed(self.assigned.get((tp.topic, tp.partition)), assigned)
        self.log.assigned(partitions)

    def note_asked(self, partitions: list[TopicPartition]) -> None:
        """Note where partitions that come are to begin: after an interruption `reconcile` takes them as asked for."""
        self._asked = self._asked | {(tp.topic, tp.partition): tp for tp in partitions}

    def _find_starts(self, partitions: list[TopicPartition], starts: list[Start | None]) -> None:
        """Fill in the starts that brokers give within `TAKE_S`: a rebalance waits for this call."""
        if not partitions:
            return
        until = 0.0 if self.backoff.is_active else time.monotonic() + TAKE_S
        committed_offsets = self._client.committed(partitions, ANSWER_S)
        for row, tp in enumerate(partitions):
            committed = committed_offsets[tp.topic, tp.partition]
            if time.monotonic() < until or not needs_leader(tp, committed):
                try:
                    starts[row] = self.starts.start(tp, committed)
                except KafkaException as error:
                    until = 0.0
                    self.backoff.note_silence()
                    # No warning: a slow broker answers the repeated request, or else the recovery warns.
                    logger.info(
                        "%s[%d]: the start offset is not known yet (%s); the recovery repeats the request",
                        tp.topic, tp.partition, error,
                        extra={"event": "start-offset-unknown"},
                    )  # fmt: skip

    def move(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        delivered_to: int | None = None,
        log_changed: bool = False,
        before: TopicPartition | None = None,
    ) -> None:
        """Restart a partition at another offset, by the user's seek or because the log no longer has its offset.

        ``delivered_to``: the offset after the last message that the application got; a seek behind it goes forward.
        ``before``: the commit of what was completed before a seek (`Commits.before_move`).
        """
        assigned = self.assigned[topic, partition]
        if isinstance(assigned.phase, Asking):
            # Whether the group is new decides what must be committed before a message comes.
            assigned.note_move(offset)
            return
        known = assigned.history()
        if before is not None and (assigned.recovers or before is assigned.commits.before_move):
            # A move before this one has brought nothing: this one goes from where that one began.
            earlier = parse_metadata(before.metadata, committed=before.offset)
            known = None if earlier is None else History(earlier, before.offset)
        start = Start(offset=offset)
        if known is not None:
            history, high = known
            own = high if log_changed else max(high, assigned.delivered_until(delivered_to))
            start = _start_of_move(history, high, offset, own=own)
            if log_changed and offset < high and start.metadata is not None:
                start = replace(start, metadata=replace(start.metadata, low=offset, complete=False))
        # As in the plain client, a seek alone does not set the group back: what is read after it does (`before`).
        # Only a new group must commit where it begins: else its store would look as if it belonged to another group.
        new = assigned.start is not None and assigned.start.new and assigned.recovers
        start = replace(
            start, new=new, must_commit_first=log_changed or new, acknowledged=assigned.acknowledged()
        )
        self._begin_again(
            assigned, start, moved_to=start.offset, before=before, delivered_to=delivered_to,
            in_same_log=not log_changed,
        )  # fmt: skip

    def activate(self, assigned: Assigned) -> Start:
        """Let a partition deliver that has recovered; return where it starts."""
        assigned.enter(State.ACTIVE)
        if (active := assigned.active) is None:
            raise AssertionError(f"{assigned.topic}[{assigned.partition}] has not recovered")
        # From here on the group's commit says where the partition stands, also after an interruption.
        self._asked.pop(assigned.coordinates, None)
        return active.start

    def _begin_again(
        self,
        assigned: Assigned,
        start: Start | None,
        *,
        moved_to: int = _MAX_OFFSET,
        before: TopicPartition | None = None,
        delivered_to: int | None = None,
        write: bool = True,
        in_same_log: bool = True,
    ) -> None:
        self._client.pause(assigned.topic, assigned.partition)
        if start is not None and assigned.must_announce and (start.reopened or assigned.commits.is_new_group):
            # Not after the seek of a group with a commit, be its text void: a seek alone moves no group.
            start = replace(start, must_commit_first=True)
        if not write and (recovered := assigned.recovered) is not None:
            # Before its claims are released: else a copy elsewhere would be handled.
            recovered.partition.tell_gates()
        after = Assigned(
            assigned.topic,
            assigned.partition,
            Asking() if start is None else Recovering(start),
            wanted=assigned.wanted,
            moves_to=assigned.moves_to if moved_to == _MAX_OFFSET else None,
            by_hand=assigned.by_hand,
            taken_at=time.monotonic(),
            pauses=assigned.pauses & {Pause.USER},
            stopped=assigned.stopped,
            commits=assigned.commits.moved(moved_to, before),
            failed_at=assigned.failed_at,
            delivered_to=assigned.delivered_until(delivered_to),
        )
        write = write and assigned.recovered is not None
        self._succeed(assigned, after, write=write, keeps_commit=in_same_log)

    def _succeed(
        self, before: Assigned | None, after: Assigned, *, write: bool = False, keeps_commit: bool = False
    ) -> None:
        """Put an `Assigned` in the place of another one, and close that.

        In this order: after an interruption at any line the partition is there, and is opened again. ``keeps_commit``:
        a commit that waits for the answer to an earlier one is sent for the new `Assigned`.
        """
        self.assigned[after.coordinates] = after
        if before is not None and keeps_commit:
            self.commits.hand_on(before, after)
        self.board.request()
        if before is not None:
            self._detach(before)
            self._close(before, write=write)

    # --- after an interruption --------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Make ``assigned`` match the client's assignment after an interruption: that alone says what is ours.

        What the client has is only added here, never assigned anew: no interruption leaves a partition to nobody.
        """
        self.engine.end_left()
        theirs = {(tp.topic, tp.partition) for tp in self._client.assignment()}
        for coordinates, assigned in list(self.assigned.items()):
            if coordinates not in theirs:
                self.lose([TopicPartition(*coordinates)])
            elif assigned.state in ENDING:
                # Given back or lost, and then given anew: the group's commit says where it begins.
                self._succeed(assigned, self._given(coordinates))
        missing = theirs - self.assigned.keys()
        for coordinates in missing:
            self._client.pause(*coordinates)
            self._succeed(None, self._given(coordinates))
        if missing:
            self.log.assigned([TopicPartition(*coordinates) for coordinates in missing])
        self.has_assignment = self.has_assignment or bool(theirs)

    def note_end(self, error: KafkaError) -> None:
        """Note that the client has failed for good."""
        self.ended_by = masked_text(error.str())

    def note_membership(self) -> None:
        """Note that the group has nothing for this member: it belongs to the group, and did at the look before.

        With ``group.protocol=consumer`` the client makes no callback for an empty assignment.
        """
        before, self._is_member = self._is_member, self._client.is_member()
        self.has_assignment = before and self._is_member

    def _given(self, coordinates: Coordinates) -> Assigned:
        """Return a partition that the client has, from its beginning; no fetch position of the client is trusted."""
        asked = self._asked.get(coordinates)
        wanted = OFFSET_INVALID if asked is None else asked.offset
        by_hand = coordinates in self._by_hand
        return Assigned(*coordinates, wanted=wanted, by_hand=by_hand, taken_at=time.monotonic())

    def reopen_all(self) -> None:
        """Drop the records in flight and restart every partition from its watermark: its state may be half-changed.

        A partition that failed a second time without progress in between enters `State.FAILED`; the others go on.
        """
        self.commits.await_nothing()
        for assigned in list(self.assigned.values()):
            if assigned.state is State.FAILED:
                continue
            recovered = assigned.recovered
            start = assigned.start if recovered is None else self._start_to_reopen(assigned, recovered)
            self._begin_again(assigned, start, before=settle_move(assigned), write=False)
            if recovered is not None and recovered.partition.has_failed and start is not None:
                self.assigned[assigned.coordinates].note_unexpected_error(start.offset)

    def reopen(self, topic: str, partition: int) -> None:
        """Drop the records in flight of a partition, and restart it from its completed ones."""
        assigned = self.assigned[topic, partition]
        if (active := assigned.active) is not None:
            # Until it has recovered, only that commit tells an end of the assignment what is completed.
            before = self.commits.before_move(assigned)
            self._begin_again(assigned, self._start_to_reopen(assigned, active), before=before)

    def _start_to_reopen(self, assigned: Assigned, recovered: Recovered) -> Start:
        # Records that were not read yet must still be compared with the marks.
        high = recovered.partition.committable
        told = recovered.metadata(high)
        return Start(offset=high, metadata=told, reopened=True, acknowledged=assigned.acknowledged())

    def close_by(self, until: float) -> None:
        """Note when (monotonic seconds) the consumer must be closed: every deadline from here on lies before that."""
        self._closes_by = until

    def deadline(self) -> float:
        """Return when (monotonic seconds) a hand-over of partitions that begins now must be over.

        That is the revoke deadline; while the consumer closes, `WAITING_SHARE` of the time that is left.
        """
        now = time.monotonic()
        return min(now + self._settings.revoke_deadline_s, waiting_until(self._closes_by))

    def rebalanced_by(self, began: float) -> float:
        """Return until when (monotonic seconds) a member that leaves since ``began`` waits to commit in a rebalance.

        While a rebalance waits for another member, the coordinator answers nothing on the connection of this one. If
        this member ends its client, the commit gets through when the client has given up that connection: after
        ``socket.timeout.ms``. So much time is kept, but `PATIENCE_S` are for rebalances that end soon.
        """
        by = began + PATIENCE_S
        if self.is_held:
            by = max(by, self._closes_by - self._settings.request_timeout_s - _LAST_STEPS_S)
        return min(by, self.deadline())

    def leaves_by(self, began: float) -> float:
        """Return until when (monotonic seconds) a member that closes since ``began`` waits to be out of its group."""
        by = waiting_until(self._closes_by)
        if self.is_held:
            now = time.monotonic()
            # The client leaves only when the rebalance is over. Nothing is left to commit, or that has not ended.
            by = min(max(self.rebalanced_by(began), now + JOINING_S), now + PATIENCE_S, by)
        return by

    @property
    def awaits_last_answer(self) -> bool:
        """Whether the end of the client is worth a wait for the answer to its last commits."""
        return self.is_held and self.commits.has_unanswered

    def hears_nothing(self) -> bool:
        """Note that no answer of the coordinator came in time; return whether a member that closes must wait for one.

        Only where the coordinator answers others: during an outage there is nothing to wait for.
        """
        if self._closes_by < float("inf") and not self.is_held and self._settings.incremental:
            left_s = (self._closes_by - time.monotonic()) * WAITING_SHARE
            self.is_held = self._client.requests.coordinator_answers(
                self._settings.group, min(_ASK_S, left_s)
            )
        return self.is_held

    def give_back(self, partitions: Iterable[TopicPartition], until: float | None = None) -> None:
        """Write, commit and close revoked partitions, until ``until`` (monotonic seconds; None: `deadline`).

        If it took longer, the group would remove this member. Work that does not fit is abandoned: the next owner gets
        records again that were neither written nor committed. Partitions that are lost already are closed as by `lose`.
        """
        until = self.deadline() if until is None else until
        known = self._assigned_of(partitions)
        owned = [assigned for assigned in known if assigned.state not in ENDING]
        self._close_lost([assigned for assigned in known if assigned.state in ENDING])
        for assigned in owned:
            assigned.enter(State.REVOKING)
        try:
            # A closing client answers no requests: a commit could block. Owned partitions were given back before.
            if not self._commits_stopped:
                # The last commits are sent all the same, and the end of the client waits for their answers.
                answer_by = min(until, time.monotonic() + _ANSWER_S) if self.commits.are_last else until
                if self._settings.only_user_commits:
                    self.commits.send_pending(asynchronous=False, until=answer_by)
                self.commits.completed(owned, asynchronous=False, until=answer_by)
        except (KafkaException, DedupError) as error:
            logger.warning(
                "commit on revoke failed (%s): the next owner gets uncommitted records again",
                error,
                extra={"event": "commit-on-revoke-failed"},
            )
        for assigned in owned:
            if (recovered := assigned.recovered) is not None:
                of_partition(self.engine.counters, *assigned.coordinates).left_out += recovered.left_out()
        for assigned in owned:
            in_time = time.monotonic() < until
            if not in_time:
                logger.warning(
                    "%s[%d]: abandoned after the revoke deadline of %.1f s; unwritten records are delivered again",
                    assigned.topic, assigned.partition, self._settings.revoke_deadline_s,
                    extra={"event": "partition-abandoned"},
                )  # fmt: skip
            self._close_or_warn(assigned, write=in_time)
        if owned:
            self.log.gone("revoked", owned)

    def commit_no_more(self) -> None:
        """Stop all commits, because the client is closing."""
        self._commits_stopped = True

    def mark_lost(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        """Fence lost partitions: they write no marks and commit nothing from now on; return them."""
        mine = self._assigned_of(partitions)
        for assigned in mine:
            if State.LOST in TRANSITIONS[assigned.state]:
                assigned.enter(State.LOST)
        return mine

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Close lost partitions without writing or committing: other members may own them already."""
        self._close_lost(self.mark_lost(partitions))

    def _close_lost(self, lost: list[Assigned]) -> None:
        for assigned in lost:
            self._close_or_warn(assigned, write=False)
        if lost:
            self.log.gone("lost", lost)

    def _assigned_of(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        found = (self.assigned.get((tp.topic, tp.partition)) for tp in partitions)
        return [assigned for assigned in found if assigned is not None]

    def _close_or_warn(self, assigned: Assigned, *, write: bool) -> None:
        self._detach(assigned)
        try:
            self._close(assigned, write=write)
        except DedupError as error:
            logger.warning(
                "%s[%d]: closing failed (%s); unwritten records are delivered again",
                assigned.topic, assigned.partition, error,
                extra={"event": "partition-close-failed"},
            )  # fmt: skip
        self._asked.pop(assigned.coordinates, None)
        # Last: after an interruption it is found, and closed again.
        self.assigned.pop(assigned.coordinates, None)
        self.board.request()

    def _detach(self, assigned: Assigned) -> None:
        if isinstance(assigned.known, Recovering) and assigned.known.steps is not None:
            assigned.known.steps.close()
        self.backoff.forget(assigned.topic, assigned.partition)

    def _close(self, assigned: Assigned, *, write: bool) -> None:
        """Close an `Assigned`: objects that still refer to it can no longer write or commit. Harmless when repeated."""
        going = State.REVOKING if write else State.LOST
        if going in TRANSITIONS[assigned.state]:
            assigned.enter(going)
        try:
            close = self.engine.close if write else self.engine.lose
            close(assigned.topic, assigned.partition)
        finally:
            if assigned.state is not State.CLOSED:
                assigned.enter(State.CLOSED)

    def recover_again(
        self, topic: str, partition: int, same_until: int | None = None, contradicted_at: int | None = None
    ) -> None:
        """Recover an active partition again: its log differs from the one in which its records were completed.

        ``same_until`` and ``contradicted_at``: see `LogChange`.
        """
        assigned = self.assigned[topic, partition]
        if (recovered := assigned.recovered) is not None:
            # A recreated topic has the same leader epochs: by them the broker takes its log for the old one.
            self._client.topics.forget()
            start = self._start_to_reopen(assigned, recovered)
            # Nobody knows which log had the records that were completed above.
            told, change = _without_own(recovered, start.offset), LogChange(same_until, contradicted_at)
            start = replace(start, metadata=told, log_change=change)
            self._begin_again(assigned, start, in_same_log=False)

    def note_pause(self, partitions: Iterable[Coordinates], *, paused: bool) -> None:
        """Record a pause or resume by the user, which the end of a recovery must not undo."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                assigned = self.assigned[coordinates]
                (assigned.pause if paused else assigned.lift)(Pause.USER)

    def resumable(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that may deliver now."""
        held_up = {c for c, assigned in self.assigned.items() if not assigned.is_fetched}
        return [tp for tp in partitions if (tp.topic, tp.partition) not in held_up]

    def is_current(self, message: Any) -> bool:
        """Whether a message was delivered since the last assignment of its partition.

        A handler that outlived a rebalance, or its consumer, must not complete the record that is in flight now at the
        same offset.
        """
        assigned = self.assigned.get((message.topic(), message.partition()))
        if assigned is None or assigned.recovered is None:
            return assigned is not None
        place = assigned.recovered.partition.flight.place(message.offset())
        return place is None or place.chunk.items[place.row] is message


def _without_own(recovered: Recovered, high: int) -> CommitMetadata:
    """Return the history up to an offset; above it are completed those that the group's commit listed at the start."""
    above = recovered.completed_above
    done = None if above is None else above.beginning_at(high)
    return replace(recovered.metadata(high, ()), done=done)


def _start_of_move(history: CommitMetadata, high: int, offset: int, *, own: int) -> Start:
    """Return where to start after a move of a group that has this history, completed without a gap up to ``high``.

    ``own``: the place that the application has reached. A move beyond it goes forward: what lies between is skipped,
    and what is in flight with it. A move back asks for all records from ``offset`` on once more, and for no other: what
    is completed below it stays so. What is in flight below it is released, so that reading begins there.
    """
    if offset > own:
        # Nobody sets the group back by a move forward.
        told = history.moved_forward(offset)
        return Start(offset=offset, metadata=None if told.done is None else told, era=history.era)
    done = () if history.done is None else history.done.ranges
    if offset == own or offset >= max([high, *(end for _, end in done)]):
        # Nothing completed is asked for.
        return Start(offset=high, metadata=history, reopened=True)
    return Start(offset=min(offset, high), metadata=set_back(history, offset))


def waiting_until(deadline: float) -> float:
    """Return until when (monotonic seconds) others may be waited for, if everything must be over by ``deadline``."""
    now = time.monotonic()
    return now + WAITING_SHARE * (deadline - now)


def commit_in_group(session: Session, client: Client, lock: RLock) -> None:
    """Commit completed records before leaving the group, if necessary after the current rebalance.

    All partitions are paused first: nothing is delivered from here on. A commit refused for a reason other than a
    rebalance is not repeated here; the revocation commits again. Before the consumer closes, silence counts as a
    rebalance, if the coordinator answers others: it answers a member that joins when all others have joined.
    `unsubscribe` need not wait for that: the client goes on, and revokes the partitions behind the rebalance.

    A closing client does not rejoin its group, and during a cooperative rebalance the group accepts commits only from
    members that have rejoined. So the client is polled through the rebalance until the commit is accepted. The
    commit on revoke alone came too late in two of three such cases, and its records were handled twice.
    """
    with lock:
        for assigned in session.assigned.values():
            client.pause(assigned.topic, assigned.partition)
    began = time.monotonic()
    while not _try_commit(session, lock, until := session.rebalanced_by(began)) and time.monotonic() < until:
        # Polling makes the client rejoin the group and run the rebalance callbacks.
        client.listen(_POLL_S)


def _try_commit(session: Session, lock: RLock, until: float) -> bool:
    """Try to commit once; return False where a retry can succeed."""
    with lock:
        answer_by = min(until, time.monotonic() + _ANSWER_S)
        try:
            session.commits.completed(session.assigned.values(), asynchronous=False, until=answer_by)
        except (KafkaException, DedupError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            is_silent = code == KafkaError._TIMED_OUT  # noqa: SLF001 (that is its public name)
            if code in _REBALANCING or (is_silent and session.hears_nothing()):
                return False
            logger.info(
                "commit before leaving failed (%s)", error, extra={"event": "commit-before-leaving-failed"}
            )
    return True


class RebalanceLog:
    """Writes the log lines of rebalances with the verdicts in between; builds no text while level INFO is off."""

    def __init__(self, engine: Deduplicator) -> None:
        self._engine = engine
        self._counted: Counter[str] = Counter()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Log partitions that were assigned; each delivers when its recovery has ended."""
        if logger.isEnabledFor(logging.INFO):
            names = summarise(sorted(map(_coordinates, partitions)))
            self._write("assigned", len(partitions), ", ".join(names))

    def ready(self, partitions: list[Assigned], behind: list[Assigned]) -> None:
        """Log partitions that became active, and those that still recover (``behind``)."""
        if not logger.isEnabledFor(logging.INFO):
            return
        line = "ready %s: %s"
        arguments: list[object] = [
            counted(len(partitions), "partition"),
            "; ".join(map(self._describe, partitions)),
        ]
        if behind:
            line += "; %d still recovering: %s"
            arguments += [len(behind), "; ".join(map(self._describe, behind))]
        logger.info(line, *arguments, extra={"event": "partitions-ready"})

    def gone(self, how: str, partitions: list[Assigned]) -> None:
        """Log partitions that were closed; ``how`` is "revoked" or "lost"."""
        if logger.isEnabledFor(logging.INFO):
            self._write(how, len(partitions), "; ".join(map(self._describe, partitions)))

    def _write(self, event: str, count: int, names: str) -> None:
        now = Counter(self._engine.counters.as_dict())
        since = dict(now - self._counted)
        self._counted = now
        logger.info(
            "%s %s: %s; verdicts since the last rebalance: %s",
            event, counted(count, "partition"), names or "-", since or "none",
            extra={"event": "rebalance"},
        )  # fmt: skip

    def _describe(self, assigned: Assigned) -> str:
        name = f"{assigned.topic}[{assigned.partition}]"
        if assigned.start is not None:
            name += f"@{assigned.start.offset}"
        recovered, note = assigned.recovered, assigned.known.note
        notes = [note] if note else []
        notes += hindrances_of(assigned, self._engine)
        notes.append("not up to date" if recovered is None else f"{recovered.seconds:.2f} s")
        return f"{name} ({', '.join(notes)})"


def summarise(partitions: list[Coordinates]) -> list[str]:
    """Return sorted partitions as one text per topic, with ranges: ``orders[0-63]``, ``pairs[1,3-4]``."""
    texts: dict[str, list[str]] = {}
    first, last = "", -2
    for topic, number in partitions:
        known = texts.setdefault(topic, [])
        if known and number == last + 1:
            known[-1] = f"{first}-{number}"
        else:
            first = str(number)
            known.append(first)
        last = number
    return [f"{topic}[{','.join(known)}]" for topic, known in texts.items()]
