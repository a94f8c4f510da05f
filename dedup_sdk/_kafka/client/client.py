"""Requests to Kafka brokers: the plain client (`Client`) and asynchronous `MetadataRequests` beside consuming.

For these the caller gets a future and reads the answer later. All of them share one admin client, because each client
has its own connections and librdkafka threads. How long a poll waits for the other, synchronous requests is decided
by `dedup_sdk._kafka.recover.backoff.Backoff`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec
from confluent_kafka.cimpl import Consumer

from dedup_sdk._commit_text import sealed, unsealed
from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.closing import ONE_DAY_S, made_aside
from dedup_sdk._kafka.client.questions import Questions
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import ASK_S, ClientSettings, Reset, admin_settings
from dedup_sdk._masking import shown
from dedup_sdk.errors import RecoveryError

logger = logging.getLogger("dedup_sdk")

PROBE_S = 5.0
"""Timeout of a log-end probe in seconds; after it the leader is asked again over another connection."""

ANSWER_S: Final = 0.5
"""Seconds that a poll waits for a broker's answer, as long as brokers answer in time."""

HAS_CLUSTER_ID: Final = hasattr(Consumer, "cluster_id")
"""Before confluent-kafka 2.16 only the metadata say it."""
MOCK_CLUSTER: Final = "mockCluster"
"""The prefix of the IDs of librdkafka's mock clusters, which do not support topic IDs."""
_NO_ID: Final = str(Uuid(0, 0))
_SILENT = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._DESTROY,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
})  # fmt: skip


class PendingRequest(NamedTuple):
    """A request and the client that sent it. Keep both: garbage collection of the client cancels its requests."""

    answer: Future[Any]
    client: AdminClient


@dataclass(slots=True)
class EndProbe:
    """A log-end request to a partition's leader, which also shows whether the leader answers."""

    asked: PendingRequest
    began: float = field(default_factory=time.monotonic)
    took_s: float | None = None
    """Seconds until `is_over` first saw the answer; None before that."""

    @property
    def is_over(self) -> bool:
        """Whether the request was answered or has failed."""
        if self.took_s is None and self.asked.answer.done():
            self.took_s = time.monotonic() - self.began
        return self.took_s is not None

    @property
    def is_answered(self) -> bool:
        """Whether a broker answered, also with an error such as "no leader" or "unknown partition"."""
        if not self.is_over:
            return False
        error = self.asked.answer.exception()
        if error is None:
            # The client reports a timeout as an offset below zero.
            return bool(self.asked.answer.result().offset >= 0)
        cause = error.args[0] if isinstance(error, KafkaException) else None
        return isinstance(cause, KafkaError) and cause.code() not in _SILENT

    @property
    def end(self) -> int | None:
        """The end offset in the answer, by the consumer's isolation level; None without such an answer."""
        if not self.is_over or self.asked.answer.exception() is not None:
            return None
        end = int(self.asked.answer.result().offset)
        return end if end >= 0 else None


