"""One partition in hand: its state, where it starts, how far its recovery is, and where the client reads it.

A partition goes through the states of `State`, by `TRANSITIONS` alone. Only an active one delivers; a revoking one may still
write and commit; a lost or closed one does neither. One that moves (a seek, a log that changed) ends, and another
of the same coordinates begins, so that no state has to be undone.

What it is doing, and what stands in its way, people, dashboards and the line after a rebalance hear from `status_of` and `hindrances_of`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    TopicPartition,
)

from dedup_sdk.core.flight import Flight
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import ConfigurationError, RecoveryError
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commit_text import (
    CommitMetadata,
    CompletedAbove,
    Void,
    parse_metadata,
    rule_named_in,
    why_void,
)
from dedup_sdk.kafka.commits import CommitState
from dedup_sdk.kafka.settings import Reset
from dedup_sdk.marks import Witness
from dedup_sdk.observe import Hindrance, PartitionStatus

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]
"""Topic and partition."""


class Wait(NamedTuple):
    """Yielded by a step of a recovery when the next one makes no sense for some seconds: other recoveries go first."""

    seconds: float
    hindrance: Hindrance
    """The thing it waits for, as `PartitionStatus.hindrances` names it."""


T = TypeVar("T")
Steps = Generator[Wait | None, None, T]
"""Work in steps of a few milliseconds, and its result."""


class State(Enum):
    """The state of an assigned partition."""

    ASKING = "asking"
    """Brokers are asked where it starts."""
    OPENING = "opening"
    """Its store is opened, and history is compared with the log."""
    REPLAYING = "replaying"
    """A snapshot is installed, or the tail of the log is read."""
    ANNOUNCING = "announcing"
    """Up to date; delivers as soon as the group knows where its history begins."""
    FAILED = "failed"
    """Delivers nothing until it is moved, or assigned again: an unexpected error came twice with no progress in between."""
    ACTIVE = "active"
    """Delivers."""
    REVOKING = "revoking"
    """On its way to another owner: completed records are written and committed."""
    LOST = "lost"
    """Belongs to another owner already: nothing is written or committed."""
    CLOSED = "closed"
    """Over."""


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
"""Where each state may lead; a recovery that fails begins again, and a revoke that fails half way ends as a loss."""

CATCHING_UP: Final = frozenset({State.ASKING, State.OPENING, State.REPLAYING})
"""In these states there is work for the recovery."""
RECOVERING: Final = CATCHING_UP | {State.ANNOUNCING}
"""In these states it does not deliver yet, and is going to."""
NOT_YET_DELIVERING: Final = RECOVERING | {State.FAILED}
"""In these states it does not deliver, be it that it never will."""
OURS: Final = NOT_YET_DELIVERING | {State.ACTIVE, State.REVOKING}
"""In these states the group still takes our commits."""


class Pause(Enum):
    """Why an active partition delivers nothing. It delivers again when no reason is left."""

    USER = "user"
    """`DedupConsumer.pause`."""
    BACKLOG = "backlog"
    """Too many of its records wait for one that is not completed."""
    DISK = "disk"
    """There is no room for its marks."""
    ELSEWHERE = "elsewhere"
    """Its shared memory does not answer, and too much waits for that."""
    HANDLERS = "handlers"
    """`DedupConsumer.run` has as many messages as it takes."""


class LogChange(NamedTuple):
    """How the log differs from the one that the group committed: it is another one, or ends earlier."""

    same_until: int | None = None
    """Up to where the broker says, by the leader epoch, that the log is the same; None where it has to be asked yet."""
    contradicted_at: int | None = None
    """The first offset that counts as completed and has another record by now, as the marks say: the log is another one from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a partition starts, and its history as the group's commit tells it.

    ``offset`` is the first offset to deliver. ``metadata`` is None when the group never committed, or committed without
    ours. ``new`` says that the group has never committed here.
    """

    offset: int
    metadata: CommitMetadata | None = None
    new: bool = False
    at_once: bool = False
    """The group's offsets do not say yet where its history begins; they have to before anything is delivered."""
    void: Void | None = None
    """Why the text beside ``offset`` vouches for nothing; None where it does, or ``offset`` is not where the group stands."""
    void_rule: str | None = None
    """The rule that a void text beside ``offset`` names (`dedup_sdk.kafka.commit_text.rule_named_in`); None where it names none."""
    log_change: LogChange | None = None
    """How the log is known to differ from the one that the group committed; None as a rule."""
    reopened: bool = False
    """``offset`` is where this consumer stood, which the group may not have committed yet; see ``acknowledged``."""
    acknowledged: int | None = None
    """Of a partition that was reopened: the offset that the broker has confirmed last, None when there was none."""

    @property
    def is_unvouched(self) -> bool:
        """Whether nothing is known of the records before ``offset``, so that the user may vouch for them; not for what another rule hid."""
        return self.void not in (None, Void.OTHER_RULE)

    @property
    def rule(self) -> str | None:
        """The rule by which the group went up to ``offset``, as the text beside it says, be it valid or void; None where it says none."""
        return self.void_rule if self.metadata is None else self.metadata.rule

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the records before ``offset``, as the group's commit tells it; None where it tells none."""
        return None if self.metadata is None else self.metadata.epoch


