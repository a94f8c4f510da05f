"""The plain client under the drop-in consumer (`Client`), and the questions to brokers beside consuming (`Questions`).

Those that nobody waits for are asked, and their answers are looked for later. One admin client serves them all, because each needs connections and
threads (of librdkafka's) of its own. How long a poll waits for the others, `dedup_sdk.kafka.recovery.Backoff` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from dedup_sdk.errors import RecoveryError
from dedup_sdk.fork_safety import keep_in_children
from dedup_sdk.kafka.client_errors import passes
from dedup_sdk.kafka.commit_text import sealed, unsealed
from dedup_sdk.kafka.reader import Readers, TailReader
from dedup_sdk.kafka.settings import ASK_S, ClientSettings, Reset, admin_settings

logger = logging.getLogger("dedup_sdk")

PROBE_S = 5.0
"""Seconds after which a leader that does not answer is asked by another connection."""

ANSWER_S: Final = 0.5
"""Seconds that a poll waits for an answer, as long as brokers give them."""

_NO_ID: Final = str(Uuid(0, 0))
_SILENT = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._DESTROY,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
})  # fmt: skip


class Asked(NamedTuple):
    """A question that waits for its answer, to be kept as a whole: a client that nobody refers to gives its questions up."""

    answer: Future[Any]
    client: AdminClient


@dataclass(slots=True)
class EndProbe:
    """A question to the leader of a partition, whose answer says that it answers."""

    asked: Asked
    began: float = field(default_factory=time.monotonic)
    took_s: float | None = None
    """Seconds until the answer was seen; None before that."""

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or given up."""
        if self.took_s is None and self.asked.answer.done():
            self.took_s = time.monotonic() - self.began
        return self.took_s is not None

    @property
    def is_answered(self) -> bool:
        """Whether somebody answered, be it that there is no leader, or no such partition."""
        if not self.is_over:
            return False
        error = self.asked.answer.exception()
        if error is None:
            # The client says so of a question whose time is up.
            return bool(self.asked.answer.result().offset >= 0)
        cause = error.args[0] if isinstance(error, KafkaException) else None
        return isinstance(cause, KafkaError) and cause.code() not in _SILENT

    @property
    def end(self) -> int | None:
        """The end of what consumers may read, as it was answered; None without such an answer."""
        if not self.is_over or self.asked.answer.exception() is not None:
            return None
        end = int(self.asked.answer.result().offset)
        return end if end >= 0 else None


class Questions:
    """Asks through one client, for one consumer, whose settings ``client`` are. Not thread-safe."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._config = admin_settings(client)
        undecided = str(client.get("isolation.level", "")).lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if undecided else IsolationLevel.READ_COMMITTED
        self._admin: AdminClient | None = None

    def describe(self, topics: Iterable[str]) -> dict[str, Asked]:
        """Ask what these topics are, in one request; the answers are `confluent_kafka.admin.TopicDescription`, by name."""
        admin = self._client()
        answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_S)
        return {topic: Asked(answer, admin) for topic, answer in answers.items()}

    def settings_of(self, topic: str) -> Asked:
        """Ask how a topic is set up; the answer has an entry a setting."""
        admin = self._client()
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return Asked(admin.describe_configs([resource], request_timeout=ASK_S)[resource], admin)

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Ask the leader of a partition for the end of what a consumer may read."""
        admin = self._client()
        asked = TopicPartition(topic, partition)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
        answers = admin.list_offsets(
            {asked: latest}, isolation_level=self._isolation, request_timeout=PROBE_S
        )
        [future] = answers.values()
        return EndProbe(Asked(future, admin))

    def renew(self) -> None:
        """Have the next question make new connections; those of questions under way go with these. A client believes for minutes the leaders that it was told."""
        self._admin = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = keep_in_children(AdminClient(self._config))
        return self._admin


def topic_id_of(description: Any) -> str:
    """Return the ID in a `confluent_kafka.admin.TopicDescription`; empty where brokers have none, for which the client shows one of zeros."""
    topic_id = str(description.topic_id or _NO_ID)
    return "" if topic_id == _NO_ID else topic_id


_SEEK_TRIES = 50
_SEEK_PAUSE_S = 0.02
_WAKE_S = 1.0
_LIST_S = 0.5
_ONE_DAY_S = 86_400.0
"""The client counts milliseconds, in 32 bits."""


