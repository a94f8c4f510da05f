"""What a consumer holds between polls: its partitions, their recovery, and its commits.

Everything here runs on the thread that polls. Nothing in a rebalance callback waits for a recovery.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import ConfigurationError, DedupError
from dedup_sdk.kafka.assigned import Assigned, Start, State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.metadata import CommitMetadata, parse_metadata
from dedup_sdk.kafka.recovery import RecoverySettings, recover
from dedup_sdk.kafka.settings import ClientSettings

logger = logging.getLogger("dedup_sdk")

SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""

Coordinates = tuple[str, int]


class Session:
    """Partitions in hand, by coordinates."""

    def __init__(
        self, engine: Deduplicator, client: Client, settings: ClientSettings, chosen: RecoverySettings
    ) -> None:
        self.engine = engine
        self.assigned: dict[Coordinates, Assigned] = {}
        self._client = client
        self._settings = settings
        self._chosen = chosen
        self._next_commit = time.monotonic() + settings.commit_interval_s
        self._announce: list[Assigned] = []
        self.manual = False
        self._counted: Counter[str] = Counter()

    # --- partitions come and go ----------------------------------------------------------------------------------

    def take(self, partitions: list[TopicPartition], *, incremental: bool | None = None, manual: bool = False) -> None:
        """Take partitions over: paused, at the place where the group stands; recovery follows in `work`.

        ``manual``: the user assigned them, no group does, so that nothing will tell when they go.
        """
        starts: list[Start | None]
        try:
            starts = list(self._starts(partitions))
        except (KafkaException, DedupError) as error:
            logger.warning("the group's offsets are not known yet (%s); asking again", error)
            starts = [None] * len(partitions)
        at = [TopicPartition(p.topic, p.partition, s.offset if s else 0) for p, s in zip(partitions, starts, strict=True)]
        self._client.assign(at, incremental=incremental)
        self.manual = manual
        for tp, start in zip(partitions, starts, strict=True):
            self.assigned[tp.topic, tp.partition] = Assigned(tp.topic, tp.partition, start, wanted=tp.offset)

    def _starts(self, partitions: list[TopicPartition]) -> list[Start]:
        if not partitions:
            return []
        asked = self._client.committed([TopicPartition(p.topic, p.partition) for p in partitions])
        committed = {(p.topic, p.partition): p for p in asked}
        return [self._start(tp, committed[tp.topic, tp.partition]) for tp in partitions]

    def _start(self, wanted: TopicPartition, committed: TopicPartition) -> Start:
        """Decide where a partition starts: where the user's callback says, where the group stands, or by policy."""
        if committed.error is not None:
            raise KafkaException(committed.error)
        offset = wanted.offset
        if offset in (OFFSET_BEGINNING, OFFSET_END):
            offset = self._client.bounds(wanted.topic, wanted.partition)[0 if offset == OFFSET_BEGINNING else 1]
        elif offset < OFFSET_STORED:
            offset = -1
        if committed.offset >= 0:
            metadata = parse_metadata(committed.metadata)
            if offset in (-1, OFFSET_STORED, committed.offset) or offset < 0:
                return Start(offset=committed.offset, metadata=metadata)
            return Start(offset=offset)
        if offset >= 0:
            return Start(offset=offset, new=True)
        return Start(offset=self._client.edge(wanted.topic, wanted.partition, self._settings.reset), new=True)

    def move(self, topic: str, partition: int, offset: int) -> None:
        """Start a partition anew elsewhere: a jump that the user or the broker made."""
        assigned = self.assigned[topic, partition]
        metadata = None
        if assigned.held is not None:
            assigned.held.persist()
            lane = assigned.held.lane
            if lane.low <= offset <= lane.high:
                metadata = CommitMetadata(low=lane.low, era=lane.era, complete=assigned.complete)
        self.engine.close(topic, partition)
        self._client.pause(topic, partition)
        fresh = Assigned(topic, partition, Start(offset=offset, metadata=metadata, seek=True))
        fresh.user_paused = assigned.user_paused
        self.assigned[topic, partition] = fresh

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Write, commit and close: the partitions go to another member in order."""
        mine = [self.assigned[tp.topic, tp.partition] for tp in partitions if (tp.topic, tp.partition) in self.assigned]
        try:
            self._commit(mine, asynchronous=False)
        except (KafkaException, DedupError) as error:
            logger.warning("commit on revoke failed (%s): the next owner sees again what was not committed", error)
        for assigned in mine:
            self._drop(assigned)
            try:
                self.engine.close(assigned.topic, assigned.partition)
            except DedupError as error:
                logger.warning("%s[%d] was not closed in order: %s", assigned.topic, assigned.partition, error)
        self._log_rebalance("revoked", mine)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Close without writing or committing: the partitions belong to others already."""
        mine = [self.assigned[tp.topic, tp.partition] for tp in partitions if (tp.topic, tp.partition) in self.assigned]
        for assigned in mine:
            self._drop(assigned)
            self.engine.lose(assigned.topic, assigned.partition)
        self._log_rebalance("lost", mine)

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
        if event.error().code() != KafkaError._AUTO_OFFSET_RESET or self._settings.reset == "error":  # noqa: SLF001
            return False
        if coordinates not in self.assigned:
            return False
        offset = self._client.edge(*coordinates, self._settings.reset)
        logger.warning(
            "%s[%d]: %s; going on at %d by auto.offset.reset=%s", *coordinates, event.error().str(), offset, self._settings.reset
        )
        self.move(*coordinates, offset)
        return True

    def resolve(self, wanted: TopicPartition) -> int:
        """Return the offset that a logical one (beginning, end) means now."""
        if wanted.offset in (OFFSET_BEGINNING, OFFSET_END):
            return self._client.bounds(wanted.topic, wanted.partition)[0 if wanted.offset == OFFSET_BEGINNING else 1]
        if wanted.offset < 0:
            raise ConfigurationError(f"offset {wanted.offset} is no place in {wanted.topic}[{wanted.partition}]; give an offset")
        return int(wanted.offset)

    def note_pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Remember whose pause it is: a recovery that ends does not undo the user's."""
        for tp in partitions:
            assigned = self.assigned.get((tp.topic, tp.partition))
            if assigned is not None:
                assigned.user_paused = paused

    def resumable(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return those that may deliver now."""
        recovering = {c for c, assigned in self.assigned.items() if assigned.state is State.RECOVERING}
        return [tp for tp in partitions if (tp.topic, tp.partition) not in recovering]

    def work(self) -> None:
        """Do what is due, for at most some 50 ms: recovery, commits."""
        if self.recovering:
            self._recover()
        if time.monotonic() >= self._next_commit:
            self._next_commit = time.monotonic() + self._settings.commit_interval_s
            self.commit_completed()

    def _recover(self) -> None:
        until = time.monotonic() + SLICE_S
        busy = [assigned for assigned in self.assigned.values() if assigned.state is State.RECOVERING][:AT_ONCE]
        finished: list[Assigned] = []
        while busy and time.monotonic() < until:
            for assigned in list(busy):
                if self._step(assigned):
                    busy.remove(assigned)
                    finished.append(assigned)
        if finished:
            self._activate(finished)

    def _step(self, assigned: Assigned) -> bool:
        if assigned.start is None:
            wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
            assigned.start = replace(self._starts([wanted])[0], seek=True)
        if assigned.recovery is None:
            assigned.recovery = recover(assigned, self.engine, self._client, self._settings, self._chosen)
        try:
            next(assigned.recovery)
        except StopIteration:
            assigned.recovery = None
            return True
        except (DedupError, KafkaException):
            assigned.recovery = None
            self.engine.lose(assigned.topic, assigned.partition)
            raise
        return False

    def _activate(self, finished: list[Assigned]) -> None:
        """Say at once where each history begins, then let the partitions deliver."""
        stated = [assigned for assigned in finished if assigned.held is not None]
        try:
            silent = [a for a in stated if a.start is None or a.start.metadata is None]
            self._commit(silent, asynchronous=False, always=True)
        except KafkaException as error:
            logger.warning("the beginning of the history is not committed yet (%s); it goes with the next commit", error)
        for assigned in stated:
            assigned.state = State.ACTIVE
            if assigned.start is not None and assigned.start.seek:
                self._client.seek(assigned.topic, assigned.partition, assigned.start.offset)
            if not assigned.user_paused:
                self._client.resume(assigned.topic, assigned.partition)
        self._announce += stated
        if not self.recovering:
            self._log_rebalance("assigned", self._announce)
            self._announce = []

    # --- commits -------------------------------------------------------------------------------------------------

    def offset_to_commit(self, assigned: Assigned) -> TopicPartition | None:
        """Return the contiguous completed prefix of a partition, with metadata."""
        if assigned.held is None or assigned.start is None:
            return None
        lane = assigned.held.lane
        metadata = CommitMetadata(low=lane.low, era=lane.era, complete=assigned.complete)
        return TopicPartition(assigned.topic, assigned.partition, lane.high, str(metadata))

    def commit_completed(self, *, asynchronous: bool = True) -> list[TopicPartition] | None:
        """Commit what is completed and not committed yet; None when that is nothing, or when it is asynchronous."""
        return self._commit(list(self.assigned.values()), asynchronous=asynchronous)

    def _commit(
        self, partitions: list[Assigned], *, asynchronous: bool, always: bool = False
    ) -> list[TopicPartition] | None:
        offsets = []
        for assigned in partitions:
            # First the store, then the broker: what is committed has to be known after a crash.
            if assigned.held is not None:
                assigned.held.persist()
            offset = self.offset_to_commit(assigned)
            if offset is not None and (always or offset.offset > assigned.requested):
                assigned.requested = offset.offset
                offsets.append(offset)
        return self.commit_exactly(offsets, asynchronous=asynchronous) if offsets else None

    def commits(self, below: dict[Coordinates, int] | None) -> list[TopicPartition]:
        """Return what a commit by the user sends: each partition's completed prefix, at most up to ``below``.

        Without ``below`` only what was not committed yet.
        """
        ready = []
        for coordinates, assigned in self.assigned.items():
            if assigned.held is None or (below is not None and coordinates not in below):
                continue
            assigned.held.persist()
            offset = self.offset_to_commit(assigned)
            if offset is None or (below is None and offset.offset <= assigned.requested):
                continue
            if below is not None and 0 <= below[coordinates] < offset.offset:
                offset.offset = below[coordinates]
            assigned.requested = max(assigned.requested, offset.offset)
            ready.append(offset)
        return ready

    def commit_exactly(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition] | None:
        """Commit these offsets, which carry metadata already."""
        answer = self._client.commit(offsets, asynchronous=asynchronous)
        if answer is not None:
            self.committed(None, answer)
        return answer

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take note of the broker's answer to a commit."""
        for tp in partitions:
            assigned = self.assigned.get((tp.topic, tp.partition))
            if assigned is None:
                continue
            if error is not None or tp.error is not None:
                assigned.requested = -1
                logger.warning("%s[%d]: commit of %d failed: %s", tp.topic, tp.partition, tp.offset, error or tp.error)
            elif assigned.held is not None and assigned.held.started and tp.offset <= assigned.held.lane.high:
                # Above that it is the late answer to a commit from before a seek.
                assigned.held.lane.note_committed(tp.offset)

    # --- the line in the log -------------------------------------------------------------------------------------

    def _log_rebalance(self, what: str, partitions: list[Assigned]) -> None:
        """Write one line that says everything: partitions, how each came up to date, verdicts since the last line."""
        counted = Counter(self.engine.counters.as_dict())
        since = {name: count for name, count in (counted - self._counted).items() if count}
        self._counted = counted
        each = "; ".join(
            f"{a.topic}[{a.partition}]" + (f"@{a.start.offset} ({a.note}, {a.seconds:.2f} s)" if a.start and a.note else "")
            for a in partitions
        )
        logger.info("%s %d partitions: %s; verdicts since the last rebalance: %s", what, len(partitions), each or "-", since or "none")
