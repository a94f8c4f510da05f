"""Several groups in one run: each has the snapshot that a run for it alone makes, and what they share is read once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk.kafka.metadata import CommitMetadata
from dedup_sdk.record import Record
from dedup_sdk.store.manifest import Manifest
from dedup_sdk.store.restore import restore_snapshot
from dedup_sdk.store.snapshot import verify_snapshot
from spark_backfill import launch, pieces
from spark_backfill.backfill import backfill, backfill_groups
from spark_backfill.client_reader import read_pieces
from spark_backfill.errors import BackfillError
from spark_backfill.group_folder import group_folder
from spark_backfill.options import Options, parse_options
from tests.spark.test_given_up import letter
from tests.support.archives import write_json_lines, write_parquet
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_backfill.client_reader import ClientReader
    from spark_backfill.report import RunReport
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BASE_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NAMES = "abcabdaebfagahcb"
COMMITTED = ("--archive-isolation", "read_committed")
JSON = ("--format", "json", "--columns", "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64")  # fmt: skip


class Groups:
    """A topic of two partitions, and groups that are at different places of it; the runs for them."""

    def __init__(self, broker: Broker, spark: SparkSession, topic: str, folder: Path) -> None:
        self.topic, self.folder = topic, folder
        self._broker, self.spark = broker, spark
        self.ahead, self.behind, self.new = (f"{topic}/{name}" for name in ("ahead", "behind", "new"))
        self.names: tuple[str, ...] = (self.ahead, self.behind, self.new)
        for group, places in (
            # Where each partition's own history begins, and what is committed.
            (self.ahead, {0: (2, 16), 1: (0, 16)}),
            (self.behind, {0: (0, 9)}),
            (self.new, {0: (0, 0), 1: (0, 0)}),
        ):
            self.commit(group, places)

    def commit(self, group: str, places: dict[int, tuple[int, int]]) -> None:
        """Commit as a consumer of ours does."""
        client = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": group})
        texts = {
            number: str(CommitMetadata(low=low, complete=low == 0)) for number, (low, _) in places.items()
        }
        committed = [TopicPartition(self.topic, at, end, texts[at]) for at, (_, end) in places.items()]
        client.commit(offsets=committed, asynchronous=False)
        client.close()

    def options(self, output: Path, *more: str) -> Options:
        """The options of a run."""
        usual = [
            "--bootstrap",
            self._broker.bootstrap,
            "--topic",
            self.topic,
            "--id",
            "key",
            "--output",
            str(output),
        ]
        return parse_options([*usual, *more], print)

    def together(self, *more: str) -> RunReport:
        """Run once for all."""
        named = [text for group in self.names for text in ("--group", group)]
        return backfill_groups(self.options(self.folder / "all", *named, *more), lambda: self.spark)

    def check(self, *more: str) -> RunReport:
        """Run once for all and once for each, and compare."""
        run = self.together(*more)
        assert [report.group for report in run.groups] == list(self.names)
        assert [bool(report.records) for report in run.groups] == [group != self.new for group in self.names]
        for number, group in enumerate(self.names):
            own = self.folder / f"own-{number}"
            told = backfill(self.options(own, "--group", group, *more), lambda: self.spark)
            shared = self.folder / "all" / group_folder(group)
            assert plain(verify_snapshot(shared)) == plain(verify_snapshot(own))
            assert json.loads((shared / "report.json").read_text()) == json.loads(str(run.groups[number]))
            same = (
                "fingerprint",
                "marks",
                "records",
                "unkeyed",
                "given_up",
                "offsets",
                "skipped",
                "known_since_ms",
            )
            assert {name: getattr(run.groups[number], name) for name in same} == {
                name: getattr(told, name) for name in same
            }
        return run


def plain(manifest: Manifest) -> tuple[str, Manifest]:
    """All that two runs have to agree on: fingerprint and contents, not the time and the bytes of the files."""
    partitions = (replace(entry, files=()) for entry in manifest.partitions)
    return manifest.fingerprint, replace(manifest, created_ms=0, partitions=tuple(partitions))


def records(topic: str) -> list[Record]:
    """The records of both partitions: a key is the ID, and some have none."""
    return [
        Record(
            topic, partition, offset, BASE_MS + offset * HOUR_MS, key=None if name == "e" else name.encode()
        )
        for partition in (0, 1)
        for offset, name in enumerate(NAMES)
    ]


@pytest.fixture
def groups(
    broker: Broker,
    spark: SparkSession,
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> Groups:
    """The groups, of which one gave up a record."""
    topic = make_topic(2)
    produce(
        topic,
        [
            Outgoing(key=each.key, partition=each.partition, timestamp_ms=each.timestamp_ms)
            for each in records(topic)
        ],
    )
    return Groups(broker, spark, topic, tmp_path)


@pytest.mark.parametrize(
    ("source", "window"),
    [
        ("kafka-client", "1d"),
        ("kafka-client", "5h"),
        ("kafka-client", "3n"),
        ("kafka-client", "9h+4n"),
        ("kafka-jvm", "1d"),
        ("kafka-jvm", "3n"),
    ],
)
def test_each_group_has_what_a_run_of_its_own_makes(
    source: str, window: str, groups: Groups, broker: Broker, produce: Callable[..., int]
) -> None:
    """Other lows, other commits, dead letters of one of them, one that has read nothing, any window: the same fingerprints."""
    letters = broker.create_topic(f"{groups.topic}.letters", 1, None)
    produce(letters, [letter(groups.topic, at, "x", groups.behind) for at in (3, 8)])
    run = groups.check("--source", source, "--window", window, "--dead-letters", letters)
    assert [report.given_up for report in run.groups] == [0, 2, 0]
    assert sorted(each.name for each in (groups.folder / "all").iterdir()) == sorted(
        map(group_folder, groups.names)
    )


def by_letter(last: bytes, new: bytes) -> int | None:
    """Letters, of which those in the first half of the topic's cannot be compared with the others."""
    if (last < b"e") is not (new < b"e"):
        return None
    return (new > last) - (new < last)