@dataclass(slots=True, weakref_slot=True)
class Assigned:
    """One assigned partition, from the moment that it is taken, or moved, to the moment that it goes, or moves."""

    topic: str
    partition: int
    start: Start | None = None
    """None until brokers have said where the group stands."""
    reads_from: int = -1
    """Where the client reads it from when it is resumed, -1: somewhere."""
    wanted: int = OFFSET_INVALID
    """The offset that came with the assignment."""
    by_hand: bool = False
    """Whether the user assigned it, and no group: nothing will tell when it goes, and it stays when the group's go."""
    taken_at: float = 0.0
    """When (monotonic seconds) it was taken, or moved; `recovery_timeout` counts from there."""
    state: State = State.ASKING
    held: Partition | None = None
    """The engine's partition, once recovery has ended."""

    recovery: Steps[None] | None = None
    """The recovery under way."""
    waits_for: Hindrance | None = None
    """The thing its recovery waits for; None while it goes on."""
    ask_at: float = 0.0
    """When (monotonic seconds) its recovery goes on, and brokers may be asked again."""
    asked_from: float = 0.0
    """When (monotonic seconds) a question of its recovery was not answered for the first time."""
    failures: int = 0
    """How often in a row its recovery got no answer."""
    answer_s: float = 0.0
    """Seconds that a question to its leader may take; 0: as any."""
    failed_at: int | None = None
    """Where it stood when an unexpected error left it half-changed last, None: never."""
    note: str = ""
    """How recovery went, or how far it is, for the line in the log."""
    replayed: int = 0
    """Records that recovery has folded."""
    seconds: float = 0.0
    """The duration of its recovery."""

    pauses: set[Pause] = field(default_factory=set)
    """Why it delivers nothing although it is active."""
    stopped: bool = False
    """The client gave up reading it: the log has not the offset that was asked for."""
    uncompleted: bool = False
    """Whether much was handed out and nothing completed, where only the user's offsets complete."""

    commits: CommitState = field(default_factory=CommitState)
    """Commits asked of the group, and its answers."""

    log: str = ""
    """Which log its offsets are of (`dedup_sdk.kafka.commit_text.log_name`); empty until recovery has asked."""
    complete: bool = False
    """Whether the group's own history begins at ``low``, as its commits say."""
    told: CompletedAbove | None = None
    """The offsets completed above it, as the group's commit told them when recovery ended."""

    def __post_init__(self) -> None:
        """Go on at once where it is known where it starts."""
        if self.start is not None and self.state is State.ASKING:
            self.enter(State.OPENING)

    @property
    def coordinates(self) -> Coordinates:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def recovers(self) -> bool:
        """Whether it does not deliver yet, be it that it never will."""
        return self.state in NOT_YET_DELIVERING

    @property
    def is_fetched(self) -> bool:
        """Whether it delivers, and nobody has paused it."""
        return self.state is State.ACTIVE and not self.pauses

    def pause(self, why: Pause) -> bool:
        """Take note of a reason to deliver nothing; return whether the client is to fetch it no more."""
        was_fetched = self.is_fetched
        self.pauses.add(why)
        return was_fetched

    def lift(self, why: Pause) -> bool:
        """Take a reason back; return whether the client is to fetch it again, because none is left."""
        was_there = why in self.pauses
        self.pauses.discard(why)
        return was_there and self.is_fetched

    def note_uncompleted(self, uncompleted: bool) -> bool:  # noqa: FBT001 (the fact itself)
        """Take note whether nothing of much was completed; return whether that is news."""
        before, self.uncompleted = self.uncompleted, uncompleted
        return uncompleted and not before

    def note_stop(self) -> None:
        """Take note that the client gave up reading it."""
        self.stopped = True

    # --- the turns of its recovery ---------------------------------------------------------------------------------

    def begin_recovery(self, steps: Steps[None]) -> None:
        """Take the steps of the recovery that is under way from now on."""
        self.recovery = steps

    def end_recovery(self) -> None:
        """Let the steps go: it is through."""
        self.recovery = self.waits_for = None
        self.failures = 0

    def recover_anew(self) -> None:
        """Have the next step be the first of another recovery: this one failed."""
        self.recovery = None
        if self.state is State.REPLAYING:
            self.enter(State.OPENING)

    def wait_until(self, at: float, hindrance: Hindrance | None) -> None:
        """Have its recovery go on, and ask brokers, not before a time (monotonic seconds); ``hindrance``: the thing it waits for."""
        self.ask_at, self.waits_for = at, hindrance

    def count_failure(self) -> int:
        """Count a question that was not answered; return how many there were in a row."""
        self.failures += 1
        return self.failures

    def silent_s(self, now: float) -> float:
        """Return how many seconds ago a question of its recovery was not answered for the first time."""
        self.asked_from = self.asked_from or now
        return now - self.asked_from

    def note_answer(self, at: float = 0.0) -> None:
        """Have the silence count from a time on (monotonic seconds), 0: from the next failure on."""
        self.asked_from = at

    def give_time(self, answer_s: float) -> None:
        """Let a question to its leader take so many seconds."""
        self.answer_s = answer_s

    # --- what its recovery finds -----------------------------------------------------------------------------------

    def identify(self, log: str) -> None:
        """Take note of which log its offsets are."""
        self.log = log

    def begin_at(self, start: Start) -> None:
        """Start elsewhere than the group's commit says: offsets that were asked for lie behind it, and must be committed again."""
        self.start = start
        self.commits.ask_again()

    def replay(self, note: str, records: int = 0) -> None:
        """Take note of how far the replay is, or of a snapshot that is installed; ``records`` were folded since the last call."""
        if self.state is State.OPENING:
            self.enter(State.REPLAYING)
        self.note, self.replayed = note, self.replayed + records

    def be_ready(
        self, held: Partition, *, complete: bool, told: CompletedAbove | None, note: str, seconds: float
    ) -> None:
        """End the recovery: ``held`` may be fed from the start on. For ``complete`` and ``told`` see the attributes."""
        self.held, self.complete, self.told, self.note, self.seconds = held, complete, told, note, seconds
        if told is not None and self.start is not None:
            said = not self.start.at_once and told.ranges[0][0] >= self.start.offset
            self.commits.note_done(told.encode(self.start.offset) if said else "")
        self.enter(State.ANNOUNCING)

    # --- its state ---------------------------------------------------------------------------------------------------

    def blame(self, at: int) -> None:
        """Note that an unexpected error of this partition came when it stood at an offset; a second one at the same place closes it."""
        again, self.failed_at = self.failed_at == at, at
        if again:
            self.enter(State.FAILED)
            logger.error(
                "%s[%d] is closed: the error that your program was just given came a second time with nothing completed in between, at "
                "offset %d. The other partitions go on. When the cause is gone, restart this consumer, or seek the partition",
                self.topic, self.partition, at,
            )  # fmt: skip

    @property
    def is_ours(self) -> bool:
        """Whether the group still takes its commits."""
        return self.state in OURS

    @property
    def is_placed(self) -> bool:
        """Whether the user said where to start, and so may keep offsets elsewhere."""
        return self.wanted not in (OFFSET_STORED, OFFSET_INVALID)

    def starts_at(self, start: Start) -> None:
        """Take note of where the group stands; its committed offset counts, unless the user is to say where to start."""
        self.start = start
        self.enter(State.OPENING)
        committed = -1 if start.at_once else start.offset
        self.commits = CommitState(requested=committed, confirmed=-1 if self.is_placed else committed)

    def commit_of(self, held: Partition, offset: int) -> TopicPartition:
        """Return the commit of an offset up to the partition's watermark, with its text."""
        text = self.metadata(held, offset).text(offset)
        return TopicPartition(self.topic, self.partition, offset, text)

    def metadata(self, held: Partition, offset: int) -> CommitMetadata:
        """Return the metadata of a commit of an offset."""
        flight, memory = held.flight, held.memory
        metadata = CommitMetadata(
            low=min(memory.committed_low, offset),
            era=flight.era,
            complete=self.complete and not memory.exact_from,
            epoch=flight.epoch,
            log=self.log,
            rule=held.terms.rule,
        )
        ranges = held.completed_above(offset) if self.commits.has_room_for_done else ()
        return metadata.with_done(ranges, offset, partial(self._witness, flight)) if ranges else metadata

    def left_out(self, held: Partition, offset: int) -> int:
        """Return how many completed offsets a commit of an offset has no room for: their next owner sees them again."""
        done = self.metadata(held, offset).done
        told = 0 if done is None else sum(end - start for start, end in done.ranges)
        return sum(end - start for start, end in held.completed_above(offset)) - told

    def _witness(self, flight: Flight, offset: int) -> Witness | None:
        place = flight.place(offset)
        if place is not None:
            return Witness.of(offset, int(place.chunk.timestamps[place.row]), place.chunk.digests[place.row])
        told = None if self.told is None else self.told.witness
        return told if told is not None and told.offset == offset else flight.witness_of(offset)

    def enter(self, state: State) -> None:
        """Go on to another state; AssertionError where no transition leads there."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(
                f"{self.topic}[{self.partition}] cannot go from {self.state.name} to {state.name}"
            )
        self.state = state
        if state in (State.LOST, State.CLOSED) and self.held is not None:
            self.held.fence()


class Reading:
    """Moves partitions, also those that the client stopped reading, which it moves no more.

    A move is noted in ``moved``, because what was fetched before it would be judged before what is read again, and
    would raise the position over it.
    """

    def __init__(self, assigned: Mapping[Coordinates, Assigned], client: Client) -> None:
        self._assigned = assigned
        self._client = client
        self.moved: set[Coordinates] = set()
        """Partitions that the client reads from another place than before: messages fetched before that do not count."""

    def take_moved(self) -> set[Coordinates]:
        """Return, once, the partitions that the client reads from elsewhere since the last call."""
        moved, self.moved = self.moved, set()
        return moved

    def begin(self, assigned: Assigned, offset: int, leader_epoch: int | None) -> None:
        """Have a partition that is about to deliver read from an offset; see `Client.seek` for the epoch."""
        topic, partition = assigned.topic, assigned.partition
        if assigned.stopped or not self._client.seek(topic, partition, offset, leader_epoch=leader_epoch):
            self._place_again(assigned, offset)
            if leader_epoch is not None and not self._client.seek(
                topic, partition, offset, leader_epoch=leader_epoch
            ):
                raise RecoveryError(
                    f"{topic}[{partition}] cannot be moved to offset {offset}: the client does not fetch it; try again"
                )
        self.moved.add((topic, partition))

    def again(self, assigned: Assigned) -> None:
        """Have a partition that delivers read again from where judging stands; one known to have stopped waits for its event."""
        if assigned.state is State.ACTIVE and assigned.held is not None and not assigned.stopped:
            position = assigned.held.flight.position
            if not self._client.seek(assigned.topic, assigned.partition, position):
                # It stopped, and the event was lost with the interrupted call: placed again, it stops and says so once more.
                self._place_again(assigned, position)

    def _place_again(self, assigned: Assigned, offset: int) -> None:
        at = []
        for other in self._assigned.values():
            if other is not assigned:
                other.reads_from = _reads_on_at(other)
                at.append(TopicPartition(other.topic, other.partition, other.reads_from))
        self._client.place_again(TopicPartition(assigned.topic, assigned.partition, offset), at)
        # The eager protocol has all of them assigned anew.
        self.moved.update(self._assigned)
        assigned.stopped = False
        for each in self._assigned.values():
            if each.is_fetched:
                self._client.resume(each.topic, each.partition)


def _reads_on_at(assigned: Assigned) -> int:
    if assigned.state is State.ACTIVE and assigned.held is not None:
        return assigned.held.flight.position
    return 0 if assigned.start is None else assigned.start.offset


OFFSET_TAIL: Final = -2000
"""From here down offsets count from the end of the log (``RD_KAFKA_OFFSET_TAIL_BASE`` of librdkafka)."""


class Starts:
    """Finds where partitions start: where the user's callback says, where the group stands, or by the policy ``auto.offset.reset``."""

    def __init__(self, client: Client, reset: Reset) -> None:
        self._client, self._reset = client, reset

    def start(self, wanted: TopicPartition, committed: TopicPartition) -> Start:
        """Return where a partition starts; raises `KafkaException` or `DedupError`."""
        if committed.error is not None:
            raise KafkaException(committed.error)
        asked = None if wanted.offset in (OFFSET_STORED, OFFSET_INVALID) else self.resolve(wanted)
        if committed.offset >= 0:
            metadata = parse_metadata(committed.metadata, committed=committed.offset)
            if asked is None or asked == committed.offset:
                if metadata is not None:
                    return Start(offset=committed.offset, metadata=metadata)
                return Start(
                    offset=committed.offset,
                    at_once=True,
                    void=why_void(committed.metadata, committed=committed.offset),
                    void_rule=rule_named_in(committed.metadata),
                )
            if metadata is not None and asked < committed.offset:
                return Start(offset=asked, metadata=set_back(metadata, asked), at_once=True)
            return Start(offset=asked, at_once=True)
        if asked is not None:
            return Start(offset=asked, new=True, at_once=True)
        edge = self._client.edge(wanted.topic, wanted.partition, self._reset)
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


