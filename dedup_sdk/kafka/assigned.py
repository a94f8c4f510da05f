"""A partition in our hands: where it starts, how far its recovery is, and whose pause it is.

A partition goes ``RECOVERING -> ACTIVE -> REVOKING | LOST -> CLOSED``. Only an active one delivers; a revoking one may still
write and commit; a lost or closed one does neither. One that moves (a seek, a log that changed) ends, and another
of the same coordinates begins, so that no state has to be undone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, OFFSET_STORED, TopicPartition

from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.completed_above import CompletedAbove, fitting
from dedup_sdk.kafka.metadata import CommitMetadata
from dedup_sdk.lane.state import LaneState
from dedup_sdk.progress import Witness


class State(Enum):
    """What an assigned partition is doing."""

    RECOVERING = "recovering"
    """Comes up to date; delivers nothing."""
    ACTIVE = "active"
    """Delivers."""
    REVOKING = "revoking"
    """On its way to another owner: what is complete is written and committed."""
    LOST = "lost"
    """Belongs to another owner already: nothing is written or committed."""
    CLOSED = "closed"
    """Over."""


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.RECOVERING: frozenset({State.ACTIVE, State.REVOKING, State.LOST}),
    State.ACTIVE: frozenset({State.REVOKING, State.LOST}),
    State.REVOKING: frozenset({State.LOST, State.CLOSED}),
    State.LOST: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""Where each state may lead; a revoke that fails half way ends as a loss."""

OURS: Final = frozenset({State.RECOVERING, State.ACTIVE, State.REVOKING})
"""In these states the group still takes our commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a partition starts, and what the group says of its history.

    ``offset`` is the first offset to deliver. ``metadata`` is None when the group never committed, or committed without
    ours. ``new`` says that the group has never committed here.
    """

    offset: int
    metadata: CommitMetadata | None = None
    new: bool = False
    seek: bool = False
    """The reader has to be moved there: it was assigned elsewhere."""
    at_once: bool = False
    """The group's offsets do not say yet where its history begins; they have to before anything is delivered."""
    before_us: bool = False
    """The group committed ``offset`` without a valid text of ours, or in another log: the user may vouch for what lies before."""
    suspect: bool = False
    """The broker says that the log is another one before this offset, or ends there."""
    same_until: int | None = None
    """Up to where the broker says, by the leader epoch, that the log is the one that was read; None where nobody asked."""
    contradicted_at: int | None = None
    """The first offset that counts as completed and has another record by now: the log is another one from there on."""
    reopened: bool = False
    """``offset`` is where this consumer stood, which the group may not have committed yet; see ``acknowledged``."""
    acknowledged: int | None = None
    """Of a partition that was reopened: the offset that the broker has confirmed last, None when there was none."""

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch that the group's commit tells of what lies before ``offset``; None where it tells none."""
        return None if self.metadata is None else self.metadata.epoch


class Beginning(Enum):
    """How far the commit is that says where a history begins."""

    TO_ASK = "to ask"
    ASKED = "asked"
    KNOWN = "known"


