"""A source of which no record has an ID: it was misread, or its IDs lie elsewhere, and no snapshot may tell of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill import launch
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.archives import write_parquet
from tests.support.producing import Outgoing, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
ELSEWHERE = ("--whole-topic", "--cluster-id", "c", "--topic-id", "t")
COMMITTED = ("--archive-isolation", "read_committed")


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., list[str]]:
    """Runs the job and returns its lines: ``run("orders", "--source", ...)``."""

    def job(topic: str, *more: str) -> list[str]:
        said: list[str] = []
        usual = ["--topic", topic, "--id", "header:dedup-id", "--window", "1d", *COMMITTED]
        options = parse_options([*usual, "--output", str(tmp_path / "s"), *more], print)
        backfill(options, on_spark(lambda: spark), say=said.append)
        return said

    return job


def write_lines(path: Path, *objects: object) -> None:
    """Write objects as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in objects), encoding="utf-8")


@pytest.mark.parametrize("window", ["1d", "9n"])
def test_lines_whose_headers_lie_in_other_files(
    run: Callable[..., list[str]], tmp_path: Path, *, window: str
) -> None:
    """Coverage without IDs would call every old duplicate fresh: nothing is published, and those files are named."""
    folder = tmp_path / "archive"
    write_lines(folder / "a.json", *({"partition": 0, "offset": at} for at in range(3)))
    write_lines(folder / "a.headers.json", *({"dedup-id": str(at)} for at in range(3)))
    with pytest.raises(
        BackfillError,
        match=r"of 3 records of the archive none has an ID by header:dedup-id.*a\.headers\.json",
    ):
        run(
            "orders",
            *ELSEWHERE,
            *("--source", str(folder), "--format", "json", "--columns", "timestamp=-", "--window", window),
            *("--read-option", "pathGlobFilter=a.json"),
        )
    assert not (tmp_path / "s").exists()


def test_a_column_of_headers_by_a_wrong_name(
    broker: Broker,
    run: Callable[..., list[str]],
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """IDs in the topic do not speak for those of the archive."""
    topic = make_topic(1)
    produce(
        topic,
        [Outgoing(headers={"dedup-id": b"x"}, partition=0, timestamp_ms=BASE_MS + at) for at in range(4)],
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        answer.result(30)
    lines = [
        {"partition": 0, "offset": at, "timestamp": BASE_MS + at, "Headers": {"dedup-id": str(at)}}
        for at in range(2)
    ]
    write_lines(tmp_path / "archive" / "a.json", *lines)
    given = (
        *("--bootstrap", broker.bootstrap, "--whole-topic", "--source", "kafka"),
        *("--source", str(tmp_path / "archive"), "--format", "json", "--columns"),
    )
    with pytest.raises(BackfillError, match="of 2 records of the archive none has an ID"):
        run(topic, *given, "timestamp=timestamp:ms,headers=hdrs")
    run(topic, *given, "timestamp=timestamp:ms,headers=Headers")
    assert verify_snapshot(tmp_path / "s").marks == 3


def test_one_id_is_enough(run: Callable[..., list[str]], tmp_path: Path) -> None:
    """Records without an ID are no fault of the archive where others have one."""
    ids = [[], [("dedup-id", b"x")]]
    records = [Record("orders", 0, at, BASE_MS, headers=each) for at, each in enumerate(ids)]
    write_parquet(tmp_path / "archive", records, files=1)
    said = run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"))
    assert [line for line in said if line.startswith("warning")] == []
    assert verify_snapshot(tmp_path / "s").marks == 1


def test_a_topic_without_ids(
    broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    """Its snapshot would know nothing; one that is added to has shown that the ID spec is right."""
    topic = make_topic(1)
    produce(topic, [Outgoing(value=b"x", partition=0)])
    given = ["--topic", topic, "--id", "header:dedup-id", "--window", "1d", "--whole-topic"]
    given += ["--bootstrap", broker.bootstrap, "--add", "--output", str(tmp_path / "s")]
    said = f"of 1 record of topic '{topic}' none has an ID by header:dedup-id: is --id right?"
    with pytest.raises(BackfillError, match=re.escape(said)):
        launch.backfill(given)
    assert not (tmp_path / "s").exists()
    produce(topic, with_ids("a"))
    launch.backfill(given)
    produce(topic, [Outgoing(value=b"x", partition=0)])
    assert launch.backfill(given)["unkeyed"] == 1