def hangs_on_the_log(wanted: TopicPartition, committed: TopicPartition) -> bool:
    """Whether a start has to be asked of the partition's leader."""
    if wanted.offset in (OFFSET_STORED, OFFSET_INVALID):
        return bool(committed.offset < 0)
    return bool(wanted.offset < 0)


def set_back(history: CommitMetadata, offset: int) -> CommitMetadata:
    """Return the history of a group that goes back: it stays, or begins there if that is before it.

    In a new era, so that a store which knows no more than the commit also sees that this goes back.
    """
    return replace(history, low=min(history.low, offset), era=secrets.token_hex(4), done=None)


MANY = 10_000
"""Records in flight after which it is news that nothing was completed yet."""


def note_uncompleted(assigned: Assigned, flight: Flight, most_waiting: int) -> None:
    """Note whether much was handed out and nothing ever came back, of a partition that only the user's offsets complete.

    The log says it once. ``most_waiting``: the records at which the partition will be paused.
    """
    start = flight.low if assigned.start is None else assigned.start.offset
    if assigned.note_uncompleted(flight.high <= start and flight.in_flight >= MANY):
        logger.warning(
            "%s[%d]: %d records are in flight, and nothing was completed since offset %d: here only commit(), store_offsets() and "
            "complete() complete; a transaction's offsets, or offsets kept elsewhere, do not. At %d the partition is paused; call "
            "store_offsets() for what is handled",
            assigned.topic, assigned.partition, flight.in_flight, start, most_waiting,
        )  # fmt: skip


