"""The whole job on a real Kafka: IDs that are committed, keyed and inside the window are remembered, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dedup_sdk._commit_text import sealed
from dedup_sdk._decision import Mark
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.ids import digest_one, digest_parts
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.consuming import commit_text
from tests.support.known_marks import read_sorted_file
from tests.support.producing import Outgoing, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from spark_backfill.report import Report
    from tests.support.brokers import Broker

BASE_MS = 1_700_000_000_000


class Snapshot:
    """A snapshot that was made, and its report."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder = folder
        self.report = report
        self.manifest: Manifest = verify_snapshot(folder)

    def marks(self, partition: int = 0) -> dict[bytes, Mark]:
        """The marks of a partition's files, read by RocksDB."""
        entry = self.manifest.partition(partition)
        assert entry is not None
        found: dict[bytes, Mark] = {}
        for file in entry.files:
            found |= read_sorted_file(self.folder / str(partition) / f"{file.name}.sst")
        assert len(found) == entry.marks
        return found


@pytest.fixture
def run(broker: Broker, spark: SparkSession, tmp_path: Path) -> Callable[..., Snapshot]:
    """Runs the job: ``run(topic, "--window", "1d", ...)``.

    The spec is header:dedup-id unless given.
    """

    def job(topic: str, *more: str, **given: Any) -> Snapshot:
        folder = tmp_path / "snapshot"
        arguments = [
            "--bootstrap",
            broker.bootstrap,
            "--topic",
            topic,
            "--id",
            "header:dedup-id",
            "--window",
            "1d",
        ]
        whose = [] if "--group" in more else ["--whole-topic"]
        options = parse_options([*arguments, "--output", str(folder), *whose, *more], print)
        return Snapshot(folder, backfill(options, on_spark(lambda: spark), **given))

    return job


def offsets(snapshot: Snapshot, *names: str) -> list[int | None]:
    """The offset of the mark of each ID, None where there is no mark."""
    marks = snapshot.marks()
    found = [marks.get(digest_one(name.encode())) for name in names]
    return [None if mark is None else mark.offset for mark in found]


