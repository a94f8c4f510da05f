"""The whole job where records belong to units: what a consumer remembers that lived through the history, from Kafka and from archives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Deduplicator, Lookup, Record, Window, header
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
from tests.support.unit_logs import unit_log
from tests.support.unit_world import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
IDLE_S = 0.5
COMMITTED = ("--archive-isolation", "read_committed")
JSON = ("--format", "json", "--columns", "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64")  # fmt: skip
WINDOWS = ["1h", "40n", "1h+40n"]


def strategy(window: str, mode: Any = "all-or-nothing") -> Lookup:
    """What a consumer is given."""
    return Lookup(
        id=header("dedup-id"), window=Window.parse(window), unit=header("dedup-unit"), unit_mode=mode
    )


def said(window: str, mode: str = "all-or-nothing") -> list[str]:
    """The same for the command."""
    return ["--id", "header:dedup-id", "--unit", "header:dedup-unit", "--unit-mode", mode, "--window", window]


def log_of(topic: str, count: int, *, idents: int = 400, end: int | None = None) -> list[Record]:
    """Two partitions with units of several producers that overlap, some of them rejected, and records without one, by offset without holes.

    ``end``: how many records a partition has, whatever units are open then.
    """
    found = []
    for partition in (0, 1):
        draw = Random(7 + partition)
        # Now and then no unit is open, so that a cut that lies outside all of them is near.
        log = [
            entry
            for begin in range(0, count, 40)
            for entry in unit_log(draw, count=40, idents=idents, begin=1_000 * begin)
        ]
        for offset, entry in enumerate(log[:end]):
            # No unit crosses partitions.
            record = record_of(replace(entry, unit=entry.unit and f"{partition}/{entry.unit}"))
            found.append(
                replace(
                    record,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    timestamp_ms=BASE_MS + 20 * offset,
                    value=f"{partition}/{offset}".encode(),
                )
            )
    return found


def live(engine: Deduplicator, records: Sequence[Record]) -> list[str]:
    """Live through records; return the values of those that were handed out."""
    found = []
    for record in records:
        [verdict] = engine.admit([record])
        due = [record] if verdict.deliver else []
        due += [each.record for each in engine.settle_units() if each.verdict.deliver]
        while due:
            found += [(each.value or b"").decode() for each in due]
            due = [each.record for each in engine.complete(due) if each.verdict.deliver]
    return found


def known(manifest: Manifest) -> list[tuple[Any, ...]]:
    """What two snapshots of one history agree on, however they were made; a consumer's newest record may lie in a unit that is open."""
    return [
        (each.partition, each.low, each.high, each.since_ms, each.accepted, each.since_number, each.marks, each.fingerprint)
        for each in manifest.partitions
    ]  # fmt: skip


@pytest.fixture
def run(broker: Broker, spark: SparkSession, tmp_path: Path) -> Callable[..., Manifest]:
    """Runs the job into ``tmp_path / "snapshot"``."""

    def finished(topic: str, *more: str) -> Manifest:
        folder = tmp_path / "snapshot"
        usual = ["--topic", topic, "--output", str(folder), "--overwrite"]
        connected = [] if "--cluster-id" in more else ["--bootstrap", broker.bootstrap]
        backfill(parse_options([*usual, *connected, *more], print), lambda: spark)
        return verify_snapshot(folder)

    return finished


@pytest.mark.parametrize(("source", "window"), [(KAFKA_SOURCES[0], "1h"), (KAFKA_SOURCES[1], "40n")])
def test_what_a_consumers_units_left_is_rebuilt(
    source: str,
    window: str,
    broker: Broker,
    run: Callable[..., Manifest],
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """A consumer's own snapshot and the backfilled one remember the same, rejected units and one that is open at the end included; it goes on the same."""
    topic, whole = make_topic(2), log_of("", 240)
    early, late = ([each for each in whole if (each.offset < 200) is first] for first in (True, False))
    produce(topic, outgoing(early))
    group, store, lookup = f"{topic}-group", tmp_path / "store", strategy(window)
    options: dict[str, Any] = {"dedup": lookup}
    with make_consumer(broker.bootstrap, group, store, idle_timeout=IDLE_S, **options) as consumer:
        consumer.subscribe([topic])
        run_through(consumer, topic, lambda _message: None)
        assert consumer.counters.verdicts["duplicate"] > 0
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    rebuilt = run(topic, "--group", group, "--source", source, *said(window))
    assert known(rebuilt) == known(own)
    assert any(each.high < 200 for each in rebuilt.partitions), "no unit is open at the end; take another log"
    assert (rebuilt.id_spec, rebuilt.group) == (own.id_spec, group)
    assert dedup(["snapshots", "diff", str(tmp_path / "snapshot"), str(tmp_path / "own")]) == 0
    assert dedup(["snapshots", "verify", str(tmp_path / "snapshot")]) == 0
    produce(topic, outgoing(late))
    reference = Deduplicator(lookup, clock=lambda: BASE_MS / 1_000 + 10**6)
    before = {*live(reference, early)}
    options["snapshot"] = tmp_path / "snapshot"
    with make_consumer(broker.bootstrap, group, tmp_path / "new", **options) as consumer:
        consumer.subscribe([topic])
        came = values(poll_through(consumer, topic))
        assert [consumer._session.assigned[topic, number].replayed for number in (0, 1)] == [0, 0]
        assert "snapshot of" in consumer._session.assigned[topic, 0].note
        again = {text for text in came if text in before}
        assert Counter(text for text in came if text not in again) == Counter(live(reference, late))
        # What lies above the cut comes again on another disk, as ever.
        cuts = {each.partition: each.high for each in rebuilt.partitions}
        assert all(int(text[2:]) >= cuts[int(text[0])] for text in again)
        assert consumer.counters.verdicts["duplicate"] > 0


@pytest.mark.parametrize("form", ["parquet", "twice", "json"])
@pytest.mark.parametrize("window", WINDOWS)
def test_an_archive_has_what_the_units_of_a_life_left(
    form: str, window: str, run: Callable[..., Manifest], tmp_path: Path
) -> None:
    """Read by Arrow or by Spark, in the order of the files, with rows that come twice; a unit that is open at the end is not in it."""
    mode = "members" if form == "twice" else "all-or-nothing"
    records = log_of("orders", 300, end=270)
    if form == "json":
        source = write_json_lines(tmp_path / "archive.jsonl", records)
    else:
        again = records[100:300] if form == "twice" else []
        source = write_parquet(tmp_path / "archive", [*records[::-1], *again], files=3)
    ids = ("--cluster-id", "c", "--topic-id", "t", *COMMITTED, *(JSON if form == "json" else ()))
    rebuilt = run("orders", "--whole-topic", "--source", str(source), *ids, *said(window, mode))
    store = tmp_path / "store"
    with Deduplicator(
        strategy(window, mode), RocksStore(store), clock=lambda: BASE_MS / 1_000 + 10**6
    ) as engine:
        live(engine, records)
        assert engine.counters.verdicts["duplicate"] > 0
    own = snapshot_store(list_partitions(store), store, tmp_path / "own")
    assert known(rebuilt) == known(own)
    assert any(each.high < 270 for each in rebuilt.partitions), "no unit is open at the end; take another log"
    assert rebuilt.vouched
