"""A run in parts that failed, or was killed, is gone on with: what it finished is not read again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._store.manifest import SortedFile, read_manifest
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill import parts
from spark_backfill.backfill import backfill
from spark_backfill.ending import KEPT, EndedError
from spark_backfill.errors import BackfillError
from spark_backfill.history import History
from spark_backfill.offset_range import BasePart, OffsetRange, Staying
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.parts import WrittenPart, cut_parts, joined, request_digest, still_right, with_taken_over
from spark_backfill.runs import Tally
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot
from tests.support.producing import with_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_backfill.slot_writer import SlotWriter
    from spark_backfill.workers import Task
    from tests.support.brokers import Broker

FILE = SortedFile(
    name="00000-00000000aaaaaaaa-bbbbbbbb", marks=1, bytes=10, smallest="00", largest="ff", oldest_ms=1, newest_ms=5,
    newest_number=None, fingerprint="f", sha256="0" * 64, filter_bytes=3, filter_sha256="1" * 64,
)  # fmt: skip


def outcome(slot: int, **given: Any) -> SlotOutcome:
    """What a slot with one record came to."""
    usual: dict[str, Any] = {
        "slot": slot, "tally": Tally(first_offset=0, first_ms=1, newest_ms=1, records=1), "accepted": 1,
        "forgotten_ms": None, "forgotten_number": None, "file": None,
    }  # fmt: skip
    return SlotOutcome(**{**usual, **given})


def offset_range(partition: int, high: int = 9, **given: Any) -> OffsetRange:
    """Offsets from 0 on."""
    return OffsetRange(
        **{"partition": partition, "low": 0, "begin": 0, "high": high, "complete": True, **given}
    )


def history(*offset_ranges: OffsetRange, **given: Any) -> History:
    """The history of a topic."""
    return History(cluster="c", topic="orders", topic_id="t", offset_ranges=offset_ranges, **given)


def test_a_part_is_read_as_it_was_written() -> None:
    """Also what it took of a base; not where something else is asked for, nor where the text is no part."""
    base = BasePart(5, 0, 3, None, 7, gaps=((1, 2),), staying=Staying((FILE,), 4))
    part = WrittenPart(
        (offset_range(0, archived=(0, 3), gaps=((4, 5), (6, 7)), base=base), offset_range(1)),
        {1: "abc"},
        {0: 7},
        (Slot(0, 0, 2), Slot(0, 1, 2), Slot(1, 0, 1)),
        (outcome(0, file=FILE), outcome(2, cut=3)),
    )
    text = part.to_json("rule")
    assert WrittenPart.from_json(text, "rule") == part
    assert WrittenPart.from_json(text, "another") is None
    for end in range(0, len(text), 7):
        assert WrittenPart.from_json(text[:end], "rule") is None
    assert part.lacking({f"0/{FILE.name}.sst"}) == {0}
    assert part.lacking({f"0/{FILE.name}.sst", f"0/{FILE.name}.filter"}) == set()
    for foreign in ("null", "[]", "{}", '{"rule": "rule"}', '{"rule": "rule", "offset_ranges": [3]}'):
        assert WrittenPart.from_json(foreign, "rule") is None


def test_parts_have_about_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are one part, a large partition is one of its own, and there are never many parts."""
    ranges = [offset_range(number, high) for number, high in enumerate((4, 4, 0, 30, 4, 4, 4))]
    assert cut_parts(ranges) == [tuple(each for each in ranges if each.rows)]
    monkeypatch.setattr(parts, "LEAST_ROWS", 8)
    numbers = [[each.partition for each in part] for part in cut_parts(ranges)]
    assert numbers == [[0, 1], [3], [4, 5], [6]]
    together = [[each.partition for each in part] for part in cut_parts(ranges, 4)]
    assert together == [[0, 1, 3, 4], [5, 6]]
    assert len(cut_parts([offset_range(number, 100) for number in range(1_000)])) == 33
    assert cut_parts([]) == []


