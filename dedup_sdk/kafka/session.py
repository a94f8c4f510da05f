"""What a consumer holds between polls: its partitions, and how far each of them is.

Everything here runs on the thread that polls, or under the consumer's lock. Nothing in a rebalance callback waits for a
recovery.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import ConfigurationError, DedupError
from dedup_sdk.kafka.assigned import Assigned, Start, State
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commits import Commits, Coordinates
from dedup_sdk.kafka.metadata import CommitMetadata, parse_metadata
from dedup_sdk.kafka.recovery import RecoverySettings, recover
from dedup_sdk.kafka.settings import ClientSettings

logger = logging.getLogger("dedup_sdk")

SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
ASK_AGAIN_S = 0.5
"""Seconds between two questions for the group's offsets, and for each answer."""
MOST_WAITING = 100_000
"""Records of a partition that may be in memory, because one before them is not completed; then it is paused."""


class Session:
    """Partitions in hand, by coordinates. What fails beside the poll loop is kept in ``guard``, for `poll` to raise."""

    def __init__(
        self,
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        chosen: RecoverySettings,
        guard: Guard,
    ) -> None:
        self.engine = engine
        self.assigned: dict[Coordinates, Assigned] = {}
        self.commits = Commits(self.assigned, client)
        self.manual = False
        self._client = client
        self._settings = settings
        self._chosen = chosen
        self._guard = guard
        self._next_commit = time.monotonic() + settings.commit_interval_s
        self._announce: list[Assigned] = []
        self._counted: Counter[str] = Counter()

    # --- partitions come and go ----------------------------------------------------------------------------------

    def take(
        self, partitions: list[TopicPartition], *, incremental: bool | None = None, manual: bool = False
    ) -> None:
        """Take partitions over: paused, at the place where the group stands; recovery follows in `work`.

        ``manual``: the user assigned them, no group does, so that nothing will tell when they go.
        """
        self._client.forget_topic_ids()
        starts: list[Start | None] = [None] * len(partitions)
        try:
            starts = list(self._starts(partitions))
        except (KafkaException, DedupError) as error:
            logger.warning("the group's offsets are not known yet (%s); asking again", error)
        finally:
            # Also when interrupted: a partition that the client assigned by itself would be read and dropped for ever.
            at = [
                TopicPartition(p.topic, p.partition, s.offset if s else 0)
                for p, s in zip(partitions, starts, strict=True)
            ]
            self._client.assign(at, incremental=incremental)
            self.manual = manual
            for tp, start in zip(partitions, starts, strict=True):
                assigned = Assigned(tp.topic, tp.partition, start, wanted=tp.offset)
                assigned.requested = _committed_already(start)
                self.assigned[tp.topic, tp.partition] = assigned

    def _starts(self, partitions: list[TopicPartition], timeout_s: float | None = None) -> list[Start]:
        if not partitions:
            return []
        asked = self._client.committed([TopicPartition(p.topic, p.partition) for p in partitions], timeout_s)
        committed = {(p.topic, p.partition): p for p in asked}
        return [self._start(tp, committed[tp.topic, tp.partition]) for tp in partitions]

    def _start(self, wanted: TopicPartition, committed: TopicPartition) -> Start:
        """Decide where a partition starts: where the user's callback says, where the group stands, or by policy."""
        if committed.error is not None:
            raise KafkaException(committed.error)
        offset = wanted.offset
        if offset in (OFFSET_BEGINNING, OFFSET_END):
            offset = self._client.bounds(wanted.topic, wanted.partition)[
                0 if offset == OFFSET_BEGINNING else 1
            ]
        elif offset < OFFSET_STORED:
            offset = -1
        if committed.offset >= 0:
            metadata = parse_metadata(committed.metadata)
            if offset in (-1, OFFSET_STORED, committed.offset) or offset < 0:
                return Start(offset=committed.offset, metadata=metadata, at_once=metadata is None)
            if metadata is not None and metadata.low <= offset < committed.offset:
                # Set back inside what the group has processed: its history stays, in a new era.
                return Start(
                    offset=offset, metadata=replace(metadata, era=secrets.token_hex(4)), at_once=True
                )
            return Start(offset=offset, at_once=True)
        if offset >= 0:
            return Start(offset=offset, new=True, at_once=True)
        edge = self._client.edge(wanted.topic, wanted.partition, self._settings.reset)
        return Start(offset=edge, new=True, at_once=True)

    def move(self, topic: str, partition: int, offset: int, *, log_changed: bool = False) -> None:
        """Start a partition anew elsewhere: a jump that the user made, or that a log made which has lost the offset."""
        assigned = self.assigned[topic, partition]
        known = self._history(assigned)
        metadata, reprocess = None, False
        if known is not None:
            history, high = known
            if history.low <= offset <= high:
                metadata = history
            if history.low <= offset < high:
                # A new era: also a store that knows no more than what was committed sees that this goes back.
                metadata = replace(history, era=secrets.token_hex(4))
                if log_changed:
                    metadata, reprocess = replace(metadata, low=offset, complete=False), True
        # As with the plain client, a seek is no commit: the next progress is, also below what was committed.
        start = Start(offset=offset, metadata=metadata, seek=True, at_once=log_changed, reprocess=reprocess)
        self._begin_again(assigned, start, requested=min(assigned.requested, offset))

    def _history(self, assigned: Assigned) -> tuple[CommitMetadata, int] | None:
        """Return what the group has processed of a partition without a gap: its beginning, and the offset after its end."""
        if assigned.held is not None:
            lane = assigned.held.lane
            return CommitMetadata(low=lane.low, era=lane.era, complete=assigned.complete), lane.high
        if assigned.start is not None and assigned.start.metadata is not None:
            return assigned.start.metadata, assigned.start.offset
        return None

    def _begin_again(
        self, assigned: Assigned, start: Start | None, *, requested: int | None = None, write: bool = True
    ) -> None:
        topic, partition = assigned.topic, assigned.partition
        self._client.pause(topic, partition)
        self._drop(assigned)
        fresh = Assigned(topic, partition, start, wanted=assigned.wanted, user_paused=assigned.user_paused)
        fresh.requested = assigned.requested if requested is None else requested
        fresh.stopped = assigned.stopped
        self.assigned[topic, partition] = fresh
        if write and assigned.held is not None:
            self.engine.close(topic, partition)
        else:
            self.engine.lose(topic, partition)

    def reconcile(self, actual: Iterable[Coordinates]) -> bool:
        """Hold what the client says is ours, and nothing else: a rebalance may have been interrupted half way.

        True when there was something to change.
        """
        ours, theirs = set(self.assigned), set(actual)
        self.lose([TopicPartition(*coordinates) for coordinates in ours - theirs])
        if theirs <= ours:
            return ours != theirs
        incremental = self._settings.incremental and not self.manual
        if incremental:
            missing = [TopicPartition(*coordinates) for coordinates in theirs - ours]
            self._client.unassign(missing)
        else:
            self.lose([TopicPartition(*coordinates) for coordinates in ours & theirs])
            missing = [TopicPartition(*coordinates) for coordinates in theirs]
        self.take(missing, incremental=incremental, manual=self.manual)
        return True

    def reopen_all(self) -> None:
        """Forget what is in flight and read every partition again from its watermark: its state may be half way."""
        for assigned in list(self.assigned.values()):
            known = self._history(assigned)
            if assigned.held is None or known is None:
                self._begin_again(
                    assigned,
                    None if assigned.start is None else replace(assigned.start, seek=True),
                    write=False,
                )
            else:
                history, high = known
                self._begin_again(assigned, Start(offset=high, metadata=history, seek=True), write=False)

    def refetch_all(self) -> None:
        """Read every partition again from where judging stands: what the client fetched may be lost."""
        for assigned in self.assigned.values():
            if assigned.state is State.RECOVERING and assigned.start is not None:
                assigned.start = replace(assigned.start, seek=True)
        self.refetch(c for c, assigned in self.assigned.items() if assigned.state is State.ACTIVE)

    def refetch(self, partitions: Iterable[Coordinates]) -> None:
        """Read these partitions again from where judging stands."""
        for coordinates in partitions:
            assigned = self.assigned.get(coordinates)
            if assigned is not None and assigned.state is State.ACTIVE and assigned.held is not None:
                self._client.seek(*coordinates, assigned.held.lane.position)

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Write, commit (unless only the user does) and close: the partitions go to another member in order."""
        mine = [
            self.assigned[tp.topic, tp.partition]
            for tp in partitions
            if (tp.topic, tp.partition) in self.assigned
        ]
        try:
            if not self._settings.only_user_commits:
                self.commits.completed(mine, asynchronous=False)
        except (KafkaException, DedupError) as error:
            logger.warning(
                "commit on revoke failed (%s): the next owner sees again what was not committed", error
            )
        self._let_go(mine, self.engine.close)
        self._log_rebalance("revoked", mine)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Close without writing or committing: the partitions belong to others already."""
        mine = [
            self.assigned[tp.topic, tp.partition]
            for tp in partitions
            if (tp.topic, tp.partition) in self.assigned
        ]
        self._let_go(mine, self.engine.lose)
        if mine:
            self._log_rebalance("lost", mine)

    def _let_go(self, mine: list[Assigned], close: Callable[[str, int], None]) -> None:
        for assigned in mine:
            self._drop(assigned)
            try:
                close(assigned.topic, assigned.partition)
            except DedupError as error:
                logger.warning(
                    "%s[%d] was not closed in order: %s", assigned.topic, assigned.partition, error
                )

    def _drop(self, assigned: Assigned) -> None:
        assigned.state = State.CLOSED
        if assigned.recovery is not None:
            assigned.recovery.close()
        self.assigned.pop((assigned.topic, assigned.partition), None)

    # --- work beside the poll loop -------------------------------------------------------------------------------

    @property
    def recovering(self) -> bool:
        """Whether some partition does not deliver yet."""
        return any(assigned.state is State.RECOVERING for assigned in self.assigned.values())

    @property
    def until_commit_s(self) -> float:
        """Seconds until the next commit is due."""
        return max(0.0, self._next_commit - time.monotonic())

    def absorbs(self, event: Any) -> bool:
        """Apply the user's reset policy where the log no longer has the offset that was asked for.

        True when the event is dealt with; any other event is the application's.
        """
        coordinates = event.topic(), event.partition()
        assigned = self.assigned.get(coordinates)
        if assigned is None or event.error().code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            return False
        assigned.stopped = True
        if self._settings.reset == "error":
            return False
        if assigned.state is State.RECOVERING:
            if assigned.start is not None:
                assigned.start = replace(assigned.start, seek=True)
            return True
        offset = self._client.edge(*coordinates, self._settings.reset)
        logger.warning(
            "%s[%d]: %s; going on at %d by auto.offset.reset=%s",
            *coordinates,
            event.error().str(),
            offset,
            self._settings.reset,
        )
        self.move(*coordinates, offset, log_changed=True)
        return True

    def resolve(self, wanted: TopicPartition) -> int:
        """Return the offset that a logical one (beginning, end) means now."""
        if wanted.offset in (OFFSET_BEGINNING, OFFSET_END):
            return self._client.bounds(wanted.topic, wanted.partition)[
                0 if wanted.offset == OFFSET_BEGINNING else 1
            ]
        if wanted.offset < 0:
            raise ConfigurationError(
                f"offset {wanted.offset} is no place in {wanted.topic}[{wanted.partition}]; give an offset"
            )
        return int(wanted.offset)

    def note_pause(self, partitions: Iterable[Coordinates], *, paused: bool) -> None:
        """Remember whose pause it is: a recovery that ends does not undo the user's."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                self.assigned[coordinates].user_paused = paused

    def resumable(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return those that may deliver now."""
        held_up = {
            c for c, assigned in self.assigned.items() if assigned.full or assigned.state is State.RECOVERING
        }
        return [tp for tp in partitions if (tp.topic, tp.partition) not in held_up]

    def work(self) -> None:
        """Do what is due, for at most some 50 ms: recovery, commits, a pause where too much waits."""
        if self.recovering:
            self._recover()
        for assigned in self.assigned.values():
            if assigned.full or (assigned.held is not None and assigned.held.started):
                self._throttle(assigned)
        if time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self._settings.commit_interval_s
            try:
                self.commits.completed(self.assigned.values(), asynchronous=True)
            except KafkaException as error:
                logger.warning("commit failed (%s); it is repeated with the next one", error)

    def _throttle(self, assigned: Assigned) -> None:
        if assigned.held is None or assigned.state is not State.ACTIVE:
            return
        lane = assigned.held.lane
        span = lane.position - lane.high
        if not assigned.full and span > MOST_WAITING and lane.kept > MOST_WAITING:
            assigned.full = True
            self._client.pause(assigned.topic, assigned.partition)
            logger.warning(
                "%s[%d]: %d records wait for the one at %d; paused until it is completed",
                assigned.topic, assigned.partition, lane.kept, lane.high,
            )  # fmt: skip
        elif assigned.full and lane.kept <= MOST_WAITING // 2:
            assigned.full = False
            if not assigned.user_paused:
                self._client.resume(assigned.topic, assigned.partition)

    def _recover(self) -> None:
        until = time.monotonic() + SLICE_S
        waiting = [assigned for assigned in self.assigned.values() if assigned.state is State.RECOVERING]
        busy = [assigned for assigned in waiting if assigned.ask_at <= time.monotonic()][:AT_ONCE]
        while busy and time.monotonic() < until:
            busy = [assigned for assigned in busy if self._step(assigned)]
        finished = [assigned for assigned in waiting if assigned.held is not None]
        if finished:
            self._activate(finished)

    def _step(self, assigned: Assigned) -> bool:
        """Bring a partition a little further; False when there is no more to do for it now."""
        try:
            if assigned.start is None:
                self._ask_again(assigned)
                return assigned.start is not None
            if assigned.recovery is None:
                assigned.recovery = recover(assigned, self.engine, self._client, self._settings, self._chosen)
            next(assigned.recovery)
        except StopIteration:
            assigned.recovery = None
            return False
        except BaseException as error:
            assigned.recovery = None
            self.engine.lose(assigned.topic, assigned.partition)
            if not isinstance(error, DedupError | KafkaException):
                raise
            assigned.ask_at = time.monotonic() + ASK_AGAIN_S
            if isinstance(error, KafkaException) and _passes(error):
                logger.warning(
                    "%s[%d]: recovery goes on later: %s", assigned.topic, assigned.partition, error
                )
            else:
                self._guard.keep(error)
            return False
        return True

    def _ask_again(self, assigned: Assigned) -> None:
        """Ask where the group stands; a broker that does not answer now is asked again later."""
        wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
        try:
            assigned.start = replace(self._starts([wanted], ASK_AGAIN_S)[0], seek=True)
            assigned.requested = _committed_already(assigned.start)
        except KafkaException as error:
            assigned.ask_at = time.monotonic() + ASK_AGAIN_S
            if not _passes(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s)",
                assigned.topic,
                assigned.partition,
                error,
            )

    def _activate(self, finished: list[Assigned]) -> None:
        """Say at once where each history begins, then let the partitions deliver."""
        starts = [(assigned, assigned.start) for assigned in finished if assigned.start is not None]
        self.commits.beginnings(assigned for assigned, start in starts if start.at_once)
        for assigned, start in starts:
            assigned.state = State.ACTIVE
            if assigned.stopped:
                self._place_again(assigned, start.offset)
            elif start.seek:
                self._client.seek(assigned.topic, assigned.partition, start.offset)
            if not assigned.user_paused:
                self._client.resume(assigned.topic, assigned.partition)
            self._announce.append(assigned)
        self._client.wake([TopicPartition(assigned.topic, assigned.partition) for assigned in finished])
        if not self.recovering:
            held = [assigned for assigned in self._announce if assigned.state is State.ACTIVE]
            self._log_rebalance("assigned", held)
            self._announce = []

    def _place_again(self, assigned: Assigned, offset: int) -> None:
        others = [other for other in self.assigned.values() if other is not assigned]
        at = [TopicPartition(other.topic, other.partition, _reads_on_at(other)) for other in others]
        self._client.place_again(TopicPartition(assigned.topic, assigned.partition, offset), at)
        assigned.stopped = False
        for other in others:
            if other.state is State.ACTIVE and not (other.user_paused or other.full):
                self._client.resume(other.topic, other.partition)

    # --- the line in the log -------------------------------------------------------------------------------------

    def _log_rebalance(self, what: str, partitions: list[Assigned]) -> None:
        """Write one line that says everything: partitions, how each came up to date, verdicts since the last line."""
        counted = Counter(self.engine.counters.as_dict())
        since = {name: count for name, count in (counted - self._counted).items() if count}
        self._counted = counted
        each = "; ".join(
            f"{a.topic}[{a.partition}]"
            + (f"@{a.start.offset} ({a.note}, {a.seconds:.2f} s)" if a.start and a.note else "")
            for a in partitions
        )
        logger.info(
            "%s %d partitions: %s; verdicts since the last rebalance: %s",
            what,
            len(partitions),
            each or "-",
            since or "none",
        )


_PASSING = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
})  # fmt: skip
"""What an answer of the group's coordinator may say while it is not ready, or while the group rebalances."""


def _committed_already(start: Start | None) -> int:
    """Return the offset that the group has committed as it would be committed now, -1 if there is none."""
    return -1 if start is None or start.at_once else start.offset


def _reads_on_at(assigned: Assigned) -> int:
    if assigned.state is State.ACTIVE and assigned.held is not None:
        return assigned.held.lane.position
    return 0 if assigned.start is None else assigned.start.offset


def _passes(error: KafkaException) -> bool:
    cause = error.args[0]
    return isinstance(cause, KafkaError) and (cause.retriable() or cause.code() in _PASSING)
