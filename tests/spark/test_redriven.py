"""The whole job over a log into which dead letters were sent back: what it rebuilds is what the group that failed remembers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import LastId, Lookup, Record, Window, header, id_spec, orders
from dedup_sdk.ids import RecordFields
from dedup_sdk.ids.redrive import REDRIVE_HEADER, redrive_value, redriven_digest
from dedup_sdk.store.backup import snapshot_store
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.options import parse_options
from spark_backfill.source_options import KAFKA_SOURCES
from tests.support.archives import write_json_lines, write_parquet
from tests.support.consuming import make_consumer, run_through
from tests.support.naive_fold import read_sorted_file
from tests.support.producing import outgoing
from tests.support.unit_logs import unit_log
from tests.support.unit_world import record_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.decision import Mark
    from dedup_sdk.store.manifest import Manifest
    from dedup_sdk.strategy import Strategy
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
IDLE_S = 0.5
JSON = ("--format", "json", "--columns", "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64")  # fmt: skip
HOUR = Window(seconds=3_600)
STRATEGIES: dict[str, tuple[Strategy, list[str]]] = {
    "header": (Lookup(id=header("dedup-id"), window=HOUR), ["--id", "header:dedup-id", "--window", "1h"]),
    "key": (Lookup(id=id_spec("key"), window=HOUR), ["--id", "key", "--window", "1h"]),
    "json": (Lookup(id=id_spec("json:/id"), window=HOUR), ["--id", "json:/id", "--window", "1h"]),
    "count": (Lookup(id=id_spec("key"), window=Window(count=60)), ["--id", "key", "--window", "60n"]),
    "last": (
        LastId(id=header("sequence"), order=orders.integer(), source=id_spec("key")),
        ["--id", "header:sequence", "--order", "integer", "--source-id", "key"],
    ),
    "units": (
        Lookup(id=header("dedup-id"), window=HOUR, unit=header("dedup-unit")),
        ["--id", "header:dedup-id", "--unit", "header:dedup-unit", "--window", "1h"],
    ),
}


def log_of(group: str, *, in_units: bool) -> list[Record]:
    """Two partitions with duplicates, records without an ID, and letters that were sent back: to this group, to another one, some of them twice."""
    found = []
    for partition in (0, 1):
        draw = Random(partition)
        log: list[Record] = []
        for record in _units(draw, partition) if in_units else _singles(draw):
            log.append(record)
            back = draw.random()
            if back < 0.2:
                failed = draw.choice(log[-30:])
                whose = group if back < 0.12 or in_units else "another group"
                value = redrive_value(whose, "orders", partition, log.index(failed), BASE_MS)
                log.append(replace(failed, headers=[*failed.headers, (REDRIVE_HEADER, value)]))
        found += [
            replace(record, partition=partition, offset=offset, timestamp_ms=BASE_MS + 50 * offset)
            for offset, record in enumerate(log)
        ]
    return found


def _singles(draw: Random) -> list[Record]:
    idents = [b"%d" % draw.randrange(120) for _ in range(200)]
    return [
        Record(
            "orders",
            0,
            0,
            0,
            ident if draw.random() > 0.05 else None,
            b'{"id": "%s"}' % ident,
            [("dedup-id", ident), ("sequence", b"%d" % (number // 2))],
        )
        for number, ident in enumerate(idents)
    ]


def _units(draw: Random, partition: int) -> list[Record]:
    return [
        record_of(replace(entry, unit=entry.unit and f"{partition}/{entry.unit}"))
        for begin in range(0, 200, 40)
        for entry in unit_log(draw, count=40, idents=90, begin=1_000 * begin)
    ]


def known(manifest: Manifest) -> list[tuple[Any, ...]]:
    """What two snapshots of one history agree on, however they were made; a store keeps marks of a count window for longer."""
    return [
        (each.partition, each.low, each.high, each.accepted, each.since_number)
        + (() if each.accepted else (each.since_ms, each.marks, each.fingerprint))
        for each in manifest.partitions
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_a_group_remembers_of_redriven_letters_is_rebuilt(
    name: str,
    broker: Broker,
    spark: SparkSession,
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """By both readers of Kafka, and from archives that Arrow and Spark read."""
    topic = make_topic(2)
    group, store = f"{topic} & co", tmp_path / "store"
    strategy, said = STRATEGIES[name]
    records = [replace(each, topic=topic) for each in log_of(group, in_units=name == "units")]
    produce(topic, outgoing(records))
    with make_consumer(broker.bootstrap, group, store, dedup=strategy, idle_timeout=IDLE_S) as consumer:
        consumer.subscribe([topic])
        run_through(consumer, topic, lambda _message: None)
        assert consumer.counters.verdicts["duplicate"] > 0
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    parquet = write_parquet(tmp_path / "archive", records, files=3)
    lines = write_json_lines(tmp_path / "lines.jsonl", records)
    sources = [*((source,) for source in KAFKA_SOURCES), (str(parquet),), (str(lines), *JSON)]
    for number, source in enumerate(sources):
        folder = tmp_path / f"snapshot-{number}"
        given = ["--topic", topic, "--group", group, "--bootstrap", broker.bootstrap, "--output", str(folder)]
        isolation = ["--archive-isolation", "read_committed"] if "/" in source[0] else []
        backfill(parse_options([*given, *said, "--source", *source, *isolation], print), lambda: spark)
        assert known(verify_snapshot(folder)) == known(own), source


@pytest.mark.parametrize("spec", ["header:dedup-id", "key", "json:/id"])
def test_a_whole_topic_marks_both(spec: str, spark: SparkSession, tmp_path: Path) -> None:
    """The group that a header names knows the record by ID and header, all others by its ID."""
    records = [
        Record(
            "orders",
            0,
            offset,
            BASE_MS + offset,
            ident,
            b'{"id": "%s"}' % ident,
            [("dedup-id", ident), *([(REDRIVE_HEADER, back)] if back else [])],
        )
        for offset, (ident, back) in enumerate(
            [
                (b"a", None),
                (b"b", None),
                (b"a", redrive_value("g", "orders", 0, 0, 1)),
                (b"a", redrive_value("g", "orders", 0, 0, 1)),
                (b"c", b"no redrive"),
            ]
        )
    ]
    parquet = write_parquet(tmp_path / "archive", records, files=2)
    again = write_parquet(tmp_path / "again", [*records, *records[1:4]], files=1)
    lines = write_json_lines(tmp_path / "lines.jsonl", records)
    plain = id_spec(spec)
    ids = {text: plain.digests(_fields(text.encode())).digests[0] or b"" for text in "abc"}
    redriven = redriven_digest(ids["a"], redrive_value("g", "orders", 0, 0, 1))
    for number, source in enumerate([(str(parquet),), (str(again),), (str(lines), *JSON)]):
        folder = tmp_path / f"snapshot-{number}"
        given = ["--topic", "orders", "--whole-topic", "--cluster-id", "c", "--topic-id", "t", "--id", spec, "--window", "1h"]  # fmt: skip
        given += ["--archive-isolation", "read_committed", "--output", str(folder), "--source", *source]
        report = backfill(parse_options(given, print), lambda: spark)
        manifest = verify_snapshot(folder)
        found: dict[bytes, Mark] = {}
        for file in manifest.partitions[0].files:
            found |= read_sorted_file(folder / "0" / f"{file.name}.sst")
        assert {digest: mark.offset for digest, mark in found.items()} == {
            ids["a"]: 3,
            ids["b"]: 1,
            ids["c"]: 4,
            redriven: 3,
        }, source
        assert (report.marks, manifest.partitions[0].low, manifest.partitions[0].high) == (4, 0, 5)


def _fields(ident: bytes) -> Any:
    return RecordFields([Record("orders", 0, 0, 0, ident, b'{"id": "%s"}' % ident, [("dedup-id", ident)])])
