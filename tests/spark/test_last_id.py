"""The whole job where IDs are compared: what a consumer remembers that lived through the history, from Kafka and from archives."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Deduplicator, LastId, Record, header, orders
from dedup_sdk.cli.app import run as dedup
from dedup_sdk.store.backup import snapshot_store
from dedup_sdk.store.manifest import Manifest
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.options import parse_options
from spark_backfill.source_options import KAFKA_SOURCES
from tests.support.archives import write_json_lines, write_parquet
from tests.support.consuming import make_consumer, poll_through, run_through, values
from tests.support.producing import outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
IDLE_S = 0.5
SERVERS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "2174b383-5441-11e8-b90a-c80aa9429562")
LAST = LastId(id=header("gtid"), order=orders.mysql_gtid(), source=header("producer"), reorder_depth=6)
SAID = (
    "--id",
    "header:gtid",
    "--order",
    "mysql-gtid",
    "--source-id",
    "header:producer",
    "--reorder-depth",
    "6",
)
COMMITTED = ("--archive-isolation", "read_committed")
JSON = ("--format", "json", "--columns", "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64")  # fmt: skip


def log_of(topic: str, count: int, *, calm_from: int = 10**6) -> list[Record]:
    """Two partitions with late and repeated IDs of some producers, another server now and then, bad ones, and some without an ID or a source.

    From offset ``calm_from`` on nothing is so late that it depends on what is in flight whether it is known.
    """
    source, found = random.Random(3), []
    for partition in (0, 1):
        newest: Counter[str | None] = Counter()
        for offset in range(count):
            producer = source.choice(["p", "p", "p", "q", "r", "r", None])
            newest[producer] += source.choice([0, 1, 1, 2])
            calm = offset >= calm_from
            number = max(newest[producer] - source.choice([0, 0, 0, 0, 1, 3, 3 if calm else 9]), 1)
            server = SERVERS[not calm and source.random() < 0.02]
            ident = source.choices([f"{server}:{number}", "bad", None], [30, 1, 1])[0]
            headers = [
                (name, text.encode()) for name, text in (("producer", producer), ("gtid", ident)) if text
            ]
            value = f"{partition}/{offset}".encode()
            found.append(Record(topic, partition, offset, BASE_MS + 50 * offset, None, value, headers))
    return found


def engine_over(store: Any = None) -> Deduplicator:
    """An engine that lives through what a consumer would."""
    return Deduplicator(LAST, store, recent_marks=2, clock=lambda: BASE_MS / 1_000 + 10**6)


def delivered(engine: Deduplicator, records: Sequence[Record], poison: Sequence[bytes] = ()) -> list[str]:
    """Live through records; return the values of those that were handed out."""
    found = []
    for record in records:
        [verdict] = engine.admit([record])
        if verdict.deliver:
            found.append((record.value or b"").decode())
            (engine.dead_letter if record.value in poison else engine.complete)([record])
    return found


def known(manifest: Manifest) -> list[tuple[Any, ...]]:
    """What two snapshots of one history agree on, however they were made."""
    return [
        (each.partition, each.low, each.high, each.since_ms, each.newest_ms, each.accepted, each.since_number, each.marks, each.fingerprint)
        for each in manifest.partitions
    ]  # fmt: skip


@pytest.fixture
def run(broker: Broker, spark: SparkSession, tmp_path: Path) -> Callable[..., Manifest]:
    """Runs the job into ``tmp_path / "snapshot"``."""

    def finished(topic: str, *more: str) -> Manifest:
        folder = tmp_path / "snapshot"
        usual = ["--topic", topic, *SAID, "--output", str(folder), "--overwrite"]
        connected = [] if "--cluster-id" in more else ["--bootstrap", broker.bootstrap]
        report = backfill(parse_options([*usual, *connected, *more], print), lambda: spark)
        manifest = verify_snapshot(folder)
        assert (report.id_spec, manifest.id_spec) == (str(LAST.keys), str(LAST.keys))
        return manifest

    return finished


@pytest.mark.parametrize("source", KAFKA_SOURCES)
def test_a_consumers_sources_are_rebuilt(
    source: str,
    broker: Broker,
    run: Callable[..., Manifest],
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """A consumer's own snapshot and the backfilled one remember the same; taken over, it goes on the same."""
    topic, whole = make_topic(2), log_of("", 360, calm_from=300)
    records, more = ([each for each in whole if (each.offset < 300) is early] for early in (True, False))
    produce(topic, outgoing(records))
    reference = engine_over()
    group, store = f"{topic}-group", tmp_path / "store"
    with make_consumer(broker.bootstrap, group, store, dedup=LAST, idle_timeout=IDLE_S) as consumer:
        consumer.subscribe([topic])
        run_through(consumer, topic, lambda _message: None)
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    rebuilt = run(topic, "--group", group, "--source", source)
    assert known(rebuilt) == known(own)
    assert (rebuilt.id_spec, rebuilt.group) == (own.id_spec, group)
    assert rebuilt.marks == 6
    assert dedup(["snapshots", "diff", str(tmp_path / "snapshot"), str(tmp_path / "own")]) == 0
    assert dedup(["snapshots", "verify", str(tmp_path / "snapshot")]) == 0
    produce(topic, outgoing(more))
    delivered(reference, records)
    options: dict[str, Any] = {"dedup": LAST, "snapshot": tmp_path / "snapshot"}
    with make_consumer(broker.bootstrap, group, tmp_path / "new", **options) as consumer:
        consumer.subscribe([topic])
        came = values(poll_through(consumer, topic))
        assert [consumer._session.assigned[topic, number].replayed for number in (0, 1)] == [0, 0]
        assert "snapshot of 3 marks" in consumer._session.assigned[topic, 0].note
        assert Counter(came) == Counter(delivered(reference, more))
        assert consumer.counters.verdicts["duplicate"] > 0


