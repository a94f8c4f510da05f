"""One assigned partition: its state, its start offset, the progress of its recovery, and the client's read position.

Invariants:

- The state changes only along `TRANSITIONS`.
- Only an active partition delivers. A revoking one may still write and commit; a lost or closed one does neither.
- A partition that moves (a seek, or a log that changed) is closed, and a new `Assigned` with the same coordinates takes
  its place. No state has to be undone.

`status_of` and `hindrances_of` report the state of a partition to users, dashboards and the log line after a rebalance.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    TopicPartition,
)

from dedup_sdk._core.flight import Flight
from dedup_sdk._core.ranges import Ranges, before_offset, count_offsets
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import CommitState
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.commit_text import (
    CommitMetadata,
    CompletedAbove,
    InvalidReason,
    new_era,
    parse_metadata,
    rule_named_in,
    why_void,
)
from dedup_sdk._kafka.client.settings import Reset
from dedup_sdk._marks import Witness
from dedup_sdk._metrics import Hindrance
from dedup_sdk._observe import PartitionStatus
from dedup_sdk._store.protocol import StoreStats
from dedup_sdk.errors import ConfigurationError, RecoveryError

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]
"""Topic and partition."""
SetBack = Literal["again", "known"]
"""What becomes of handled records after an assignment below the committed offset."""


class Wait(NamedTuple):
    """A recovery step yields this when it cannot continue for some seconds: other recoveries run in the meantime."""

    seconds: float
    hindrance: Hindrance
    """The reason for the wait, as `PartitionStatus.hindrances` names it."""


T = TypeVar("T")
Steps = Generator[Wait | None, None, T]
"""Work in steps of a few milliseconds each; the generator's return value is the result."""


class State(Enum):
    """The state of an assigned partition."""

    ASKING = "asking"
    """Its start offset is being requested from the brokers."""
    OPENING = "opening"
    """Its store is being opened, and the group's history compared with the log."""
    REPLAYING = "replaying"
    """A snapshot is being installed, or the tail of the log read."""
    ANNOUNCING = "announcing"
    """Recovered; delivers as soon as the broker has accepted the commit that says where the group's history begins."""
    FAILED = "failed"
    """Delivers nothing until it is moved or assigned again: an unexpected error was raised twice without progress."""
    ACTIVE = "active"
    """Delivers."""
    REVOKING = "revoking"
    """Being revoked: completed records are written and committed before another member gets it."""
    LOST = "lost"
    """Another member may own it already: nothing is written or committed."""
    CLOSED = "closed"
    """Closed; the final state."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.ASKING: frozenset({State.OPENING, State.REVOKING, State.LOST}),
    State.OPENING: frozenset({State.REPLAYING, State.ANNOUNCING, State.FAILED, State.REVOKING, State.LOST}),
    State.REPLAYING: frozenset({State.OPENING, State.ANNOUNCING, State.FAILED, State.REVOKING, State.LOST}),
    State.ANNOUNCING: frozenset({State.ACTIVE, State.REVOKING, State.LOST}),
    State.FAILED: frozenset({State.REVOKING, State.LOST}),
    State.ACTIVE: frozenset({State.REVOKING, State.LOST}),
    State.REVOKING: frozenset({State.LOST, State.CLOSED}),
    State.LOST: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""The allowed next states. A failed recovery restarts; a revocation that fails half way ends as a loss."""

CATCHING_UP: Final = frozenset({State.ASKING, State.OPENING, State.REPLAYING})
"""States in which the recovery has work to do."""
RECOVERING: Final = CATCHING_UP | {State.ANNOUNCING}
"""States in which the partition does not deliver yet, but will."""
NOT_YET_DELIVERING: Final = RECOVERING | {State.FAILED}
"""States before delivery, including `State.FAILED`, which never leads to delivery."""
ENDING: Final = frozenset({State.REVOKING, State.LOST, State.CLOSED})
"""States on the way out: what an interruption leaves in one of them is closed, not written."""
OURS: Final = NOT_YET_DELIVERING | {State.ACTIVE, State.REVOKING}
"""States in which this member owns the partition and the group accepts its commits."""


