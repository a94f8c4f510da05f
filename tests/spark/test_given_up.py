"""Dead letters and the rebuild: what a group gave up was not handled, so nothing of it is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from dedup_sdk.ids import digest_one
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.metadata import CommitMetadata
from dedup_sdk.store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.given_up import GivenUpRecords
from spark_backfill.options import parse_options
from spark_backfill.stretch import Stretch
from tests.support.naive_fold import read_sorted_file
from tests.support.producing import Outgoing, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.decision import Mark
    from spark_backfill.report import Report
    from tests.support.brokers import Broker


def letter(topic: str, offset: int, name: str, group: str, before: int | None = None) -> Outgoing:
    """A dead letter as `DedupConsumer.run` sends it."""
    said = DeadLetter(
        topic=topic, partition=0, offset=offset, timestamp_ms=1, group=group, attempts=2,
        digest=digest_one(name.encode()), error_type="ConnectionError", error="closed",
        before=before,
    )  # fmt: skip

    class Message:
        """What a dead letter is made of."""

        topic = partition = offset = timestamp = key = value = staticmethod(lambda: (0, 0))

        @staticmethod
        def headers() -> list[tuple[str, bytes]]:
            """No more than the ID."""
            return [("dedup-id", name.encode())]

    headers = [
        (key, value.encode() if isinstance(value, str) else value) for key, value in said.headers(Message)
    ]
    return Outgoing(value=b"x", headers=headers, partition=0)


@pytest.fixture
def handled(broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], group: str) -> str:
    """A topic in which the group committed all of ``a b a c``."""
    topic = make_topic(1)
    produce(topic, with_ids("a", "b", "a", "c"))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    committed = TopicPartition(topic, 0, 4, str(CommitMetadata(low=0, complete=True)))
    consumer.commit(offsets=[committed], asynchronous=False)
    consumer.close()
    return topic


@pytest.fixture
def rebuild(
    broker: Broker, spark: SparkSession, tmp_path: Path, handled: str, group: str
) -> Callable[..., tuple[dict[str, int | None], Report]]:
    """Runs the job for the group; gives the offset that is remembered of each ID, and the report."""

    def job(*more: str) -> tuple[dict[str, int | None], Report]:
        folder = tmp_path / "snapshot"
        arguments = [
            "--bootstrap",
            broker.bootstrap,
            "--topic",
            handled,
            "--id",
            "header:dedup-id",
            "--window",
            "1d",
        ]
        options = parse_options([*arguments, "--group", group, "--output", str(folder), *more], print)
        report = backfill(options, lambda: spark)
        (entry,) = verify_snapshot(folder).partitions
        marks: dict[bytes, Mark] = {}
        for file in entry.files:
            marks |= read_sorted_file(folder / "0" / f"{file.name}.sst")
        found = {name: marks.get(digest_one(name.encode())) for name in "abc"}
        return {name: mark and mark.offset for name, mark in found.items()}, report

    return job


@pytest.mark.parametrize("named", [False, True])
def test_what_was_given_up_is_not_remembered(
    broker: Broker,
    produce: Callable[..., int],
    rebuild: Callable[..., tuple[dict[str, int | None], Report]],
    handled: str,
    group: str,
    named: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """Only the record that was given up is left out: an earlier sighting of its ID stays, other groups' letters say nothing."""
    letters = broker.create_topic(f"{group}.letters" if named else f"{group}.dead-letters", 1, None)
    produce(
        letters,
        [
            letter(handled, 1, "b", group),
            letter(handled, 2, "a", group),
            letter(handled, 3, "c", "another-group"),
            letter("another-topic", 3, "c", group),
            Outgoing(value=b"no dead letter", partition=0),
        ],
    )
    found, report = rebuild(*(["--dead-letters", letters] if named else []))
    assert found == {"a": 0, "b": None, "c": 3}
    assert (report.given_up, report.records) == (2, 4)


def test_no_dead_letters_are_no_trouble(rebuild: Callable[..., tuple[dict[str, int | None], Report]]) -> None:
    """Without the group's usual topic nothing was given up; one that was named has to be there."""
    found, report = rebuild()
    assert (found, report.given_up) == ({"a": 2, "b": 1, "c": 3}, 0)
    with pytest.raises(BackfillError, match="'no-such-topic' does not exist"):
        rebuild("--overwrite", "--dead-letters", "no-such-topic")


def test_without_the_topic_of_a_group_that_gave_up_older_records_are_left_out(
    broker: Broker, rebuild: Callable[..., tuple[dict[str, int | None], Report]], handled: str, group: str
) -> None:
    """What its commits tell of may be any record before that offset: none of them leaves a mark, and coverage begins behind it."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    text = str(CommitMetadata(low=0, complete=True, buried=2))
    consumer.commit(offsets=[TopicPartition(handled, 0, 4, text)], asynchronous=False)
    consumer.close()

    assert rebuild()[0] == {"a": 2, "b": None, "c": 3}


def test_of_a_topic_made_anew_older_records_are_left_out(
    broker: Broker,
    produce: Callable[..., int],
    rebuild: Callable[..., tuple[dict[str, int | None], Report]],
    handled: str,
    group: str,
) -> None:
    """Its dead letter names one that it does not have: what lies before that leaves no mark, what comes after it does."""
    letters = broker.create_topic(f"{group}.dead-letters", 1, None)
    produce(letters, [letter(handled, 3, "c", group, before=2)])
    assert rebuild()[0] == {"a": 2, "b": None, "c": None}


def test_where_dead_letters_are_gone_marks_are_too() -> None:
    """Of what is older than the dead letters that are left nothing is kept, and coverage begins there."""
    stretch = Stretch(partition=0, low=0, begin=0, high=9, complete=True, keep_from_ms=50)
    (cut,) = GivenUpRecords({}, since_ms=70).cut([stretch])
    assert (cut.keep_from_ms, cut.complete) == (70, False)
    assert cut.since_ms(first_ms=10, forgotten_ms=None) == 70
    assert cut.since_ms(first_ms=10, forgotten_ms=80) == 81
    (later,) = GivenUpRecords({}, known_from={0: 4}).known([stretch])
    assert (later.begin, later.complete, later.since_ms(first_ms=10, forgotten_ms=None)) == (4, False, 10)
    (same,) = GivenUpRecords({}, known_from={1: 4}).known([stretch])
    assert same is stretch
    (same,) = GivenUpRecords({}).cut([stretch])
    assert same is stretch
