"""Windows that do not fit their topic are told of, with both numbers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dedup_sdk import Lookup, MemoryStore, Window
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned, Recovering
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._kafka.assign.window_check import WindowCheck, misfits
from dedup_sdk._kafka.client.client import PendingRequest
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._window import length_text
from dedup_sdk.ids import key

DAY_MS = 86_400_000
TOPIC = {"retention.ms": str(7 * DAY_MS), "cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}


@pytest.mark.parametrize(
    ("window_ms", "settings", "expected"),
    [
        (7 * DAY_MS, {}, []),
        (7 * DAY_MS + 1, {}, ["window-beyond-retention"]),
        (7 * DAY_MS + 1, {"cleanup.policy": "compact,delete"}, ["window-beyond-retention"]),
        (7 * DAY_MS + 1, {"cleanup.policy": "compact"}, []),
        (7 * DAY_MS + 1, {"retention.ms": "-1"}, []),
        (420_000, {}, []),
        (419_999, {}, ["window-too-short"]),
        (420_000, {"message.timestamp.type": "LogAppendTime"}, ["window-too-short"]),
        (540_000, {"message.timestamp.type": "LogAppendTime"}, []),
        (60_000, {"retention.ms": "1000"}, ["window-beyond-retention", "window-too-short"]),
    ],
)
def test_what_does_not_fit(window_ms: int, settings: dict[str, str], expected: list[str]) -> None:
    """Longer than the topic's retention, or shorter than a resend takes; the lengths are in the line."""
    found = dict(misfits(window_ms, {**TOPIC, **settings}, 300_000))
    assert [*found] == expected
    assert all(f"the window is {length_text(window_ms)}, but" in detail for detail in found.values())


@pytest.mark.parametrize(
    ("window_ms", "given", "expected"),
    [
        (6 * DAY_MS, {"lag_ms": DAY_MS}, []),
        (6 * DAY_MS, {"lag_ms": DAY_MS + 1}, ["window-beyond-retention"]),
        (1_000, {"retry_ms": 700}, []),
        (1_000, {"retry_ms": 701}, ["window-too-short"]),
    ],
)
def test_what_is_asked_from_outside_counts_too(
    window_ms: int, given: dict[str, int], expected: list[str]
) -> None:
    """How far the group is behind takes from the retention.

    The producer's own time takes the place of the usual one.
    """
    found = dict(misfits(window_ms, TOPIC, 300, **given))
    assert [*found] == expected
    assert all(
        length_text(given_ms, most_units=2) in detail
        for detail in found.values()
        for given_ms in given.values()
    )


def test_lengths_are_for_people() -> None:
    """Each line has days, hours and minutes, and no long number of milliseconds."""
    beyond = dict(misfits(8 * DAY_MS, TOPIC, 300_000, lag_ms=DAY_MS + 3_600_001))["window-beyond-retention"]
    assert beyond.startswith(
        "the window is 8 d and the group is 1 d 1 h behind, but the topic keeps only 7 d (retention.ms)"
    )
    short = dict(misfits(90_000, TOPIC, 45_000))["window-too-short"]
    assert short.startswith(
        "the window is 1 min 30 s, but a message may be sent again 2 min 45 s later: after a producer's"
    )
    assert (
        "delivery.timeout.ms (2 min) and the session timeout of a consumer that sends to this topic (45 s)"
        in short
    )


@pytest.mark.parametrize(
    ("config", "silence_s"),
    [({}, 300.0), ({"max.poll.interval.ms": 10_000}, 45.0), ({"session.timeout.ms": 600_000}, 600.0)],
)
def test_how_long_a_member_may_be_gone(config: dict[str, Any], silence_s: float) -> None:
    """The longer of the two times after which a group gives a member up."""
    assert client_settings({"group.id": "g", **config}).silence_s == silence_s


class FakeClient:
    """A client that counts how often it is asked."""

    def __init__(self) -> None:
        self.answers: list[Future[Any]] = []

    def topic_settings(self, topic: str) -> PendingRequest:
        """See `Client`."""
        del topic
        self.answers.append(Future())
        asker: Any = None
        return PendingRequest(self.answers[-1], asker)


def checked(window: Window) -> tuple[WindowCheck, FakeClient, Deduplicator]:
    """A check of a window."""
    engine, client = Deduplicator(Lookup(id=key(), window=window), store=MemoryStore()), FakeClient()
    return WindowCheck(engine, client, client_settings({"group.id": "g"})), client, engine  # type: ignore[arg-type]


def begun(partition: int) -> Assigned:
    """A partition that began at offset 5."""
    return Assigned("t", partition, Recovering(Start(offset=5)))


def test_a_topic_is_asked_about_once() -> None:
    """However many partitions of it begin; the answer is told when it has come."""
    check, client, engine = checked(Window(seconds=1))
    check.look([begun(0), begun(1)])
    check.look([begun(2)])
    assert engine.counters.events == {}
    client.answers[0].set_result({name: SimpleNamespace(value=value) for name, value in TOPIC.items()})
    check.look()
    check.look()
    assert engine.counters.events == {"window-too-short": 1}
    assert len(client.answers) == 1


def test_without_an_answer_nothing_is_told() -> None:
    """A broker that does not say, or may not, stops nobody."""
    check, client, engine = checked(Window(seconds=1))
    check.look([begun(0)])
    assert [*check.asked] == ["t"]
    client.answers[0].set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    check.look()
    assert engine.counters.events == {}
    assert check.asked == {}


def test_a_window_by_count_has_no_time_to_compare() -> None:
    """Nobody is asked then."""
    check, client, _ = checked(Window(count=10))
    check.look([begun(0)])
    assert client.answers == []