class Pause(Enum):
    """A reason why an active partition delivers nothing. It delivers again when no reason is left."""

    USER = "user"
    """`DedupConsumer.pause`."""
    BACKLOG = "backlog"
    """Too many of its records wait for an earlier record that is not completed."""
    DISK = "disk"
    """The disk is full, so that its marks cannot be written."""
    ELSEWHERE = "elsewhere"
    """A gate holds later records back: an ID is in flight elsewhere, or the shared store does not answer."""
    HANDLERS = "handlers"
    """`DedupConsumer.run` holds as many messages as it accepts."""


class LogChange(NamedTuple):
    """How the log differs from the one the group committed in: other records from an offset on, or an earlier end."""

    same_until: int | None = None
    """The end of the common prefix, as the broker gives it for the leader epoch; None where it was not asked yet."""
    contradicted_at: int | None = None
    """The first completed offset where the log has another record, according to the marks; it differs from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a partition starts, and its history according to the group's commit.

    ``offset`` is the first offset to deliver. ``metadata`` is None when the group never committed, or its commit has no
    valid text of this package. ``new`` says that neither a commit nor a store is known to have a history of the group.
    """

    offset: int
    metadata: CommitMetadata | None = None
    era: str = field(default_factory=new_era)
    """The era that begins here where there is no ``metadata``: a commit without a valid text vouches for nothing."""
    new: bool = False
    by_reset: bool = False
    """``offset`` comes from ``auto.offset.reset``: neither a commit nor the user says where to begin."""
    refused: RecoveryError | None = None
    """``auto.offset.reset`` gives none: the error to raise unless the store says where to begin."""
    placed: bool = False
    """The user's program gave ``offset``: records from there on are to be handled, whatever a store has of them."""
    must_commit_first: bool = False
    """The group's commit does not have the beginning of its history yet: commit that before anything is delivered."""
    void: InvalidReason | None = None
    """Why the commit's text is void; None where it is valid, or ``offset`` is not the committed offset."""
    void_rule: str | None = None
    """The rule named in a void text at ``offset`` (see `commit_text.rule_named_in`); None without one."""
    log_change: LogChange | None = None
    """How the log is known to differ from the log that the group committed in; None unless a difference is known."""
    reopened: bool = False
    """``offset`` is this consumer's own position, which the group may not have committed yet; see ``acknowledged``."""
    given: int | None = None
    """The lower offset that the user gave instead of ``offset``; it counts where ``metadata`` turns out to be void."""
    acknowledged: int | None = None
    """With ``reopened``: the offset that the broker confirmed last; None when there was none."""

    @property
    def is_unvouched(self) -> bool:
        """Whether nothing is known of the records before ``offset``, so that the user may vouch for them.

        Not where another rule was in use: the user cannot vouch for records that it hid.
        """
        return self.void not in (None, InvalidReason.OTHER_RULE)

    @property
    def rule(self) -> str | None:
        """The rule in use up to ``offset`` according to the commit's text, valid or void; None where it names none."""
        return self.void_rule if self.metadata is None else self.metadata.rule

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the records before ``offset`` according to the group's commit; None where it has none."""
        return None if self.metadata is None else self.metadata.epoch


