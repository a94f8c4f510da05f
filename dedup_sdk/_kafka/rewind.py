"""Moving a group's offsets deliberately, backward or forward, so that every host detects the move.

Generic reset tools drop the metadata of our commits, and with it the group's history. Here the metadata stays:
records below the new offset still count as processed, and a new era makes the consumer judge the records above it
again. Committed offsets are next offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._kafka.broker_check import require_broker
from dedup_sdk._kafka.client_errors import settings_refused, text_of
from dedup_sdk._kafka.commit_text import CommitMetadata, new_era, parse_metadata, sealed, unsealed
from dedup_sdk._kafka.settings import ASK_S, refuse_unwritable
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
        return replace(metadata, low=offset, complete=False, epoch=None)
    if offset < metadata.low:
        return replace(metadata, low=offset, era=era, epoch=None)
    return replace(metadata, era=era)


class Rewind:
    """Changes a group's offsets in one topic. Raises `RecoveryError` with a one-line message when a request fails.

    ``client``: additional client settings, for security.
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
        """Close the connections."""
        self._consumer.close()

    def plan(self, target: Target, partitions: Iterable[int] = ()) -> list[Move]:
        """Return the moves of ``partitions`` (default: all of the topic) without changing anything."""
        era = new_era()
        try:
            there = self._consumer.list_topics(timeout=ASK_S).topics.get(self._topic)
            if there is None or there.error is not None:
                raise RecoveryError(f"topic {shown(self._topic)} is unknown to the broker; check --topic")
            wanted = sorted(set(partitions)) or sorted(there.partitions)
            if unknown := [number for number in wanted if number not in there.partitions]:
                raise RecoveryError(
                    f"topic {shown(self._topic)} has no partition {unknown[0]}, but {len(there.partitions)} "
                    "partitions; check --partition"
                )
            asked = [TopicPartition(self._topic, number) for number in wanted]
            stands = {tp.partition: tp for tp in self._consumer.committed(asked, timeout=ASK_S)}
            return [self._move(stands[number], target, era) for number in wanted]
        except KafkaException as error:
            raise RecoveryError(
                f"the cluster did not answer: {text_of(error)}; check --bootstrap and the broker"
            ) from None

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
                f"{self._topic}[{partition}]: group {shown(self._group)} has no committed offset, which --by needs; "
                "use --to-offset"
            )
        return committed + (target.by or 0)

    def refuse_members(self) -> None:
        """Raise `RecoveryError` if the group has members, which would overwrite the new offsets.

        So it does if no broker answers.
        """
        with settings_refused(self._config):
            admin = AdminClient(self._config)
        require_broker(self._config, RecoveryError)
        try:
            described = admin.describe_consumer_groups([self._group], request_timeout=ASK_S)[
                self._group
            ].result()
        except KafkaException as error:
            raise RecoveryError(
                f"group {shown(self._group)} cannot be described: {text_of(error)}; check access rights"
            ) from None
        if described.members:
            raise RecoveryError(
                f"group {shown(self._group)} has {len(described.members)} members, which would overwrite the new "
                "offsets; stop them first"
            )

    def commit(self, moves: Iterable[Move]) -> int:
        """Commit the moves that change an offset; return their number. Refused while the group has members."""
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
                f"group {shown(self._group)}: the offsets were not set: {text_of(error)}; fix the "
                "cause, stop the group's members, and run it again"
            ) from None
        failed = [answer for answer in answers if answer.error is not None]
        if failed:
            raise RecoveryError(
                f"{self._topic}[{failed[0].partition}]: offset {failed[0].offset} was not set: {failed[0].error}; "
                "run it again"
            )
        return len(due)