class MetadataRequests:
    """Asynchronous metadata requests for one consumer. Not thread-safe.

    ``client`` is the consumer's client configuration.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._config = client
        uncommitted = str(client.get("isolation.level", "")).lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        self._opened: AdminClient | None = None
        self.open: WeakSet[AdminClient] = WeakSet()
        """The client that makes the requests, and those that made pending ones."""

    def describe(self, topics: Iterable[str]) -> dict[str, PendingRequest]:
        """Describe topics in one request; return by topic name a `PendingRequest` for a `TopicDescription`."""
        admin = self.admin()
        answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_S)
        return {topic: PendingRequest(answer, admin) for topic, answer in answers.items()}

    def settings_of(self, topic: str) -> PendingRequest:
        """Request a topic's configuration; the answer maps setting names to config entries."""
        admin = self.admin()
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return PendingRequest(admin.describe_configs([resource], request_timeout=ASK_S)[resource], admin)

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Request a partition's end offset from its leader, by the consumer's isolation level."""
        return self.probe_all([(topic, partition)])[topic, partition]

    def probe_all(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], EndProbe]:
        """Request the end offsets of partitions, by one request to each leader."""
        admin = self.admin()
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
        answers = admin.list_offsets(
            {TopicPartition(*each): latest for each in partitions},
            isolation_level=self._isolation,
            request_timeout=PROBE_S,
        )
        return {
            (asked.topic, asked.partition): EndProbe(PendingRequest(future, admin))
            for asked, future in answers.items()
        }

    def renew(self) -> None:
        """Make the next request open new connections; pending requests keep those of the old client.

        A client keeps cached leaders for minutes, so a new one is needed to notice that the leader changed.
        """
        self._opened = None

    def coordinator_answers(self, group: str, within_s: float) -> bool:
        """Whether a group's coordinator answers in so many seconds, over a connection of this client."""
        if within_s <= 0:
            return False
        asked = [ConsumerGroupTopicPartitions(group)]
        [answer] = self.admin().list_consumer_group_offsets(asked, request_timeout=within_s).values()
        try:
            answer.result(within_s)
        except KafkaException as error:
            return error.args[0].code() not in _SILENT
        except TimeoutError:
            return False
        return True

    def admin(self) -> AdminClient:
        """Return the client that makes the requests, which has callbacks of its own."""
        if self._opened is None:
            # Made of the settings of now: credentials may have changed.
            self._opened = keep_in_children(made_aside(lambda: AdminClient(admin_settings(self._config))))
            self.open.add(self._opened)
        return self._opened


def has_topic_ids(cluster: str) -> bool:
    """Whether a cluster answers requests for topic IDs; it may have none all the same."""
    return not cluster.startswith(MOCK_CLUSTER)


def topic_id_of(description: Any) -> str:
    """Return the ID in a `confluent_kafka.admin.TopicDescription`; empty where brokers have no topic IDs.

    For such brokers the client shows an ID of zeros.
    """
    topic_id = str(description.topic_id or _NO_ID)
    return "" if topic_id == _NO_ID else topic_id


class TopicIds:
    """The IDs of topics: each is requested once, without waiting, and kept until `forget`.

    ``cluster_id`` returns the cluster's ID, or raises `KafkaException`; ``readers`` know how long an answer may take.
    """

    def __init__(self, requests: MetadataRequests, cluster_id: Callable[[], str], readers: Readers) -> None:
        self._requests, self._cluster_id, self._readers = requests, cluster_id, readers
        self._known: dict[str, str] = {}
        self._asked: dict[str, PendingRequest] = {}
        """Pending descriptions, by topic name."""

    def describe(self, topics: Iterable[str]) -> bool:
        """Request the IDs of topics that are not known or requested yet; return True if no answer is pending.

        All go into one request. Raises `KafkaException` while the cluster's ID is not known.
        """
        unknown = {*topics} - self._known.keys() - self._asked.keys()
        if unknown and not has_topic_ids(self._cluster_id()):
            self._known |= dict.fromkeys(unknown, "")
        elif unknown:
            self._asked |= self._requests.describe(unknown)
        return not self._asked

    def is_described(self, topic: str) -> bool:
        """Whether `id_of` returns or raises without waiting."""
        return topic in self._known or (topic in self._asked and self._asked[topic].answer.done())

    def id_of(self, topic: str) -> str:
        """Return the topic's ID, which changes when a topic is recreated; empty where brokers have no topic IDs.

        Raises `KafkaException` when no broker answers or the broker does not know the topic (yet), `RecoveryError`
        when the broker refuses.
        """
        if topic not in self._known:
            self.describe([topic])
        if topic in self._asked:
            self._known[topic] = self._answer(topic)
            del self._asked[topic]
        return self._known[topic]

    def forget(self) -> None:
        """Drop the known IDs, so that they are requested again: topics may have been recreated."""
        self._known.clear()
        self._asked.clear()

    def _answer(self, topic: str) -> str:
        try:
            return topic_id_of(self._asked[topic].answer.result(self._readers.timeout_s))
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 (that is its public name)
        except KafkaException as error:
            del self._asked[topic]
            self._requests.renew()
            if is_retriable(error) or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                # A broker that does not know a new topic yet gives the second error.
                raise
            raise RecoveryError(
                f"topic {shown(topic)} cannot be described: {error}; does it exist, and may the group read it?"
            ) from error


