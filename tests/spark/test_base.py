"""Adding to a snapshot, with Spark and a real Kafka: the same as a full rebuild, and only new records are read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._record import Record
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.archives import write_parquet
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_backfill.report import Report
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
STEP_MS = 1_000
COUNT = 240


def records(numbers: range, partition: int, names: int = 90) -> list[Outgoing]:
    """A record a second, each ID again and again, some without one."""
    return [
        Outgoing(
            value=b"x",
            headers=[("dedup-id", f"{number * number % names}".encode())] if number % 11 else [],
            partition=partition,
            timestamp_ms=BASE_MS + STEP_MS * number,
        )
        for number in numbers
    ]


class Jobs:
    """Runs of the job into one folder, and topics that they read.

    ``topic``: of so many partitions. ``produce``: as the fixture.
    """

    def __init__(
        self,
        broker: Broker,
        spark: SparkSession,
        make_topic: Callable[..., str],
        produce: Callable[..., int],
        folder: Path,
    ) -> None:
        self.bootstrap, self._spark, self._folder = broker.bootstrap, spark, folder
        self.topic, self.produce = make_topic, produce

    def run(self, name: str, *more: str, base: str = "") -> tuple[Manifest, Report, list[str]]:
        """Make the snapshot ``name``, on top of ``base``; return manifest, report and messages."""
        said: list[str] = []
        kafka = [] if "--compact" in more else ["--bootstrap", self.bootstrap]
        given = ["--base", str(self._folder / base)] if base else []
        options = parse_options([*kafka, "--output", str(self._folder / name), *given, *more], print)
        report = backfill(options, on_spark(lambda: self._spark), say=said.append)
        return verify_snapshot(self._folder / name), report, said


@pytest.fixture
def jobs(
    broker: Broker,
    spark: SparkSession,
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> Jobs:
    """Of this test, in its folder."""
    return Jobs(broker, spark, make_topic, produce, tmp_path)


def test_what_is_added_to_equals_a_full_rebuild(jobs: Jobs, tmp_path: Path) -> None:
    """Twice in a row, with partitions that grow, stay, or come to have something.

    The same fingerprint, and the old is not read.
    """
    topic = jobs.topic(3)
    asked = ["--topic", topic, "--id", "header:dedup-id", "--window", "40n+60s", "--whole-topic"]
    jobs.produce(topic, records(range(COUNT), 0) + records(range(50), 1))
    jobs.run("first", *asked)
    jobs.produce(topic, records(range(COUNT, COUNT + 30), 0) + records(range(COUNT, COUNT + 5), 2))
    second, report, _ = jobs.run("second", *asked, base="first")
    assert (report.records, report.offsets, report.base) == (35, 35, str(tmp_path / "first"))
    assert report.base_marks > 0
    third, _, _ = jobs.run("third", "--base", str(tmp_path / "second"), "--whole-topic")
    full, _, _ = jobs.run("full", *asked)
    assert second.fingerprint == third.fingerprint == full.fingerprint
    for one in (second, third):
        for ours, theirs in zip(one.partitions, full.partitions, strict=True):
            assert (ours.low, ours.high, ours.known.accepted, ours.known.newest_ms, ours.marks) == (
                theirs.low, theirs.high, theirs.known.accepted, theirs.known.newest_ms, theirs.marks,
            )  # fmt: skip
            assert (ours.known.since_ms or 0) <= (theirs.known.since_ms or 0)
            assert ours.known.since_number == theirs.known.since_number
    assert json.loads((tmp_path / "second" / "report.json").read_text())["base_marks"] == report.base_marks


def test_windows_other_than_the_base(jobs: Jobs) -> None:
    """A shorter one cuts as a full rebuild does; a longer one says from when on sightings are known."""
    topic = jobs.topic(1)
    asked = ["--topic", topic, "--id", "header:dedup-id", "--whole-topic"]
    jobs.produce(topic, records(range(COUNT), 0))
    jobs.run("base", *asked, "--window", "32s")
    short, _, _ = jobs.run("short", *asked, "--window", "16s", base="base")
    full, _, _ = jobs.run("full", *asked, "--window", "16s")
    assert (short.fingerprint, short.window) == (full.fingerprint, "16s")
    long, report, said = jobs.run("long", *asked, "--window", "64s", base="base")
    assert any("the base remembers 32s, and not what it had dropped by then" in line for line in said)
    last_ms = BASE_MS + STEP_MS * (COUNT - 1)
    assert (long.window, report.known_since_ms) == ("1m4s", last_ms - 34 * STEP_MS)
    assert long.partitions[0].known.since_ms == report.known_since_ms


def test_written_again_as_few_files(jobs: Jobs, tmp_path: Path) -> None:
    """Without Kafka, and into the base's own place: the same marks, but for those that are to expire."""
    topic = jobs.topic(2)
    jobs.produce(topic, records(range(COUNT), 0, names=10_000) + records(range(30), 1))
    base, _, _ = jobs.run(
        "base", "--topic", topic, "--id", "header:dedup-id", "--window", "1d", "--whole-topic"
    )
    again, report, _ = jobs.run("again", "--base", (tmp_path / "base").as_uri(), "--compact")
    assert again.fingerprint == base.fingerprint
    bare = [[replace(entry, files=()) for entry in each.partitions] for each in (again, base)]
    assert bare[0] == bare[1]
    assert (again.topic, again.topic_id, again.cluster) == (base.topic, base.topic_id, base.cluster)
    assert (report.records, report.offsets, report.base_marks) == (0, 0, base.marks)
    expired, _, _ = jobs.run(
        "base", "--base", str(tmp_path / "base"), "--compact", "--overwrite", "--expire-before", "2023-11-14T22:15:00"
    )  # fmt: skip
    assert 0 < expired.marks < base.marks
    before_ms = BASE_MS + 100 * STEP_MS
    assert min(file.oldest_ms for entry in expired.partitions for file in entry.files) >= before_ms
    assert [
        entry.known.since_ms is not None and entry.known.since_ms <= before_ms for entry in expired.partitions
    ] == [
        True,
        True,
    ]
    assert expired.partitions[1].files == ()