@pytest.mark.parametrize(
    ("source", "more", "marks"),
    [
        ("kafka-client", (), (2, 1, 0)),
        ("kafka-jvm", (), (2, 1, 0)),
        # Seven letters a partition; and four, of which two were given up once.
        ("kafka-client", ("--otherwise", "key", "--otherwise-window", "5h"), (2 + 14, 1 + 4, 0)),
    ],
)
def test_each_group_has_its_own_lanes(
    source: str,
    more: tuple[str, ...],
    marks: tuple[int, ...],
    groups: Groups,
    broker: Broker,
    produce: Callable[..., int],
) -> None:
    """Also where IDs are compared: from each group's own beginning, without what it gave up itself; so is what a second opinion looks up."""
    letters = broker.create_topic(f"{groups.topic}.letters", 1, None)
    produce(letters, [letter(groups.topic, at, "x", groups.behind) for at in (3, 8)])
    order = ("--order", f"py:{__name__}:by_letter", "--reorder-depth", "2")
    run = groups.check("--source", source, *order, *more, "--dead-letters", letters)
    assert [report.given_up for report in run.groups] == [0, 2, 0]
    assert tuple(report.marks for report in run.groups) == marks


@pytest.mark.parametrize(("form", "window"), [("parquet", "1d"), ("parquet", "3n"), ("json", "1d")])
def test_an_archive_is_shared_too(form: str, window: str, groups: Groups, tmp_path: Path) -> None:
    """Whether Arrow reads it in any order or Spark in the records' own."""
    archive = tmp_path / ("archive" if form == "parquet" else "archive.jsonl")
    if form == "parquet":
        write_parquet(archive, records(groups.topic))
    else:
        write_json_lines(archive, records(groups.topic))
    given = ["--source", str(archive), *COMMITTED, *(JSON if form == "json" else ())]
    # An archive has nothing for one that has read nothing.
    groups.names = (groups.ahead, groups.behind)
    groups.check(*given, "--window", window)


@pytest.mark.parametrize("window", ["1d", "3n"])
def test_archive_and_topic_are_shared(window: str, groups: Groups, broker: Broker, tmp_path: Path) -> None:
    """Of what both have the topic counts, for each group from where it begins to read there."""
    write_parquet(tmp_path / "archive", [each for each in records(groups.topic) if each.offset < 8])
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [TopicPartition(groups.topic, partition, 6) for partition in (0, 1)]
    for future in client.delete_records(places).values():
        future.result(20)
    run = groups.check(
        "--source", "kafka-client", "--source", str(tmp_path / "archive"), *COMMITTED, "--window", window
    )
    assert run.offsets < sum(report.offsets for report in run.groups)


