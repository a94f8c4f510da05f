"""A broker that takes connections and answers nothing, or slowly: the messages of the others' partitions."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer

from dedup_sdk import MemoryStore, Recovery
from dedup_sdk._commit_text import log_name, parse_metadata
from dedup_sdk._kafka.client import reader
from dedup_sdk._kafka.client.client import Client, MetadataRequests, PendingRequest
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.recover import replay, scheduler
from dedup_sdk.errors import RecoveryError
from dedup_sdk.testing import MockKafka
from tests.support.consuming import (
    PATIENCE_S,
    commit_plainly,
    commit_text,
    committed,
    make_consumer,
    poll_some,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

HUNG_MS = 30_000
ANSWERED_MS = 1_500
HUNG = 4
"""Partitions whose leader hangs: 1 to 4; 0 is led by the other broker."""
RECORDS = 2_000


@pytest.fixture
def two_brokers() -> Iterator[MockKafka]:
    """Two brokers; broker 1 has the group and one partition with 2,000 records, broker 2 four with five each."""
    with MockKafka(brokers=2) as kafka:
        kafka.create_topic("orders", 1 + HUNG)
        kafka.set_coordinator("g", 1)
        for number in range(1 + HUNG):
            kafka.set_leader("orders", number, 2 if number else 1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for number in range(1 + HUNG):
            for row in range(5 if number else RECORDS):
                name = f"{number}-{row}"
                producer.produce("orders", name, partition=number, headers={"dedup-id": name})
        assert producer.flush(30) == 0
        yield kafka


@pytest.fixture
def consumer(two_brokers: MockKafka) -> Iterator[DedupConsumer]:
    """A consumer without a store on its disk."""
    config = {"session.timeout.ms": 6000, "log_level": 0}
    with make_consumer(two_brokers.bootstrap, "g", MemoryStore(), config) as consumer:
        yield consumer


def committed_before(kafka: MockKafka) -> None:
    """The group has been here: its completions have to be read again."""
    for number in range(1 + HUNG):
        commit_plainly(
            kafka.bootstrap,
            "g",
            "orders",
            3 if number else 0,
            partition=number,
            metadata=commit_text(3 if number else 0),
        )


def read_all(consumer: DedupConsumer, count: int) -> float:
    """Poll until so many messages have come; return the longest `poll(0.1)` in seconds."""
    longest_s, got, until = 0.0, 0, time.monotonic() + HUNG_MS / 1000
    while got < count:
        began = time.monotonic()
        assert began < until, f"only {got} of {count} messages came"
        message = consumer.poll(0.1)
        longest_s = max(longest_s, time.monotonic() - began)
        got += message is not None and message.error() is None
    return longest_s


@pytest.mark.parametrize("new", [True, False])
def test_the_partitions_of_other_brokers_go_on(
    two_brokers: MockKafka, consumer: DedupConsumer, *, new: bool
) -> None:
    """A broker that hangs while its partitions start costs those of the others a second or two, all in all."""
    if not new:
        committed_before(two_brokers)
    # Not earlier: the client may ask any broker where the group is.
    consumer.subscribe(["orders"], on_assign=lambda *_: two_brokers.set_rtt(HUNG_MS, 2))
    assert read_all(consumer, RECORDS) < HUNG_MS / 1000 / 3
    waiting = [status for status in consumer.partition_statuses if status.state == "recovering"]
    assert sorted(status.partition for status in waiting) == [1, 2, 3, 4]
    wait_for(
        consumer,
        lambda: any("broker" in status.hindrances for status in consumer.partition_statuses),
        "the word that a broker is silent",
    )


def test_a_reader_that_has_met_no_broker_is_kept(
    two_brokers: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told nothing that could be wrong.

    The next question is its own, and is answered when the broker that it met first is back.
    """
    two_brokers.set_rtt(ANSWERED_MS, 2)
    # Of two addresses the client would take one by chance.
    of_the_hanging_one = two_brokers.bootstrap.split(",")[1]
    own = Readers(client_settings({"bootstrap.servers": of_the_hanging_one, "group.id": "g", "log_level": 0}))
    made: list[Consumer] = []

    class Counted(Consumer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(reader, "Consumer", Counted)
    own.timeout_s = ANSWERED_MS / 1000 / 8
    with (
        closing(TailReader(own, "orders", 0)) as first,
        pytest.raises(KafkaException, match="_ALL_BROKERS_DOWN"),
    ):
        first.bounds()
    own.timeout_s = PATIENCE_S
    with closing(TailReader(own, "orders", 0)) as again:
        assert again.bounds() == (0, RECORDS)
    assert len(made) == 1
    own.close()


@pytest.mark.slow
def test_a_slow_broker_is_answered_in_the_end(two_brokers: MockKafka, consumer: DedupConsumer) -> None:
    """One that takes longer for each answer than a poll waits at first gets the time, and its partitions deliver."""
    two_brokers.set_rtt(700, 2)
    consumer.subscribe(["orders"])
    poll_some(consumer, RECORDS + 5 * HUNG, patience_s=60)
    assert all(status.hindrances == () for status in consumer.partition_statuses)


def test_a_lost_offset_that_nobody_answers_for_holds_up_no_others(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where to go on is asked again and again, with pauses.

    The other partitions deliver meanwhile, and nothing is skipped.
    """
    send(*"abcdef", topic="pairs")
    with make("pairs") as first:
        poll_some(first, 1)
    kafka.delete_records("pairs", 0, 4)
    asked: list[int] = []

    def silent(_: Client, topic: str, partition: int, reset: object) -> int:
        del topic, reset
        asked.append(partition)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer = make("pairs")
    with monkeypatch.context() as patch:
        patch.setattr(Client, "edge", silent)
        wait_for(consumer, lambda: bool(asked), "the first question")
        send(*"uvwxyz", topic="pairs", partition=1)
        assert values(poll_some(consumer, 6)) == list("uvwxyz")
        wait_for(consumer, lambda: len(asked) > 1, "the second question")
    assert values(poll_some(consumer, 2)) == ["e", "f"]


class Described:
    """A broker's description of a topic."""

    topic_id = "its ID"


def heard_of_it_late(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """Have a broker say so many times that it does not know the topic."""
    left = [KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))] * answers

    def describe(_: MetadataRequests, topics: Any) -> dict[str, PendingRequest]:
        future: Future[Any] = Future()
        if left:
            future.set_exception(left.pop())
        else:
            future.set_result(Described())
        return dict.fromkeys(topics, PendingRequest(future, cast("Any", None)))

    monkeypatch.setattr(MetadataRequests, "describe", describe)
    monkeypatch.setattr(Client, "cluster_id", lambda _: "a cluster with topic IDs")


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_waited_for(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers learn of a new topic one after the other; one that is behind ends no loop."""
    heard_of_it_late(monkeypatch, 2)
    send("a", "b")
    assert values(poll_some(make("orders"), 2)) == ["a", "b"]


@pytest.mark.parametrize("question", ["cluster", "topic"])
def test_a_question_that_fails_is_asked_again_before_the_first_commit(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Until it is known which log this is nothing is committed; the first text names cluster and topic."""
    refusals = [KafkaException(KafkaError(KafkaError._TRANSPORT))] * 2
    seen_before_the_answer: list[int] = []

    def refuse() -> None:
        if refusals:
            seen_before_the_answer.append(committed(kafka.bootstrap, "g", "orders").offset)
            raise refusals.pop()

    def describe(_: MetadataRequests, topics: Any) -> dict[str, PendingRequest]:
        future: Future[Any] = Future()
        try:
            if question == "topic":
                refuse()
        except KafkaException as error:
            future.set_exception(error)
        else:
            future.set_result(Described())
        return dict.fromkeys(topics, PendingRequest(future, cast("Any", None)))

    def cluster_id(_: Client) -> str:
        if question == "cluster":
            refuse()
        return "a cluster with topic IDs"

    monkeypatch.setattr(MetadataRequests, "describe", describe)
    monkeypatch.setattr(Client, "cluster_id", cluster_id)
    send("a", "b")
    # A commit of a new group made at once is its first.
    assert values(poll_some(make("orders"), 1)) == ["a"]
    now = committed(kafka.bootstrap, "g", "orders")
    metadata = parse_metadata(now.metadata, committed=now.offset)
    assert metadata is not None
    assert metadata.log == log_name("a cluster with topic IDs", Described.topic_id)
    assert seen_before_the_answer == [OFFSET_INVALID] * 2


def test_a_topic_that_no_broker_knows_is_an_error(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for for ever, and the line names it."""
    monkeypatch.setattr(scheduler, "UNKNOWN_S", 0.2)
    heard_of_it_late(monkeypatch, 1_000)
    send("a")
    with pytest.raises(RecoveryError, match=r"topic 'orders' is unknown to the broker: .*; does it exist"):
        poll_some(make("orders"), 1)


def test_a_recovery_timeout_counts_from_when_the_partition_was_taken(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts that fail use it up: once a broker answers, nothing is replayed any more, and the event says so."""
    send(*"abc")
    commit_plainly(kafka.bootstrap, "g", "orders", 3, metadata=commit_text(3))
    send("a", "d")
    bounds, began = TailReader.bounds, list[float]()

    def late(self: TailReader) -> tuple[int, int]:
        began.append(time.monotonic())
        if began[-1] < began[0] + 2.5:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return bounds(self)

    monkeypatch.setattr(TailReader, "bounds", late)
    consumer = make("orders", recovery=Recovery(timeout=1.5))
    assert values(poll_some(consumer, 2)) == ["a", "d"]
    assert consumer.counters.events == {"recovery-timeout": 1}
    assert consumer.counters.verdicts["unverified"] == 2


def test_a_replay_waits_for_a_silent_broker_while_others_recover(
    make: Make,
    send: Send,
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ends no loop and takes no place from others, says that it waits, and goes on when something comes."""
    monkeypatch.setattr(reader, "SILENCE_S", 0.3)
    monkeypatch.setattr(replay, "SILENT_S", 0.1)
    monkeypatch.setattr(scheduler, "AT_ONCE", 1)
    for number in (0, 1):
        send(*"abc", topic="pairs", partition=number)
        commit_plainly(kafka.bootstrap, "g", "pairs", 3, partition=number, metadata=commit_text(3))
        send("a", f"new-{number}", topic="pairs", partition=number)
    silent = [True]

    class Silent(Consumer):
        def consume(self, *arguments: Any, **more: Any) -> list[Any]:
            if silent[0] and self.assignment()[0].partition == 0:
                time.sleep(0.01)
                return []
            return super().consume(*arguments, **more)

    def unknown(*_: object) -> Generator[None, None, None]:
        yield

    monkeypatch.setattr(reader, "Consumer", Silent)
    # So the replay begins at the beginning.
    monkeypatch.setattr(TailReader, "newest_before", unknown)
    consumer = make("pairs")
    assert values(poll_some(consumer, 1)) == ["new-1"]
    wait_for(consumer, lambda: "no record arrived from offset" in caplog.text, "the line in the log")
    [waiting] = [status for status in consumer.partition_statuses if status.state == "recovering"]
    assert (waiting.partition, waiting.hindrances) == (0, ("broker",))
    silent[0] = False
    assert values(poll_some(consumer, 1)) == ["new-0"]