def test_an_archive_of_what_is_new_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    """Without a broker.

    Offsets of the base that the archive lacks are not missed, and its other partitions stay.
    """

    def day(name: str, numbers: range, *partitions: int) -> str:
        kept = [
            Record("orders", partition, number, BASE_MS + STEP_MS * number, key=f"{number % 70}".encode())
            for partition in partitions
            for number in numbers
        ]
        return str(write_parquet(tmp_path / name, kept))

    def made(name: str, *more: str) -> Manifest:
        asked = [
            "--topic",
            "orders",
            "--id",
            "key",
            "--window",
            "20s",
            "--whole-topic",
            "--output",
            str(tmp_path / name),
        ]
        identity = ["--cluster-id", "c", "--topic-id", "t", "--archive-isolation", "read_committed"]
        backfill(parse_options([*asked, *identity, *more], print), on_spark(lambda: spark))
        return verify_snapshot(tmp_path / name)

    old, new = day("old", range(100), 0, 1), day("new", range(100, 110), 0)
    made("base", "--source", old)
    grown = made("grown", "--source", new, "--base", str(tmp_path / "base"))
    full = made("full", "--source", old, "--source", new)
    assert grown.fingerprint == full.fingerprint
    assert [(each.low, each.high) for each in grown.partitions] == [(0, 110), (0, 100)]
    late = day("late", range(105, 120), 0)
    with pytest.raises(BackfillError, match=r"orders\[0\] lacks offsets 100 to 104"):
        made("holed", "--source", late, "--base", str(tmp_path / "base"))


def test_a_damaged_base_leaves_nothing(jobs: Jobs, tmp_path: Path) -> None:
    """A byte that changed is found where the file is read, in a task; one line says so, and there is no snapshot."""
    topic = jobs.topic(1)
    jobs.produce(topic, records(range(40), 0))
    jobs.run("base", "--topic", topic, "--id", "header:dedup-id", "--window", "1d", "--whole-topic")
    (damaged,) = (tmp_path / "base" / "0").glob("*.sst")
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    jobs.produce(topic, records(range(40, 50), 0))
    with pytest.raises(Exception, match="SHA-256") as caught:
        jobs.run("grown", "--base", str(tmp_path / "base"), "--whole-topic")
    line = one_line(caught.value)
    assert re.search(r"0/00000-\w+-\w+\.sst has SHA-256", line)
    assert "its manifest says" in line
    assert [each.name for each in tmp_path.iterdir()] == ["base"]
