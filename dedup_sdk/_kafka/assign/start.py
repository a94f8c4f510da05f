"""Where a partition starts (`Start`), and who says so (`Starts`): the user, the group's commit, or the reset policy."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    TopicPartition,
)

from dedup_sdk._commit_text import (
    CommitMetadata,
    CompletedAbove,
    InvalidReason,
    new_era,
    parse_metadata,
    rule_named_in,
    why_void,
)
from dedup_sdk._core.ranges import before_offset
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.settings import Reset
from dedup_sdk.errors import ConfigurationError, RecoveryError

logger = logging.getLogger("dedup_sdk")

SetBack = Literal["again", "known"]
"""What becomes of handled records after an assignment below the committed offset."""


class LogChange(NamedTuple):
    """How the log differs from the one the group committed in: other records from an offset on, or an earlier end."""

    same_until: int | None = None
    """The end of the common prefix, as the broker gives it for the leader epoch; None where it was not asked yet."""
    contradicted_at: int | None = None
    """The first completed offset where the log has another record, according to the marks; it differs from there on."""
    of_store: bool = False
    """Only the store has seen the other log: another host has gone on in this one, in which the group committed."""


class History(NamedTuple):
    """The part of the log that the group has completed without a gap, up to ``high``.

    ``told`` is what a commit at ``high`` says of it: where it begins, its era, and what is completed above ``high``.
    """

    told: CommitMetadata
    high: int


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
    """The rule named in a void text at ``offset`` (see `_commit_text.rule_named_in`); None without one."""
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
