"""A dead-letter topic that is not there, is another one, or lost a part: nothing is taken for handled on its word."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import ClusterMetadata

from dedup_sdk import MemoryStore
from dedup_sdk.kafka import dead_letter_log, readers
from dedup_sdk.kafka.dead_letter_log import DISORDER_MS, DeadLetterLog
from dedup_sdk.kafka.settings import client_settings
from tests.support.consuming import PATIENCE_S, poll_quiet, values
from tests.support.given_up import give_up, letter_of, result, send_letters

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

HOUR_MS = 3_600_000


def test_a_dead_letter_topic_that_was_emptied_says_nothing_of_the_past(
    make: Make, send: Send, kafka: MockKafka, letters: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows then what was given up: all that could hang on it is delivered, unverified."""
    send("a", "b", "c")
    give_up(make, "b", dead_letters=letters)
    kafka.delete_records(letters, 0, 1)
    send("b", "a")

    consumer = make("orders", store=MemoryStore(), dead_letters=letters)
    assert values(poll_quiet(consumer)) == ["b", "a"]
    assert consumer.counters.verdicts["unverified"] == 2
    send("b", "d")
    assert values(poll_quiet(consumer)) == ["d"]
    assert "not there" not in caplog.text


def test_where_the_oldest_dead_letters_are_gone_coverage_begins_later(
    make: Make, send: Send, kafka: MockKafka, letters: str
) -> None:
    """What is older than the first dead letter that is left may have been given up; what is younger is known."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    now_ms = int(time.time() * 1000)
    for value, age_ms in (
        ("old", 3 * HOUR_MS),
        ("disorder", 2 * HOUR_MS - DISORDER_MS // 2),
        ("new", HOUR_MS),
    ):
        producer.produce("orders", value, headers={"dedup-id": value}, partition=0, timestamp=now_ms - age_ms)
    assert producer.flush(PATIENCE_S) == 0
    give_up(make)
    send_letters(kafka, letter_of(90), age_ms=3 * HOUR_MS)
    send_letters(kafka, letter_of(91), age_ms=2 * HOUR_MS)
    kafka.delete_records(letters, 0, 1)
    send("old", "disorder", "new", "other")

    consumer = make("orders", store=MemoryStore(), dead_letters=letters)
    assert values(poll_quiet(consumer)) == ["old", "disorder", "other"]
    assert consumer.counters.verdicts["unverified"] == 3
    assert consumer.counters.verdicts["duplicate"] == 1


def test_a_topic_that_the_user_named_has_to_be_there(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it nobody knows what was given up: one line says so, and what hangs on the past is unverified."""
    send("a")
    give_up(make)
    send("a")

    consumer = make("orders", store=MemoryStore(), dead_letters="never-made")
    assert values(poll_quiet(consumer)) == ["a"]
    assert consumer.counters.verdicts["unverified"] == 1
    assert "the dead-letter topic never-made is not there" in caplog.text


def test_a_second_recovery_reads_on(make: Make, send: Send, kafka: MockKafka, letters: str) -> None:
    """What was read stays known when the topic loses it later, and what is new is read."""
    send("a", "b", "c")
    give_up(make, "b", dead_letters=letters)
    consumer = make("orders", store=MemoryStore(), dead_letters=letters)
    assert poll_quiet(consumer) == []
    log = consumer._session._chosen.dead_letters
    assert log is not None
    assert log._given_up["orders", 0].digests.keys() == {1}

    kafka.delete_records(letters, 0, 1)
    assert result(log.read("orders", 0)).digests.keys() == {1}
    assert log._positions == {0: 1}