def test_only_what_could_have_been_planned_is_taken_over() -> None:
    """Not behind a rewind, nor of a partition that is gone; where the user vouches, the log may begin later now."""
    part = WrittenPart(
        tuple(map(offset_range, range(4))), {1: "a"}, {}, tuple(Slot(each, 0, 1) for each in range(4)),
        tuple(map(outcome, range(4))),
    )  # fmt: skip
    now = history(offset_range(0, 20), offset_range(1, 20), offset_range(2, 8), eras={1: "b"})
    left = still_right(now, part, vouched=False, same_until=unasked)
    assert left == WrittenPart((offset_range(0),), {}, {}, (Slot(0, 0, 1),), (outcome(0),))
    assert with_taken_over(now, [left]).offset_ranges == (offset_range(0), *now.offset_ranges[1:])

    later = history(replace(offset_range(3, 20), low=5, begin=5))
    assert still_right(later, part, vouched=False, same_until=unasked).offset_ranges == ()
    kept = still_right(later, part, vouched=True, same_until=unasked)
    assert (kept.offset_ranges, kept.outcomes) == ((offset_range(3),), (outcome(0),))
    plan, outcomes = joined([left, kept])
    assert [(plan.slots[each.slot].partition, each.slot) for each in outcomes] == [(0, 0), (3, 1)]


def unasked(partition: int, offset: int, epoch: int) -> int | None:
    """For parts of which nobody knows an epoch, or the one of now."""
    raise AssertionError((partition, offset, epoch))


@pytest.mark.parametrize(("end", "is_taken"), [(9, True), (8, False), (None, True)])
def test_a_part_of_records_that_were_cut_off_is_not_taken_over(end: int | None, *, is_taken: bool) -> None:
    """The broker is asked, and what is taken over keeps its epoch: consumers, and the next run, ask as well."""
    part = WrittenPart((offset_range(0),), {}, {0: 5}, (Slot(0, 0, 1),), (outcome(0),))
    now = history(offset_range(0, 20), offset_range(1, 20), epochs={0: 7, 1: 7})
    asked = list[tuple[int, int, int]]()

    def same_until(partition: int, offset: int, epoch: int) -> int | None:
        asked.append((partition, offset, epoch))
        return end

    left = still_right(now, part, vouched=True, same_until=same_until)
    assert asked == [(0, 9, 5)]
    assert left == (part if is_taken else WrittenPart((), {}, {}, (), ()))
    assert with_taken_over(now, [left]).epochs == {0: 5 if is_taken else 7, 1: 7}
    assert still_right(replace(now, epochs={0: 5}), part, vouched=True, same_until=unasked) == part


USUAL = {
    "bootstrap": "h:1", "topic": "orders", "id": "key", "window": "7d", "output": "out", "group": "a",
    "expire-before": "1d",
}  # fmt: skip


def digest_of(changed: dict[str, str], *, findings: int = 0, cluster: str = "c") -> str:
    """What a run is known by that asks for the usual things, but for those that are changed."""
    given = {**USUAL, **changed}
    options = parse_options(
        [f"--{name}={value}" if value else f"--{name}" for name, value in given.items()], print
    )
    return request_digest(options, replace(history(), cluster=cluster), None, findings=findings)


def test_a_run_is_known_by_all_that_it_asks_for() -> None:
    """Also where it is asked later, and elsewhere."""
    usual = digest_of({})
    for same in (
        {"output": "s3://b/out"},
        {"overwrite": ""},
        {"resume": ""},
        {"client-config": "client.id=x"},
    ):
        assert digest_of(same) == usual
    changes: list[dict[str, str]] = [
        {"topic": "others"}, {"id": "header:x"}, {"window": "8d"}, {"group": "b"}, {"expire-before": "2d"},
        {"assume-processed": ""}, {"window": "7d+9n"},
    ]  # fmt: skip
    others = [digest_of(each) for each in changes]
    others += [digest_of({}, findings=1), digest_of({}, findings=64), digest_of({}, cluster="d")]
    assert len({usual, *others}) == 1 + len(others)