class Client:
    """`confluent_kafka.Consumer`'s own methods of a consumer that overrides them."""

    def __init__(self, consumer: Consumer, settings: ClientSettings) -> None:
        self._consumer = consumer
        self._settings = settings
        self.readers = Readers(settings)
        self.questions = Questions(settings.client)
        self._topic_ids: dict[str, str] = {}
        self._described: dict[str, Asked] = {}
        """What was asked of topics, and not taken note of yet."""
        self._cluster: str | None = None

    def assign(self, partitions: list[TopicPartition], *, incremental: bool | None = None) -> None:
        """Take partitions over, paused; by default in the way of the group's protocol."""
        if self._settings.incremental if incremental is None else incremental:
            Consumer.incremental_assign(self._consumer, partitions)
        else:
            Consumer.assign(self._consumer, partitions)
        if partitions:
            Consumer.pause(self._consumer, partitions)

    def unassign(self, partitions: list[TopicPartition]) -> None:
        """Let some partitions of an incremental assignment go."""
        Consumer.incremental_unassign(self._consumer, partitions)

    def seek(self, topic: str, partition: int, offset: int, *, leader_epoch: int | None = None) -> bool:
        """Move where a partition is read; with the epoch of what lies before it, the broker is asked whether that is still there.

        False when the client does not read it, after a second: then it has stopped (`place_again`).
        """
        target = TopicPartition(topic, partition, offset)
        if leader_epoch is not None:
            target = TopicPartition(topic, partition, offset, "", leader_epoch)
        for _ in range(_SEEK_TRIES):
            try:
                Consumer.seek(self._consumer, target)
            except KafkaException as error:
                # A partition that was assigned a moment ago cannot be moved yet.
                if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                    raise
                time.sleep(_SEEK_PAUSE_S)
            else:
                return True
        return False

    def place_again(self, target: TopicPartition, others: list[TopicPartition]) -> None:
        """Take a partition anew that the client stopped reading, where no seek helps; all of them are paused then.

        ``others`` are the rest of the assignment, at the offsets to read from: the eager protocol replaces all or nothing.
        """
        try:
            Consumer.incremental_unassign(self._consumer, [target])
            Consumer.incremental_assign(self._consumer, [target])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                raise
            Consumer.assign(self._consumer, [target, *others])
        Consumer.pause(self._consumer, [target, *others])

    def resume(self, topic: str, partition: int) -> None:
        """Let a partition deliver."""
        Consumer.resume(self._consumer, [TopicPartition(topic, partition)])

    def listen(self, timeout_s: float) -> None:
        """Let the client do its work, and the group hear from it; what comes is dropped."""
        Consumer.poll(self._consumer, timeout_s)

    def wake(self, partitions: list[TopicPartition]) -> None:
        """Have the leaders of these partitions fetched from at once.

        The client looks at a partition that was resumed only when its connection to the leader has something to do, up to a
        second later; so it gets a small question to send. A leader that holds a fetch back, because it has no records yet,
        answers after it (``fetch.wait.max.ms``, half a second), so that this is for leaders that nothing is fetched from. The
        time must not be shorter than that: a question that is overdue has the client disconnect.
        """
        # The offset is the time that is asked for.
        asked = [TopicPartition(tp.topic, tp.partition, 0) for tp in partitions]
        with suppress(KafkaException):
            Consumer.offsets_for_times(self._consumer, asked, timeout=_WAKE_S)

    def pause(self, topic: str, partition: int) -> None:
        """Stop a partition from delivering."""
        Consumer.pause(self._consumer, [TopicPartition(topic, partition)])

    def committed(
        self, partitions: list[TopicPartition], timeout_s: float | None = None
    ) -> dict[tuple[str, int], TopicPartition]:
        """Return what the group has committed of each partition, with metadata (no text of ours that is of another group or partition).

        The offset is -1001 where nothing is.
        """
        asked = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        found = Consumer.committed(self._consumer, asked, timeout=ASK_S if timeout_s is None else timeout_s)
        stand = {}
        for tp in found:
            stand[tp.topic, tp.partition] = tp if tp.error is not None else self._with_text(tp, unsealed)
        return stand

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition] | None:
        """Commit exactly these offsets and their metadata, ours with its seal."""
        offsets = [self._with_text(tp, sealed) for tp in offsets]
        if asynchronous:
            Consumer.commit(self._consumer, offsets=offsets, asynchronous=True)
            return None
        return Consumer.commit(self._consumer, offsets=offsets, asynchronous=False)

    def _with_text(
        self, tp: TopicPartition, change: Callable[[str | None, str, str, int], str]
    ) -> TopicPartition:
        text = change(tp.metadata, self._settings.group, tp.topic, tp.partition)
        epoch: Any = tp.leader_epoch  # None where the broker tells none, whatever the stubs say
        return TopicPartition(tp.topic, tp.partition, tp.offset, text, -1 if epoch is None else epoch)

    def commit_until(self, offsets: list[TopicPartition], until: float) -> list[TopicPartition]:
        """Commit and wait for the answer if the group's coordinator is there before ``until`` (monotonic seconds).

        The client waits for an answer as long as it takes to lose hope in the coordinator, and tells nobody; a question, which
        takes a timeout, is asked before. Raises `KafkaException`.
        """
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 (that is its public name)
        self.committed(offsets, min(left_s, _ONE_DAY_S))
        return self.commit(offsets, asynchronous=False) or []

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that is still there and the one after the last that is decided; see `TailReader.bounds`."""
        with closing(self.tail_reader(topic, partition)) as reader:
            return reader.bounds()

    def known_end(self, topic: str, partition: int) -> int:
        """Return the end of the log as of the last fetch, below zero before the first; nobody is asked."""
        there = TopicPartition(topic, partition)
        return int(Consumer.get_watermark_offsets(self._consumer, there, cached=True)[1])

    def reads_at(self, topic: str, partition: int) -> int:
        """Return the offset up to which all was handed over that may be; below zero where nothing was since it was placed."""
        return int(Consumer.position(self._consumer, [TopicPartition(topic, partition)])[0].offset)

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Ask the leader for the end of what may be read; nobody waits for the answer."""
        return self.questions.probe(topic, partition)

    def log_end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record of the log; see `TailReader.log_end`."""
        with closing(self.tail_reader(topic, partition)) as reader:
            return reader.log_end()

    def edge(self, topic: str, partition: int, reset: Reset) -> int:
        """Return where a partition without a valid offset starts by the user's policy."""
        if reset == "error":
            raise RecoveryError(
                f"{topic}[{partition}] has no valid committed offset and auto.offset.reset=error; reset the group's offsets"
            )
        low, high = self.bounds(topic, partition)
        return low if reset == "earliest" else high

    def knows_of(self, topic: str, partition: int) -> bool:
        """Whether the cluster has this partition, be it without a leader; true where no broker answers."""
        try:
            topics = Consumer.list_topics(self._consumer, timeout=_LIST_S).topics
        except KafkaException:
            return True
        return topic in topics and partition in topics[topic].partitions

    def tail_reader(self, topic: str, partition: int) -> TailReader:
        """Return a plain reader of a partition, to be closed."""
        return TailReader(self.readers, topic, partition)

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException` when no broker answers."""
        if self._cluster is None:
            with suppress(KafkaException):
                # As a rule the client has heard of it by now; to ask it anew could wait for a fetch (see `wake`).
                self._cluster = Consumer.cluster_id(self._consumer, timeout=0) or None
        if self._cluster is None:
            metadata = Consumer.list_topics(self._consumer, "", timeout=self.readers.answer_s)
            self._cluster = metadata.cluster_id or "unnamed"
        return self._cluster

    def describe(self, topics: Iterable[str]) -> bool:
        """Ask which these topics are, those of which nobody has asked, in one request; return whether no answer has to be waited for.

        Raises `KafkaException` when it is not known yet which cluster this is.
        """
        unknown = {*topics} - self._topic_ids.keys() - self._described.keys()
        if unknown and self.cluster_id().startswith("mockCluster"):
            self._topic_ids |= dict.fromkeys(unknown, "")
        elif unknown:
            self._described |= self.questions.describe(unknown)
        return not self._described

    def ask_anew(self, topics: Iterable[str]) -> dict[str, Asked]:
        """Ask which these topics are now, whatever is known of them; no answers where brokers have no IDs to give."""
        return {} if self.cluster_id().startswith("mockCluster") else self.questions.describe(topics)

    def is_described(self, topic: str) -> bool:
        """Whether `topic_id` has an answer, or an error, at once."""
        return topic in self._topic_ids or (topic in self._described and self._described[topic].answer.done())

    def topic_id(self, topic: str) -> str:
        """Return the topic's ID, which tells it from a later one of the same name; empty where the broker has none.

        Raises `KafkaException` when no broker answers, or the one that does has not heard of the topic; `RecoveryError` when
        it refuses.
        """
        if topic not in self._topic_ids:
            self.describe([topic])
        if topic in self._described:
            self._topic_ids[topic] = self._answer(topic)
            del self._described[topic]
        return self._topic_ids[topic]

    def topic_settings(self, topic: str) -> Asked | None:
        """Ask how a topic is set up; None where nobody can be asked. The answer has an entry a setting, or is a `KafkaException`."""
        if self.cluster_id().startswith("mockCluster"):
            return None
        return self.questions.settings_of(topic)

    def forget_topic_ids(self) -> None:
        """Ask again: topics may have been made anew."""
        self._topic_ids.clear()
        self._described.clear()

    def _answer(self, topic: str) -> str:
        try:
            return topic_id_of(self._described[topic].answer.result(self.readers.answer_s))
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 (that is its public name)
        except KafkaException as error:
            del self._described[topic]
            self.questions.renew()
            if passes(error) or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                # The latter also from a broker that has not heard of a new topic yet.
                raise
            raise RecoveryError(
                f"topic {topic!r} cannot be described: {error}; does it exist, and may the group read it?"
            ) from error
