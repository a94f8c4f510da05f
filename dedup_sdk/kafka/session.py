"""The partitions that a consumer holds: taken, moved, read again, given back, lost; and their work beside the poll loop.

Everything here runs on the thread that polls, or under the consumer's lock. Nothing in a rebalance callback waits for a recovery. An error that
no caller waits for is kept in ``callback_errors``, for `poll` to raise.
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

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import DedupError
from dedup_sdk.kafka.assignment import (
    NOT_YET_DELIVERING,
    RECOVERING,
    Assigned,
    Coordinates,
    LogChange,
    Pause,
    Reading,
    Start,
    Starts,
    State,
    hangs_on_the_log,
    hindrances_of,
    note_uncompleted,
    set_back,
)
from dedup_sdk.kafka.client import ANSWER_S, Client
from dedup_sdk.kafka.commit_text import CommitMetadata
from dedup_sdk.kafka.commits import Commits
from dedup_sdk.kafka.guards import CallbackErrors
from dedup_sdk.kafka.reader import diverged_at
from dedup_sdk.kafka.recovery import Backoff, RecoveryLoop, RecoverySettings
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.topic_watch import TopicWatch
from dedup_sdk.kafka.window_check import WindowCheck
from dedup_sdk.observe import PartitionEvent

logger = logging.getLogger("dedup_sdk")

TAKE_S = 1.0
"""Seconds in which brokers are asked, inside a rebalance, where partitions start; later the recoveries ask."""
WRITE_AGAIN_S = 1.0
"""Seconds between two attempts to write marks that a full disk refused."""
MOST_WAITING = 100_000
"""Records of a partition that may be in memory, because one before them is not completed; then it is paused."""
PATIENCE_S: Final = 10.0
"""Seconds that a member which leaves waits for a rebalance, at most, and not longer than the revoke deadline."""
_ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.05

_REBALANCING: Final = frozenset({
    KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip
"""The group's answers to a commit of a member that must join again first."""

_MOST_OFFSET: Final = 2**63 - 1
_coordinates: Callable[[TopicPartition], Coordinates] = attrgetter("topic", "partition")
_state, _is_fetched = attrgetter("state"), attrgetter("is_fetched")