def status_of(assigned: Assigned, engine: Deduplicator) -> PartitionStatus:
    """Return the status of one partition; a few look-ups, no question to a broker or a disk."""
    held = engine.partitions.get((assigned.topic, assigned.partition))
    begun = held if held is not None and held.started else None
    return PartitionStatus(
        topic=assigned.topic,
        partition=assigned.partition,
        state="recovering" if assigned.recovers else assigned.state.value,
        hindrances=hindrances_of(assigned, engine),
        position=None if begun is None else begun.flight.position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=assigned.note,
    )


def _of_its_recovery(assigned: Assigned) -> list[Hindrance]:
    found: list[Hindrance] = []
    if assigned.start is None:
        found.append("offsets")
    if assigned.waits_for is not None and assigned.waits_for != "store":
        found.append(assigned.waits_for)
    if assigned.held is not None:
        found.append("beginning")
    return found


def hindrances_of(assigned: Assigned, engine: Deduplicator) -> tuple[Hindrance, ...]:
    """Return what stands in a partition's way, as `PartitionStatus.hindrances` names it."""
    held = engine.partitions.get((assigned.topic, assigned.partition))
    found = _of_its_recovery(assigned) if assigned.recovers else []
    if (held is not None and held.writer.disk_full) or assigned.waits_for == "store":
        found.append("store")
    if Pause.BACKLOG in assigned.pauses:
        found.append("backlog")
    for gate in () if held is None else held.gates:
        found += gate.hindrances()
    if assigned.state is State.FAILED:
        found.append("failed")
    if assigned.uncompleted:
        found.append("uncompleted")
    if Pause.USER in assigned.pauses:
        found.append("paused")
    if held is not None and held.started and assigned.held is not None and not held.covered:
        found.append("uncovered")
    return tuple(found)