_SEEK_TRIES = 50
_SEEK_PAUSE_S = 0.02
_WAKE_S = 1.0
_LIST_S = 0.5


class Client:
    """Calls `confluent_kafka.Consumer`'s own methods on a consumer that overrides them."""

    def __init__(self, consumer: Consumer, settings: ClientSettings) -> None:
        self._consumer = consumer
        self._settings = settings
        self.readers = Readers(settings)
        self.requests = MetadataRequests(settings.client)
        self.questions = Questions(settings)
        self._one_login = RLock()
        """One thread (also in a signal's handler) hands over credentials: the last ones are the last everywhere."""
        self.login: tuple[str, str] | None = None
        """The credentials that were given last, by any thread."""
        self._told: tuple[str, str] | None = None
        """Those that `tell_login` has passed on."""
        self.topics = TopicIds(self.requests, self.cluster_id, self.readers)
        self._cluster: str | None = None
        self._outside = Consumer.consumer_group_metadata(consumer)
        """The client's metadata while it belongs to no group."""
        self._reassigned: list[TopicPartition] = []
        """What `reassign` takes out of the assignment and puts back."""

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the group gave, or the user assigned; an interrupted `reassign` is ended first."""
        given = Consumer.assignment(self._consumer)
        if self._reassigned:
            missing = [tp for tp in self._reassigned if tp not in given]
            if missing:
                self.assign(missing, incremental=True)
            self._reassigned = []
            return given + missing
        return given

    def assign(self, partitions: list[TopicPartition], *, incremental: bool | None = None) -> None:
        """Assign partitions, paused; by default incrementally or not, as the group's protocol requires."""
        if self._settings.incremental if incremental is None else incremental:
            Consumer.incremental_assign(self._consumer, partitions)
        else:
            Consumer.assign(self._consumer, partitions)
        if partitions:
            Consumer.pause(self._consumer, partitions)

    def seek(self, topic: str, partition: int, offset: int, *, leader_epoch: int | None = None) -> bool:
        """Set a partition's fetch position; return False if the client is not fetching it after a second of retries.

        In that case the client has stopped fetching the partition: use `reassign`. With ``leader_epoch``, the
        epoch of the record before ``offset``, the broker validates that the log still has that record.
        """
        target = TopicPartition(topic, partition, offset)
        if leader_epoch is not None:
            target = TopicPartition(topic, partition, offset, "", leader_epoch)
        for _ in range(_SEEK_TRIES):
            try:
                Consumer.seek(self._consumer, target)
            except KafkaException as error:
                # The client refuses to seek in a partition that was assigned a moment ago.
                if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                    raise
                time.sleep(_SEEK_PAUSE_S)
            else:
                return True
        return False

    def reassign(self, target: TopicPartition, others: list[TopicPartition]) -> bool:
        """Reassign a partition that the client has stopped fetching, where `seek` fails; it is paused afterwards.

        ``others`` are the remaining partitions of the assignment, at their next offsets: the eager protocol can only
        replace the whole assignment. Then all are paused, and this returns True.
        """
        anew = [target]
        try:
            self._reassigned = [target]
            Consumer.incremental_unassign(self._consumer, [target])
            Consumer.incremental_assign(self._consumer, [target])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                raise
            anew = [target, *others]
            Consumer.assign(self._consumer, anew)
        self._reassigned = []
        Consumer.pause(self._consumer, anew)
        return anew != [target]

    def resume(self, topic: str, partition: int) -> None:
        """Resume fetching a partition."""
        Consumer.resume(self._consumer, [TopicPartition(topic, partition)])

    def log_in(self, username: str, password: str) -> None:
        """Have every client use these credentials from its next login on; from any thread, without waiting.

        Clients that the loop may be inside get them by `tell_login`.
        """
        with self._one_login:
            self._settings.log_in(username, password)
            self.questions.log_in(username, password)
            self.login = username, password

    def tell_login(self) -> None:
        """Pass on new credentials to the clients of the loop; with the lock, while no other thread is inside these."""
        while (login := self.login) is not None and login is not self._told:
            Consumer.set_sasl_credentials(self._consumer, *login)
            self.readers.log_in(*login)
            self.requests.renew()
            self._told = login

    def serve(self) -> None:
        """Do the small work of maintenance: pass on credentials, have the other clients write their log lines.

        A client writes its lines to the application's logger only when polled. Readers are served by recoveries.
        """
        if self.login is not self._told:
            self.tell_login()
        for admin in list(self.requests.open):
            admin.poll(0)
        if self.questions.idle:
            self.questions.serve()

    def listen(self, timeout_s: float) -> None:
        """Poll the client for callbacks and group heartbeats; a message that it returns is dropped."""
        Consumer.poll(self._consumer, timeout_s)

    def wake(self, partitions: list[TopicPartition]) -> None:
        """Make the client fetch from the leaders of these partitions at once.

        The client notices a resumed partition only when its connection to the leader has work, up to a second later,
        so this sends a small request over that connection. A leader that is already holding back a fetch
        (``fetch.wait.max.ms``, half a second) answers it afterwards; so use this only for leaders without a running
        fetch. The timeout must be longer than that wait, because an overdue request makes the client disconnect.
        """
        # In this request the offset field holds a timestamp.
        asked = [TopicPartition(tp.topic, tp.partition, 0) for tp in partitions]
        with suppress(KafkaException):
            Consumer.offsets_for_times(self._consumer, asked, timeout=_WAKE_S)

    def pause(self, topic: str, partition: int) -> None:
        """Pause fetching a partition."""
        Consumer.pause(self._consumer, [TopicPartition(topic, partition)])

    def committed(
        self, partitions: list[TopicPartition], timeout_s: float | None = None
    ) -> dict[tuple[str, int], TopicPartition]:
        """Return the group's committed offset and metadata of each partition, by topic and partition.

        The offset is -1001 where the group has committed nothing. Metadata of ours that was written for another group
        or partition is left out. ``timeout_s`` defaults to `ASK_S`.
        """
        asked = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        found = Consumer.committed(self._consumer, asked, timeout=ASK_S if timeout_s is None else timeout_s)
        committed = {}
        for tp in found:
            committed[tp.topic, tp.partition] = tp if tp.error is not None else self._with_text(tp, unsealed)
        return committed

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition] | None:
        """Commit exactly these offsets; metadata of ours gets the seal that binds it to group, topic and partition.

        New credentials are passed on first: a loop may commit again and again until it succeeds, and do nothing else.
        """
        if self.login is not self._told:
            self.tell_login()
        offsets = self.with_seals(offsets)
        if not has_topic_ids(self._cluster or ""):
            # Unlike a broker it refuses the epoch of an earlier leader.
            offsets = [TopicPartition(tp.topic, tp.partition, tp.offset, tp.metadata or "") for tp in offsets]
        if asynchronous:
            Consumer.commit(self._consumer, offsets=offsets, asynchronous=True)
            return None
        return Consumer.commit(self._consumer, offsets=offsets, asynchronous=False)

    def with_seals(self, offsets: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return these commits; metadata of ours has the seal that binds it to group, topic and partition."""
        return [self._with_text(tp, sealed) for tp in offsets]

    def _with_text(
        self, tp: TopicPartition, change: Callable[[str | None, str, str, int], str]
    ) -> TopicPartition:
        text = change(tp.metadata, self._settings.group, tp.topic, tp.partition)
        epoch: Any = tp.leader_epoch  # None where the broker sends none; the stubs say int
        return TopicPartition(tp.topic, tp.partition, tp.offset, text, -1 if epoch is None else epoch)

    def commit_until(
        self, offsets: list[TopicPartition], until: float, *, in_any_case: bool = False
    ) -> list[TopicPartition] | None:
        """Commit synchronously if the group's coordinator answers before ``until`` (monotonic seconds).

        A synchronous commit has no timeout: it waits until the client gives the coordinator up. So a request that has
        one, for the committed offsets, is sent first. Without an answer this raises `KafkaException`; ``in_any_case``:
        it sends the commit, gives up only the answer, and returns None.
        """
        try:
            self._await_answer(offsets, until)
        except KafkaException:
            if not in_any_case:
                raise
            return self.commit(offsets, asynchronous=True)
        return self.commit(offsets, asynchronous=False) or []

    def _await_answer(self, offsets: list[TopicPartition], until: float) -> None:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 (that is its public name)
        self.committed(offsets, min(left_s, ONE_DAY_S))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of the log and the end offset for consumers; see `TailReader.bounds`."""
        with closing(self.tail_reader(topic, partition)) as reader:
            return reader.bounds()

    def known_end(self, topic: str, partition: int) -> int:
        """Return the log end of the last fetch, without a request; below zero before the first fetch."""
        there = TopicPartition(topic, partition)
        return int(Consumer.get_watermark_offsets(self._consumer, there, cached=True)[1])

    def is_member(self) -> bool:
        """Whether the client belongs to its group now, also without a partition."""
        return bool(Consumer.consumer_group_metadata(self._consumer) != self._outside)

    def reads_at(self, topic: str, partition: int) -> int:
        """Return the offset up to which the client has returned all records; below zero if none came since a seek.

        It is behind aborted records and markers of transactions, too, which are never returned.
        """
        return int(Consumer.position(self._consumer, [TopicPartition(topic, partition)])[0].offset)

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Request the end offset from the leader, asynchronously."""
        return self.requests.probe(topic, partition)

    def probe_all(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], EndProbe]:
        """Request the end offsets of partitions from their leaders, asynchronously."""
        return self.requests.probe_all(partitions)

    def log_end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record of the log; see `TailReader.log_end`."""
        with closing(self.tail_reader(topic, partition)) as reader:
            return reader.log_end()

    def edge(self, topic: str, partition: int, reset: Reset) -> int:
        """Return the start offset of a partition without a valid committed offset, by ``auto.offset.reset``.

        Raises `RecoveryError` where that is ``error``.
        """
        if reset == "error":
            raise RecoveryError(
                f"{topic}[{partition}] has no valid committed offset and auto.offset.reset=error; "
                "reset the group's offsets"
            )
        low, high = self.bounds(topic, partition)
        return low if reset == "earliest" else high

    def knows_of(self, topic: str, partition: int) -> bool:
        """Whether the cluster has this partition, with or without a leader; True if no broker answers."""
        try:
            topics = Consumer.list_topics(self._consumer, timeout=_LIST_S).topics
        except KafkaException:
            return True
        return topic in topics and partition in topics[topic].partitions

    def tail_reader(self, topic: str, partition: int) -> TailReader:
        """Return a reader of a partition outside the group; you must close it."""
        return TailReader(self.readers, topic, partition)

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException` when no broker answers."""
        if self._cluster is None:
            with suppress(KafkaException):
                # The client usually has it cached; a request could wait behind a fetch (see `wake`).
                if HAS_CLUSTER_ID:
                    self._cluster = Consumer.cluster_id(self._consumer, timeout=0) or None
        if self._cluster is None:
            metadata = Consumer.list_topics(self._consumer, "", timeout=self.readers.timeout_s)
            self._cluster = metadata.cluster_id or "unnamed"
        return self._cluster

    def ask_anew(self, topics: Iterable[str]) -> dict[str, PendingRequest]:
        """Request the current IDs of topics, known or not; return no requests where brokers have no topic IDs."""
        return self.requests.describe(topics) if has_topic_ids(self.cluster_id()) else {}

    def topic_settings(self, topic: str) -> PendingRequest | None:
        """Request a topic's configuration; None where the cluster cannot be asked.

        The answer maps setting names to config entries, or is a `KafkaException`.
        """
        return self.requests.settings_of(topic) if has_topic_ids(self.cluster_id()) else None