@dataclass(slots=True, weakref_slot=True)
class Assigned:
    """One assigned partition, from its assignment (or a move) until it is revoked, lost or moved again."""

    topic: str
    partition: int
    start: Start | None = None
    """None until the brokers have given the group's committed offset."""
    reads_from: int = -1
    """The offset at which the client continues when the partition is resumed; -1: unknown."""
    wanted: int = OFFSET_INVALID
    """The offset that came with the assignment."""
    by_hand: bool = False
    """Whether the user assigned it, not the group: no callback announces its end, and it outlives a rebalance."""
    taken_at: float = 0.0
    """When (monotonic seconds) it was assigned or moved; `Recovery.timeout` counts from there."""
    state: State = State.ASKING
    engine_partition: Partition | None = None
    """The engine's partition, once recovery has ended."""

    recovery: Steps[None] | None = None
    """The running recovery."""
    waits_for: Hindrance | None = None
    """The reason why its recovery waits; None while it makes progress."""
    ask_at: float = 0.0
    """When (monotonic seconds) its recovery continues and may send requests to brokers again."""
    silent_since: float = 0.0
    """When (monotonic seconds) the silence began that `silent_s` measures; 0: with the next failed request."""
    failures: int = 0
    """Requests of its recovery that failed in a row."""
    answer_s: float = 0.0
    """Timeout in seconds of a request to its leader; 0: the default."""
    failed_at: int | None = None
    """Its position at the last unexpected error, which may have left it half-changed; None: there was no such error."""
    note: str = ""
    """The result or the progress of recovery, for the log line."""
    replayed: int = 0
    """Records that recovery has replayed."""
    reached: tuple[int, int] | None = None
    """The offset that its replay has reached, and the end of the replay; None before a replay."""
    seconds: float = 0.0
    """Duration of its recovery in seconds."""

    pauses: set[Pause] = field(default_factory=set)
    """The reasons why it delivers nothing although it is active."""
    stopped: bool = False
    """Whether the client stopped fetching it because the log does not have the requested offset."""
    uncompleted: bool = False
    """Whether many records were delivered and none completed, in a mode where only the user's offsets complete."""

    delivered_to: int = -1
    """The offset after the last message that came before a move or a reopening, until one comes; -1 without these."""
    commits: CommitState = field(default_factory=CommitState)
    """Commits sent to the group coordinator, and the answers."""

    log: str = ""
    """The log of its offsets (see `commit_text.log_name`); empty until recovery has requested it."""
    complete: bool = False
    """Whether the group was new at ``low``, according to its commits: its history lacks nothing before that."""
    completed_above: CompletedAbove | None = None
    """The offsets completed above the committed one, as the group's commit listed them when recovery ended."""

    def __post_init__(self) -> None:
        """Skip `State.ASKING` where the start is known."""
        if self.start is not None and self.state is State.ASKING:
            self.enter(State.OPENING)

    @property
    def coordinates(self) -> Coordinates:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def as_given(self) -> TopicPartition:
        """The partition with the offset that came with the assignment, as the plain client shows it."""
        given = OFFSET_STORED if self.wanted == OFFSET_INVALID else self.wanted
        return TopicPartition(self.topic, self.partition, given)

    @property
    def recovers(self) -> bool:
        """Whether it does not deliver yet; also true for `State.FAILED`."""
        return self.state in NOT_YET_DELIVERING

    @property
    def is_fetched(self) -> bool:
        """Whether the client must fetch it: it is active and not paused."""
        return self.state is State.ACTIVE and not self.pauses

    def pause(self, why: Pause) -> bool:
        """Add a reason to pause; return whether the client must stop fetching the partition."""
        was_fetched = self.is_fetched
        self.pauses.add(why)
        return was_fetched

    def lift(self, why: Pause) -> bool:
        """Remove a reason to pause; return whether the client must fetch the partition again: no reason is left."""
        was_there = why in self.pauses
        self.pauses.discard(why)
        return was_there and self.is_fetched

    def note_uncompleted(self, uncompleted: bool) -> bool:  # noqa: FBT001 (the value to set)
        """Set ``uncompleted``; return whether it became true with this call."""
        before, self.uncompleted = self.uncompleted, uncompleted
        return uncompleted and not before

    def note_stop(self) -> None:
        """Record that the client stopped fetching the partition."""
        self.stopped = True

    # --- progress of recovery --------------------------------------------------------------------------------------

    def begin_recovery(self, steps: Steps[None]) -> None:
        """Set the running recovery."""
        self.recovery = steps

    def end_recovery(self) -> None:
        """Clear the recovery, which has ended."""
        self.recovery = self.waits_for = None
        self.failures, self.silent_since = 0, 0.0

    def recover_anew(self) -> None:
        """Discard the failed recovery, so that the next step starts a new one."""
        self.recovery = None
        if self.state is State.REPLAYING:
            self.enter(State.OPENING)

    def wait_until(self, at: float, hindrance: Hindrance | None) -> None:
        """Suspend its recovery and its requests until a time (monotonic seconds); ``hindrance``: the reason."""
        self.ask_at, self.waits_for = at, hindrance

    def count_failure(self) -> int:
        """Count a request that failed; return how many failed in a row."""
        self.failures += 1
        return self.failures

    def silent_s(self, now: float) -> float:
        """Return the seconds since the first request of its recovery that was not answered."""
        self.silent_since = self.silent_since or now
        return now - self.silent_since

    def note_answer(self, at: float = 0.0) -> None:
        """Restart the count of `silent_s` at a time (monotonic seconds); 0: at the next failure."""
        self.silent_since = at

    def set_answer_time(self, answer_s: float) -> None:
        """Set the timeout in seconds of requests to its leader."""
        self.answer_s = answer_s

    # --- results of recovery ---------------------------------------------------------------------------------------

    def identify(self, log: str) -> None:
        """Set the log that its offsets belong to."""
        self.log = log

    def begin_at(self, start: Start) -> None:
        """Set a start other than the committed offset: offsets after it that were requested must be committed again."""
        self.start = start
        self.commits.forget_move()
        self.commits.ask_again()

    def learn(self, start: Start, more: Start) -> None:
        """Replace ``start`` by itself with more known of it; nothing if the partition starts otherwise by now."""
        if self.start is start:
            self.start = more

    def replay(self, note: str, records: int = 0) -> None:
        """Set the note on a replay or a snapshot installation; add ``records`` to the count of replayed records."""
        if self.state is State.OPENING:
            self.enter(State.REPLAYING)
        self.note, self.replayed = note, self.replayed + records
        if records:
            self.silent_since = 0.0

    def note_reached(self, offset: int, end: int) -> None:
        """Set the offset that the replay has reached, and its end."""
        self.reached = offset, end

    def be_ready(
        self,
        partition: Partition,
        *,
        complete: bool,
        completed_above: CompletedAbove | None,
        note: str,
        seconds: float,
    ) -> None:
        """End the recovery: ``partition`` accepts records from the start offset on; the rest are attributes."""
        self.engine_partition, self.complete, self.completed_above, self.note, self.seconds = (
            partition,
            complete,
            completed_above,
            note,
            seconds,
        )
        if completed_above is not None and self.start is not None:
            is_committed = (
                not (self.start.must_commit_first or self.delivered_to >= 0)
                and completed_above.ranges[0][0] >= self.start.offset
            )
            self.commits.note_done(completed_above.encode(self.start.offset) if is_committed else "")
        self.enter(State.ANNOUNCING)

    # --- state and commits -----------------------------------------------------------------------------------------

    def note_unexpected_error(self, at: int) -> None:
        """Record an unexpected error at an offset; a second one at the same offset fails the partition."""
        again, self.failed_at = self.failed_at == at, at
        if again:
            self.enter(State.FAILED)
            logger.error(
                "%s[%d] is closed: the error just raised to your program came a second time at offset %d with nothing "
                "completed in between. The other partitions go on. Remove the cause, then restart this consumer or "
                "seek the partition",
                self.topic, self.partition, at,
                extra={"event": "partition-failed"},
            )  # fmt: skip

    @property
    def is_ours(self) -> bool:
        """Whether this member owns it and may commit."""
        return self.state in OURS

    @property
    def is_placed(self) -> bool:
        """Whether the assignment gave a start offset: the user may then keep offsets outside Kafka."""
        return self.wanted not in (OFFSET_STORED, OFFSET_INVALID)

    @property
    def was_moved_here(self) -> bool:
        """Whether this program moved it: it gave a start offset, or the partition began anew since."""
        return self.is_placed or self.delivered_to >= 0

    def starts_at(self, start: Start) -> None:
        """Set the start. Its offset counts as committed by the group, unless ``must_commit_first``."""
        self.start = start
        self.enter(State.OPENING)
        committed = -1 if start.must_commit_first else start.offset
        self.commits = CommitState(requested=committed, confirmed=-1 if self.is_placed else committed)

    def commit_of(self, partition: Partition, offset: int) -> TopicPartition:
        """Return the commit, with its text, of an offset that is not above the partition's watermark."""
        return self._commit(offset, self.metadata(partition, offset))

    def commit_as_if(self, partition: Partition, completed: Collection[int]) -> TopicPartition:
        """Return the commit, with its text, that would be right if the records at these offsets were completed."""
        offset, above = partition.as_if_completed(completed)
        return self._commit(offset, self.metadata(partition, offset, above))

    def _commit(self, offset: int, metadata: CommitMetadata) -> TopicPartition:
        epoch = -1 if metadata.epoch is None else metadata.epoch
        return TopicPartition(self.topic, self.partition, offset, metadata.text(offset), epoch)

    def metadata(self, partition: Partition, offset: int, above: Ranges | None = None) -> CommitMetadata:
        """Return the metadata of a commit of an offset.

        ``above``: the half-open ranges completed above it; None: those that are.
        """
        flight, memory = partition.flight, partition.memory
        metadata = CommitMetadata(
            low=min(memory.committed_low, offset),
            era=flight.era,
            complete=self.complete and not memory.exact_from,
            epoch=flight.epoch,
            log=self.log,
            rule=partition.terms.rule,
        )
        if above is None:
            above = partition.completed_above(offset)
        ranges = above if self.commits.has_room_for_done else ()
        return metadata.with_done(ranges, offset, partial(self._witness, flight)) if ranges else metadata

    def left_out(self, partition: Partition, offset: int) -> int:
        """Return how many completed offsets above ``offset`` do not fit into its commit.

        The next owner gets their records again.
        """
        done = self.metadata(partition, offset).done
        committed = 0 if done is None else count_offsets(done.ranges)
        return count_offsets(partition.completed_above(offset)) - committed

    def _witness(self, flight: Flight, offset: int) -> Witness | None:
        place = flight.place(offset)
        if place is not None:
            return Witness.of(offset, int(place.chunk.timestamps[place.row]), place.chunk.digests[place.row])
        last = None if self.completed_above is None else self.completed_above.witness
        return last if last is not None and last.offset == offset else flight.witness_of(offset)

    def delivered_until(self, delivered_to: int | None) -> int:
        """Return the offset after the last message that the application got, before a move, too, that brought none.

        ``delivered_to``: that of this assignment; None: all that were judged count as delivered.
        """
        partition = self.engine_partition
        if partition is None:
            return self.delivered_to
        now = partition.flight.position if delivered_to is None else delivered_to
        return now if partition.has_offered else max(now, self.delivered_to)

    def enter(self, state: State) -> None:
        """Change the state; AssertionError where `TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(
                f"{self.topic}[{self.partition}] cannot go from {self.state.name} to {state.name}"
            )
        self.state = state
        if state in (State.LOST, State.CLOSED) and self.engine_partition is not None:
            self.engine_partition.fence()


class Reading:
    """Seeks partitions in the client, including those it stopped fetching, for which the client refuses a seek.

    Each seek is noted in ``moved``. Messages fetched before it must be dropped: judged first, they would raise the
    position above records that are read again.
    """

    def __init__(self, assigned: Mapping[Coordinates, Assigned], client: Client) -> None:
        self._assigned = assigned
        self._client = client
        self.moved: set[Coordinates] = set()
        """Partitions that were moved in the client: messages fetched before the move must be dropped."""

    def take_moved(self) -> set[Coordinates]:
        """Return and clear the partitions moved since the last call."""
        moved, self.moved = self.moved, set()
        return moved

    def begin(self, assigned: Assigned, offset: int, leader_epoch: int | None) -> None:
        """Seek a partition that is about to deliver to an offset; see `Client.seek` for the epoch."""
        topic, partition = assigned.topic, assigned.partition
        if assigned.stopped or not self._client.seek(topic, partition, offset, leader_epoch=leader_epoch):
            self._reassign(assigned, offset)
            if leader_epoch is not None and not self._client.seek(
                topic, partition, offset, leader_epoch=leader_epoch
            ):
                raise RecoveryError(
                    f"{topic}[{partition}] cannot be moved to offset {offset}: the client does not fetch it; try again"
                )
        self.moved.add((topic, partition))

    def again(self, assigned: Assigned) -> None:
        """Seek an active partition back to its position, the next offset to judge.

        Not one that is known to have stopped: the client's event about it is handled first.
        """
        if assigned.state is State.ACTIVE and assigned.engine_partition is not None and not assigned.stopped:
            position = assigned.engine_partition.flight.position
            if not self._client.seek(assigned.topic, assigned.partition, position):
                # It stopped, and an interrupted call lost the event: assigned again, it stops and reports once more.
                self._reassign(assigned, position)

    def _reassign(self, assigned: Assigned, offset: int) -> None:
        next_offsets = {each.coordinates: _next_offset(each) for each in self._assigned.values()}
        next_offsets[assigned.coordinates] = offset
        others = [TopicPartition(*c, at) for c, at in next_offsets.items() if c != assigned.coordinates]
        all_anew = self._client.reassign(TopicPartition(*assigned.coordinates, offset), others)
        anew = list(self._assigned.values()) if all_anew else [assigned]
        self.moved.update(each.coordinates for each in anew)
        assigned.stopped = False
        for each in anew:
            each.reads_from = next_offsets[each.coordinates]
            if each.is_fetched:
                self._client.resume(each.topic, each.partition)


def _next_offset(assigned: Assigned) -> int:
    if assigned.state is State.ACTIVE and assigned.engine_partition is not None:
        return assigned.engine_partition.flight.position
    return 0 if assigned.start is None else assigned.start.offset


OFFSET_TAIL: Final = -2000
"""Offsets from here down count back from the end of the log (``RD_KAFKA_OFFSET_TAIL_BASE`` of librdkafka)."""


class Starts:
    """Finds start offsets: given by the user's callback, committed by the group, or by ``auto.offset.reset``."""

    def __init__(self, client: Client, reset: Reset, set_back: SetBack | None = None) -> None:
        self._client, self._reset, self._set_back = client, reset, set_back
        self._is_told = False

    def start(self, wanted: TopicPartition, committed: TopicPartition) -> Start:
        """Return where a partition starts; raises `KafkaException` or `DedupError`."""
        if committed.error is not None:
            raise KafkaException(committed.error)
        given = None if wanted.offset in (OFFSET_STORED, OFFSET_INVALID) else self.resolve(wanted)
        if committed.offset < 0:
            if given is not None:
                return Start(offset=given, new=True, placed=True, must_commit_first=True)
            return self._by_reset(wanted)
        metadata = parse_metadata(committed.metadata, committed=committed.offset)
        again = self._set_back != "known"
        if given is None or given == committed.offset:
            placed = given is not None and again
            anew = placed and metadata is not None and metadata.done is not None
            return Start(
                offset=committed.offset,
                metadata=set_back(metadata, committed.offset) if anew and metadata is not None else metadata,
                placed=placed,
                must_commit_first=metadata is None or anew,
                void=why_void(committed.metadata, committed=committed.offset),
                void_rule=rule_named_in(committed.metadata),
            )
        if given < committed.offset:
            if not again and metadata is not None and metadata.low <= given:
                # All records between are completed: to read them again would hide each of them.
                return Start(offset=committed.offset, metadata=metadata, given=given)
            self._tell_of_set_back(wanted, given, committed.offset)
        if metadata is not None and given < committed.offset:
            return Start(offset=given, metadata=set_back(metadata, given), must_commit_first=True)
        era = new_era() if metadata is None else metadata.era
        return Start(offset=given, era=era, placed=again, must_commit_first=True)

    def _by_reset(self, wanted: TopicPartition) -> Start:
        """Return the start of a group without a commit; an error counts only where no store has its history."""
        edge, refused = 0, None
        try:
            edge = self._client.edge(wanted.topic, wanted.partition, self._reset)
        except RecoveryError as error:
            refused = error
        return Start(offset=edge, new=True, by_reset=True, refused=refused, must_commit_first=True)

    def _tell_of_set_back(self, wanted: TopicPartition, given: int, committed: int) -> None:
        """Log once, unless the user has chosen, that an assignment sets the group back."""
        if self._set_back is not None or self._is_told:
            return
        self._is_told = True
        logger.warning(
            "%s[%d]: your program assigned it at %d, below the committed offset %d: all messages from there on are "
            "handled again, at each such assignment. To hide those that the group has handled, set "
            'Recovery(set_back="known"); set Recovery(set_back="again") to leave it as it is, without this line',
            wanted.topic, wanted.partition, given, committed,
            extra={"event": "assigned-below-commit"},
        )  # fmt: skip

    def resolve(self, wanted: TopicPartition) -> int:
        """Return the offset that a logical one (beginning, end, a count before the end) stands for now."""
        if wanted.offset >= 0:
            return int(wanted.offset)
        if wanted.offset not in (OFFSET_BEGINNING, OFFSET_END) and wanted.offset > OFFSET_TAIL:
            raise ConfigurationError(
                f"offset {wanted.offset} is not valid for {wanted.topic}[{wanted.partition}]; give one from 0 on, or "
                "OFFSET_BEGINNING, OFFSET_END or OFFSET_STORED"
            )
        low, high = self._client.bounds(wanted.topic, wanted.partition)
        if wanted.offset == OFFSET_BEGINNING:
            return low
        return high if wanted.offset == OFFSET_END else max(low, high - (OFFSET_TAIL - wanted.offset))