def test_what_groups_share_is_read_once(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """One range a partition goes to the reader; the figures of the run say so."""
    seen: list[ClientReader] = []

    def watched(spark: SparkSession, reader: ClientReader) -> Any:
        seen.append(reader)
        return read_pieces(spark, reader)

    monkeypatch.setattr(pieces, "read_pieces", watched)
    run = groups.together("--window", "3n")
    (reader,) = seen
    assert reader.ranges == ((0, 0, 16), (1, 0, 16))
    assert run.offsets == 32
    assert [report.offsets for report in run.groups] == [14 + 16, 9, 0]
    told = json.loads(str(run))
    assert [each["group"] for each in told["groups"]] == list(groups.names)
    assert told["offsets"] == 32


def test_the_command_tells_of_all_of_them(
    groups: Groups,
    broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One object on stdout, with a report of each group; on stderr a line a group, and one of what is read."""
    monkeypatch.chdir(tmp_path)
    named = [text for group in (groups.ahead, groups.behind) for text in ("--group", group)]
    usual = ["--bootstrap", broker.bootstrap, "--topic", groups.topic, "--id", "key", "--window", "1d"]
    capfd.readouterr()
    assert launch.run([*usual, *named, "--output", "all"]) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    places = [tmp_path / "all" / group_folder(each["group"]) for each in told["groups"]]
    assert [each["output"] for each in told["groups"]] == list(map(str, places))
    assert [json.loads((place / "report.json").read_text()) for place in places] == told["groups"]
    assert err.splitlines()[:3] == [
        f"backfill: group '{groups.ahead}': 2 partitions of {groups.topic}, 30 offsets",
        f"backfill: group '{groups.behind}': 1 partitions of {groups.topic}, 9 offsets",
        "backfill: 32 offsets to read, once for all 2 groups",
    ]


def test_a_consumer_finds_its_own(groups: Groups, tmp_path: Path) -> None:
    """The folder of all snapshots is given to any of the groups."""
    groups.together("--window", "1d")
    for group in (groups.behind, groups.ahead):
        manifest, owner = restore_snapshot(groups.folder / "all", tmp_path / group_folder(group), group=group)
        assert (manifest.group, owner) == (group, group)


def test_one_that_fails_leaves_nothing_of_any(groups: Groups) -> None:
    """A group without a history, or a task that fails, ends the run for all, in a line that names the group where there is one."""
    groups.names = (groups.ahead, "../../elsewhere")
    with pytest.raises(
        BackfillError, match=r"group '../../elsewhere' has no history in topic .*nothing committed"
    ):
        groups.together("--window", "1d")
    groups.names = (groups.ahead, groups.behind)
    groups.commit(groups.behind, {0: (0, 99)})
    with pytest.raises(
        BackfillError, match=rf"^group '{groups.behind}': partition 0: committed offset 99 lies beyond"
    ):
        groups.together("--window", "1d")
    groups.commit(groups.behind, {0: (0, 9)})

    def failing(_: Any) -> Any:
        def task(_: Any) -> Any:
            raise RuntimeError("half way")

        return task

    options = groups.options(
        groups.folder / "all", "--group", groups.ahead, "--group", groups.behind, "--window", "1d"
    )
    with pytest.raises(Exception, match="half way"):
        backfill_groups(options, lambda: groups.spark, around=failing)
    assert list(groups.folder.iterdir()) == []


def test_only_the_groups_that_are_named_are_replaced(groups: Groups) -> None:
    """With --overwrite a later run takes the place of all, and never removes the snapshot of one that it was not told of."""
    groups.names = (groups.ahead, groups.behind)
    groups.together("--window", "1d")
    with pytest.raises(BackfillError, match="holds snapshots of groups: choose another, or give --overwrite"):
        groups.together("--window", "1d")
    groups.commit(groups.behind, {0: (0, 12)})
    run = groups.together("--window", "1d", "--overwrite")
    assert verify_snapshot(groups.folder / "all" / group_folder(groups.behind)).partitions[0].high == 12
    groups.names = (groups.ahead, groups.new)
    with pytest.raises(BackfillError, match="behind', the snapshot of a group that is not named now"):
        groups.together("--window", "1d", "--overwrite")
    found = verify_snapshot(groups.folder / "all" / group_folder(groups.ahead))
    assert found.fingerprint == run.groups[0].fingerprint
