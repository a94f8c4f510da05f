"""The whole job where comparing has a second opinion: sources and looked-up IDs of a consumer's life, from Kafka and from archives."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Deduplicator, Lookup, Record, Window, header
from dedup_sdk.cli.app import run as dedup
from dedup_sdk.store.backup import snapshot_store
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.options import parse_options
from spark_backfill.source_options import KAFKA_SOURCES
from tests.spark.test_last_id import (
    BASE_MS,
    COMMITTED,
    IDLE_S,
    LAST,
    SAID,
    SERVERS,
    archive_of,
    delivered,
    known,
    log_of,
)
from tests.support.archives import write_parquet
from tests.support.consuming import make_consumer, poll_some, poll_through, run_through, values
from tests.support.producing import outgoing
from tests.support.surviving import copy_at_one_moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.store.manifest import Manifest
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]
ASKS = replace(LAST, otherwise=Lookup(id=header("other"), window=Window(days=40)))
SECOND = ("--otherwise", "header:other", "--otherwise-window", "40d")
COUNT = 200


def with_others(topic: str) -> list[Record]:
    """The records of `log_of`, nearly all of which bear another ID, too, that comes again now and then."""
    source, found = random.Random(7), []
    for each in log_of(topic, COUNT):
        other = source.choice([None, *range(150)])
        text = f"only-{each.offset}" if is_poison(each.offset) else other and f"some-{other}"
        more = [("other", text.encode())] if text else []
        found.append(replace(each, headers=[*each.headers, *more]))
    return found


def is_poison(offset: int) -> bool:
    """Whether the handler gives a message up."""
    return offset % 60 == 40


def again(records: list[Record]) -> list[Record]:
    """Each message once more behind them all, under an ID that the order cannot read."""
    return [
        replace(
            each,
            offset=COUNT + each.offset,
            timestamp_ms=each.timestamp_ms + 50 * COUNT,
            value=b"again " + (each.value or b""),
            headers=[("gtid", b"bad"), *((name, value) for name, value in each.headers if name != "gtid")],
        )
        for each in records
    ]


def to_be_delivered(records: list[Record], tail: list[Record]) -> list[str]:
    """The values of the tail, all of whose IDs nobody can read: what bears no other ID, or one that no completed record bore before."""
    completed, found = set(), []
    for each in [*records, *tail]:
        named = dict(each.headers)
        asked = (
            (each.partition, named.get("other")) if {"producer", "gtid", "other"} <= named.keys() else None
        )
        if each.offset >= COUNT and (asked is None or asked not in completed):
            found.append((each.value or b"").decode())
        if asked is not None:
            completed.add(asked)
    return found


@pytest.fixture
def run(broker: Broker, spark: SparkSession, tmp_path: Path) -> Callable[..., Manifest]:
    """Runs the job into ``tmp_path / "snapshot"``."""

    def finished(topic: str, *more: str) -> Manifest:
        folder = tmp_path / "snapshot"
        usual = ["--topic", topic, *SAID, *SECOND, "--output", str(folder), "--overwrite"]
        connected = [] if "--cluster-id" in more else ["--bootstrap", broker.bootstrap]
        report = backfill(parse_options([*usual, *connected, *more], print), lambda: spark)
        manifest = verify_snapshot(folder)
        assert (report.id_spec, manifest.id_spec) == (str(ASKS.keys), str(ASKS.keys))
        return manifest

    return finished


def test_a_consumers_store_is_rebuilt(
    broker: Broker,
    run: Callable[..., Manifest],
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """What a consumer remembers that was killed on the way: its own snapshot is what both readers make, and who starts on it asks it."""
    topic = make_topic(2)
    records = with_others(topic)
    produce(topic, outgoing(records))
    group, alive, store = f"{topic}-group", tmp_path / "alive", tmp_path / "store"
    options: dict[str, Any] = {"dedup": ASKS, "idle_timeout": IDLE_S}
    with make_consumer(broker.bootstrap, group, alive, completion="explicit", **options) as killed:
        killed.subscribe([topic])
        for number, message in enumerate(poll_some(killed, 120)):
            if message.offset() % 50 != 30:
                killed.complete(message)
            if number == 80:
                copy_at_one_moment(alive, store)

    with make_consumer(broker.bootstrap, group, store, **options) as consumer:
        consumer.subscribe([topic])
        run_through(consumer, topic, lambda _message: None)
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    manifests = [run(topic, "--group", group, "--source", source) for source in KAFKA_SOURCES]
    for rebuilt in manifests:
        assert known(rebuilt) == known(own)
        assert (rebuilt.id_spec, rebuilt.window) == (own.id_spec, own.window)
        assert [sum(file.payloads for file in each.files) for each in rebuilt.partitions] == [3, 3]
        assert all(each.marks > 70 for each in rebuilt.partitions)
    assert dedup(["snapshots", "diff", str(tmp_path / "snapshot"), str(tmp_path / "own")]) == 0
    assert dedup(["snapshots", "verify", str(tmp_path / "snapshot")]) == 0
    restored = ["--store", str(tmp_path / "restored")]
    assert dedup(["restore", "--snapshot", str(tmp_path / "snapshot"), *restored]) == 0
    assert dedup(["lookup", *restored, "--topic", topic, "p"]) == 0
    assert (
        snapshot_store(
            list_partitions(tmp_path / "restored"), tmp_path / "restored", tmp_path / "of-restored"
        ).fingerprint
        == own.fingerprint
    )
    tail = again(records)
    produce(topic, outgoing(tail))
    options |= {"snapshot": tmp_path / "snapshot"}
    with make_consumer(broker.bootstrap, group, tmp_path / "new", **options) as consumer:
        consumer.subscribe([topic])
        came = values(poll_through(consumer, topic))
        assert [consumer._session.assigned[topic, number].replayed for number in (0, 1)] == [0, 0]
        assert "snapshot of" in consumer._session.assigned[topic, 0].note
        expected = to_be_delivered(records, tail)
        assert Counter(came) == Counter(expected)
        assert 0 < len(came) < len(tail) / 2


@pytest.mark.parametrize("form", ["parquet", "twice", "json"])
def test_an_archive_has_what_a_life_looks_up(form: str, run: Callable[..., Manifest], tmp_path: Path) -> None:
    """Read by Arrow or by Spark, in the order of the files, with rows that come twice."""
    records = with_others("orders")
    rebuilt = run("orders", "--whole-topic", *archive_of(form, records, tmp_path))
    store = tmp_path / "store"
    with Deduplicator(
        ASKS, RocksStore(store), recent_marks=20, clock=lambda: BASE_MS / 1_000 + 10**6
    ) as engine:
        delivered(engine, records)
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    assert known(rebuilt) == known(own)
    assert (rebuilt.vouched, sum(file.payloads for each in rebuilt.partitions for file in each.files)) == (
        True,
        6,
    )


@pytest.mark.parametrize(("borne", "marks"), [("other", 2), ("another", 1)])
def test_where_nothing_is_to_be_looked_up_it_is_said(
    borne: str, marks: int, spark: SparkSession, tmp_path: Path
) -> None:
    """The snapshot is there, with sources alone, but a line says that --otherwise may be wrong."""
    headers = [("gtid", f"{SERVERS[0]}:1".encode()), ("producer", b"p"), (borne, b"x")]
    source = write_parquet(tmp_path / "archive", [Record("orders", 0, 0, BASE_MS, headers=headers)], files=1)
    said: list[str] = []
    given = ["--topic", "orders", "--whole-topic", "--cluster-id", "c", "--topic-id", "t", *COMMITTED]
    given += [*SAID, *SECOND, "--source", str(source), "--output", str(tmp_path / "s")]
    report = backfill(parse_options(given, print), lambda: spark, say=said.append)
    assert report.marks == marks
    assert [line for line in said if line.startswith("warning: ")] == (
        []
        if marks > 1
        else [
            "warning: none of the 1 records has an ID by header:other to be looked up: is --otherwise right?"
        ]
    )
