"""Where a bridge begins, when brokers do not agree on which topic it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk._commit_text import log_name
from dedup_sdk.bridge import _source as module
from dedup_sdk.bridge._counters import BridgeCounters
from dedup_sdk.bridge._source import SourcePartitions
from dedup_sdk.bridge._source_log import Log
from tests.support.set_clock import SetClock

if TYPE_CHECKING:
    from collections.abc import Iterable

OLD, NEW = log_name("cluster", "old"), log_name("cluster", "new")
PLACE = ("orders", 0)


class Answers:
    """In the place of `TopicLogs`: the brokers' next answers."""

    def __init__(self) -> None:
        self.next = ""
        self.doubts = 0

    def answers(self, topics: Iterable[str]) -> dict[str, str]:
        """See `TopicLogs`."""
        return dict.fromkeys(topics, self.next)

    def ask_again_after(self, _topic: str, _seconds: float) -> None:
        """See `TopicLogs`."""
        self.doubts += 1

    def forget(self, topics: Iterable[str]) -> None:
        """See `TopicLogs`."""


class Group:
    """In the place of the consumer: another member has copied the new topic up to 1000."""

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """See `confluent_kafka.Consumer`."""
        assert timeout
        return [TopicPartition(each.topic, each.partition, 1000, str(Log(NEW))) for each in asked]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """A clock of the test's own."""
    made = SetClock()
    monkeypatch.setattr(module, "time", made)
    return made


def begin(placing: SourcePartitions) -> list[tuple[object, object]]:
    """Ask where waiting partitions begin."""
    # A group as far as it is asked.
    return [(place, start.offset) for place, start in placing.start_positions(Group(), {})]  # type: ignore[arg-type]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """The answers of brokers about topics."""
    made = Answers()
    monkeypatch.setattr(module, "TopicLogs", lambda *_: made)
    return made


def test_a_broker_that_is_behind_makes_no_topic_anew(answers: Answers, clock: SetClock) -> None:
    """It names the topic that is gone.

    Records that others copied of the new one would be copied again, under names of the old one.
    """
    placing = SourcePartitions({}, lambda: "cluster", ["orders"], BridgeCounters())
    placing.add([PLACE])
    answers.next = OLD
    assert begin(placing) == []
    assert begin(placing) == []
    assert answers.doubts
    answers.next = NEW
    assert begin(placing) == [(PLACE, 1000)]
    assert clock.now_s == 1_000.0


def test_two_answers_that_agree_are_believed(answers: Answers, clock: SetClock) -> None:
    """When the second was asked for a while after the first.

    An answer between them that says something else begins the time anew.
    """
    placing = SourcePartitions({}, lambda: "cluster", ["orders"], BridgeCounters())
    placing.add([PLACE])
    another = log_name("cluster", "another")
    answers.next = OLD
    assert begin(placing) == []
    clock.now_s += 1.0
    answers.next = another
    assert begin(placing) == []
    answers.next = OLD
    assert begin(placing) == []
    clock.now_s += 1.0
    [(place, offset)] = begin(placing)
    assert place == PLACE
    assert offset != 1000
