"""Moving a group's offsets deliberately, backward or forward, so that every host detects the move.

Generic reset tools drop the metadata of our commits, and with it the group's history. Here the metadata stays:
records below the new offset still count as processed, and a new era makes the consumer judge the records above it
again. Committed offsets are next offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from dedup_sdk._admin.group_offsets import CommitInLog, GroupOffsets, NewCommit
from dedup_sdk._commit_text import CommitMetadata, new_era
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError, RecoveryError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to move a group: exactly one of an offset, a date (with time zone), the log's beginning, or a distance.

    ``by`` is in offsets, negative for backward. Raises `ConfigurationError` unless exactly one is given.
    """

    offset: int | None = None
    moment: datetime | None = None
    earliest: bool = False
    by: int | None = None

    def __post_init__(self) -> None:
        given = [self.offset is not None, self.moment is not None, self.earliest, self.by is not None]
        if sum(given) != 1:
            raise ConfigurationError(
                f"{sum(given)} targets were given: give one of --to-offset, --to-datetime, --to-earliest and --by"
            )
        if self.offset is not None and self.offset < 0:
            raise ConfigurationError(
                f"--to-offset {self.offset} is negative; give an offset from 0 on, or --by"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The move of one partition from ``committed`` (None: never committed) to ``offset``, with the commit's metadata.

    ``note`` adds information, e.g. that the log begins after the requested offset.
    """

    partition: int
    committed: int | None
    offset: int
    metadata: CommitMetadata | None
    note: str = ""

    @property
    def changes(self) -> bool:
        """Whether the committed offset changes."""
        return self.offset != self.committed


def moved(
    committed: int | None, metadata: CommitMetadata | None, offset: int, era: str
) -> CommitMetadata | None:
    """Return the metadata for a commit of ``offset`` by a group with ``metadata`` at ``committed``.

    Backward inside the group's history, the history stays, in a new era. Before that history, or after ``committed``,
    it begins anew at ``offset``. None where the current commit has no valid metadata.
    """
    if metadata is None or committed is None:
        return None
    metadata = replace(metadata, done=None)
    if offset > committed:
        # No record is judged again: the era stays, and with it the marks.
        return metadata.moved_forward(offset)
    if offset < metadata.low:
        return replace(metadata, low=offset, era=era, epoch=None)
    return replace(metadata, era=era)


def plan_moves(offsets: GroupOffsets, target: Target, partitions: Iterable[int] = ()) -> list[Move]:
    """Return the moves of ``partitions`` (default: all of the topic) without changing anything."""
    era, found = new_era(), offsets.read(partitions)
    moves = [_move(offsets, each, target, era) for each in found]
    if any(each.committed is not None for each in found):
        return moves
    # Nothing was ever committed: the name may be mistyped.
    return [
        replace(move, note=", ".join(filter(None, (move.note, offsets.why_no_commit())))) for move in moves
    ]


def commits_of(moves: Iterable[Move]) -> list[NewCommit]:
    """Return the commits of the moves that change an offset."""
    return [NewCommit(move.partition, move.offset, move.metadata) for move in moves if move.changes]


def _move(offsets: GroupOffsets, stands: CommitInLog, target: Target, era: str) -> Move:
    committed, metadata = stands.committed, stands.metadata
    wanted = _wanted(offsets, stands, target)
    offset = min(max(wanted, stands.first), stands.end)
    notes = []
    if offset != wanted:
        notes.append(f"the log {'begins' if wanted < stands.first else 'ends'} there")
    if committed is not None and metadata is None:
        notes.append("its commit has no valid metadata")
    elif metadata is not None and offset < metadata.low:
        notes.append(f"before the beginning of its history, {metadata.low}")
    return Move(
        partition=stands.partition,
        committed=committed,
        offset=offset,
        metadata=moved(committed, metadata, offset, era),
        note=", ".join(notes),
    )


def _wanted(offsets: GroupOffsets, stands: CommitInLog, target: Target) -> int:
    if target.offset is not None:
        return target.offset
    if target.earliest:
        return stands.first
    if target.moment is not None:
        offset = offsets.offset_at(stands.partition, target.moment)
        return stands.end if offset is None else offset
    if stands.committed is None:
        raise RecoveryError(
            f"{offsets.topic}[{stands.partition}]: --by needs a committed offset of group {shown(offsets.group)}, and "
            f"{offsets.why_no_commit()}; check --group and --topic, or use --to-offset"
        )
    return stands.committed + (target.by or 0)
