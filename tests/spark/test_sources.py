"""The whole job on history that is not, or not only, in Kafka."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from dedup_sdk._commit_text import sealed
from dedup_sdk._decision import Mark
from dedup_sdk._record import Record
from dedup_sdk._store.manifest import Gap, Manifest
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk._strategy import Lookup
from dedup_sdk._time_text import time_text
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import RecordFields, digest_one, id_spec
from spark_backfill import job
from spark_backfill.archive_options import KAFKA
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.spark.test_archive_ids import Content, contents
from tests.support.archives import write_json_lines, write_parquet
from tests.support.consuming import commit_text
from tests.support.known_marks import read_sorted_file
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
COMMITTED = ("--archive-isolation", "read_committed")
ARGUMENTS = ["--topic", "orders", "--id", "key", "--window", "1d", "--whole-topic", "--output"]
ELSEWHERE = ("--cluster-id", "c", "--topic-id", "t", *COMMITTED)
JSON = (
    "--format",
    "json",
    "--columns",
    "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64",
)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[Manifest, dict[bytes, Mark]]]:
    """Runs the job: ``run(topic, "--source", ...)``; gives the manifest and the marks of partition 0."""

    def finished(topic: str, *more: str) -> tuple[Manifest, dict[bytes, Mark]]:
        folder = tmp_path / "snapshot"
        usual = ["--topic", topic, "--id", "key", "--window", "1d", "--output", str(folder), "--overwrite"]
        whose = [] if "--group" in more else ["--whole-topic"]
        backfill(parse_options([*usual, *whose, *more], print), on_spark(lambda: spark))
        manifest = verify_snapshot(folder)
        marks: dict[bytes, Mark] = {}
        for file in manifest.partitions[0].files:
            marks |= read_sorted_file(folder / str(manifest.partitions[0].partition) / f"{file.name}.sst")
        return manifest, marks

    return finished


def keyed(topic: str, *names: str, begin: int = 0, gap_ms: int = 60_000) -> list[Record]:
    """One record a minute of partition 0, whose key is its ID."""
    return [
        Record(topic, 0, offset, BASE_MS + offset * gap_ms, key=name.encode())
        for offset, name in enumerate(names, begin)
    ]


def offsets(marks: dict[bytes, Mark]) -> dict[str, int]:
    """The offsets of the marks of one-letter IDs."""
    names = {digest_one(name.encode()): name for name in "abcdefghij"}
    return {
        names[digest]: mark.offset for digest, mark in sorted(marks.items(), key=lambda each: each[1].offset)
    }


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_an_archive_alone(form: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Without a broker an archive's last sightings are remembered, of the topic and cluster that the user names."""
    records = keyed("orders", "a", "b", "a", "c")
    if form == "parquet":
        # The second file repeats records of the first.
        write_parquet(tmp_path / "archive", [*records, *records[1:3]])
        manifest, marks = run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"))
    else:
        write_json_lines(tmp_path / "archive.jsonl", records)
        manifest, marks = run("orders", *ELSEWHERE, *JSON, "--source", str(tmp_path / "archive.jsonl"))
    assert offsets(marks) == {"b": 1, "a": 2, "c": 3}
    assert (manifest.cluster, manifest.topic_id, manifest.isolation) == ("c", "t", "read_committed")
    assert (manifest.vouched, manifest.group) == (True, None)
    (entry,) = manifest.partitions
    assert (entry.low, entry.high, entry.known.since_ms, entry.gaps) == (0, 4, None, ())
    report = json.loads((tmp_path / "snapshot" / "report.json").read_text())
    assert report["sources"] == [str(next(tmp_path.glob("archive*")))]


def test_an_old_archive_is_cut_at_the_window(run: Callable[..., Any], tmp_path: Path) -> None:
    """With a window of a day and a record every ten hours only the last ones are read, and coverage says from when."""
    records = keyed("orders", *"abcdefghij", begin=5, gap_ms=10 * HOUR_MS)
    write_parquet(tmp_path / "archive", records)
    manifest, marks = run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"))
    assert offsets(marks) == {"h": 12, "i": 13, "j": 14}
    (entry,) = manifest.partitions
    assert (entry.low, entry.high) == (5, 15)
    assert entry.known.since_ms is not None
    assert BASE_MS + 110 * HOUR_MS < entry.known.since_ms <= BASE_MS + 120 * HOUR_MS


