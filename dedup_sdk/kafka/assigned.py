"""A partition in our hands: where it starts, how far its recovery is, and whose pause it is."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum

from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.metadata import CommitMetadata


class State(Enum):
    """What an assigned partition is doing."""

    RECOVERING = "recovering"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a partition starts, and what the group says of its history.

    ``offset`` is the first offset to deliver. ``metadata`` is None when the group never committed, or committed without
    ours. ``new`` says that the group has never committed here. ``reprocess``: the log is not the one it was, so that
    nothing from ``offset`` on may be taken for completed, whatever the user wants of rewinds.
    """

    offset: int
    metadata: CommitMetadata | None = None
    new: bool = False
    seek: bool = False
    """The reader has to be moved there: it was assigned elsewhere."""
    at_once: bool = False
    """The group's offsets do not say yet where its history begins; they have to before anything is delivered."""
    reprocess: bool = False


@dataclass(slots=True)
class Assigned:
    """One assigned partition."""

    topic: str
    partition: int
    start: Start | None = None
    wanted: int = -1001
    """The offset that came with the assignment (-1001: none)."""
    state: State = State.RECOVERING
    held: Partition | None = None
    recovery: Generator[None, None, None] | None = None
    user_paused: bool = False
    stopped: bool = False
    """The client gave up reading it: the log has not the offset that was asked for."""
    full: bool = False
    """Paused by us, because too much of it waits."""
    ask_at: float = 0.0
    """Not before (monotonic seconds) the group's offsets are asked for again."""
    requested: int = -1
    """The last offset that a commit was asked for."""
    complete: bool = False
    """Whether the group's own history begins at ``low``, as its commits say."""
    set_aside: bool = False
    """Whether its store was damaged, so that recovery began with an empty one."""
    note: str = ""
    """What recovery did, for the line in the log."""
    replayed: int = 0
    seconds: float = field(default=0.0)
