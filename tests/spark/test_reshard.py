"""A topic that got more partitions: messages handled in the old ones are recognised in the new, on a real Kafka."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from dedup_sdk import Recovery
from dedup_sdk._record import Record
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk._store.snapshot_check import check_snapshot
from dedup_sdk._store.snapshot_source import find_snapshots
from dedup_sdk.errors import ConfigurationError
from spark_backfill import in_process
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.in_process import InProcess, NeedsSparkError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.partitioner import partitions_of
from spark_backfill.reshard import Reshard
from tests.support.archives import kafka_table, write_parquet
from tests.support.consuming import make_consumer, poll_some, poll_through, values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

NAMES = [f"order-{number}" for number in range(40)]


def send(broker: Broker, topic: str, names: Iterable[str], *, partitioner: str = "murmur2") -> None:
    """Send messages under keys of their own, as a producer that has just started; ``none`` has no key."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": partitioner, "log_level": 2})
    for name in names:
        key = None if name == "none" else f"key of {name}".encode()
        producer.produce(topic, name.encode(), key=key, headers={"dedup-id": name.encode()})
    assert producer.flush(30) == 0


def widen(broker: Broker, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(30)
    broker_has = 0
    while broker_has < partitions:
        broker_has = len(admin.list_topics(topic, timeout=10).topics[topic].partitions)


def job(
    broker: Broker, spark: SparkSession | None, topic: str, output: Path, *more: str
) -> tuple[Any, list[str]]:
    """Make a snapshot of seven days; return the report and the lines that were said."""
    lines: list[str] = []
    given = ["--bootstrap", broker.bootstrap, "--topic", topic, "--id", "header:dedup-id", "--window", "7d"]
    options = parse_options([*given, "--output", str(output), *more], print)
    workers = (lambda _: InProcess()) if spark is None else on_spark(lambda: spark)
    return backfill(options, workers, say=lines.append), lines


def checked(folder: Path) -> Manifest:
    """The manifest of a snapshot whose every file agrees with it."""
    (source,), _ = find_snapshots([str(folder)])
    assert [problem for file in check_snapshot(source) for problem in file.problems] == []
    return verify_snapshot(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partitioner", "on_spark"), [("murmur2", True), ("consistent_random", True), ("murmur2", False)]
)
def test_duplicates_are_recognised_where_their_keys_go_now(
    broker: Broker,
    spark: SparkSession,
    make_topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    partitioner: str,
    on_spark: bool,
) -> None:
    """Handled in 2 partitions, sent again to 4.

    With the snapshot the group sees only new messages, and without it all that went elsewhere.
    """
    topic = make_topic(2)
    send(broker, topic, [*NAMES, "none"], partitioner=partitioner)
    with make_consumer(broker.bootstrap, group, tmp_path / "one") as consumer:
        consumer.subscribe([topic])
        assert sorted(values(poll_some(consumer, 41))) == sorted([*NAMES, "none"])
    widen(broker, topic, 4)
    with monkeypatch.context() as limited:
        # Each of the 41 records may leave a mark in two partitions.
        limited.setattr(in_process, "MOST_ROWS", 81)
        given = ["--group", group, "--partitions", "4", "--partitioner", partitioner]
        with pytest.raises(NeedsSparkError):
            job(broker, None, topic, tmp_path / "snapshot", *given)

    report, lines = job(
        broker, spark if on_spark else None, topic, tmp_path / "snapshot", "--group", group,
        "--partitions", "4", "--partitioner", partitioner, "--report", str(tmp_path / "report"),
    )  # fmt: skip
    manifest = checked(tmp_path / "snapshot")
    assert (manifest.resharded_from, manifest.partitioner) == ((0, 1), partitioner)
    assert [each.partition for each in manifest.partitions] == [0, 1, 2, 3]
    assert (report.records, report.keyless) == (41, 1)
    assert 0 < report.moved < 40
    assert report.marks == 41 + report.moved
    assert not [line for line in lines if line.startswith("warning")]

    send(broker, topic, [*NAMES, "new-1", "new-2"], partitioner=partitioner)
    with make_consumer(
        broker.bootstrap, group, tmp_path / "two", recovery=Recovery(snapshot=tmp_path / "snapshot")
    ) as consumer:
        consumer.subscribe([topic])
        assert sorted(values(poll_through(consumer, topic))) == ["new-1", "new-2"]
        assert consumer.counters.verdicts["duplicate"] == 40
        assert consumer.counters.verdicts["unverified"] == 0
    with closing(make_consumer(broker.bootstrap, f"{group}-control", tmp_path / "three")) as control:
        control.subscribe([topic])
        assert len(poll_through(control, topic)) == 41 + report.moved + 2


def test_a_partitioner_that_is_not_the_producers_is_told(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Keys of the last partition that would lie elsewhere speak against it.

    The snapshot is made, and nothing of it is wrong.
    """
    topic = make_topic(2)
    send(broker, topic, NAMES, partitioner="consistent_random")
    with make_consumer(broker.bootstrap, group, tmp_path / "store") as consumer:
        consumer.subscribe([topic])
        assert len(poll_some(consumer, 40)) == 40
    asked = ["--group", group, "--partitions", "2", "--partitioner", "murmur2"]
    report, lines = job(broker, spark, topic, tmp_path / "snapshot", *asked)
    assert report.moved > 0
    (line,) = [line for line in lines if line.startswith("warning")]
    assert f"records with a key in {topic}[1] would lie elsewhere by murmur2 among 2 partitions" in line


def test_fewer_partitions_than_there_are_is_an_error(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Kafka's topics only grow: one line says how many there are, and nothing is made."""
    topic = make_topic(3)
    send(broker, topic, NAMES)
    with make_consumer(broker.bootstrap, group, tmp_path / "store") as consumer:
        consumer.subscribe([topic])
        assert len(poll_some(consumer, 40)) == 40
    asked = ["--group", group, "--partitions", "2", "--partitioner", "murmur2"]
    with pytest.raises(BackfillError, match="has 3 partitions, and --partitions 2 is fewer"):
        job(broker, spark, topic, tmp_path / "snapshot", *asked)
    assert not (tmp_path / "snapshot").exists()


@pytest.mark.slow
def test_what_the_group_never_handled_is_hidden_by_nothing_of_another_partition(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """A group that lags in the old partition.

    Records that come again to the new one are delivered, unless the group completed them before.
    """
    topic = make_topic(1)
    send(broker, topic, NAMES[:20])
    with make_consumer(broker.bootstrap, group, tmp_path / "one") as consumer:
        consumer.subscribe([topic])
        assert len(poll_some(consumer, 20)) == 20
    send(broker, topic, NAMES[20:])
    widen(broker, topic, 2)
    asked = ["--group", group, "--partitions", "2", "--partitioner", "murmur2"]
    job(broker, spark, topic, tmp_path / "snapshot", *asked)
    send(broker, topic, NAMES)
    places = partitions_of(pa.array([f"key of {name}".encode() for name in NAMES], pa.binary()), "murmur2", 2)
    elsewhere = [name for name, place in zip(NAMES, places.tolist(), strict=True) if place == 1]
    expected = sorted([*NAMES[20:], *(name for name in elsewhere if name in NAMES[20:])])
    with make_consumer(
        broker.bootstrap, group, tmp_path / "two", recovery=Recovery(snapshot=tmp_path / "snapshot")
    ) as consumer:
        consumer.subscribe([topic])
        assert sorted(values(poll_through(consumer, topic))) == expected


def job_of_archive(spark: SparkSession, folder: Path, output: Path, *more: str) -> Any:
    """Make a snapshot of an archive for 4 partitions, by IDs that are the keys."""
    given = [
        "--source",
        str(folder),
        "--archive-isolation",
        "read_committed",
        "--cluster-id",
        "c",
        "--topic-id",
        "t",
    ]
    asked = ["--topic", "orders", "--id", "key", "--window", "7d", "--whole-topic", "--output", str(output)]
    # Without a broker no group is asked, and nobody may re-shard: this shows how an archive is read.
    options = replace(
        parse_options([*given, *asked, *more], print), reshard=Reshard(partitions=4, partitioner="murmur2")
    )
    return backfill(options, on_spark(lambda: spark))


def test_an_archive_is_resharded_by_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Every key has a mark where it was, and one where it goes.

    A record without one counts as such, whatever its ID.
    """
    keys = [f"key of {name}".encode() for name in NAMES]
    before = partitions_of(pa.array(keys, pa.binary()), "murmur2", 2).tolist()
    after = partitions_of(pa.array(keys, pa.binary()), "murmur2", 4).tolist()
    offsets = {0: count(), 1: count()}
    rows = [
        Record("orders", place, next(offsets[place]), 1_700_000_000_000, key)
        for key, place in zip([*keys, None], [*before, 0], strict=True)
    ]
    report = job_of_archive(spark, write_parquet(tmp_path / "archive", rows), tmp_path / "snapshot")
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert (report.records, report.unkeyed, report.keyless, report.moved) == (41, 1, 1, moved)
    manifest = checked(tmp_path / "snapshot")
    assert [each.marks for each in manifest.partitions] == [
        sum(number in places for places in zip(before, after, strict=True)) for number in range(4)
    ]


def test_an_archive_without_keys_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """One line names the column that is missing."""
    folder = tmp_path / "archive"
    folder.mkdir()
    table = kafka_table([Record("orders", 0, 0, 1, b"k", b"v", [("dedup-id", b"a")])]).drop_columns(["key"])
    pq.write_table(table, folder / "part.parquet")
    with pytest.raises(ConfigurationError, match="has no column 'key'"):
        job_of_archive(spark, folder, tmp_path / "snapshot", "--id", "header:dedup-id")
    assert not (tmp_path / "snapshot").exists()