@pytest.mark.slow
def test_last_sightings_of_every_partition(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """Each partition has its own marks, at the last record of each ID; manifest and report agree with them."""
    topic = make_topic(3)
    produce(topic, with_ids("a", "b", "a", partition=0) + with_ids("a", "c", partition=2))
    snapshot = run(topic)
    assert {digest_one(b"a"): 2, digest_one(b"b"): 1} == {d: m.offset for d, m in snapshot.marks(0).items()}
    assert {digest_one(b"a"): 0, digest_one(b"c"): 1} == {d: m.offset for d, m in snapshot.marks(2).items()}
    manifest, report = snapshot.manifest, snapshot.report
    assert [(each.low, each.high, each.known.since_ms, each.marks) for each in manifest.partitions] == [
        (0, 3, None, 2), (0, 0, None, 0), (0, 2, None, 2),
    ]  # fmt: skip
    assert (manifest.topic, manifest.id_spec, manifest.window) == (topic, "header:dedup-id", "1d")
    assert (manifest.isolation, manifest.digest) == ("read_committed", "sha256-16")
    assert (manifest.group, manifest.vouched) == (None, True)
    assert (report.records, report.offsets, report.unkeyed, report.marks, report.files) == (5, 5, 0, 4, 2)
    assert json.loads((snapshot.folder / "report.json").read_text()) == json.loads(str(report))


def test_aborted_records_are_not_remembered(
    broker: Broker, run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """Only IDs of committed transactions are marked: the resend of an aborted one must not be taken for a duplicate."""
    topic = make_topic(1)
    produce(topic, with_ids("plain"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    for name, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(topic, b"x", partition=0, headers={"dedup-id": name.encode()})
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0, headers={"dedup-id": b"undecided"})
    producer.flush(30)
    try:
        snapshot = run(topic)
    finally:
        producer.abort_transaction(30)
    assert offsets(snapshot, "plain", "aborted", "committed", "undecided") == [0, None, 41, None]
    assert (snapshot.report.records, snapshot.manifest.partitions[0].high) == (21, 43)


def test_headers_null_empty_and_repeated(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """The last header of the name counts; null and absent are no ID, empty is one."""
    topic = make_topic(1)
    produce(
        topic,
        [
            Outgoing(headers=[("dedup-id", b"first"), ("dedup-id", b"last"), ("other", b"x")], partition=0),
            Outgoing(headers=[("dedup-id", b"hidden"), ("dedup-id", None)], partition=0),
            Outgoing(headers={"dedup-id": b""}, partition=0),
            Outgoing(headers={}, value=b"none", partition=0),
            Outgoing(headers={"Dedup-Id": b"case"}, partition=0),
        ],
    )
    snapshot = run(topic)
    assert {d: m.offset for d, m in snapshot.marks().items()} == {digest_one(b"last"): 0, digest_one(b""): 2}
    assert (snapshot.report.records, snapshot.report.unkeyed) == (5, 3)


def test_ids_that_left_the_window_are_left_out(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """An ID last seen before the window is gone, one seen again inside it stays; coverage begins after those gone."""
    topic = make_topic(1)
    hour = 3_600_000
    produce(
        topic,
        [
            Outgoing(headers={"dedup-id": name}, partition=0, timestamp_ms=BASE_MS + at * hour)
            for name, at in (
                (b"old", 0),
                (b"again", 1),
                (b"x", 30),
                (b"again", 31),
                (b"late", 8),
                (b"new", 32),
            )
        ],
    )
    snapshot = run(topic)
    assert offsets(snapshot, "old", "again", "x", "late", "new") == [None, 3, 2, 4, 5]
    (entry,) = snapshot.manifest.partitions
    assert (entry.low, entry.high, entry.known.newest_ms) == (0, 6, BASE_MS + 32 * hour)
    assert entry.known.since_ms is not None
    assert BASE_MS + hour < entry.known.since_ms <= BASE_MS + 8 * hour


def test_a_count_window_has_numbers(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """The last n accepted IDs are remembered with their ranks; duplicates take none."""
    topic = make_topic(1)
    produce(topic, with_ids("a", "b", "a", "c", "d", "c"))
    snapshot = run(topic, "--window", "2n")
    marks = {digest: (mark.offset, mark.number) for digest, mark in snapshot.marks().items()}
    assert marks == {digest_one(b"c"): (5, 3), digest_one(b"d"): (4, 4)}
    (entry,) = snapshot.manifest.partitions
    assert (entry.known.accepted, entry.known.since_number) == (4, 2)
    assert entry.files[0].newest_number == 4


def test_a_group_is_folded_to_its_commit(
    broker: Broker,
    run: Callable[..., Snapshot],
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    group: str,
) -> None:
    """Nothing before the group's low and nothing at or beyond its committed offset is remembered."""
    topic = make_topic(2)
    produce(topic, with_ids("before", "in", "in", "beyond"))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    text = sealed(commit_text(3, low=1), group, topic, 0)
    consumer.commit(offsets=[TopicPartition(topic, 0, 3, text)], asynchronous=False)
    consumer.close()
    snapshot = run(topic, "--group", group)
    assert offsets(snapshot, "before", "in", "beyond") == [None, 2, None]
    (entry,) = snapshot.manifest.partitions
    assert (entry.partition, entry.low, entry.high, entry.known.since_ms) == (0, 1, 3, None)
    assert (snapshot.manifest.group, snapshot.manifest.vouched) == (group, False)
    assert snapshot.report.skipped == {"1": "nothing committed"}


def test_json_ids_are_read_by_the_sdk(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """A JSON pointer joined with a key gives the SDK's digest, and text and number stay different IDs."""
    topic = make_topic(1)
    bodies = [b'{"id":"5"}', b'{"id":5}', b'{"id":null}', b"no json", b'{"id":"5"}']
    produce(topic, [Outgoing(value=body, key=b"k", partition=0) for body in bodies])
    marks = run(topic, "--id", "json:/id+key").marks()
    assert {digest: mark.offset for digest, mark in marks.items()} == {
        digest_parts([b"5", b"k"]): 4, digest_parts([b"\xff5", b"k"]): 1,
    }  # fmt: skip


def test_an_empty_topic_needs_no_spark(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """A topic without records gives a snapshot of empty partitions at once."""

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    arguments = [
        "--bootstrap",
        broker.bootstrap,
        "--topic",
        make_topic(2),
        "--id",
        "key",
        "--window",
        "1d",
        "--whole-topic",
    ]
    backfill(parse_options([*arguments, "--output", str(tmp_path / "s")], print), on_spark(no_session))
    assert [(each.high, each.marks, each.known.since_ms) for each in verify_snapshot(tmp_path / "s").partitions] == [
        (0, 0, None), (0, 0, None),
    ]  # fmt: skip


def test_a_second_run_needs_overwrite(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int]
) -> None:
    """The first snapshot stays as it is until it is to be replaced; the same log gives the same marks."""
    topic = make_topic(1)
    produce(topic, with_ids("a", "b"))
    first = run(topic).marks()
    with pytest.raises(BackfillError, match="--overwrite"):
        run(topic)
    assert run(topic, "--overwrite").marks() == first


def test_a_failing_reader_is_told_in_its_own_words(
    run: Callable[..., Snapshot], make_topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    """A setting that no client takes ends the job, is named, and leaves nothing behind."""
    from spark_backfill.errors import one_line

    topic = make_topic(1)
    produce(topic, with_ids("a"))
    with pytest.raises(Exception, match=r".") as caught:
        run(topic, "--client-config", "security.protocol=NONSENSE")
    assert "NONSENSE" in one_line(caught.value)
    assert list(tmp_path.iterdir()) == []