def test_repeated_rows_take_no_numbers(run: Callable[..., Any], tmp_path: Path) -> None:
    """A record that is in an archive twice counts once in a window by count, too."""
    records = keyed("orders", "a", "b", "a", "c", "d")
    write_parquet(tmp_path / "archive", [*records, *records])
    manifest, marks = run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"), "--window", "3n")
    numbers = {name: marks[digest_one(name.encode())].number for name in "bcd"}
    assert numbers == {"b": 2, "c": 3, "d": 4}
    assert (len(marks), manifest.partitions[0].known.accepted) == (3, 4)
    assert json.loads((tmp_path / "snapshot" / "report.json").read_text())["records"] == 5


@pytest.mark.parametrize("window", ["1d", "9n"])
def test_offsets_far_apart(window: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """What a run does follows from the rows that there are, not from the offsets between them."""
    records = keyed("orders", *"abc")
    write_parquet(tmp_path / "archive", [*records, replace(records[0], offset=2**63 - 2)])
    given = ("--source", str(tmp_path / "archive"), "--window", window)
    manifest, marks = run("orders", *ELSEWHERE, *given)
    assert offsets(marks) == {"b": 1, "c": 2, "a": 2**63 - 2}
    assert manifest.partitions[0].high == 2**63 - 1
    assert json.loads((tmp_path / "snapshot" / "report.json").read_text())["offsets"] == 4


@pytest.mark.timeout(120)  # a walk over the offsets would take longer
@pytest.mark.parametrize("more", [[], ["--allow-gap"]])
def test_an_offset_behind_which_no_log_goes_on(
    run: Callable[..., Any], tmp_path: Path, more: list[str]
) -> None:
    """It is named, and nothing is published: no manifest could hold the place behind it."""
    records = keyed("orders", *(str(offset) for offset in range(99)))
    write_parquet(tmp_path / "archive", [*records, replace(records[-1], offset=2**63 - 1)])
    with pytest.raises(BackfillError, match=r"partition 0, offset 9223372036854775807: neither .* --columns"):
        run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"), *more)
    assert not (tmp_path / "snapshot").exists()


@pytest.fixture
def cut_topic(
    broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int]
) -> Callable[..., str]:
    """Makes a topic of one partition with a record a minute whose beginning is deleted: ``cut_topic("abc", 2)``."""

    def made(names: str, deleted: int) -> str:
        topic = make_topic(1)
        produce(
            topic,
            [
                Outgoing(key=name.encode(), value=b"x", partition=0, timestamp_ms=BASE_MS + offset * 60_000)
                for offset, name in enumerate(names)
            ],
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for answer in admin.delete_records([TopicPartition(topic, 0, deleted)]).values():
            answer.result(30)
        return topic

    return made


def commit(broker: Broker, group: str, topic: str, offset: int, *, low: int = 0, spec: str = "key") -> None:
    """Commit an offset with the text that says where the group's complete history begins."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    text = commit_text(offset, dedup=Lookup(id=id_spec(spec), window=Window(days=1)), low=low)
    text = sealed(text, group, topic, 0)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset, text)], asynchronous=False)
    consumer.close()


def test_archive_and_topic_together(
    broker: Broker, run: Callable[..., Any], cut_topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    """Records that the topic lost come from the archive, the overlap counts once, and the history is complete."""
    topic = cut_topic("abacadbe", 4)
    commit(broker, group, topic, 7)
    # In the overlap the archive has records that the topic does not have: the topic counts.
    write_parquet(tmp_path / "archive", [*keyed(topic, *"abac"), *keyed(topic, "f", "f", begin=4)])
    sources = ("--source", KAFKA, "--source", str(tmp_path / "archive"), *COMMITTED)
    manifest, marks = run(topic, "--bootstrap", broker.bootstrap, "--group", group, *sources)
    assert offsets(marks) == {"c": 3, "a": 4, "d": 5, "b": 6}
    (entry,) = manifest.partitions
    assert (entry.low, entry.high, entry.known.since_ms, entry.gaps) == (0, 7, None, ())
    assert (manifest.group, manifest.vouched) == (group, False)


def test_offsets_that_are_nowhere(
    broker: Broker, run: Callable[..., Any], cut_topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    """A gap ends the job with its offsets; allowed, the manifest lists it and coverage begins behind it."""
    topic = cut_topic("abacadbe", 4)
    commit(broker, group, topic, 7)
    asked = ("--bootstrap", broker.bootstrap, "--group", group)
    with pytest.raises(BackfillError, match=rf"{topic}\[0\] lacks offsets 0 to 3: .*--source.*--allow-gap"):
        run(topic, *asked)
    assert not (tmp_path / "snapshot").exists()
    manifest, marks = run(topic, *asked, "--allow-gap")
    assert offsets(marks) == {"a": 4, "d": 5, "b": 6}
    (entry,) = manifest.partitions
    assert (entry.gaps, entry.known.since_ms) == ((Gap(begin=0, end=4),), BASE_MS + 4 * 60_000)
    write_parquet(tmp_path / "archive", keyed(topic, "a", "b"))
    sources = ("--source", KAFKA, "--source", str(tmp_path / "archive"), *COMMITTED)
    with pytest.raises(BackfillError, match=r"lacks offsets 2 to 3: "):
        run(topic, *asked, *sources)
    manifest, marks = run(topic, *asked, *sources, "--allow-gap")
    assert offsets(marks) == {"a": 4, "d": 5, "b": 6}
    (entry,) = manifest.partitions
    assert (entry.gaps, entry.known.since_ms) == ((Gap(begin=2, end=4),), BASE_MS + 4 * 60_000)


def test_an_archive_alone_goes_up_to_the_group(
    broker: Broker, run: Callable[..., Any], cut_topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    """Read instead of the topic, an archive is folded up to the group's commit.

    Its own end may come before that.
    """
    topic = cut_topic("abacadbe", 4)
    commit(broker, group, topic, 3)
    write_parquet(tmp_path / "archive", keyed(topic, *"abacad"))
    given = (
        "--bootstrap",
        broker.bootstrap,
        "--group",
        group,
        "--source",
        str(tmp_path / "archive"),
        *COMMITTED,
    )
    manifest, marks = run(topic, *given)
    assert (offsets(marks), manifest.partitions[0].high) == ({"b": 1, "a": 2}, 3)
    commit(broker, group, topic, 8)
    manifest, marks = run(topic, *given)
    assert (offsets(marks), manifest.partitions[0].high) == ({"b": 1, "c": 3, "a": 4, "d": 5}, 6)
    assert manifest.partitions[0].known.since_ms is None


def test_a_hole_in_the_last_file_of_a_sink_hides_no_message(
    broker: Broker,
    run: Callable[..., Any],
    make_topic: Callable[..., str],
    *,
    produce: Callable[..., int],
    group: str,
    tmp_path: Path,
) -> None:
    """A sink left the tombstone at offset 3 out.

    So "e" at offset 4, which the group did not handle, stands where 3 would.
    """
    topic = make_topic(1)
    values = (b"a", b"b", b"c", None, b"e")
    produce(
        topic,
        [
            Outgoing(key=b"k", value=value, partition=0, timestamp_ms=BASE_MS + offset)
            for offset, value in enumerate(values)
        ],
    )
    commit(broker, group, topic, 4, spec="value")
    folder = tmp_path / "topics" / topic / "partition=0"
    folder.mkdir(parents=True)
    (folder / f"{topic}+0+0000000000.txt").write_text("a\nb\n")
    (folder / f"{topic}+0+0000000002.txt").write_text("c\ne\n")
    manifest, marks = run(
        topic,
        *("--bootstrap", broker.bootstrap, "--group", group, "--id", "value", *COMMITTED),
        *("--source", str(folder.parent), "--format", "text", "--columns", "timestamp=-"),
    )
    assert offsets(marks) == {"a": 0, "b": 1}
    assert (manifest.partitions[0].low, manifest.partitions[0].high) == (0, 2)


def test_an_archive_of_another_log_is_refused(
    broker: Broker, run: Callable[..., Any], cut_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Offsets, partitions and times that the topic never had are an error, and nothing is written."""
    topic = cut_topic("ab", 1)
    given = ("--bootstrap", broker.bootstrap, "--source", str(tmp_path / "archive"), *COMMITTED)
    write_parquet(tmp_path / "archive", keyed(topic, *"abc"), files=1)
    with pytest.raises(BackfillError, match="offset 2 lies beyond the log's end 2"):
        run(topic, *given)
    write_parquet(tmp_path / "archive", [Record(topic, 7, 0, BASE_MS, key=b"a")], files=1)
    with pytest.raises(BackfillError, match="the archive has partition 7, the topic has 1"):
        run(topic, *given)
    write_parquet(tmp_path / "archive", [Record(topic, 0, 1, BASE_MS, key=b"b")], files=1)
    in_archive, in_topic = time_text(BASE_MS), time_text(BASE_MS + 60_000)
    said = f"offset 1 is of {in_archive} in the archive and of {in_topic} in the topic"
    with pytest.raises(BackfillError, match=re.escape(said)):
        run(topic, *given)
    assert not (tmp_path / "snapshot").exists()


def test_an_archive_without_offsets_is_wrong_usage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job ends with status 2 and one line that names the option, and leaves nothing behind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "archive").mkdir()
    pq.write_table(pa.table({"partition": [0], "key": [b"a"]}), tmp_path / "archive" / "a.parquet")
    monkeypatch.setattr(job, "make_session", lambda *_: spark)
    arguments = [*ARGUMENTS, str(tmp_path / "s")]
    assert job.main([*arguments, *ELSEWHERE, "--source", str(tmp_path / "archive")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no offsets" in line
    assert "--columns offset=COLUMN" in line
    assert [each.name for each in tmp_path.iterdir()] == ["archive"]


def test_uncommitted_archives_are_for_uncommitted_groups(run: Callable[..., Any], tmp_path: Path) -> None:
    """An archive that may have records of aborted transactions says so in the manifest.

    By that, consumers of committed ones refuse it.
    """
    write_parquet(tmp_path / "archive", keyed("orders", "a"))
    given = ("--cluster-id", "c", "--topic-id", "t", "--source", str(tmp_path / "archive"))
    manifest, _ = run("orders", *given, "--archive-isolation", "read_uncommitted")
    assert manifest.isolation == "read_uncommitted"
    with pytest.raises(ConfigurationError):
        run("orders", *ELSEWHERE, "--source", str(tmp_path / "archive"), "--columns", "offset=nothing")


@pytest.mark.parametrize("spec", ["json:/id+key", "header:id"])
def test_every_source_gives_the_same_marks(
    spec: str,
    broker: Broker,
    run: Callable[..., Any],
    make_topic: Callable[..., str],
    *,
    produce: Callable[..., int],
    tmp_path: Path,
    fresh_seed: int,
) -> None:
    """Both readers of the topic, Parquet and JSON lines end in one fingerprint, that of the SDK's own digests."""

    # Other contents in each run.
    @seed(fresh_seed)
    @settings(
        max_examples=1, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
    )
    @given(content=contents)
    def end_in_one_fingerprint(content: list[Content]) -> None:
        topic = make_topic(1)
        records = [
            Record(topic, 0, offset, BASE_MS + offset, key, value, tuple(headers))
            for offset, (key, value, headers) in enumerate(content)
        ]
        found = id_spec(spec).digests(RecordFields(records)).digests
        expected = {digest: offset for offset, digest in enumerate(found) if digest is not None}
        assume(expected)
        produce(
            topic,
            [
                Outgoing(
                    key=each.key,
                    value=each.value,
                    headers=list(each.headers),
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                )
                for each in records
            ],
        )
        archive = write_parquet(tmp_path / topic, records)
        lines = write_json_lines(tmp_path / f"{topic}.jsonl", records)
        asked = ("--bootstrap", broker.bootstrap, "--id", spec)
        prints = set()
        for source in (
            ("--source", KAFKA),
            ("--source", str(archive), *COMMITTED),
            ("--source", str(lines), *COMMITTED, *JSON),
        ):
            manifest, marks = run(topic, *asked, *source)
            assert {digest: mark.offset for digest, mark in marks.items()} == expected
            prints.add(manifest.fingerprint)
        assert len(prints) == 1

    end_in_one_fingerprint()


def test_no_line_shows_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A client that refuses a setting repeats its value, and the job's line masks it."""
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=hunter2\nsecurity.protocol=hunter2\n", encoding="ascii")
    arguments = [*ARGUMENTS, str(tmp_path / "s")]
    assert job.main([*arguments, "--bootstrap", "127.0.0.1:1", "--client-config", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "security.protocol" in line
    assert "***" in line
    assert "hunter2" not in line
