"""The brokers' answers about topics that are read: the same, another, none, or nothing."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from dedup_sdk._commit_text import log_name
from dedup_sdk._kafka.assign.topic_watch import LOOK_EVERY_S, LOOK_SOON_S, TopicWatch
from dedup_sdk._kafka.client.client import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable


class Description:
    """An answer's."""

    def __init__(self, topic_id: str | None) -> None:
        self.topic_id = topic_id


class Brokers:
    """In a client's place; ``ids`` are the topics' now, an exception where they cannot be had."""

    def __init__(self, **ids: Any) -> None:
        self.ids = ids
        self.open: list[tuple[str, Future[Any]]] = []
        self.questions = 0

    def cluster_id(self) -> str:
        """See `Client`."""
        return "c"

    def ask_anew(self, topics: Iterable[str]) -> dict[str, PendingRequest]:
        """See `Client`; nobody answers before `answer`."""
        self.questions += 1
        asked = {topic: PendingRequest(Future(), cast("Any", None)) for topic in topics}
        self.open += [(topic, each.answer) for topic, each in asked.items()]
        return asked

    def answer(self) -> None:
        """Answer the open questions."""
        for topic, future in self.open:
            known = self.ids[topic]
            if isinstance(known, Exception):
                future.set_exception(known)
            else:
                future.set_result(Description(known))
        self.open = []


@dataclass
class Partition:
    """A partition that is read."""

    topic: str
    log: str


class World:
    """A watch, its clock and its brokers, and one partition of each topic."""

    def __init__(self, **ids: Any) -> None:
        self.now = 0.0
        self.brokers = Brokers(**ids)
        self.watch = TopicWatch(self.brokers, lambda: self.now)
        self.partitions = [Partition(topic, log_name("c", f"{topic}-1")) for topic in ids]

    def look(self, after_s: float) -> list[str]:
        """Wait, look, and look at the answers; the topics that are others."""
        self.now += after_s
        if self.now >= self.watch.due_at:
            self.watch.look(self.partitions)
        asked = bool(self.brokers.open)
        self.brokers.answer()
        return [each.topic for each in self.watch.look(self.partitions)] if asked else []


def test_a_topic_that_stays_is_asked_for_now_and_then() -> None:
    """Nobody asks before it is time, and one question at a time is enough."""
    world = World(a="a-1")
    world.look(LOOK_EVERY_S - 1)
    assert world.brokers.questions == 0
    world.now = LOOK_EVERY_S
    for _ in range(3):
        assert world.watch.look(world.partitions) == []
    assert world.brokers.questions == 1
    world.brokers.answer()
    assert world.watch.look(world.partitions) == []
    world.look(1)
    assert world.brokers.questions == 1


def test_another_topic_is_told_once_two_looks_agree() -> None:
    """The second look comes soon; of other topics nothing is said."""
    world = World(a="a-2", b="b-1")
    assert world.look(LOOK_EVERY_S) == []
    assert world.look(LOOK_SOON_S) == ["a"]


def test_a_broker_that_is_behind_is_not_believed() -> None:
    """It knows the topic before this one, and the next one that is asked does not."""
    world = World(a="a-0")
    assert world.look(LOOK_EVERY_S) == []
    world.brokers.ids["a"] = "a-1"
    assert world.look(LOOK_SOON_S) == []
    world.brokers.ids["a"] = "a-0"
    assert world.look(LOOK_EVERY_S) == []


def test_brokers_without_topic_ids_say_nothing() -> None:
    """The client shows an ID of zeros for none, also while some of them have IDs and others do not yet.

    That one is told at last is no other topic.
    """
    world = World(a=str(Uuid(0, 0)))
    for known in ("a-1", ""):
        world.partitions[0].log = log_name("c", known)
        assert [world.look(LOOK_EVERY_S), world.look(LOOK_SOON_S)] == [[], []]
    world.brokers.ids["a"] = "a-1"
    assert [world.look(LOOK_EVERY_S), world.look(LOOK_SOON_S), world.look(LOOK_EVERY_S)] == [[], [], []]


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_no_answer_says_nothing(code: int) -> None:
    """Nor does a broker without topic IDs."""
    world = World(a=KafkaException(KafkaError(code)), b=None, c="c-1")
    assert world.look(LOOK_EVERY_S) == []
    assert world.look(LOOK_SOON_S) == []
    assert world.look(LOOK_EVERY_S) == []


def test_a_topic_that_is_not_there_is_looked_for_soon() -> None:
    """It may be made again at once."""
    world = World(a=KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert world.look(LOOK_EVERY_S) == []
    assert world.watch.missing == {"a"}
    world.brokers.ids["a"] = "a-2"
    assert world.look(LOOK_SOON_S) == []
    assert world.watch.missing == set()
    assert world.look(LOOK_SOON_S) == ["a"]


def test_where_no_id_was_known_there_is_nothing_to_compare() -> None:
    """The brokers may have had none then."""
    world = World(a="a-2")
    world.partitions[0].log = ""
    assert world.look(LOOK_EVERY_S) == []
    assert world.look(LOOK_SOON_S) == []