def needs_leader(wanted: TopicPartition, committed: TopicPartition) -> bool:
    """Whether finding the start needs a request to the partition's leader."""
    if wanted.offset in (OFFSET_STORED, OFFSET_INVALID):
        return bool(committed.offset < 0)
    return bool(wanted.offset < 0)


def set_back(history: CommitMetadata, offset: int) -> CommitMetadata:
    """Return the history of a group that is set back to ``offset``: it begins there if that is below ``low``.

    Its era is new, so that a store which knows no more than the commit also recognises the rewind. What is completed
    below ``offset`` stays so.
    """
    done = history.done
    if done is not None and done.ranges[-1][1] > offset:
        below = before_offset(done.ranges, offset)
        done = CompletedAbove(below, None) if below else None
    return replace(history, low=min(history.low, offset), era=new_era(), done=done)


MOST_LISTED = 5
"""Partitions that a log line lists at most."""


def warn_of_recovering(partitions: Collection[Assigned]) -> None:
    """Log one warning if the consumer closes before partitions deliver: the loop may have taken that for the end."""
    found = [each for each in partitions if each.state in RECOVERING]
    if not found:
        return
    listed = ", ".join(map(_progress_text, found[:MOST_LISTED]))
    logger.warning(
        "the consumer closes while %d of its %d partitions recover, which deliver nothing meanwhile: %s%s. If your "
        "loop ended because poll() gave None, or consume() nothing: that is not the end of the topic. Iterate with "
        "idle_timeout=, which does not count recoveries. To make recoveries short, keep store= on a disk that stays, "
        "or give Recovery(snapshot=)",
        len(found), len(partitions), listed, ", ..." if len(found) > MOST_LISTED else "",
        extra={"event": "closed-while-recovering"},
    )  # fmt: skip