@dataclass(slots=True, weakref_slot=True)
class Assigned:
    """One assigned partition; ``epoch`` counts the times that this consumer took it."""

    topic: str
    partition: int
    start: Start | None = None
    wanted: int = -1001
    """The offset that came with the assignment (-1001: none)."""
    by_hand: bool = False
    """Whether the user assigned it, and no group: nothing will tell when it goes, and it stays when the group's go."""
    epoch: int = 0
    taken_at: float = 0.0
    """When (monotonic seconds) it was taken, or moved: what `recovery_timeout` is counted from."""
    state: State = State.RECOVERING
    held: Partition | None = None
    recovery: Generator[None, None, None] | None = None
    user_paused: bool = False
    stopped: bool = False
    """The client gave up reading it: the log has not the offset that was asked for."""
    uncompleted: bool = False
    """Whether much was handed out and nothing completed, where only the user's offsets complete."""
    full: bool = False
    """Paused by us, because too much of it waits."""
    ask_at: float = 0.0
    """Not before (monotonic seconds) the group's offsets are asked for again."""
    asked_from: float = 0.0
    """When (monotonic seconds) that was not answered for the first time."""
    failures: int = 0
    """How often in a row its recovery got no answer."""
    answer_s: float = 0.0
    """Seconds that a question to its leader may take; 0: as any."""
    unanswered: Any = None
    """An event of the client that hangs on an answer of its leader, which does not come now."""
    silent: bool = False
    """Whether its recovery waits for a broker that does not answer."""
    requested: int = -1
    """The last offset that a commit was asked for."""
    done_asked: str = ""
    """What that commit, or the one that the group had before, says of offsets completed above it (`done_part`)."""
    confirmed: int = -1
    """The offset that the broker has confirmed last as the group's, -1: none. Where the user said where to start, a commit of theirs."""
    beginning: Beginning = Beginning.TO_ASK
    """Whether the group knows where its history begins."""
    log: str = ""
    """Which log its offsets are of (`dedup_sdk.kafka.metadata.log_name`); empty until recovery has asked."""
    complete: bool = False
    """Whether the group's own history begins at ``low``, as its commits say."""
    rule: str = ""
    """By which rule its marks are made (`dedup_sdk.rule_fingerprint.rule_digits`); empty until recovery has begun."""
    told: CompletedAbove | None = None
    """What the group's commit told of offsets completed above it, when recovery ended."""
    has_room_for_done: bool = True
    """Whether the broker takes texts as long as `dedup_sdk.kafka.metadata.MOST_CHARACTERS`."""
    set_aside: bool = False
    """Whether its store was damaged, so that recovery began with an empty one."""
    waits_for_lock: bool = False
    """Whether its recovery waits for the owner of its store to let it go."""
    undecided: bool = False
    """Whether its recovery waits for a transaction to end, behind whose beginning the group stands."""
    no_store: bool = False
    """Whether its recovery waits until its store can be opened, read and written."""
    note: str = ""
    """What recovery did, for the line in the log."""
    replayed: int = 0
    seconds: float = field(default=0.0)

    @property
    def is_placed(self) -> bool:
        """Whether the user said where to start, and so may keep offsets elsewhere."""
        return self.wanted not in (OFFSET_STORED, OFFSET_INVALID)

    def stands_at(self, offset: int) -> None:
        """Take note of what the group has committed, as far as that is not the user's to say."""
        self.requested = offset
        self.confirmed = -1 if self.is_placed else offset

    def start_again(self, start: Start) -> None:
        """Start elsewhere, if that is not where it was to start: what was asked for lies behind it, and is to be committed again."""
        if start is not self.start:
            self.start, self.requested = start, -1

    def commit_of(self, held: Partition, offset: int) -> TopicPartition:
        """Return the commit of an offset up to the partition's watermark, with its text."""
        text = self.metadata(held, offset).text(offset)
        return TopicPartition(self.topic, self.partition, offset, text)

    def metadata(self, held: Partition, offset: int) -> CommitMetadata:
        """Return what a commit of an offset says beside it."""
        lane = held.lane
        metadata = CommitMetadata(
            low=min(lane.told_low, offset),
            era=lane.era,
            complete=self.complete and not lane.torn,
            epoch=lane.epoch,
            log=self.log,
            rule=self.rule,
        )
        ranges = held.completed_above(offset) if self.has_room_for_done else ()
        if not ranges:
            return metadata
        return replace(
            metadata, done=fitting(ranges, offset, metadata.room(offset), partial(self._witness, lane))
        )

    def left_out(self, held: Partition, offset: int) -> int:
        """Return how many completed offsets a commit of an offset has no room for: their next owner sees them again."""
        done = self.metadata(held, offset).done
        told = 0 if done is None else sum(end - start for start, end in done.ranges)
        return sum(end - start for start, end in held.completed_above(offset)) - told

    def _witness(self, lane: LaneState, offset: int) -> Witness | None:
        place = lane.place(offset)
        if place is not None:
            return Witness.of(offset, int(place.chunk.timestamps[place.row]), place.chunk.digests[place.row])
        told = None if self.told is None else self.told.witness
        return told if told is not None and told.offset == offset else lane.witness_of(offset)

    def enter(self, state: State) -> None:
        """Go on to another state; AssertionError where no transition leads there."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(
                f"{self.topic}[{self.partition}] cannot go from {self.state.name} to {state.name}"
            )
        self.state = state
        if state in (State.LOST, State.CLOSED) and self.held is not None:
            self.held.fence()
