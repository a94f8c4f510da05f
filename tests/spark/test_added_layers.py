"""``--add``, with Spark and a real Kafka: what has come since is a layer, and all of them are as a full rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._marks import join_marks, select_marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.snapshot import read_snapshot
from spark_backfill import layers
from tests.spark.test_base import BASE_MS, COUNT, STEP_MS, Jobs, jobs, records

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._store.manifest import Manifest, PartitionManifest

pytestmark = [pytest.mark.spark, pytest.mark.slow]
__all__ = ["jobs"]


def merged(folder: Path, manifest: Manifest, since_ms: int = 0) -> list[tuple[int, int, str]]:
    """Of each partition its number, marks from a time on, and their fingerprint, all layers together."""

    def of(entry: PartitionManifest) -> tuple[int, int, str]:
        marks = join_marks(list(read_snapshot(folder, entry)))
        kept = select_marks(marks, np.flatnonzero(marks.timestamps >= since_ms))
        return entry.partition, kept.count, fingerprint((kept,))

    return [of(entry) for entry in manifest.partitions]


def names(manifest: Manifest) -> set[str]:
    """The files it lists."""
    return {f"{entry.partition}/{file.name}" for entry in manifest.partitions for file in entry.files}


def test_layers_are_as_a_full_rebuild(jobs: Jobs, tmp_path: Path) -> None:
    """Made, added to twice, and once for nothing: files stay as they are, and nothing of the old is read."""
    topic = jobs.topic(3)
    asked = ["--topic", topic, "--id", "header:dedup-id", "--window", "1d", "--whole-topic"]
    jobs.produce(topic, records(range(COUNT), 0) + records(range(50), 1))
    first, report, _ = jobs.run("snap", *asked, "--add")
    assert (report.base, report.records) == (None, COUNT + 50)
    jobs.produce(topic, records(range(COUNT, COUNT + 30), 0) + records(range(COUNT, COUNT + 5), 2))
    second, report, _ = jobs.run("snap", *asked, "--add")
    assert (report.records, report.offsets, report.base_marks) == (35, 35, first.marks)
    assert (report.layers, report.duplicates_or_expired) == (2, None)
    assert names(first) < names(second)
    assert [len(entry.layers) for entry in second.partitions] == [2, 1, 1]
    third, report, _ = jobs.run("snap", "--whole-topic", "--add")
    assert (report.records, names(third)) == (0, names(second))
    jobs.produce(topic, records(range(COUNT + 30, COUNT + 40), 0))
    fourth, _, _ = jobs.run("snap", "--whole-topic", "--add")
    assert [len(entry.layers) for entry in fourth.partitions] == [3, 1, 1]
    full, _, _ = jobs.run("full", *asked)
    assert merged(tmp_path / "snap", fourth) == merged(tmp_path / "full", full)
    bare = [
        [(each.low, each.high, each.known.newest_ms, each.known.since_ms) for each in of.partitions]
        for of in (fourth, full)
    ]
    assert bare[0] == bare[1]
    assert {path.stem for path in (tmp_path / "snap").glob("*/*.sst")} == {
        name.rpartition("/")[2] for name in names(fourth)
    }


def test_files_whose_marks_have_all_expired_are_left_out(jobs: Jobs, tmp_path: Path) -> None:
    """Coverage begins behind them, and inside it the marks are those of a full rebuild."""
    topic = jobs.topic(1)
    asked = ["--topic", topic, "--id", "header:dedup-id", "--window", "64s", "--whole-topic"]
    jobs.produce(topic, records(range(60), 0))
    first, _, _ = jobs.run("snap", *asked, "--add")
    jobs.produce(topic, records(range(60, 200), 0))
    second, report, _ = jobs.run("snap", *asked, "--add")
    assert not names(first) & names(second)
    full, _, _ = jobs.run("full", *asked)
    assert report.records < 140
    since_ms = second.partitions[0].known.since_ms
    assert since_ms is not None
    assert since_ms <= BASE_MS + STEP_MS * (200 - 64)
    assert merged(tmp_path / "snap", second, since_ms) == merged(tmp_path / "full", full, since_ms)


def test_after_many_layers_a_partition_is_written_anew(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one layer, with the same marks; the others get one more."""
    monkeypatch.setattr(layers, "MOST_LAYERS", 2)
    topic = jobs.topic(2)
    asked = ["--topic", topic, "--id", "header:dedup-id", "--window", "1d", "--whole-topic"]
    turns = []
    for turn in range(4):
        jobs.produce(topic, records(range(30 * turn, 30 * turn + 30), 0))
        if turn > 1:
            jobs.produce(topic, records(range(30 * turn, 30 * turn + 30), 1))
        turns.append(jobs.run("snap", *asked, "--add")[0])
    full, _, _ = jobs.run("full", *asked)
    counts = [[len(entry.layers) for entry in made.partitions] for made in turns]
    assert counts == [[1, 0], [2, 0], [1, 1], [2, 2]]
    assert merged(tmp_path / "snap", turns[-1]) == merged(tmp_path / "full", full)