@dataclass
class Broken:
    """A writing task that always fails."""

    task: SlotWriter

    def __call__(self, _batches: Iterable[Any]) -> Iterable[Any]:
        """Fail."""
        raise BackfillError("a bad offset")


def failing(*partitions: int) -> Callable[[Task], Task]:
    """For ``around``: tasks of these partitions fail."""

    def around(task: Any) -> Any:
        return Broken(task) if task.slots[0].partition in partitions else task

    return around


class Runs:
    """Runs of the job to one output, each partition a part."""

    def __init__(self, broker: Broker, spark: SparkSession, output: Path) -> None:
        self.broker, self.spark, self.output = broker, spark, output
        self.said: list[str] = []

    def arguments(self, topic: str, *more: str) -> list[str]:
        """Return the options of a run."""
        return [
            "--bootstrap", self.broker.bootstrap, "--topic", topic, "--id", "header:dedup-id", "--window", "1d",
            "--whole-topic", "--output", str(self.output), *more,
        ]  # fmt: skip

    def __call__(self, topic: str, *more: str, **given: Any) -> Any:
        """Run; return the report."""
        self.said.clear()
        options = parse_options(self.arguments(topic, *more), print)
        return backfill(options, on_spark(lambda: self.spark), say=self.said.append, **given)

    @property
    def files(self) -> set[str]:
        """The files at the output, but for sorted ones and reports."""
        names = {str(path.relative_to(self.output)) for path in self.output.rglob("*") if path.is_file()}
        return {name for name in names if not name.endswith((".sst", ".filter", "report.json"))}

    @property
    def highs(self) -> list[int]:
        """The cuts of the snapshot that is there, all of whose files are there, and no others."""
        manifest = verify_snapshot(self.output)
        listed = {f"{file.name}.sst" for each in manifest.partitions for file in each.files}
        assert {path.name for path in self.output.rglob("*.sst")} == listed
        assert self.files == {"manifest.json"}
        return [each.high for each in manifest.partitions]


