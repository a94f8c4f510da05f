"""The committed offsets of a group in one topic, for the commands that set them or their texts.

Committed offsets are next offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import Consumer

from dedup_sdk._admin.broker_check import require_broker
from dedup_sdk._commit_text import CommitMetadata, log_name, parse_metadata, sealed, unsealed
from dedup_sdk._kafka.client.client import topic_id_of
from dedup_sdk._kafka.client.client_errors import settings_refused, text_of
from dedup_sdk._kafka.client.settings import ASK_S, refuse_unwritable
from dedup_sdk._masking import counted, shown
from dedup_sdk.errors import RecoveryError

_NEAR_NAMES: Final = 3
_ALIKE: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInLog:
    """A partition's commit (None: never committed) with its text, and where its log begins and ends."""

    partition: int
    committed: int | None
    text: str = ""
    first: int
    end: int

    @property
    def metadata(self) -> CommitMetadata | None:
        """The group's history in the text; None where the text is void."""
        return None if self.committed is None else parse_metadata(self.text, committed=self.committed)


class NewCommit(NamedTuple):
    """A commit to make; without metadata it has no text."""

    partition: int
    offset: int
    metadata: CommitMetadata | None


class GroupOffsets:
    """Reads and sets a group's offsets in one topic. Raises `RecoveryError` with one line when a request fails.

    ``client``: additional client settings, for security.
    """

    def __init__(
        self, bootstrap: str, group: str, topic: str, client: Mapping[str, str] | None = None
    ) -> None:
        self.group, self.topic = group, topic
        self._config: dict[str, Any] = {"log_level": 0, **(client or {}), "bootstrap.servers": bootstrap}
        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"}
        refuse_unwritable({**self._config, **own})
        with settings_refused(self._config):
            self._consumer = Consumer({**self._config, **own})

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def read(self, partitions: Iterable[int] = ()) -> list[CommitInLog]:
        """Return the commits of ``partitions`` (default: all of the topic), ascending."""
        with _answers_wanted():
            there = self._consumer.list_topics(timeout=ASK_S).topics.get(self.topic)
            if there is None or there.error is not None:
                raise RecoveryError(f"topic {shown(self.topic)} is unknown to the broker; check --topic")
            wanted = sorted(set(partitions)) or sorted(there.partitions)
            if unknown := [number for number in wanted if number not in there.partitions]:
                raise RecoveryError(
                    f"topic {shown(self.topic)} has no partition {unknown[0]}, but {len(there.partitions)} "
                    "partitions; check --partition"
                )
            asked = [TopicPartition(self.topic, number) for number in wanted]
            found = {tp.partition: tp for tp in self._consumer.committed(asked, timeout=ASK_S)}
            return [self._in_log(found[number]) for number in wanted]

    def _in_log(self, found: TopicPartition) -> CommitInLog:
        if found.error is not None:
            raise KafkaException(found.error)
        first, end = self._consumer.get_watermark_offsets(
            TopicPartition(self.topic, found.partition), timeout=ASK_S
        )
        return CommitInLog(
            partition=found.partition,
            committed=found.offset if found.offset >= 0 else None,
            text=unsealed(found.metadata, self.group, self.topic, found.partition),
            first=first,
            end=end,
        )

    def offset_at(self, partition: int, moment: datetime) -> int | None:
        """Return the offset of the first record at or after a time; None where there is none."""
        at_ms = max(int(moment.timestamp() * 1000), 0)
        with _answers_wanted():
            answer = self._consumer.offsets_for_times(
                [TopicPartition(self.topic, partition, at_ms)], timeout=ASK_S
            )[0]
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else None

    def log(self) -> str:
        """Return the name of the topic's log (`dedup_sdk._commit_text.log_name`)."""
        with _answers_wanted():
            cluster = self._consumer.list_topics(self.topic, timeout=ASK_S).cluster_id or ""
            return log_name(cluster, self._topic_id())

    def _topic_id(self) -> str:
        admin = self._admin()  # without a reference it would end before the answer comes
        asked = admin.describe_topics(TopicCollection([self.topic]), request_timeout=ASK_S)
        try:
            return topic_id_of(asked[self.topic].result())
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:  # noqa: SLF001 (its public name)
                raise
        return ""

    def _admin(self) -> AdminClient:
        with settings_refused(self._config):
            return AdminClient(self._config)

    def refuse_members(self) -> None:
        """Raise `RecoveryError` if the group has members, which would overwrite the new commits.

        So it does if no broker answers.
        """
        admin = self._admin()
        require_broker(self._config, RecoveryError)
        try:
            described = admin.describe_consumer_groups([self.group], request_timeout=ASK_S)[
                self.group
            ].result()
        except KafkaException as error:
            raise RecoveryError(
                f"group {shown(self.group)} cannot be described: {text_of(error)}; check access rights"
            ) from None
        if described.members:
            raise RecoveryError(
                f"group {shown(self.group)} has {counted(len(described.members), 'member')}, which would overwrite "
                "the new offsets; stop them first"
            )

    def why_no_commit(self) -> str:
        """Return why a partition has no commit, with names of groups like this one if the cluster does not know it."""
        admin = self._admin()
        try:
            listed = admin.list_consumer_groups(request_timeout=ASK_S).result().valid
        except KafkaException:
            # Not every user may list groups.
            return "the group has committed nothing"
        names = {each.group_id for each in listed}
        if self.group in names:
            return "the group has committed nothing"
        close = get_close_matches(self.group, names, n=_NEAR_NAMES, cutoff=_ALIKE)
        meant = f"; did you mean {' or '.join(map(shown, close))}?" if close else ""
        return f"the cluster knows no group {shown(self.group)}{meant}"

    def commit(self, commits: Iterable[NewCommit]) -> int:
        """Make these commits; return their number. Refused while the group has members."""
        due = [
            TopicPartition(self.topic, new.partition, new.offset, "")
            if new.metadata is None
            else TopicPartition(
                self.topic,
                new.partition,
                new.offset,
                sealed(new.metadata.text(new.offset), self.group, self.topic, new.partition),
            )
            for new in commits
        ]
        if not due:
            return 0
        self.refuse_members()
        try:
            answers = self._consumer.commit(offsets=due, asynchronous=False)
        except KafkaException as error:
            raise RecoveryError(
                f"group {shown(self.group)}: the offsets were not set: {text_of(error)}; fix the "
                "cause, stop the group's members, and run it again"
            ) from None
        failed = [answer for answer in answers if answer.error is not None]
        if failed:
            raise RecoveryError(
                f"{self.topic}[{failed[0].partition}]: offset {failed[0].offset} was not set: {failed[0].error}; "
                "run it again"
            )
        return len(due)


@contextmanager
def _answers_wanted() -> Iterator[None]:
    """Raise an error of the client as `RecoveryError`."""
    try:
        yield
    except KafkaException as error:
        raise RecoveryError(
            f"the cluster did not answer: {text_of(error)}; check --bootstrap and the broker"
        ) from None