def _progress_text(assigned: Assigned) -> str:
    how_far = assigned.state.value
    if assigned.reached is not None:
        how_far = f"replayed up to offset {assigned.reached[0]} of {assigned.reached[1]}"
    return f"{assigned.topic}[{assigned.partition}] ({how_far})"


MANY = 10_000
"""Records in flight from which on a warning says that nothing was completed yet."""


def note_uncompleted(assigned: Assigned, flight: Flight, most_waiting: int) -> None:
    """Set ``uncompleted`` where `MANY` records are in flight and none was ever completed; log one warning.

    For partitions whose records only the user's offsets complete. ``most_waiting``: the number of records in flight at
    which the partition will be paused.
    """
    start = flight.low if assigned.start is None else assigned.start.offset
    if assigned.note_uncompleted(flight.high <= start and flight.in_flight >= MANY):
        logger.warning(
            "%s[%d]: %d records are in flight, and nothing was completed since offset %d: only commit(), "
            "store_offsets() and complete() complete records here, not a transaction's offsets or offsets kept "
            "elsewhere. At %d the partition is paused; call store_offsets() for handled messages",
            assigned.topic, assigned.partition, flight.in_flight, start, most_waiting,
            extra={"event": "nothing-completed"},
        )  # fmt: skip


def status_of(
    assigned: Assigned, engine: Deduplicator, end: int = -1, sizes: StoreStats | None = None
) -> PartitionStatus:
    """Return the status of one partition from memory, without a request to a broker or the disk.

    ``end``: the end of its log, below zero if it is not known. ``sizes``: those of its store, if they are known.
    """
    partition = engine.partitions.get((assigned.topic, assigned.partition))
    begun = partition if partition is not None and partition.started else None
    committed = assigned.commits.confirmed
    position = None if begun is None else begun.flight.position
    read_to = committed if committed >= 0 else position
    reached = assigned.reached
    return PartitionStatus(
        topic=assigned.topic,
        partition=assigned.partition,
        state="recovering" if assigned.recovers else assigned.state.value,
        hindrances=hindrances_of(assigned, engine),
        position=position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        waiting=0 if begun is None else begun.flight.held_back,
        committed=committed if committed >= 0 else None,
        recovery_seconds=assigned.seconds if begun is not None else time.monotonic() - assigned.taken_at,
        recovery_left=0 if reached is None or not assigned.recovers else max(0, reached[1] - reached[0]),
        store_bytes=None if sizes is None else sizes.disk_bytes,
        store_marks=None if sizes is None else sizes.marks,
        store_files=None if sizes is None else sizes.files,
        lag=None if end < 0 or read_to is None else max(0, end - read_to),
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=assigned.note,
    )