@pytest.fixture
def runs(broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Of parts of a partition each."""
    monkeypatch.setattr(parts, "LEAST_ROWS", 1)
    return Runs(broker, spark, tmp_path / "snapshot")


@pytest.fixture
def topic(make_topic: Callable[..., str], produce: Callable[..., int]) -> str:
    """Three partitions of three, two and one record."""
    topic = make_topic(3)
    produce(topic, [each for number in range(3) for each in with_ids(*"aba"[number:], partition=number)])
    return topic


@pytest.mark.slow
def test_a_partition_that_cannot_be_written_costs_only_itself(
    runs: Runs, topic: str, produce: Callable[..., int], spark: SparkSession, tmp_path: Path
) -> None:
    """The others are kept, as they were then; the next run reads the rest, and says so."""
    with pytest.raises(Exception, match="a bad offset"):
        runs(topic, around=failing(1))
    assert sum("is written" in line for line in runs.said) == 2
    assert any("part 2 of 3 (partitions 1) failed, others go on" in line for line in runs.said)
    assert runs.said[-1] == f"warning: {KEPT}"
    assert "manifest.json" not in runs.files
    assert {re.sub("[0-9a-f]{16}", "RUN", name) for name in runs.files} == {
        ".run-RUN.part-0", ".run-RUN.part-1",
    }  # fmt: skip

    produce(topic, [each for number in range(3) for each in with_ids("later", partition=number)])
    # It fails once more, and what it took over stays.
    with pytest.raises(Exception, match="a bad offset"):
        runs(topic, "--resume", around=failing(1))
    assert "partitions 0,2 are taken over, and not read again" in runs.said
    assert runs.said[-1] == f"warning: {KEPT}"
    report = runs(topic, "--resume")
    assert runs.highs == [3, 3, 1]
    assert (report.records, report.marks) == (7, 6)
    assert report.records_per_second == pytest.approx(3 / report.seconds, abs=0.06)

    full = Runs(runs.broker, spark, tmp_path / "full")
    full(topic)
    assert full.highs == [4, 3, 2]
    ours, theirs = (read_manifest(each.output).partition(1) for each in (runs, full))
    assert ours is not None
    assert theirs is not None
    assert [file.fingerprint for file in ours.files] == [file.fingerprint for file in theirs.files]


@pytest.mark.slow
def test_a_run_that_asks_for_something_else_takes_nothing_over(runs: Runs, topic: str) -> None:
    """Its snapshot is younger than what was left there, which goes."""
    with pytest.raises(Exception, match="a bad offset"):
        runs(topic, around=failing(2))
    runs(topic, "--resume", "--expire-before", "1h")
    assert any("no unfinished run that asked for the same" in line for line in runs.said)
    assert any("--resume takes over the partitions that it has finished" in line for line in runs.said)
    assert len(verify_snapshot(runs.output).partitions) == 3
    assert runs.files == {"manifest.json"}
    runs(topic, "--resume", "--overwrite")
    assert any("no unfinished run there has left" in line for line in runs.said)
    assert [each.high for each in verify_snapshot(runs.output).partitions] == [3, 2, 1]
    assert runs.files == {"manifest.json"}


@pytest.mark.slow
def test_two_failures_in_a_row_end_the_run(runs: Runs, topic: str) -> None:
    """What one part lacks, the next one lacks as well; and where nothing was finished, nothing is kept."""
    with pytest.raises(Exception, match="a bad offset"):
        runs(topic, around=failing(0, 1))
    assert not any("part 3" in line for line in runs.said)
    assert not runs.output.exists()


@pytest.mark.slow
def test_who_ends_a_run_is_told_what_is_kept(runs: Runs, topic: str) -> None:
    """As the outcome that the command prints."""

    def end(task: Any) -> Any:
        if task.slots[0].partition == 1:
            raise EndedError(signal.SIGINT)
        return task

    with pytest.raises(EndedError) as ended:
        runs(topic, around=end)
    assert ended.value.outcome == KEPT
    runs(topic, "--resume")
    assert "partitions 0 are taken over, and not read again" in runs.said
    assert runs.highs == [3, 2, 1]


@pytest.mark.slow
def test_a_partition_whose_files_are_gone_is_read_again(runs: Runs, topic: str) -> None:
    """And what no other run can use is not kept."""
    with pytest.raises(Exception, match="a bad offset"):
        runs(topic, around=failing(1))
    next((runs.output / "0").glob("*.filter")).unlink()

    def lose(task: Any) -> Any:
        for path in (runs.output / "2").glob("*.filter"):
            path.unlink()
        return task

    with pytest.raises(BackfillError, match=r"lacks 2/.*\.filter, which this run has not written itself"):
        runs(topic, "--resume", around=lose)
    assert "partitions 2 are taken over, and not read again" in runs.said
    assert f"warning: {KEPT}" not in runs.said
    runs(topic, "--resume")
    assert any("nothing is taken over" in line for line in runs.said)
    assert [each.high for each in verify_snapshot(runs.output).partitions] == [3, 2, 1]
    assert runs.files == {"manifest.json"}


JOB = """
import os, signal, sys
from spark_backfill import job, parts, publish
parts.LEAST_ROWS, keep = 1, publish.Output.keep
def keep_and_die(output, part):
    keep(output, part)
    os.kill(os.getpid(), signal.SIGKILL)
publish.Output.keep = keep_and_die
sys.exit(job.main())
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_one_part(runs: Runs, topic: str) -> None:
    """SIGKILL when the first part is there: the next run takes it over."""
    done = subprocess.run(
        [sys.executable, "-c", JOB, *runs.arguments(topic)], stderr=subprocess.DEVNULL, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert {re.sub("[0-9a-f]{16}", "RUN", name) for name in runs.files} == {".run-RUN", ".run-RUN.part-0"}
    runs(topic, "--resume")
    assert "partitions 0 are taken over, and not read again" in runs.said
    assert runs.highs == [3, 2, 1]
