"""The questions to Kafka before anything is read: where a topic's log begins and ends, and a group's commits.

Everything is asked once, so that the cut is known, stays the same through retries, and can be named in the manifest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple, Self, cast

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import Consumer

from dedup_sdk._admin.broker_check import require_broker
from dedup_sdk._commit_text import unsealed
from dedup_sdk._kafka.client.client import topic_id_of
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError, RecoveryError
from spark_backfill.errors import BackfillError

_TIMEOUT_S: Final = 15.0
_GROUP: Final = "dedup-backfill"
_FIRST_STEP, _STEP_FACTOR = 1, 32


class Bounds(NamedTuple):
    """A partition's log: its first offset, and the ends for readers that wait for transactions and that do not."""

    start: int
    stable_end: int
    end: int


class Commit(NamedTuple):
    """A group's commit for a partition.

    The next offset, and the text beside it (empty where there is none).
    """

    offset: int
    text: str


class LastRecord(NamedTuple):
    """The last delivered record before a cut: its offset, timestamp (ms; -1 where it has none) and leader epoch."""

    offset: int
    timestamp_ms: int
    epoch: int | None


class KafkaLog:
    """One topic, as the driver sees it. A context manager; raises `BackfillError` in one line that names the broker.

    Settings that librdkafka does not take are a `ConfigurationError`.

    ``settings`` are librdkafka's, on top of ``bootstrap``.
    """

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self.topic = topic
        self.cluster = ""
        self._numbers: list[int] = []
        self._readers: Readers | None = None
        # librdkafka would write to stderr; here it is one line.
        silent = logging.getLogger("spark_backfill.kafka")
        silent.disabled = True
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, **settings}
        self._settings = common
        self._logger = silent
        self._consumers = ExitStack()
        with _settings_told():
            self._admin = AdminClient(common, logger=silent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumers.close()
        if self._readers is not None:
            self._readers.close()

    def partitions(self) -> list[int]:
        """Return the topic's partitions, ascending."""
        require_broker(self._settings, BackfillError, within_s=_TIMEOUT_S)
        with self._asking("listing the topics"):
            metadata = self._admin.list_topics(timeout=_TIMEOUT_S)
        found = metadata.topics.get(self.topic)
        if found is None or not found.partitions:
            raise BackfillError(
                f"topic {shown(self.topic)} does not exist at {self._bootstrap}: check --topic"
            )
        self.cluster = cast("str | None", metadata.cluster_id) or ""
        self._numbers = sorted(found.partitions)
        return self._numbers

    def topic_id(self) -> str:
        """Return the ID that tells this topic from another of its name; empty where the broker does not say."""
        with self._asking("describing the topic"):
            described = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=_TIMEOUT_S)
            try:
                return topic_id_of(described[self.topic].result(_TIMEOUT_S + 1))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:  # noqa: SLF001 (its public name)
                    raise
        return ""

    @cached_property
    def _consumer(self) -> Consumer:
        return self._made("read_committed")

    @cached_property
    def _plain(self) -> Consumer:
        return self._made("read_uncommitted")

    def _made(self, isolation: str) -> Consumer:
        """Make a consumer, after a broker has answered: one that has never met any takes seconds to close."""
        own: dict[str, Any] = {
            "group.id": _GROUP,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
        with _settings_told():
            consumer = Consumer({**self._settings, **own}, logger=self._logger)
        self._consumers.callback(consumer.close)
        return consumer

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        """Return the bounds of each partition's log."""
        found = {}
        for number in partitions:
            # Asked by consumers, because they try again where a leader is just being elected.
            start, stable_end = self._watermarks(self._consumer, number)
            found[number] = Bounds(start, stable_end, self._watermarks(self._plain, number)[1])
        return found

    def committed(self, group: str, partitions: Iterable[int]) -> dict[int, Commit]:
        """Return a group's commits, for the partitions that have one."""
        asked = [TopicPartition(self.topic, number) for number in partitions]
        with self._asking(f"the offsets of group {shown(group)}"):
            answer = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, asked)], require_stable=True, request_timeout=_TIMEOUT_S
            )
            found = answer[group].result(_TIMEOUT_S + 1)
        for each in found.topic_partitions:
            if each.error is not None:
                raise self._trouble(
                    f"the offset of group {shown(group)} in partition {each.partition}", each.error
                )
        return {
            each.partition: Commit(each.offset, unsealed(each.metadata, group, self.topic, each.partition))
            for each in found.topic_partitions
            if each.offset >= 0
        }

    def first_offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """Return an offset below which every record is older than this timestamp (ms); None when all records are.

        The broker also finds the marker that ends a transaction, by the time at which it was written. The first record
        that is new enough may be far behind one.
        """
        # One less: the broker's time index may pass over records of exactly the timestamp asked for.
        asked = TopicPartition(self.topic, partition, max(timestamp_ms - 1, 0))
        with self._asking(f"looking for a timestamp in partition {partition}"):
            (found,) = self._consumer.offsets_for_times([asked], timeout=_TIMEOUT_S)
            if found.error is not None:
                raise KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def first_timestamps_ms(self, partition: int, begin: int, cut: int, count: int = 1) -> list[int]:
        """Return the timestamps (ms) of the first ``count`` delivered records in ``[begin, cut)``, or of fewer.

        A timestamp is -1 where a record has none.
        """
        with closing(self.between(partition, begin, cut)) as found:
            return [message.timestamp()[1] for message in islice(found, count)]

    def last_record(self, partition: int, floor: int, cut: int) -> LastRecord | None:
        """Return the last delivered record in ``[floor, cut)``, or None.

        Directly before the cut may lie the marker of a transaction, an aborted record or a hole of compaction,
        so that the search steps back in growing steps.
        """
        step, upper = _FIRST_STEP, cut
        while upper > floor:
            begin = max(floor, cut - step)
            found = deque(self.between(partition, begin, upper), maxlen=1)
            if found:
                last = found[0]
                return LastRecord(cast("int", last.offset()), last.timestamp()[1], last.leader_epoch())
            upper, step = begin, step * _STEP_FACTOR
        return None

    def epoch_before(self, partition: int, cut: int, last: LastRecord) -> int | None:
        """Return the leader epoch of the offset directly before a cut; ``last`` is the last delivered record there.

        What lies between them may be of a later epoch: then, and where the broker does not say, None.
        """
        if last.epoch is None or last.offset == cut - 1 or self.newest_epochs.get(partition) == last.epoch:
            return last.epoch
        with suppress(BackfillError):
            return last.epoch if self.same_until(partition, cut, last.epoch) == cut else None
        return None

    @cached_property
    def newest_epochs(self) -> Mapping[int, int | None]:
        """The epoch of each partition's leader, where the broker says it."""
        asked = {
            TopicPartition(self.topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for number in self._numbers
        }
        try:
            answer = self._admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
            return {
                place.partition: each.result(_TIMEOUT_S + 1).leader_epoch for place, each in answer.items()
            }
        except (KafkaException, TimeoutError):
            return {}

    def same_until(self, partition: int, offset: int, epoch: int) -> int | None:
        """Return up to which offset the log before ``offset`` is still the one of this leader epoch.

        None where the broker does not have that offset any more. ``offset`` must not be above the log's end.
        """
        with self._asking(f"the end of leader epoch {epoch} in partition {partition}"):
            if self._readers is None:
                self._readers = Readers(
                    client_settings({**self._settings, "group.id": _GROUP, "log_level": 0})
                )
            with closing(TailReader(self._readers, self.topic, partition)) as reader:
                return _result_of(reader.same_until(offset, epoch))

    def between(self, partition: int, begin: int, end: int) -> Generator[Message]:
        """The delivered records of ``[begin, end)``."""
        if begin >= end:
            return
        self._consumer.assign([TopicPartition(self.topic, partition, begin)])
        try:
            while True:
                message = self._consumer.poll(_TIMEOUT_S)
                if message is None:
                    raise BackfillError(
                        f"{self.topic}[{partition}] gave no record at offset {begin} within {_TIMEOUT_S:g} s: try again"
                    )
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (its public name)
                    return
                if error is not None:
                    raise self._trouble(f"reading {self.topic}[{partition}] at offset {begin}", error)
                offset = message.offset()
                if offset is None or offset >= end:
                    return
                yield message
                if offset == end - 1:
                    return
        finally:
            self._consumer.unassign()

    def _watermarks(self, consumer: Consumer, number: int) -> tuple[int, int]:
        with self._asking(f"the offsets of partition {number}"):
            answer = consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=_TIMEOUT_S)
        if answer is None:
            raise BackfillError(f"partition {number} gave no offsets within {_TIMEOUT_S:g} s: try again")
        return answer

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, TimeoutError, RecoveryError) as error:
            raise self._trouble(what, error) from None

    def _trouble(self, what: str, error: object) -> BackfillError:
        return BackfillError(
            f"{what}: Kafka at {self._bootstrap} said {_said(error)}; check it and run again"
        )


@contextmanager
def _settings_told() -> Iterator[None]:
    try:
        yield
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a Kafka client cannot be made: {_said(error)}; correct it in --client-config, which has librdkafka's "
            "settings"
        ) from None


def _result_of(steps: Generator[None, None, int | None]) -> int | None:
    """Take all steps; return the value of the last one."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: int | None = end.value
            return found


def _said(error: object) -> str:
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        error = error.args[0]
    return error.str() if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}".rstrip(": ")
