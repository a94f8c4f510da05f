"""One assigned partition: its state, what is known of it in each phase, and the client's read position.

Invariants:

- The state changes only along `TRANSITIONS`.
- What a partition does not have in a phase cannot be read there: `Asking`, `Recovering`, `Recovered` and `Leaving` are
  values of their own.
- Only an active partition delivers. A revoking one may still write and commit; a lost or closed one does neither.
- A partition that moves (a seek, or a log that changed) is closed, and a new `Assigned` with the same coordinates takes
  its place. No state has to be undone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, OFFSET_STORED, TopicPartition

from dedup_sdk._commit_text import CommitMetadata, CompletedAbove, done_part
from dedup_sdk._core.flight import Flight
from dedup_sdk._core.ranges import Ranges, count_offsets
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import CommitState, Coordinates, commit_at
from dedup_sdk._kafka.assign.start import History, Start
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._marks import Witness
from dedup_sdk._metrics import Hindrance
from dedup_sdk.errors import RecoveryError

logger = logging.getLogger("dedup_sdk")


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


MANY: Final = 10_000
"""Records in flight from which on a warning says that nothing was completed yet."""


@dataclass(slots=True)
class Asking:
    """The group's committed offset is being requested: nothing is known yet."""

    note: str = ""


@dataclass(slots=True)
class Recovering:
    """The start is known; the store, the log and the group's history are being brought together."""

    start: Start
    log: str = ""
    """The log of its offsets (see `_commit_text.log_name`); empty until an attempt has requested it."""
    steps: Steps[None] | None = None
    """The running attempt; None before the first one, and after one that failed."""
    note: str = ""
    """The progress of a replay or an installation, for the log line."""
    replayed: int = 0
    """Records that were replayed, by all attempts."""
    reached: tuple[int, int] | None = None
    """The offset that the replay has reached, and the end of the replay; None before a replay."""


@dataclass(slots=True)
class Recovered:
    """``partition`` accepts records from the start offset on; the group's commits have its history."""

    start: Start
    log: str
    partition: Partition
    complete: bool
    """Whether the group was new at ``low``, according to its commits: its history lacks nothing before that."""
    completed_above: CompletedAbove | None
    """The offsets completed above the committed one, as the group's commit listed them when recovery ended."""
    note: str = ""
    """The result of recovery, for the log line."""
    seconds: float = 0.0
    """Duration of its recovery in seconds."""
    has_room_for_done: bool = True
    """Whether the broker accepts texts as long as `dedup_sdk._commit_text.MOST_CHARACTERS`."""
    uncompleted: bool = False
    """Whether many records were delivered and none completed, in a mode where only the user's offsets complete."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    def commit_of(self, offset: int) -> TopicPartition:
        """Return the commit, with its text, of an offset that is not above the partition's watermark."""
        return commit_at((self.topic, self.partition.partition), offset, self.metadata(offset))

    def commit_as_if(self, completed: Collection[int]) -> TopicPartition:
        """Return the commit, with its text, that would be right if the records at these offsets were completed."""
        offset, above = self.partition.as_if_completed(completed)
        return commit_at((self.topic, self.partition.partition), offset, self.metadata(offset, above))

    def can_end(self, completed: Collection[int]) -> Collection[int]:
        """Return those of these offsets that the text of a commit names when they are completed.

        All, if the text has room for each range of completed records; else those below the first record that is not
        completed then, which need no room.
        """
        offset, above = self.partition.as_if_completed(completed)
        done = self.metadata(offset, above).done
        has_room = len(above) == (0 if done is None else len(done.ranges))
        return completed if has_room else [each for each in completed if each < offset]

    def shorter(self, refused: TopicPartition) -> TopicPartition | None:
        """Return a commit that the broker refused for its size, without the completions above its offset.

        Later commits go without such completions, too. None if this one had none: it cannot become shorter.
        """
        if not self.has_room_for_done or not done_part(refused.metadata):
            return None
        logger.warning(
            "%s[%d]: the broker refused commit metadata of %d characters (offset.metadata.max.bytes): offsets "
            "completed above the committed one are left out, and are handled again after a rebalance; raise "
            "the broker's limit to avoid that", refused.topic, refused.partition, len(refused.metadata or ""),
            extra={"event": "commit-metadata-refused"},
        )  # fmt: skip
        self.has_room_for_done = False
        return self.commit_of(refused.offset)

    def metadata(self, offset: int, above: Ranges | None = None) -> CommitMetadata:
        """Return the metadata of a commit of an offset.

        ``above``: the half-open ranges completed above it; None: those that are.
        """
        partition = self.partition
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
        ranges = above if self.has_room_for_done else ()
        return metadata.with_done(ranges, offset, partial(self._witness, flight)) if ranges else metadata

    def _witness(self, flight: Flight, offset: int) -> Witness | None:
        place = flight.place(offset)
        if place is not None:
            return Witness.of(offset, int(place.chunk.timestamps[place.row]), place.chunk.digests[place.row])
        last = None if self.completed_above is None else self.completed_above.witness
        return last if last is not None and last.offset == offset else flight.witness_of(offset)

    def left_out(self) -> int:
        """Return how many completed offsets do not fit into the partition's commit.

        The next owner gets their records again.
        """
        offset = self.partition.committable
        done = self.metadata(offset).done
        committed = 0 if done is None else count_offsets(done.ranges)
        return count_offsets(self.partition.completed_above(offset)) - committed

    def note_uncompleted(self, most_waiting: int) -> None:
        """Set ``uncompleted`` while `MANY` records are in flight and none was ever completed; log one warning.

        For partitions whose records only the user's offsets complete. ``most_waiting``: the number of records in flight
        at which the partition will be paused.
        """
        flight = self.partition.flight
        before = self.uncompleted
        self.uncompleted = flight.high <= self.start.offset and flight.in_flight >= MANY
        if self.uncompleted and not before:
            logger.warning(
                "%s[%d]: %d records are in flight, and nothing was completed since offset %d: only commit(), "
                "store_offsets() and complete() complete records here, not a transaction's offsets or offsets kept "
                "elsewhere. At %d the partition is paused; call store_offsets() for handled messages",
                self.topic, self.partition.partition, flight.in_flight, self.start.offset, most_waiting,
                extra={"event": "nothing-completed"},
            )  # fmt: skip


