"""Questions to brokers: those that nobody waits for, and how long a poll waits for the others.

The first are asked, and their answers are looked for later. One admin client serves them all, because each needs connections and threads (of
librdkafka's) of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from dedup_sdk.fork_safety import keep_in_children
from dedup_sdk.kafka.settings import ASK_S, admin_settings

if TYPE_CHECKING:
    from dedup_sdk.kafka.assignment import Assigned
    from dedup_sdk.kafka.reader import Readers
    from dedup_sdk.observe import Hindrance

PROBE_S = 5.0
"""Seconds after which a leader that does not answer is asked by another connection."""

ANSWER_S: Final = 0.5
"""Seconds that a poll waits for an answer, as long as brokers give them."""
MOST_ANSWER_S: Final = 4.0
"""The most of it, for a broker that takes long."""
BACKOFF_S: Final = 60.0
"""Seconds for which brokers are asked with care after one has not answered."""
AGAIN_S: Final = 0.5
"""Seconds until a partition asks again after its first failure; each further one doubles them."""
MOST_AGAIN_S: Final = 8.0
"""The most of it."""
LOOK_S: Final = 0.02
"""Seconds between two looks for an answer that nobody waits for."""
_TIMES: Final = 4.0
"""How many times as long as the last one a question may take."""
_LONG_S: Final = 0.1
_REST_TIMES: Final = 3.0
_MOST_REST_S: Final = 2.0

Clock = Callable[[], float]
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


class Backoff:
    """Says how long a poll may wait for a broker, and which recoveries may have it wait.

    Recovery asks brokers, and a poll waits for the answers. Where one was not given in time, the next recoveries begin only when
    the leader of their partition has answered a question that nobody waits for: a broker that hangs costs the others one short wait,
    and a slow one is given the time that it needs.
    """

    def __init__(self, questions: Questions, readers: Readers, clock: Clock = time.monotonic) -> None:
        self._questions, self._readers, self._clock = questions, readers, clock
        self._active_until = self._rest_until = 0.0
        self._probes: dict[tuple[str, int], EndProbe] = {}
        readers.answer_s = ANSWER_S

    @property
    def is_active(self) -> bool:
        """Whether some broker did not answer lately."""
        return self._clock() < self._active_until

    def note_silence(self) -> None:
        """Note that some broker did not answer."""
        self._active_until = self._clock() + BACKOFF_S

    @property
    def rests(self) -> bool:
        """Whether polls have waited enough for now, so that active partitions have their turn."""
        return self._clock() < self._rest_until

    def may_begin(self, assigned: Assigned) -> bool:
        """Whether a recovery may ask brokers now, and how long for; false while its leader does not answer."""
        now = self._clock()
        self._readers.answer_s = assigned.answer_s or ANSWER_S
        if assigned.recovery is not None or now >= self._active_until:
            return True
        coordinates = assigned.topic, assigned.partition
        probe = self._probes.get(coordinates)
        if probe is None:
            probe = self._probes[coordinates] = self._questions.probe(*coordinates)
        if not probe.is_over:
            assigned.wait_until(now + LOOK_S, "broker" if now - probe.began > ANSWER_S else None)
            return False
        del self._probes[coordinates]
        if not probe.is_answered:
            self._put_off(assigned, now, "broker")
            return False
        assigned.wait_until(assigned.ask_at, None)
        assigned.give_time(min(max(ANSWER_S, _TIMES * (probe.took_s or 0.0)), MOST_ANSWER_S))
        self._readers.answer_s = assigned.answer_s
        return True

    def took(self, seconds: float) -> None:
        """Note how long a step of a recovery took: while brokers are slow, others have several times as much."""
        self._readers.answer_s = ANSWER_S
        if seconds > _LONG_S and self.is_active:
            self._rest_until = self._clock() + min(_REST_TIMES * seconds, _MOST_REST_S)

    def failed(self, assigned: Assigned) -> None:
        """Note that a question was not answered."""
        self.note_silence()
        self._put_off(assigned, self._clock(), assigned.waits_for)

    def put_off(self, partitions: Iterable[Assigned]) -> None:
        """Have these not ask before a while, because the same question was not answered to another."""
        again = self._clock() + AGAIN_S
        for assigned in partitions:
            assigned.wait_until(max(assigned.ask_at, again), assigned.waits_for)

    def forget(self, topic: str, partition: int) -> None:
        """Take no answer any more for a partition that went."""
        self._probes.pop((topic, partition), None)

    def _put_off(self, assigned: Assigned, now: float, hindrance: Hindrance | None) -> None:
        pause_s = AGAIN_S * 2 ** min(assigned.count_failure() - 1, 8)
        assigned.wait_until(now + min(pause_s, MOST_AGAIN_S), hindrance)
        self._questions.renew()


def topic_id_of(description: Any) -> str:
    """Return the ID in a `confluent_kafka.admin.TopicDescription`; empty where brokers have none, for which the client shows one of zeros."""
    topic_id = str(description.topic_id or _NO_ID)
    return "" if topic_id == _NO_ID else topic_id