class Session:
    """Partitions in hand, by coordinates, and the parts that work on them."""

    def __init__(
        self,
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        chosen: RecoverySettings,
        callback_errors: CallbackErrors,
    ) -> None:
        self.engine = engine
        self.assigned: dict[Coordinates, Assigned] = {}
        self.commits = Commits(self.assigned, client, only_hidden=settings.only_user_commits)
        self.reading = Reading(self.assigned, client)
        self.log = RebalanceLog(engine)
        self.placed = False
        """Whether the group, or the user, ever said which partitions are ours; none is an answer too."""
        self._commits_end = False
        """Whether the client is on its way out: it answers no questions any more, and nothing is committed."""
        self._client = client
        self._settings = settings
        self._chosen = chosen
        self._starts = Starts(client, settings.reset)
        self._backoff = Backoff(client.requests, client.readers)
        self._window_check = WindowCheck(engine, client, settings)
        self._begun: list[Assigned] = []
        """Partitions that have begun to deliver, and whose windows are not checked yet."""
        self._topic_watch = TopicWatch(client)
        self._recoveries = RecoveryLoop(
            self.assigned, engine, client, settings, chosen, callback_errors=callback_errors, starts=self._starts,
            backoff=self._backoff, commits=self.commits,
        )  # fmt: skip
        self.next_commit_at = time.monotonic() + settings.commit_interval_s
        """When (monotonic seconds) the next commit is due."""
        self.hurried = False
        """Whether some recovery could go on at once."""
        self.put_off: dict[Coordinates, Any] = {}
        """Events of the client that hang on an answer of their partition's leader, which does not come now."""
        self._completed_by_user = not settings.completes_on_next_call
        self._write_again_at = 0.0
        self.waking: list[TopicPartition] = []
        """Partitions that deliver and are not fetched from yet; see `wake`."""

    @property
    def of_group(self) -> set[Coordinates]:
        """The partitions that the group assigned."""
        return {coordinates for coordinates, assigned in self.assigned.items() if not assigned.by_hand}

    @property
    def recovering(self) -> bool:
        """Whether some partition does not deliver yet, and is going to."""
        return any(map(RECOVERING.__contains__, map(_state, self.assigned.values())))

    # --- taking and moving -------------------------------------------------------------------------------------------

    def take(
        self, partitions: list[TopicPartition], *, incremental: bool | None = None, by_hand: bool = False
    ) -> None:
        """Take partitions over: paused, at the place where the group stands; recovery follows in `work`.

        ``by_hand``: see `Assigned`.
        """
        self._client.forget_topic_ids()
        starts: list[Start | None] = [None] * len(partitions)
        try:
            self._find_starts(partitions, starts)
        except (KafkaException, DedupError) as error:
            self._backoff.note_silence()
            logger.warning("the group's offsets are not known yet (%s); asking again", error)
        finally:
            # Also when interrupted: a partition that the client assigned by itself would be read and dropped for ever.
            at = [
                TopicPartition(p.topic, p.partition, s.offset if s else 0)
                for p, s in zip(partitions, starts, strict=True)
            ]
            self._client.assign(at, incremental=incremental)
            self.placed = True
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
                self.assigned[tp.topic, tp.partition] = assigned
        self.log.came(partitions)

    def _find_starts(self, partitions: list[TopicPartition], starts: list[Start | None]) -> None:
        """Fill in where partitions start, as far as brokers say it at once: a rebalance waits for us."""
        if not partitions:
            return
        until = 0.0 if self._backoff.is_active else time.monotonic() + TAKE_S
        stand = self._client.committed(partitions, ANSWER_S)
        for row, tp in enumerate(partitions):
            committed = stand[tp.topic, tp.partition]
            if time.monotonic() < until or not hangs_on_the_log(tp, committed):
                try:
                    starts[row] = self._starts.start(tp, committed)
                except KafkaException as error:
                    until = 0.0
                    self._backoff.note_silence()
                    # No warning yet: a slow broker has answered when it is asked again, or else that is told.
                    logger.info("%s[%d]: where it starts is asked again (%s)", tp.topic, tp.partition, error)

    def resolve(self, wanted: TopicPartition) -> int:
        """Return the offset that a logical one (beginning, end, so many before the end) means now."""
        return self._starts.resolve(wanted)

    def move(self, topic: str, partition: int, offset: int, *, log_changed: bool = False) -> None:
        """Start a partition anew elsewhere: a jump that the user made, or that a log made which has lost the offset."""
        assigned = self.assigned[topic, partition]
        known = self._history(assigned)
        metadata = None
        if known is not None:
            history, high = known
            if offset == high:
                metadata = history
            if offset < high:
                metadata = set_back(history, offset)
                if log_changed:
                    metadata = replace(metadata, low=offset, complete=False)
        # As with the plain client, a seek is no commit: the next progress is, also below the committed offset.
        # But a new group must know where it begins, wherever that is: else its store would look foreign to it.
        new = assigned.start is not None and assigned.start.new and assigned.recovers
        start = Start(
            offset=offset,
            metadata=metadata,
            new=new,
            at_once=log_changed or new,
        )
        self._begin_again(assigned, start, moved_to=offset)
        if not log_changed:
            self.commits.hand_on(assigned, self.assigned[topic, partition])

    def _history(self, assigned: Assigned) -> tuple[CommitMetadata, int] | None:
        """Return the range that the group has processed without a gap: the metadata with its beginning, and the offset after its end."""
        if assigned.held is not None:
            high = assigned.held.flight.high
            return assigned.metadata(assigned.held, high), high
        start = assigned.start
        if start is None or start.metadata is None or not start.metadata.is_of(assigned.log):
            return None
        return start.metadata, start.offset

    def _begin_again(
        self, assigned: Assigned, start: Start | None, *, moved_to: int = _MOST_OFFSET, write: bool = True
    ) -> None:
        self._client.pause(assigned.topic, assigned.partition)
        self._leave(assigned)
        self.assigned[assigned.coordinates] = Assigned(
            assigned.topic,
            assigned.partition,
            start,
            wanted=assigned.wanted,
            by_hand=assigned.by_hand,
            taken_at=time.monotonic(),
            pauses=assigned.pauses & {Pause.USER},
            stopped=assigned.stopped,
            commits=assigned.commits.moved(moved_to),
            failed_at=assigned.failed_at,
        )
        self._end(assigned, write=write and assigned.held is not None)

    # --- after an interruption --------------------------------------------------------------------------------------

    def reconcile(self, actual: Iterable[Coordinates]) -> None:
        """Hold exactly the partitions that the client says are ours: a rebalance may have been interrupted half way."""
        ours, theirs = set(self.assigned), set(actual)
        self.lose([TopicPartition(*coordinates) for coordinates in ours - theirs])
        if theirs <= ours:
            return
        incremental = self._settings.incremental
        by_hand = bool(self.assigned) and not self.of_group
        if incremental:
            missing = [TopicPartition(*coordinates) for coordinates in theirs - ours]
            self._client.unassign(missing)
        else:
            self.lose([TopicPartition(*coordinates) for coordinates in ours & theirs])
            missing = [TopicPartition(*coordinates) for coordinates in theirs]
        self.take(missing, incremental=incremental, by_hand=by_hand)

    def reopen_all(self) -> None:
        """Forget records in flight and read every partition again from its watermark: its state may be half-changed.

        A partition that caused it a second time, with no progress in between, stays closed: the others go on.
        """
        self.commits.await_nothing()
        for assigned in list(self.assigned.values()):
            if assigned.state is State.FAILED:
                continue
            held, known = assigned.held, self._history(assigned)
            start = assigned.start if held is None or known is None else self._where_it_stood(assigned, known)
            self._begin_again(assigned, start, write=False)
            if held is not None and held.has_failed and start is not None:
                self.assigned[assigned.coordinates].blame(start.offset)

    def _where_it_stood(self, assigned: Assigned, known: tuple[CommitMetadata, int]) -> Start:
        history, high = known
        # State in memory may be half-changed: only the store, and the group's commit, say which records are completed.
        history = replace(history, done=assigned.told)
        start = assigned.start
        if assigned.held is not None:
            # Records that were not read yet are still to be compared with the marks.
            high = assigned.held.committable
            acknowledged = assigned.held.flight.committed
        elif start is not None:
            acknowledged = start.acknowledged if start.reopened else start.offset
        else:
            acknowledged = None
        return Start(offset=high, metadata=history, reopened=True, acknowledged=acknowledged)

    def refetch(self, partitions: Iterable[Coordinates]) -> None:
        """Read these partitions again from where judging stands."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                self.reading.again(self.assigned[coordinates])

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Write, commit and close: the partitions go to another member in order.

        All of it within one deadline, or the group would put this member out. Work that does not fit is abandoned: the next owner
        sees records again that were neither written nor committed. Partitions that belong to others already are lost, as by `lose`.
        """
        until = time.monotonic() + self._settings.revoke_deadline_s
        held = self._mine(partitions)
        mine = [assigned for assigned in held if assigned.state is not State.LOST]
        self._drop([assigned for assigned in held if assigned.state is State.LOST])
        for assigned in mine:
            assigned.enter(State.REVOKING)
        try:
            # On its way out the client answers no questions: there a commit could not be bounded. All that was ours was given back before.
            if not self._commits_end:
                if self._settings.only_user_commits:
                    self.commits.send_pending(asynchronous=False, until=until)
                self.commits.completed(mine, asynchronous=False, until=until)
        except (KafkaException, DedupError) as error:
            logger.warning(
                "commit on revoke failed (%s): the next owner sees again what was not committed", error
            )
        self.engine.counters.left_out += sum(map(_left_out, mine))
        for assigned in mine:
            in_time = time.monotonic() < until
            if not in_time:
                logger.warning(
                    "%s[%d]: abandoned after the revoke deadline of %.1f s; what was not written comes again",
                    assigned.topic, assigned.partition, self._settings.revoke_deadline_s,
                )  # fmt: skip
            self._let_go(assigned, write=in_time)
        if mine:
            self.log.went("revoked", mine)

    def commit_no_more(self) -> None:
        """Take note that the client is on its way out."""
        self._commits_end = True

    def mark_lost(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        """Have partitions that belong to others already take no marks and commit nothing from here on; return them."""
        mine = self._mine(partitions)
        for assigned in mine:
            if assigned.state is not State.LOST:
                assigned.enter(State.LOST)
        return mine

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Close without writing or committing: the partitions belong to others already."""
        self._drop(self.mark_lost(partitions))

    def _drop(self, lost: list[Assigned]) -> None:
        for assigned in lost:
            self._let_go(assigned, write=False)
        if lost:
            self.log.went("lost", lost)

    def _mine(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        held = (self.assigned.get((tp.topic, tp.partition)) for tp in partitions)
        return [assigned for assigned in held if assigned is not None]

    def _let_go(self, assigned: Assigned, *, write: bool) -> None:
        self._leave(assigned)
        try:
            self._end(assigned, write=write)
        except DedupError as error:
            logger.warning("%s[%d] was not closed in order: %s", assigned.topic, assigned.partition, error)

    def _leave(self, assigned: Assigned) -> None:
        if assigned.recovery is not None:
            assigned.recovery.close()
        self._backoff.forget(assigned.topic, assigned.partition)
        self.put_off.pop(assigned.coordinates, None)
        self.assigned.pop(assigned.coordinates, None)

    def _end(self, assigned: Assigned, *, write: bool) -> None:
        """End an epoch: nothing that still refers to it writes or commits from here on."""
        if not write and assigned.state is not State.LOST:
            assigned.enter(State.LOST)
        elif assigned.state not in (State.REVOKING, State.LOST):
            assigned.enter(State.REVOKING)
        try:
            close = self.engine.close if write else self.engine.lose
            close(assigned.topic, assigned.partition)
        finally:
            assigned.enter(State.CLOSED)

    # --- events of the client -------------------------------------------------------------------------------------------

    def absorbs(self, event: Any) -> bool:
        """Apply the user's reset policy where the log no longer has the offset that was asked for.

        True when the event is dealt with; any other event is the application's.
        """
        coordinates = event.topic(), event.partition()
        assigned = self.assigned.get(coordinates)
        if assigned is None or event.error().code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            return False
        assigned.note_stop()
        if assigned.state is State.ACTIVE and self._read_again_if_truncated(
            assigned, diverged_at(event.error().str())
        ):
            return True
        if self._settings.reset == "error":
            return False
        if assigned.recovers:
            return True
        offset = self._client.edge(*coordinates, self._settings.reset)
        detail = f"{event.error().str()}; auto.offset.reset={self._settings.reset}"
        self.engine.tell(PartitionEvent("offset-out-of-range", *coordinates, offset, detail))
        self.move(*coordinates, offset, log_changed=True)
        return True

    def answer_later(self, event: Any) -> None:
        """Keep an event of the client until its partition's leader may answer: the other partitions go on."""
        assigned = self.assigned.get((event.topic(), event.partition()))
        if assigned is not None:
            self._backoff.failed(assigned)
            self.put_off[assigned.coordinates] = event

    def due_events(self) -> list[Any]:
        """Return, once, the events that were put off and may be answered now."""
        now = time.monotonic()
        waiting = [self.assigned[coordinates] for coordinates in self.put_off]
        due = [each for each in waiting if each.ask_at <= now and self._backoff.may_begin(each)]
        return [self.put_off.pop(each.coordinates) for each in due]

    def doubt(
        self, topic: str, partition: int, same_until: int | None = None, contradicted_at: int | None = None
    ) -> None:
        """Recover an active partition anew: its log has other records than those that were completed there.

        ``same_until``: up to where it is, as far as the broker says. ``contradicted_at``: from where on it is not, as the marks say.
        """
        assigned = self.assigned[topic, partition]
        known = self._history(assigned)
        if known is not None:
            # Of a topic that was made anew the broker has the same leader epochs, and says that its log is the old one.
            self._client.forget_topic_ids()
            start = self._where_it_stood(assigned, known)
            self._begin_again(assigned, replace(start, log_change=LogChange(same_until, contradicted_at)))

    def _topics_made_anew(self) -> list[Coordinates]:
        """Recover the partitions of topics that were deleted and made again, from their beginning; return these partitions."""
        # A recovery asks by itself.
        delivering = [each for each in self.assigned.values() if each.state is State.ACTIVE]
        changed = self._topic_watch.look(delivering)
        for assigned in changed:
            self.doubt(assigned.topic, assigned.partition)
        return [assigned.coordinates for assigned in changed]

    def _read_again_if_truncated(self, assigned: Assigned, same_until: int | None) -> bool:
        """Recover anew where the log is not the one that was completed, or ends below it.

        The policy ``auto.offset.reset`` would skip the records that came instead. ``same_until``: up to where it is the same, if the broker says so.
        """
        known = self._history(assigned)
        if known is None:
            return False
        if same_until is None and known[1] <= self._client.log_end(assigned.topic, assigned.partition):
            return False
        self.doubt(assigned.topic, assigned.partition, same_until)
        return True

    def note_pause(self, partitions: Iterable[Coordinates], *, paused: bool) -> None:
        """Remember whose pause it is: a recovery that ends does not undo the user's."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                assigned = self.assigned[coordinates]
                (assigned.pause if paused else assigned.lift)(Pause.USER)

    def resumable(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return those that may deliver now."""
        held_up = {c for c, assigned in self.assigned.items() if not assigned.is_fetched}
        return [tp for tp in partitions if (tp.topic, tp.partition) not in held_up]

    def gave(self, message: Any) -> bool:
        """Whether a message in flight was handed out since the partition was taken last.

        A handler that outlived a rebalance, or its consumer, must not end the record that is in flight now, at the same offset.
        """
        assigned = self.assigned.get((message.topic(), message.partition()))
        if assigned is None or assigned.held is None or not assigned.held.started:
            return assigned is not None
        place = assigned.held.flight.place(message.offset())
        return place is None or place.chunk.items[place.row] is message

    # --- a poll ------------------------------------------------------------------------------------------------------

    def work(self) -> list[Coordinates]:
        """Do the work that is due, for at most some 50 ms: recovery, commits, a pause where too much waits.

        Return the partitions that begin anew, because their topic was made anew.
        """
        if begun := self._recoveries.work():
            self._begin_to_deliver(begun)
        elif self._begun or self._window_check.asked:
            # Not in the turn in which a partition begins: its first message does not wait for this.
            self._window_check.look(self._begun)
            self._begun.clear()
        self.hurried = self._recoveries.hurried
        now = time.monotonic()
        if self.engine.disk_full and now >= self._write_again_at:
            self.engine.write_again()
            self._write_again_at = time.monotonic() + WRITE_AGAIN_S
        for assigned in self.assigned.values():
            if assigned.state is State.ACTIVE and assigned.held is not None:
                self._throttle(assigned, assigned.held)
        try:
            if self.commits.pending:
                self.commits.send_pending()
            if now >= self.next_commit_at:
                self.next_commit_at = now + self._settings.commit_interval_s
                self.commits.completed(self.assigned.values(), asynchronous=True)
        except KafkaException as error:
            logger.warning("commit failed (%s); it is repeated with the next one", error)
        return self._topics_made_anew() if now >= self._topic_watch.due_at else []

    def _begin_to_deliver(self, finished: list[Assigned]) -> None:
        """Let partitions that are up to date deliver."""
        fetching = any(map(_is_fetched, self.assigned.values()))
        for assigned in finished:
            start = assigned.start
            if start is None:
                raise AssertionError(f"{assigned.topic}[{assigned.partition}] recovered without a start")
            assigned.enter(State.ACTIVE)
            epoch = start.leader_epoch
            if start.offset != assigned.reads_from or assigned.stopped or epoch is not None:
                # With the epoch the client asks the broker whether the log still has the records before.
                self.reading.begin(assigned, start.offset, epoch)
            if assigned.is_fetched:
                self._client.resume(assigned.topic, assigned.partition)
            if not fetching:
                self.wake_soon(assigned.topic, assigned.partition)
        behind = [each for each in self.assigned.values() if each.state in NOT_YET_DELIVERING]
        self.log.ready(finished, behind)
        self._begun += finished

    def wake_soon(self, topic: str, partition: int) -> None:
        """Have the next `wake` include a partition."""
        self.waking.append(TopicPartition(topic, partition))

    def wake(self) -> None:
        """Have the client fetch at once from partitions that have begun to deliver."""
        waking, self.waking = self.waking, []
        self._client.wake(waking)

    def _throttle(self, assigned: Assigned, held: Partition) -> None:
        """Pause a partition of which too much waits, or that has nowhere to write; let it go on when that is over."""
        flight, pauses = held.flight, assigned.pauses
        if self._completed_by_user:
            note_uncompleted(assigned, flight, MOST_WAITING)
        full = held.writer.disk_full and self._chosen.on_full_disk == "pause"
        if full != (Pause.DISK in pauses):
            self._pause_while(assigned, Pause.DISK, full)
        silent = held.stands_still
        if silent != (Pause.ELSEWHERE in pauses):
            self._pause_while(assigned, Pause.ELSEWHERE, silent)
        if Pause.BACKLOG in pauses:
            if flight.kept <= MOST_WAITING // 2 or held.needs_more:
                self._pause_while(assigned, Pause.BACKLOG, False)
        elif (
            flight.position - flight.high > MOST_WAITING
            and not held.needs_more
            and flight.kept > MOST_WAITING
        ):
            self._pause_while(assigned, Pause.BACKLOG, True)
            logger.warning(
                "%s[%d]: %d records wait for the one at %d; paused until it is completed",
                assigned.topic, assigned.partition, flight.kept, flight.high,
            )  # fmt: skip

    def _pause_while(self, assigned: Assigned, why: Pause, there: bool) -> None:  # noqa: FBT001 (it reads as a sentence)
        if there and assigned.pause(why):
            self._client.pause(assigned.topic, assigned.partition)
        elif not there and assigned.lift(why):
            self._client.resume(assigned.topic, assigned.partition)


def _left_out(assigned: Assigned) -> int:
    """Return how many completions the commit of a partition has no room for."""
    held = assigned.held
    return 0 if held is None or not held.started else assigned.left_out(held, held.committable)


def commit_in_group(session: Session, client: Client, lock: RLock, patience_s: float) -> None:
    """Commit completed records, if need be after the rebalance under way; a commit refused for another reason is left to the end.

    Nothing is delivered any more from here on.

    A client on its way out does not join its group again, and in the middle of a cooperative rebalance the group
    accepts commits only from members that have joined. So the client is polled through the rebalance until the commit
    is accepted. A commit on revoke alone came too late in two of three such cases, and what it should have committed
    was handled twice.
    """
    until = time.monotonic() + min(PATIENCE_S, patience_s)
    with lock:
        for assigned in session.assigned.values():
            client.pause(assigned.topic, assigned.partition)
    while not _committed(session, lock, until) and time.monotonic() < until:
        # The client joins again while it is polled, and says so to the callbacks.
        client.listen(_LOOK_S)


def _committed(session: Session, lock: RLock, until: float) -> bool:
    """Try once; False when another try makes sense."""
    with lock:
        answer_by = min(until, time.monotonic() + _ANSWER_S)
        try:
            session.commits.completed(session.assigned.values(), asynchronous=False, until=answer_by)
        except KafkaException as error:
            if error.args[0].code() in _REBALANCING:
                return False
            logger.info("commit before leaving failed (%s)", error)
        except DedupError as error:
            logger.info("commit before leaving failed (%s)", error)
    return True


class RebalanceLog:
    """Writes the lines, and counts the verdicts between them; nothing is put together for a log that nobody keeps."""

    def __init__(self, engine: Deduplicator) -> None:
        self._engine = engine
        self._counted: Counter[str] = Counter()

    def came(self, partitions: list[TopicPartition]) -> None:
        """Partitions were assigned; each delivers when it is up to date."""
        if logger.isEnabledFor(logging.INFO):
            names = _in_short(sorted(map(_coordinates, partitions)))
            self._write("assigned", len(partitions), ", ".join(names))

    def ready(self, partitions: list[Assigned], behind: list[Assigned]) -> None:
        """Partitions begin to deliver, while those ``behind`` still recover."""
        if not logger.isEnabledFor(logging.INFO):
            return
        line = "ready %d partitions: %s"
        arguments = [len(partitions), "; ".join(map(self._told, partitions))]
        if behind:
            line += "; %d still recover: %s"
            arguments += [len(behind), "; ".join(map(self._told, behind))]
        logger.info(line, *arguments)

    def went(self, how: str, partitions: list[Assigned]) -> None:
        """Partitions have another owner, or none."""
        if logger.isEnabledFor(logging.INFO):
            self._write(how, len(partitions), "; ".join(map(self._told, partitions)))

    def _write(self, what: str, count: int, names: str) -> None:
        counted = Counter(self._engine.counters.as_dict())
        since = dict(counted - self._counted)
        self._counted = counted
        logger.info(
            "%s %d partitions: %s; verdicts since the last rebalance: %s", what, count, names or "-", since or "none"
        )  # fmt: skip

    def _told(self, assigned: Assigned) -> str:
        name = f"{assigned.topic}[{assigned.partition}]"
        if assigned.start is not None:
            name += f"@{assigned.start.offset}"
        notes = [assigned.note] if assigned.note else []
        notes += hindrances_of(assigned, self._engine)
        if assigned.held is None:
            notes.append("not up to date")
        else:
            notes.append(f"{assigned.seconds:.2f} s")
        return f"{name} ({', '.join(notes)})"


def _in_short(partitions: list[Coordinates]) -> list[str]:
    """Name partitions, in ascending order, by topic and ranges: ``orders[0-63]``, ``pairs[1,3-4]``."""
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
