"""The identity of the source's logs: the log that a bridge's offsets belong to, and its text in a commit.

    dedup-bridge/1 log=3f9a01bc84d2e6f7 ids=plain

``log`` is the result of `dedup_sdk._commit_text.log_name`. ``ids=plain``: record IDs are made without
the topic's ID, because the brokers had none when the group began this topic; left out otherwise. An unknown
text is ignored.

A topic that is deleted and created again has the same name, and soon the same offsets: only its topic ID
differs. Two addresses with the same cluster ID may belong to two clusters, because copying a configuration
copies the ID. One cluster has the same topics at all its addresses, so that a topic which exists at one
address only, or has another ID there, proves that there are two clusters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as TakesLongError
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException

from dedup_sdk._commit_text import is_of_one_cluster, is_one_log, log_name, topic_digits
from dedup_sdk._kafka.client.client import MetadataRequests, PendingRequest, has_topic_ids, topic_id_of

PartitionId = tuple[str, int]
"""Topic and partition."""
_FORM: Final = re.compile(r"dedup-bridge/1 log=((?:[0-9a-f]{8}){1,2})( ids=plain)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Log:
    """The log that a partition's offsets belong to, and whether its record IDs are plain.

    ``name`` is empty where it is unknown.
    """

    name: str
    plain: bool = False

    @property
    def mark(self) -> str:
        """Eight hexadecimal digits that distinguish this topic from an earlier one of its name, or ""."""
        return "" if self.plain else topic_digits(self.name)

    def completed_by(self, now: str) -> Log:
        """Return the same log with the longer of both names; its records keep their IDs."""
        gained = bool(self.name) and not topic_digits(self.name) and bool(topic_digits(now))
        return Log(max(self.name, now, key=len), plain=self.plain or gained)

    def __str__(self) -> str:
        """The text that `parse_log` reads; empty where the log is unknown."""
        return self.name and f"dedup-bridge/1 log={self.name}{' ids=plain' if self.plain else ''}"


class StartPosition(NamedTuple):
    """The offset from which a partition is read, None if unknown.

    ``recreated``: the topic was deleted and created again.
    """

    log: Log
    offset: int | None
    recreated: bool = False
    translated: bool = False
    """Whether a tool translated the committed offset from another cluster."""


def id_prefix(cluster: str, partition_id: PartitionId, log: Log) -> str:
    """Return the beginning of the IDs of a partition's records: ``CLUSTER.TOPIC~MARK-PARTITION``.

    Topics without IDs have no mark. Topic names do not contain ``~``.
    """
    topic, partition = partition_id
    return f"{cluster}.{topic}{log.mark and '~' + log.mark}-{partition}"


def parse_log(text: str | None) -> Log | None:
    """Read a commit's text; None if a bridge did not write it."""
    form = _FORM.fullmatch(text or "")
    return None if form is None else Log(form[1], plain=form[2] is not None)


def start_position(
    now: str, committed: int, text: str | None, *, previous: Log | None, copied_to: int | None
) -> StartPosition:
    """Return the offset at which to start, or to continue.

    Args:
        now: the log's name, from the brokers.
        committed: the group's offset, below zero without one.
        text: the text of that commit.
        previous: the log that this member has read until now, None if it only starts.
        copied_to: how far it has copied that log, None if it has copied nothing.
    """
    if previous is not None and not is_one_log(previous.name, now):
        return StartPosition(Log(now), OFFSET_BEGINNING, recreated=True)
    told = parse_log(text) if committed >= 0 else None
    if previous is not None and copied_to is not None:
        return StartPosition(previous.completed_by(now), copied_to)
    offset = committed if committed >= 0 else None
    if told is None:
        return StartPosition(Log(now) if previous is None else previous.completed_by(now), offset)
    if is_one_log(told.name, now):
        return StartPosition(told.completed_by(now), offset)
    if is_of_one_cluster(told.name, now):
        return StartPosition(Log(now), OFFSET_BEGINNING, recreated=True)
    return StartPosition(Log(now), offset, translated=True)


