"""From where the partitions of a member are read, and whether their topics are still the ones that they were.

A topic that is deleted and made anew has the same name and, soon, the same offsets: what was committed of the old one says nothing of it, and its
records must not bear the names of the old one's. So nothing of a partition is read before it is known which topic it is of.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.bridge.counters import BridgeCounters
from dedup_sdk.bridge.position import Beginning, Log, Place, beginning
from dedup_sdk.bridge.topic_logs import TopicLogs
from dedup_sdk.errors import BridgeError
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.refusals import text_of
from dedup_sdk.kafka.topic_watch import LOOK_SOON_S, TopicWatch
from dedup_sdk.rule_fingerprint import is_one_log

log = logging.getLogger("dedup_sdk")

LOOK_EVERY_S: Final = 3.0
"""Seconds between two looks: so long, at most, records of a topic that was made anew are copied under names that they have to give up."""
MISSING_S: Final = 30.0
"""Seconds for which a broker may not have heard of a topic yet."""
ASK_S: Final = 5.0
_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 (that is its public name)


class _Read(NamedTuple):
    topic: str
    partition: int
    log: str


class _Seen(NamedTuple):
    """Which log a topic was said to be, and until when (monotonic seconds) that is not believed."""

    name: str
    until: float


class Placing:
    """Knows the partitions of one member, those that are read and those that wait.

    Args:
        config: of the source's client.
        cluster_id: returns the source's cluster ID; raises `KafkaException`.
        names: topics that the bridge was given by name; others it found by a pattern.
        counters: those of the bridge.
    """

    def __init__(
        self, config: Mapping[str, Any], cluster_id: Callable[[], str], names: Iterable[str], counters: BridgeCounters
    ) -> None:  # fmt: skip
        self._logs, self._names, self._counters = TopicLogs(config, cluster_id), frozenset(names), counters
        self._watch = TopicWatch(self._logs, every_s=LOOK_EVERY_S)
        self.placed: dict[Place, Log] = {}
        """What is read."""
        self._waiting: dict[Place, Log | None] = {}
        """What is not read for now, and what each was taken for before."""
        self._missing: dict[str, float] = {}
        """Topics that no broker knows, and since when (monotonic seconds); infinity: that was told."""
        self._left: set[str] = set()
        """Topics of which the group took everything away."""
        self._told: set[tuple[str, str]] = set()
        self._anew: dict[str, _Seen] = {}
        """Topics that one answer says are others."""
        self._last: dict[str, str] = {}
        """Which log each topic was; when it is deleted the group may take its partitions away, and forget where it stood."""

    @property
    def waits(self) -> bool:
        """Whether some partition is not read yet."""
        return bool(self._waiting)

    def log_of(self, place: Place) -> Log:
        """Return which log a partition was taken for last."""
        return self.placed.get(place) or self._waiting.get(place) or Log("")

    def take(self, places: Iterable[Place]) -> None:
        """Have partitions wait that the group has given."""
        given = list(places)
        self._logs.forget({topic for topic, _ in given})
        self._left -= {topic for topic, _ in given}
        self._waiting |= dict.fromkeys(given)

    def drop(self, places: Collection[Place]) -> None:
        """Forget partitions that have gone."""
        for place in places:
            self.placed.pop(place, None)
            self._waiting.pop(place, None)
        self._left |= {topic for topic, _ in places} - {topic for topic, _ in (*self.placed, *self._waiting)}

    def hold(self, places: Iterable[Place]) -> list[Place]:
        """Have partitions wait until it is known anew which topic they are of; return those that were read until now."""
        held = [place for place in places if place in self.placed]
        self._logs.forget({topic for topic, _ in held})
        for place in held:
            self._waiting[place] = self.placed.pop(place)
        return held

    def missed(self, topic: str) -> list[Place] | None:
        """Return the partitions of a topic that the client says is not there; None where the bridge was given its name."""
        return None if topic in self._names else [place for place in self.placed if place[0] == topic]

    def changed(self) -> list[Place]:
        """Return the partitions that are read of topics which are others by now, or not there; asks for that now and then."""
        if not self._watch.is_due:
            return []
        found = self._watch.look([_Read(*place, log.name) for place, log in self.placed.items()])
        others = {each.topic for each in found} | self._watch.missing
        return [place for place in self.placed if place[0] in others]

    def beginnings(self, consumer: Consumer, at: Mapping[Place, int]) -> list[tuple[Place, Beginning]]:
        """Return from where those that wait are to be read, as far as it is known by now; ``at``: how far each was copied.

        Raises `KafkaException` where the group cannot be asked, `BridgeError` for a topic that cannot be read.
        """
        if not self._waiting:
            return []
        names = self._answers()
        asked = [TopicPartition(*place) for place in self._waiting if place[0] in names]
        if not asked:
            return []
        found: dict[Place, Beginning] = {}
        for stands in consumer.committed(asked, timeout=ASK_S):
            if stands.error is not None:
                raise KafkaException(stands.error)
            place = (stands.topic, stands.partition)
            stood = self._waiting[place]
            found[place] = beginning(
                names[stands.topic], stands.offset, stands.metadata, stood=stood, at=at.get(place)
            )
        doubted = self._doubted({topic for (topic, _), begins in found.items() if begins.anew}, names)
        return [each for each in found.items() if each[0][0] not in doubted]

    def _doubted(self, anew: set[str], names: Mapping[str, str]) -> set[str]:
        """Return which of the topics that seem to be others are not so for certain: a broker may be behind, so that two answers have to agree."""
        now = time.monotonic()
        doubted: set[str] = set()
        for topic, name in names.items():
            seen = self._anew.pop(topic, None)
            if topic not in anew or (seen is not None and seen.name == name and now >= seen.until):
                continue
            # One that was asked a moment ago may be the one that is behind.
            same = seen is not None and seen.name == name
            self._anew[topic] = seen if seen is not None and same else _Seen(name, now + LOOK_SOON_S)
            self._logs.doubt(topic, LOOK_SOON_S)
            doubted.add(topic)
        return doubted

    def begin(self, place: Place, begins: Beginning) -> None:
        """Note that a partition is read from now on."""
        del self._waiting[place]
        self.placed[place] = begins.log
        topic = place[0]
        told = (topic, begins.log.name)
        last, self._last[topic] = self._last.get(topic, ""), begins.log.name
        if (begins.anew or not is_one_log(last, begins.log.name)) and told not in self._told:
            self._told.add(told)
            self._counters.made_anew += 1
            log.warning(
                "bridge: topic %s was deleted and made anew; it is copied from its beginning, and its records get names of their own",
                topic,
            )
        elif begins.translated and told not in self._told:
            self._told.add(told)
            log.warning(
                "bridge: the group's offsets of topic %s were committed in another cluster; it is read on from there",
                topic,
            )

    def look_after_those_that_left(self) -> None:
        """Tell of topics whose partitions went because they are not there any more; raises as `beginnings`."""
        if self._left and not self._waiting:
            self._answers()

    def _answers(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for topic, answer in self._logs.answers({topic for topic, _ in self._waiting} | self._left).items():
            if isinstance(answer, str):
                names[topic] = answer
                self._missing.pop(topic, None)
                self._left.discard(topic)
            elif answer.args[0].code() in _UNKNOWN:
                self._miss(topic)
            elif not passes(answer):
                raise BridgeError(
                    f"the source does not say what topic {topic!r} is: {text_of(answer)}; may the bridge describe it?"
                )
        return names

    def _miss(self, topic: str) -> None:
        now = time.monotonic()
        if topic not in self._missing:
            # A broker may be behind: it is asked once more.
            self._missing[topic] = now
        elif topic not in self._names:
            self._left.discard(topic)
            if self._missing[topic] < math.inf:
                self._missing[topic] = math.inf
                self._counters.gone += 1
                log.warning(
                    "bridge: topic %s is not at the source any more; what was not copied of it is gone with it",
                    topic,
                )
        elif now - self._missing[topic] > MISSING_S:
            raise BridgeError(f"the source has no topic {topic!r} any more; create it again, or leave it out")