def _recovery_hindrances(assigned: Assigned) -> list[Hindrance]:
    found: list[Hindrance] = []
    if assigned.start is None:
        found.append("offsets")
    if assigned.waits_for is not None and assigned.waits_for != "store":
        found.append(assigned.waits_for)
    if assigned.engine_partition is not None:
        found.append("beginning")
    return found


def hindrances_of(assigned: Assigned, engine: Deduplicator) -> tuple[Hindrance, ...]:
    """Return the reasons why a partition does not deliver, or not as usual; see `PartitionStatus.hindrances`."""
    partition = engine.partitions.get((assigned.topic, assigned.partition))
    found = _recovery_hindrances(assigned) if assigned.recovers else []
    if (partition is not None and partition.writer.disk_full) or assigned.waits_for == "store":
        found.append("store")
    if Pause.BACKLOG in assigned.pauses:
        found.append("backlog")
    for gate in () if partition is None else partition.gates:
        found += gate.hindrances()
    if assigned.state is State.FAILED:
        found.append("failed")
    if assigned.uncompleted:
        found.append("uncompleted")
    if Pause.USER in assigned.pauses:
        found.append("paused")
    if (
        partition is not None
        and partition.started
        and assigned.engine_partition is not None
        and not partition.covered
    ):
        found.append("uncovered")
    return tuple(found)
