"""Setting a group's offsets back (or forward) on purpose, so that every host recognises it.

A plain reset tool drops the text that travels with our commits, and with it all that the group's history vouches for. Here
the text stays: records below the new offset still count as processed, and a new era says that those above it are to be
judged again. Offsets are "the next one".
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk.errors import ConfigurationError, RecoveryError
from dedup_sdk.kafka.client_errors import settings_refused, text_of
from dedup_sdk.kafka.commit_text import CommitMetadata, parse_metadata, sealed, unsealed
from dedup_sdk.kafka.settings import ASK_S, refuse_unwritable

_ERA_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to set a group: exactly one of an offset, a moment (with a time zone), the log's beginning, or so many records on.

    ``by`` is negative for going back. Raises `ConfigurationError` where it is not exactly one.
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
            raise ConfigurationError(f"--to-offset {self.offset} is no offset; give one from 0 on, or --by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition's way from ``committed`` (None: the group never committed) to ``offset``, with the text of the commit.

    ``note`` says more, e.g. that the log begins later than was asked for.
    """

    partition: int
    committed: int | None
    offset: int
    metadata: CommitMetadata | None
    note: str = ""

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return self.offset != self.committed


def moved(
    committed: int | None, metadata: CommitMetadata | None, offset: int, era: str
) -> CommitMetadata | None:
    """Return the metadata of a commit of ``offset`` for a group that stood at ``committed`` with ``metadata``.

    Back inside its history all of that stays, in a new era. Where it never was, or ahead of the processed range, its history
    begins anew at ``offset``. None where the group's commit vouches for nothing.
    """
    if metadata is None or committed is None:
        return None
    metadata = replace(metadata, done=None)
    if offset > committed:
        # Nothing is to be looked at again: the same era, so that the marks stay.
        return replace(metadata, low=offset, complete=False, epoch=None)
    if offset < metadata.low:
        return replace(metadata, low=offset, era=era, epoch=None)
    return replace(metadata, era=era)


class Rewind:
    """The offsets of a group in one topic. Raises `RecoveryError` in one line where the cluster does not play along.

    ``client``: more of the client's settings, for security.
    """

    def __init__(
        self, bootstrap: str, group: str, topic: str, client: Mapping[str, str] | None = None
    ) -> None:
        self._group, self._topic = group, topic
        self._config: dict[str, Any] = {"log_level": 0, **(client or {}), "bootstrap.servers": bootstrap}
        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"}
        refuse_unwritable({**self._config, **own})
        with settings_refused(self._config):
            self._consumer = Consumer({**self._config, **own})

    def close(self) -> None:
        """End the connections."""
        self._consumer.close()

    def plan(self, target: Target, partitions: Iterable[int] = ()) -> list[Move]:
        """Return where each partition would go, all of the topic's unless some are named; nothing is changed."""
        era = secrets.token_hex(_ERA_BYTES)
        try:
            there = self._consumer.list_topics(timeout=ASK_S).topics.get(self._topic)
            if there is None or there.error is not None:
                raise RecoveryError(f"topic {self._topic!r} is unknown to the broker; check --topic")
            wanted = sorted(set(partitions)) or sorted(there.partitions)
            if unknown := [number for number in wanted if number not in there.partitions]:
                raise RecoveryError(
                    f"topic {self._topic!r} has no partition {unknown[0]}, it has {len(there.partitions)}; check --partition"
                )
            asked = [TopicPartition(self._topic, number) for number in wanted]
            stands = {tp.partition: tp for tp in self._consumer.committed(asked, timeout=ASK_S)}
            return [self._move(stands[number], target, era) for number in wanted]
        except KafkaException as error:
            raise RecoveryError(f"the cluster did not answer: {text_of(error)}; is the broker up?") from None

    def _move(self, stands: TopicPartition, target: Target, era: str) -> Move:
        if stands.error is not None:
            raise KafkaException(stands.error)
        committed = stands.offset if stands.offset >= 0 else None
        text = unsealed(stands.metadata, self._group, self._topic, stands.partition)
        metadata = parse_metadata(text, committed=committed) if committed is not None else None
        first, end = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, stands.partition), timeout=ASK_S
        )
        wanted = self._wanted(stands.partition, target, committed, first=first, end=end)
        offset = min(max(wanted, first), end)
        notes = []
        if offset != wanted:
            notes.append(f"the log {'begins' if wanted < first else 'ends'} there")
        if committed is not None and metadata is None:
            notes.append("its commit vouches for no history")
        elif metadata is not None and offset < metadata.low:
            notes.append(f"before its history at {metadata.low}")
        return Move(
            partition=stands.partition,
            committed=committed,
            offset=offset,
            metadata=moved(committed, metadata, offset, era),
            note=", ".join(notes),
        )

    def _wanted(self, partition: int, target: Target, committed: int | None, *, first: int, end: int) -> int:
        if target.offset is not None:
            return target.offset
        if target.earliest:
            return first
        if target.moment is not None:
            at_ms = max(int(target.moment.timestamp() * 1000), 0)
            answer = self._consumer.offsets_for_times(
                [TopicPartition(self._topic, partition, at_ms)], timeout=ASK_S
            )[0]
            if answer.error is not None:
                raise KafkaException(answer.error)
            return answer.offset if answer.offset >= 0 else end
        if committed is None:
            raise RecoveryError(
                f"{self._topic}[{partition}]: group {self._group!r} never committed, so that --by means nothing; use --to-offset"
            )
        return committed + (target.by or 0)

    def refuse_members(self) -> None:
        """Raise `RecoveryError` while the group has members: they would commit over the offsets set here."""
        with settings_refused(self._config):
            admin = AdminClient(self._config)
        try:
            described = admin.describe_consumer_groups([self._group], request_timeout=ASK_S)[
                self._group
            ].result()
        except KafkaException as error:
            raise RecoveryError(f"group {self._group!r} cannot be looked at: {text_of(error)}") from None
        if described.members:
            raise RecoveryError(
                f"group {self._group!r} has {len(described.members)} members, which would commit over it; stop them first"
            )

    def commit(self, moves: Iterable[Move]) -> int:
        """Commit the moves that change anything, and return their number; the broker refuses it while the group has members."""
        due = [
            TopicPartition(
                self._topic,
                move.partition,
                move.offset,
                ""
                if move.metadata is None
                else sealed(move.metadata.text(move.offset), self._group, self._topic, move.partition),
            )
            for move in moves
            if move.changes
        ]
        if not due:
            return 0
        self.refuse_members()
        try:
            answers = self._consumer.commit(offsets=due, asynchronous=False)
        except KafkaException as error:
            raise RecoveryError(
                f"group {self._group!r}: the offsets were not set: {text_of(error)}; are its members gone?"
            ) from None
        failed = [answer for answer in answers if answer.error is not None]
        if failed:
            raise RecoveryError(
                f"{self._topic}[{failed[0].partition}]: offset {failed[0].offset} was not set: {failed[0].error}; run it again"
            )
        return len(due)