@dataclass(slots=True)
class Leaving:
    """Revoked, lost or closed. What it had before is still described, and written and committed if it was revoked."""

    before: Asking | Recovering | Recovered


@dataclass(slots=True)
class Retry:
    """When requests to brokers about one partition may be sent again, and how the last ones went.

    Times are monotonic seconds. No field depends on another one: whoever sends a request sets them.
    """

    at: float = 0.0
    """When the recovery continues, and may send requests again."""
    hindrance: Hindrance | None = None
    """Why the recovery waits; None while it makes progress."""
    failures: int = 0
    """Requests that failed in a row."""
    silent_since: float = 0.0
    """When the silence of the brokers began; 0: with the next failed request."""
    answer_s: float = 0.0
    """Timeout in seconds of a request to the leader; 0: the default."""


@dataclass(slots=True, weakref_slot=True)
class Assigned:
    """One assigned partition, from its assignment (or a move) until it is revoked, lost or moved again."""

    topic: str
    partition: int
    phase: Asking | Recovering | Recovered | Leaving = field(default_factory=Asking)
    reads_from: int = -1
    """The offset at which the client continues when the partition is resumed; -1: unknown."""
    wanted: int = OFFSET_INVALID
    """The offset that came with the assignment."""
    moves_to: int | None = None
    """The target of a seek that waits until the group's offset is known; None without one."""
    by_hand: bool = False
    """Whether the user assigned it, not the group: no callback announces its end, and it outlives a rebalance."""
    taken_at: float = 0.0
    """When (monotonic seconds) it was assigned or moved; `Recovery.timeout` counts from there."""
    state: State = State.ASKING
    retry: Retry = field(default_factory=Retry)
    failed_at: int | None = None
    """Its position at the last unexpected error, which may have left it half-changed; None: there was no such error."""
    pauses: set[Pause] = field(default_factory=set)
    """The reasons why it delivers nothing although it is active."""
    stopped: bool = False
    """Whether the client stopped fetching it because the log does not have the requested offset."""
    delivered_to: int = -1
    """The offset after the last message that came before a move or a reopening, until one comes; -1 without these."""
    commits: CommitState = field(default_factory=CommitState)
    """Commits sent to the group coordinator, and the answers."""

    def __post_init__(self) -> None:
        """Skip `State.ASKING` where the start is known."""
        if isinstance(self.phase, Recovering):
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

    # --- the phase -------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Asking | Recovering | Recovered:
        """The phase; while the partition leaves, the one before."""
        return self.phase.before if isinstance(self.phase, Leaving) else self.phase

    @property
    def start(self) -> Start | None:
        """Where it starts; None until the brokers have given the group's committed offset."""
        known = self.known
        return None if isinstance(known, Asking) else known.start

    @property
    def recovered(self) -> Recovered | None:
        """What it has since recovery has ended, also while it leaves."""
        known = self.phase.before if isinstance(self.phase, Leaving) else self.phase
        return known if isinstance(known, Recovered) else None

    @property
    def engine_partition(self) -> Partition | None:
        """The engine's partition, once recovery has ended."""
        recovered = self.recovered
        return None if recovered is None else recovered.partition

    def history_at_start(self) -> History | None:
        """Return the group's history up to the start by its commit; None if that tells nothing of this log."""
        known = self.known
        if isinstance(known, Asking) or known.start.metadata is None:
            return None
        told = known.start.metadata
        return History(told, known.start.offset) if told.is_of(known.log) else None

    def history(self) -> History | None:
        """Return the range processed without a gap by now; before recovery has ended, what the commit says."""
        recovered = self.recovered
        if recovered is None:
            return self.history_at_start()
        high = recovered.partition.flight.high
        return History(recovered.metadata(high), high)

    def acknowledged(self) -> int | None:
        """Return the last offset of the partition that the broker is known to have taken; None without one."""
        recovered, has_moved = self.recovered, self.commits.before_move is not None
        if recovered is not None and not has_moved:
            return recovered.partition.flight.committed
        if (start := self.start) is None:
            return None
        return start.acknowledged if start.reopened or has_moved else start.offset

    @property
    def active(self) -> Recovered | None:
        """What it has while it delivers."""
        return self.phase if self.state is State.ACTIVE and isinstance(self.phase, Recovered) else None

    @property
    def recovers(self) -> bool:
        """Whether it does not deliver yet; also true for `State.FAILED`."""
        return self.state in NOT_YET_DELIVERING

    @property
    def must_announce(self) -> bool:
        """Whether it may deliver only behind a commit of its beginning that the broker has not acknowledged yet."""
        start = self.start
        must = start is not None and start.must_commit_first
        return must and self.recovers and not self.commits.beginning.may_deliver

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

    def note_move(self, offset: int) -> None:
        """Have the partition moved as soon as the group's offset is known."""
        self.moves_to = offset

    def starts_at(self, start: Start) -> None:
        """Begin to recover. The start's offset counts as committed by the group, unless ``must_commit_first``."""
        self.phase = Recovering(start)
        self.enter(State.OPENING)
        committed = -1 if start.must_commit_first else start.offset
        self.commits = CommitState(
            requested=committed, confirmed=-1 if self.is_placed else committed, is_new_group=start.new
        )

    def recover_anew(self) -> None:
        """Discard the failed attempt, so that the next step begins a new one."""
        if isinstance(self.phase, Recovering):
            self.phase.steps = None
        if self.state is State.REPLAYING:
            self.enter(State.OPENING)

    def be_ready(self, recovered: Recovered) -> None:
        """End the recovery: the partition delivers as soon as the beginning of its history is committed."""
        start, above = recovered.start, recovered.completed_above
        if above is not None:
            is_committed = (
                not (start.must_commit_first or self.delivered_to >= 0) and above.ranges[0][0] >= start.offset
            )
            self.commits.note_done(above.encode(start.offset) if is_committed else "")
        self.phase, self.retry = recovered, Retry()
        self.enter(State.ANNOUNCING)

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

    def enter(self, state: State) -> None:
        """Change the state; AssertionError where `TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(
                f"{self.topic}[{self.partition}] cannot go from {self.state.name} to {state.name}"
            )
        self.state = state
        if state in ENDING:
            if not isinstance(self.phase, Leaving):
                self.phase = Leaving(self.phase)
            if state is not State.REVOKING and self.engine_partition is not None:
                self.engine_partition.fence()

    # --- reading ---------------------------------------------------------------------------------------------------

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

    def note_stop(self) -> None:
        """Record that the client stopped fetching the partition."""
        self.stopped = True

    def delivered_until(self, delivered_to: int | None) -> int:
        """Return the offset after the last message that the application got, before a move, too, that brought none.

        ``delivered_to``: that of this assignment; None: all that were judged count as delivered.
        """
        partition = self.engine_partition
        if partition is None:
            return self.delivered_to
        now = partition.flight.position if delivered_to is None else delivered_to
        return now if partition.has_offered else max(now, self.delivered_to)


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
        self.waking: list[TopicPartition] = []
        """Active partitions that the client does not fetch yet; `wake` makes it fetch them."""

    def take_moved(self) -> set[Coordinates]:
        """Return and clear the partitions moved since the last call."""
        moved, self.moved = self.moved, set()
        return moved

    def wake_soon(self, topic: str, partition: int) -> None:
        """Have the next `wake` include a partition."""
        self.waking.append(TopicPartition(topic, partition))

    def wake(self) -> None:
        """Make the client fetch at once from partitions that became active."""
        waking, self.waking = self.waking, []
        self._client.wake(waking)

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

    def again(self, partitions: Iterable[Coordinates]) -> None:
        """Seek active partitions back to their positions, the next offsets to judge.

        Not one that is known to have stopped: the client's event about it is handled first.
        """
        found = (self._assigned.get(coordinates) for coordinates in partitions)
        for assigned in (each for each in found if each is not None and not each.stopped):
            if (active := assigned.active) is not None:
                position = active.partition.flight.position
                if not self._client.seek(assigned.topic, assigned.partition, position):
                    # It stopped, and an interrupted call lost the event: assigned again, it stops and reports it anew.
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
    if (active := assigned.active) is not None:
        return active.partition.flight.position
    return 0 if assigned.start is None else assigned.start.offset