def archive_of(form: str, records: list[Record], folder: Path) -> list[str]:
    """Write an archive, whose files are not in order and may have rows twice; return the options that read it."""
    if form == "json":
        source = write_json_lines(folder / "archive.jsonl", records)
    else:
        again = records[100:300] if form == "twice" else []
        source = write_parquet(folder / "archive", [*records[::-1], *again], files=3)
    more = JSON if form == "json" else ()
    return ["--source", str(source), "--cluster-id", "c", "--topic-id", "t", *COMMITTED, *more]


@pytest.mark.parametrize("form", ["parquet", "twice", "json"])
def test_an_archive_has_the_sources_of_a_life(
    form: str, run: Callable[..., Manifest], tmp_path: Path
) -> None:
    """Read by Arrow or by Spark, in the order of the files, with rows that come twice."""
    records = log_of("orders", 400)
    rebuilt = run("orders", "--whole-topic", *archive_of(form, records, tmp_path))
    store = tmp_path / "store"
    with engine_over(RocksStore(store)) as engine:
        delivered(engine, records)
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    assert known(rebuilt) == known(own)
    assert (rebuilt.vouched, rebuilt.marks) == (True, 6)


@pytest.mark.parametrize("by", [SAID, SAID[:4]], ids=["sources", "partition"])
@pytest.mark.parametrize("ids", [("1", "2"), ("1", None), ("1", f"{SERVERS[0]}:1")])
def test_where_no_id_can_be_read_it_is_said(
    ids: tuple[str, str | None], by: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    """The snapshot is there, but a line says that --order may be wrong; one ID that can be read is enough for none."""
    records = [
        Record(
            "orders",
            0,
            at,
            BASE_MS + at,
            headers=[("producer", b"p"), *([("gtid", text.encode())] if text else [])],
        )
        for at, text in enumerate(ids)
    ]
    source = write_parquet(tmp_path / "archive", records, files=1)
    said: list[str] = []
    given = ["--topic", "orders", "--whole-topic", "--cluster-id", "c", "--topic-id", "t", *COMMITTED]
    given += [*by, "--source", str(source), "--output", str(tmp_path / "s")]
    report = backfill(parse_options(given, print), lambda: spark, say=said.append)
    readable = sum(text is not None and ":" in text for text in ids)
    assert (report.records, report.unkeyed, report.marks) == (2, ids.count(None), readable)
    assert report.malformed == 2 - report.unkeyed - readable
    warnings = [line for line in said if line.startswith("warning: ")]
    assert warnings == (
        []
        if readable
        else [
            "warning: none of the 2 records has an ID by header:gtid that mysql-gtid can read: are --id and --order right?"
        ]
    )