def log_of(kafka: MockKafka, topic: str) -> DeadLetterLog:
    """What the group reads of a dead-letter topic."""
    settings = client_settings({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    return DeadLetterLog(settings, topic, expected=True)


def test_a_dead_letter_topic_that_was_made_anew_between_two_starts_is_noticed(
    make: Make, send: Send, kafka: MockKafka, letters: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its letters name one that it does not have: what lies before that is delivered, unverified; what comes after it is known.

    Another topic stands for the one of the same name: it has what was given up since, and nothing else.
    """
    anew = kafka.create_topic("anew")
    send("a", "b", "c")
    give_up(make, "b", dead_letters=letters)
    send("d", "e", "f", "g")
    give_up(make, "d", "f", dead_letters=anew)
    send("b", "f", "e", "g")

    consumer = make("orders", store=MemoryStore(), dead_letters=anew)
    assert values(poll_quiet(consumer)) == ["b", "f"]
    assert consumer.counters.verdicts["unverified"] == 2
    assert consumer.counters.verdicts["duplicate"] == 2
    assert f"before offset 2 are missing in topic {anew}" in caplog.text


def test_each_dead_letter_names_the_one_before_it(
    make: Make, send: Send, kafka: MockKafka, letters: str
) -> None:
    """In one run, and in the next one, on another disk."""
    send("a", "b", "c")
    give_up(make, "b", "c", dead_letters=letters)
    send("d")
    give_up(make, "d", dead_letters=letters, store=MemoryStore())

    assert result(log_of(kafka, letters).read("orders", 0)).named == {2, 3}


def test_a_dead_letter_topic_that_was_made_anew_under_a_consumer_is_read_from_its_beginning(
    make: Make, send: Send, kafka: MockKafka, letters: str
) -> None:
    """It has grown beyond where the old one was read to: what the new one has there, and what the old one had, is given up."""
    anew = kafka.create_topic("anew")
    send("a", "b", "c")
    give_up(make, "b", dead_letters=letters)
    log = log_of(kafka, letters)
    assert result(log.read("orders", 0, buried=2)).digests.keys() == {1}

    send("d", "e", "f")
    give_up(make, "d", "f", dead_letters=anew)
    log._topic = anew
    found = result(log.read("orders", 0, buried=6))
    assert (set(found.digests), found.known_from) == ({1, 3, 5}, 0)


def test_what_the_commits_name_and_the_topic_lacks_is_looked_for_once(
    kafka: MockKafka, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that lost its letters is read from the beginning when that is found out, and not with every recovery."""
    send_letters(kafka, letter_of(3), letter_of(8, before=4))
    log = log_of(kafka, letters)
    taken: list[int] = []
    take = DeadLetterLog._take

    def noting(self: DeadLetterLog, message: Any, positions: dict[int, int]) -> None:
        if message.error() is None:
            taken.append(message.offset())
        take(self, message, positions)

    monkeypatch.setattr(DeadLetterLog, "_take", noting)
    for buried, read, known_from in ((9, [0, 1], 0), (7, [0, 1], 7), (7, [], 7), (9, [], 0)):
        taken.clear()
        assert result(log.read("orders", 0, buried=buried)).known_from == known_from
        assert taken == read


Answer = Callable[[ClusterMetadata], None]


def without_letters(answer: ClusterMetadata) -> None:
    """The topic is not among those that the broker tells of."""
    answer.topics.pop("g.dead-letters", None)


def failing(code: int) -> Answer:
    """The topic is told of with an error."""

    def change(answer: ClusterMetadata) -> None:
        answer.topics["g.dead-letters"].error = KafkaError(code)

    return change


def without_partitions(answer: ClusterMetadata) -> None:
    """The topic is just being made, or goes."""
    answer.topics["g.dead-letters"].partitions.clear()


def answers(patch: pytest.MonkeyPatch, change: Answer, times: int) -> None:
    """Have brokers answer a reader's questions for topics otherwise, so many times."""
    left = [times]

    class Misled(Consumer):
        """A reader of a broker that knows less than the others."""

        def list_topics(self, *arguments: Any, **named: Any) -> ClusterMetadata:
            """As told, with the change."""
            answer: ClusterMetadata = super().list_topics(*arguments, **named)
            left[0] -= 1
            if left[0] >= 0:
                change(answer)
            return answer

    patch.setattr(readers, "Consumer", Misled)


@pytest.mark.parametrize(
    "change",
    [
        without_letters,
        without_partitions,
        failing(KafkaError.LEADER_NOT_AVAILABLE),
        failing(KafkaError.UNKNOWN),
        failing(KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
    ids=["omitted", "no partitions", "no leader", "unknown error", "unknown topic"],
)
def test_one_answer_without_the_dead_letter_topic_is_no_proof(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, change: Answer
) -> None:
    """It is asked for again, and what was given up is handled when it is sent again; nothing else comes."""
    send("a", "b", "c")
    give_up(make, "b")
    answers(monkeypatch, change, 1)
    send("b", "a")

    consumer = make("orders", store=MemoryStore())
    assert values(poll_quiet(consumer)) == ["b"]
    assert consumer.counters.verdicts["duplicate"] == 1


@pytest.mark.parametrize("bad", [("b",), ()])
def test_where_a_group_that_gave_up_finds_no_dead_letters_older_records_are_in_doubt(
    make: Make,
    send: Send,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bad: tuple[str, ...],
) -> None:
    """Its commits tell up to where: that is delivered, unverified, and a line says so; a group that never did has no doubt."""
    send("a", "b", "c")
    give_up(make, *bad)
    monkeypatch.setattr(dead_letter_log, "MISSED_S", 0.0)
    answers(monkeypatch, without_letters, 99)
    send("b", "c")

    consumer = make("orders", store=MemoryStore())
    assert values(poll_quiet(consumer)) == (["b"] if bad else [])
    assert consumer.counters.verdicts["unverified"] == len(bad)
    assert ("given up messages before offset 2" in caplog.text) == bool(bad)
    assert consumer.counters.verdicts["duplicate"] == (1 if bad else 2)