_AGAIN_S: Final = 0.5
"""Seconds until a failed request is retried."""


class TopicLogs:
    """Requests the logs of topics in the background.

    ``config``: the configuration of the source's client; ``cluster_id`` returns the cluster's ID, or raises
    `KafkaException`.
    """

    def __init__(self, config: Mapping[str, Any], cluster_id: Callable[[], str]) -> None:
        self._questions, self.cluster_id = MetadataRequests(config), cluster_id
        self._asked: dict[str, PendingRequest] = {}
        self._ask_at: dict[str, float] = {}

    def ask_anew(self, topics: Iterable[str]) -> dict[str, PendingRequest]:
        """Request the current IDs of topics; empty where the brokers have none."""
        return {} if self._has_none() else self._questions.describe(topics)

    def answers(self, topics: Iterable[str]) -> dict[str, str | KafkaException]:
        """Request topics that were not requested yet, and return the answers so far: log names (`log_name`), or errors.

        Each answer is returned once. Raises `KafkaException` while the cluster's ID is unknown.
        """
        if self._has_none():
            return dict.fromkeys(topics, log_name(self.cluster_id(), ""))
        now = time.monotonic()
        unasked = [each for each in topics if each not in self._asked and now >= self._ask_at.get(each, 0.0)]
        if unasked:
            self._asked |= self._questions.describe(unasked)
        done = [each for each in topics if each in self._asked and self._asked[each].answer.done()]
        return {topic: self._answer(topic) for topic in done}

    def forget(self, topics: Iterable[str]) -> None:
        """Drop earlier requests."""
        for topic in topics:
            self._asked.pop(topic, None)

    def ask_again_after(self, topic: str, seconds: float) -> None:
        """Request a topic again after some seconds."""
        self._ask_at[topic] = time.monotonic() + seconds
        self._questions.renew()

    def _answer(self, topic: str) -> str | KafkaException:
        try:
            topic_id = topic_id_of(self._asked.pop(topic).answer.result())
        except KafkaException as error:
            self._ask_at[topic] = time.monotonic() + _AGAIN_S
            self._questions.renew()
            return error
        return log_name(self.cluster_id(), topic_id)

    def _has_none(self) -> bool:
        return not has_topic_ids(self.cluster_id())


_ASK_S: Final = 5.0
PAUSE_S: Final = 0.5
"""Seconds between two requests: a broker may not know a topic yet, so that both answers must agree."""
_NO_TOPIC: Final = "-"
_IdPairs = dict[str, tuple[str, str]]


def differing_topic(
    source: Mapping[str, Any], target: Mapping[str, Any], topics: Iterable[str]
) -> str | None:
    """Return a topic that differs between two clusters with the same ID; None where they seem to be one cluster.

    Args:
        source: the configuration of a client of the one.
        target: the configuration of a client of the other.
        topics: the names to compare.
    """
    ends = (MetadataRequests(source), MetadataRequests(target))
    names = sorted(set(topics))
    found = _differing(ends, names)
    if not found:
        return None
    time.sleep(PAUSE_S)
    again = _differing(ends, list(found))
    return next((name for name, seen in found.items() if again.get(name) == seen), None)


def _differing(ends: tuple[MetadataRequests, MetadataRequests], names: list[str]) -> _IdPairs:
    one, other = (_ids(each, names) for each in ends)
    return {
        name: (one[name], other[name])
        for name in names
        # Brokers without topic IDs prove nothing.
        if one.get(name) and other.get(name) and one[name] != other[name]
    }


def _ids(end: MetadataRequests, names: list[str]) -> dict[str, str]:
    """Return the topics' IDs; "" where brokers have none, a dash for a topic that does not exist.

    Topics without an answer are left out.
    """
    found: dict[str, str] = {}
    for name, asked in end.describe(names).items():
        try:
            found[name] = topic_id_of(asked.answer.result(_ASK_S))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                found[name] = _NO_TOPIC
        except TakesLongError:
            pass
    return found
