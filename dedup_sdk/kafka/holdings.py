"""Which partitions a consumer holds, and from where each of them is read.

Everything here runs on the thread that polls, or under the consumer's lock. Nothing in a rebalance callback waits for a
recovery.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    TopicPartition,
)

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import ConfigurationError, DedupError
from dedup_sdk.kafka.asking import ANSWER_S, Asking
from dedup_sdk.kafka.assigned import Assigned, Beginning, Start, State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commits import Commits, Coordinates
from dedup_sdk.kafka.metadata import CommitMetadata, parse_metadata
from dedup_sdk.kafka.reading import Reading
from dedup_sdk.kafka.rebalance_log import RebalanceLog
from dedup_sdk.kafka.settings import ClientSettings

logger = logging.getLogger("dedup_sdk")

TAKE_S = 1.0
"""Seconds in which brokers are asked, inside a rebalance, where partitions start; what they do not say by then is asked later."""
OFFSET_TAIL = -2000
"""From here down offsets count from the end of the log (``RD_KAFKA_OFFSET_TAIL_BASE`` of librdkafka)."""


class Holdings:
    """Partitions in hand, by coordinates: taken, moved, read again, given back, lost."""

    def __init__(self, engine: Deduplicator, client: Client, settings: ClientSettings) -> None:
        self.engine = engine
        self.assigned: dict[Coordinates, Assigned] = {}
        self.commits = Commits(self.assigned, client, only_hidden=settings.only_user_commits)
        self.placed = False
        """Whether the group, or the user, ever said which partitions are ours; none is an answer too."""
        self.closing = False
        """Whether the client is on its way out: it answers no questions any more, and the group does not wait for it."""
        self._client = client
        self._settings = settings
        self.reading = Reading(self.assigned, client)
        self._asking = Asking(client.questions, client.readers)
        self.log = RebalanceLog(engine)
        self._epochs: Counter[Coordinates] = Counter()

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
            self._asking.be_wary()
            logger.warning("the group's offsets are not known yet (%s); asking again", error)
        finally:
            # Also when interrupted: a partition that the client assigned by itself would be read and dropped for ever.
            at = [
                TopicPartition(p.topic, p.partition, s.offset if s else 0)
                for p, s in zip(partitions, starts, strict=True)
            ]
            self._client.assign(at, incremental=incremental)
            self.placed = True
            for tp, start in zip(partitions, starts, strict=True):
                assigned = self._assigned(tp.topic, tp.partition, start, wanted=tp.offset)
                assigned.by_hand = by_hand
                assigned.stands_at(committed_already(start))
                self.assigned[tp.topic, tp.partition] = assigned
        self.log.came((tp.topic, tp.partition) for tp in partitions)

    @property
    def of_group(self) -> set[Coordinates]:
        """The partitions that the group assigned."""
        return {coordinates for coordinates, assigned in self.assigned.items() if not assigned.by_hand}

    def _assigned(self, topic: str, partition: int, start: Start | None, *, wanted: int) -> Assigned:
        """Begin another epoch of a partition."""
        self._epochs[topic, partition] += 1
        return Assigned(
            topic,
            partition,
            start,
            wanted=wanted,
            epoch=self._epochs[topic, partition],
            taken_at=time.monotonic(),
        )

    def gave(self, message: Any) -> bool:
        """Whether a message in flight was handed out since the partition was taken last.

        A handler that outlived a rebalance, or its consumer, must not end the record that is in flight now, at the same offset.
        """
        assigned = self.assigned.get((message.topic(), message.partition()))
        if assigned is None or assigned.held is None or not assigned.held.started:
            return assigned is not None
        place = assigned.held.lane.place(message.offset())
        return place is None or place.chunk.items[place.row] is message

    def _find_starts(self, partitions: list[TopicPartition], starts: list[Start | None]) -> None:
        """Fill in where partitions start, as far as brokers say it at once: a rebalance waits for us."""
        if not partitions:
            return
        until = 0.0 if self._asking.is_wary else time.monotonic() + TAKE_S
        for row, (tp, committed) in enumerate(self._stand(partitions, ANSWER_S)):
            if time.monotonic() < until or not _hangs_on_the_log(tp, committed):
                try:
                    starts[row] = self._start(tp, committed)
                except KafkaException as error:
                    until = 0.0
                    self._asking.be_wary()
                    # No warning yet: a slow broker has answered when it is asked again, or else that is told.
                    logger.info("%s[%d]: where it starts is asked again (%s)", tp.topic, tp.partition, error)

    def _stand(
        self, partitions: list[TopicPartition], timeout_s: float
    ) -> list[tuple[TopicPartition, TopicPartition]]:
        """Return, with each partition, what the group has committed of it."""
        asked = self._client.committed([TopicPartition(p.topic, p.partition) for p in partitions], timeout_s)
        committed = {(p.topic, p.partition): p for p in asked}
        return [(tp, committed[tp.topic, tp.partition]) for tp in partitions]

    def _start(self, wanted: TopicPartition, committed: TopicPartition) -> Start:
        """Decide where a partition starts: where the user's callback says, where the group stands, or by policy."""
        if committed.error is not None:
            raise KafkaException(committed.error)
        asked = None if wanted.offset in (OFFSET_STORED, OFFSET_INVALID) else self.resolve(wanted)
        if committed.offset >= 0:
            metadata = parse_metadata(committed.metadata, committed=committed.offset)
            if asked is None or asked == committed.offset:
                theirs = metadata is None
                return Start(offset=committed.offset, metadata=metadata, at_once=theirs, before_us=theirs)
            if metadata is not None and asked < committed.offset:
                return Start(offset=asked, metadata=_set_back(metadata, asked), at_once=True)
            return Start(offset=asked, at_once=True)
        if asked is not None:
            return Start(offset=asked, new=True, at_once=True)
        edge = self._client.edge(wanted.topic, wanted.partition, self._settings.reset)
        return Start(offset=edge, new=True, at_once=True)

    def resolve(self, wanted: TopicPartition) -> int:
        """Return the offset that a logical one (beginning, end, so many before the end) means now."""
        if wanted.offset >= 0:
            return int(wanted.offset)
        if wanted.offset not in (OFFSET_BEGINNING, OFFSET_END) and wanted.offset > OFFSET_TAIL:
            raise ConfigurationError(
                f"offset {wanted.offset} is no place in {wanted.topic}[{wanted.partition}]; give an offset"
            )
        low, high = self._client.bounds(wanted.topic, wanted.partition)
        if wanted.offset == OFFSET_BEGINNING:
            return low
        return high if wanted.offset == OFFSET_END else max(low, high - (OFFSET_TAIL - wanted.offset))

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
                metadata = _set_back(history, offset)
                if log_changed:
                    metadata = replace(metadata, low=offset, complete=False)
        # As with the plain client, a seek is no commit: the next progress is, also below what was committed.
        # But a group that is new has to know where it begins, wherever that is: else its store would look foreign to it.
        new = assigned.start is not None and assigned.start.new and assigned.state is State.RECOVERING
        start = Start(
            offset=offset,
            metadata=metadata,
            new=new,
            seek=True,
            at_once=log_changed or new,
        )
        self._begin_again(assigned, start, requested=min(assigned.requested, offset))
        if not log_changed:
            self.commits.hand_on(assigned, self.assigned[topic, partition])

    def _history(self, assigned: Assigned) -> tuple[CommitMetadata, int] | None:
        """Return what the group has processed of a partition without a gap: its beginning, and the offset after its end."""
        if assigned.held is not None:
            lane = assigned.held.lane
            return assigned.metadata(assigned.held, lane.high), lane.high
        start = assigned.start
        if start is None or start.metadata is None or not start.metadata.is_of(assigned.log):
            return None
        return start.metadata, start.offset

    def _begin_again(
        self, assigned: Assigned, start: Start | None, *, requested: int | None = None, write: bool = True
    ) -> None:
        topic, partition = assigned.topic, assigned.partition
        self._client.pause(topic, partition)
        self._leave(assigned)
        fresh = self._assigned(topic, partition, start, wanted=assigned.wanted)
        fresh.by_hand = assigned.by_hand
        fresh.user_paused = assigned.user_paused
        fresh.requested = assigned.requested if requested is None else requested
        fresh.confirmed = assigned.confirmed
        fresh.stopped = assigned.stopped
        self.assigned[topic, partition] = fresh
        self._end(assigned, write=write and assigned.held is not None)

    def reconcile(self, actual: Iterable[Coordinates]) -> bool:
        """Hold what the client says is ours, and nothing else: a rebalance may have been interrupted half way.

        True when there was something to change.
        """
        ours, theirs = set(self.assigned), set(actual)
        self.lose([TopicPartition(*coordinates) for coordinates in ours - theirs])
        if theirs <= ours:
            return ours != theirs
        incremental = self._settings.incremental
        by_hand = bool(self.assigned) and not self.of_group
        if incremental:
            missing = [TopicPartition(*coordinates) for coordinates in theirs - ours]
            self._client.unassign(missing)
        else:
            self.lose([TopicPartition(*coordinates) for coordinates in ours & theirs])
            missing = [TopicPartition(*coordinates) for coordinates in theirs]
        self.take(missing, incremental=incremental, by_hand=by_hand)
        return True

    def reopen_all(self) -> None:
        """Forget what is in flight and read every partition again from its watermark: its state may be half way."""
        self.commits.await_nothing()
        for assigned in list(self.assigned.values()):
            known = self._history(assigned)
            if assigned.held is None or known is None:
                self._begin_again(
                    assigned,
                    None if assigned.start is None else replace(assigned.start, seek=True),
                    write=False,
                )
            else:
                self._begin_again(assigned, self._where_it_stood(assigned, known), write=False)

    def _where_it_stood(self, assigned: Assigned, known: tuple[CommitMetadata, int]) -> Start:
        history, high = known
        # What is in memory may be half-changed: only what the store has, and what the group's commit told, is completed.
        history = replace(history, done=assigned.told)
        start = assigned.start
        if assigned.held is not None:
            acknowledged = assigned.held.lane.committed
        elif start is not None:
            acknowledged = start.acknowledged if start.reopened else start.offset
        else:
            acknowledged = None
        return Start(offset=high, metadata=history, seek=True, reopened=True, acknowledged=acknowledged)

    def refetch_all(self) -> None:
        """Read every partition again from where judging stands: what the client fetched may be lost, and the answers it had."""
        self.commits.await_nothing()
        for assigned in self.assigned.values():
            if assigned.beginning is Beginning.ASKED:
                assigned.beginning, assigned.ask_at = Beginning.TO_ASK, 0.0
            if assigned.state is State.RECOVERING and assigned.start is not None:
                assigned.start = replace(assigned.start, seek=True)
        self.refetch(c for c, assigned in self.assigned.items() if assigned.state is State.ACTIVE)

    def refetch(self, partitions: Iterable[Coordinates]) -> None:
        """Read these partitions again from where judging stands."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                self.reading.again(self.assigned[coordinates])

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Write, commit and close: the partitions go to another member in order.

        All of it within one deadline, or the group would put this member out. What does not fit is abandoned: its next owner
        sees again what was neither written nor committed. Those that belong to others already are lost, as by `lose`.
        """
        until = time.monotonic() + self._settings.revoke_deadline_s
        held = self._mine(partitions)
        mine = [assigned for assigned in held if assigned.state is not State.LOST]
        self._drop([assigned for assigned in held if assigned.state is State.LOST])
        for assigned in mine:
            assigned.enter(State.REVOKING)
        try:
            answer_by = None if self.closing else until
            if self._settings.only_user_commits:
                self.commits.pay(asynchronous=False, until=answer_by)
            self.commits.completed(mine, asynchronous=False, until=answer_by)
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

    def condemn(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        """Have partitions that belong to others already take no marks and commit nothing from here on; return them."""
        mine = self._mine(partitions)
        for assigned in mine:
            if assigned.state is not State.LOST:
                assigned.enter(State.LOST)
        return mine

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Close without writing or committing: the partitions belong to others already."""
        self._drop(self.condemn(partitions))

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
        self._asking.forget(assigned.topic, assigned.partition)
        self.assigned.pop((assigned.topic, assigned.partition), None)

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


def _left_out(assigned: Assigned) -> int:
    """Return how many completions the commit of a partition has no room for."""
    held = assigned.held
    return 0 if held is None or not held.started else assigned.left_out(held, held.lane.high)


def _hangs_on_the_log(wanted: TopicPartition, committed: TopicPartition) -> bool:
    """Whether a start has to be asked of the partition's leader."""
    if wanted.offset in (OFFSET_STORED, OFFSET_INVALID):
        return bool(committed.offset < 0)
    return bool(wanted.offset < 0)


def _set_back(history: CommitMetadata, offset: int) -> CommitMetadata:
    """Return the history of a group that goes back: it stays, or begins there if that is before it.

    In a new era: also a store that knows no more than what was committed sees that this goes back.
    """
    return replace(history, low=min(history.low, offset), era=secrets.token_hex(4), done=None)


def committed_already(start: Start | None) -> int:
    """Return the offset that the group has committed as it would be committed now, -1 if there is none."""
    return -1 if start is None or start.at_once else start.offset
