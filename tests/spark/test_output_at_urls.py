"""A snapshot that goes to a URL, by the protocol of S3: whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import s3fs

from dedup_sdk._record import Record
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import MANIFEST_NAME
from dedup_sdk._store.snapshot_source import find_snapshots
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import Options, parse_options
from spark_backfill.publish import IfExists, Output, Target
from tests.support.archives import write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from spark_backfill.workers import Task

BASE_MS = 1_700_000_000_000


def options(url: str, *more: str) -> Options:
    """The options of a run over an archive that goes to a URL."""
    usual = ["--topic", "orders", "--id", "key", "--window", "1d", "--output", url]
    whose = ["--whole-topic", "--cluster-id", "c", "--topic-id", "t"]
    if "--source" not in more:
        more = (*more, "--source", "archive")
    return parse_options([*usual, *whose, "--archive-isolation", "read_committed", *more], print)


class WithAccess:
    """The task where it has the access to the bucket that this process has."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._environment = {
            name: value for name, value in os.environ.items() if name.startswith(("AWS_", "NO_PROXY"))
        }

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run the task."""
        os.environ.update(self._environment)
        return self._task(batches)


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_goes_to_a_bucket(
    bucket: s3fs.S3FileSystem, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of its manifest and the report are there, a store is made of it."""
    look = Target.check_before
    monkeypatch.setattr(Target, "check_before", lambda target, task: WithAccess(look(target, task)))
    records = [Record("orders", 0, at, BASE_MS + at, key=name.encode()) for at, name in enumerate("abac")]
    write_parquet(tmp_path / "archive", records)
    archived = ["--source", str(tmp_path / "archive")]
    report = backfill(options("s3://snapshots/today", *archived), on_spark(lambda: spark), around=WithAccess)
    assert (report.output, report.marks) == ("s3://snapshots/today", 3)
    assert without_attempts(bucket.find("snapshots")) == [
        f"snapshots/today/{name}" for name in ("0/00000.filter", "0/00000.sst", MANIFEST_NAME, "report.json")
    ]
    assert bucket.cat_file("snapshots/today/report.json").decode() == f"{report}\n"
    ((found,), _) = find_snapshots(["s3://snapshots"])
    assert found.manifest.fingerprint == report.fingerprint
    restore_snapshot("s3://snapshots/today", tmp_path / "store", group="g", assume_processed=True)
    with pytest.raises(BackfillError, match=r"output 's3://snapshots/today' holds a snapshot"):
        backfill(options("s3://snapshots/today"), on_spark(lambda: spark))
    repeated = options("s3://snapshots/today", *archived, "--overwrite")
    again = backfill(repeated, on_spark(lambda: spark), around=WithAccess)
    assert (again.fingerprint, len(bucket.find("snapshots"))) == (report.fingerprint, 6)


def without_attempts(names: list[str]) -> list[str]:
    """Names of files without the addition of each attempt."""
    return sorted(re.sub(r"-[0-9a-f]{16}-[0-9a-f]{8}(?=\.)", "", name) for name in names)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--output", "nosuch://b/x"], "--output 'nosuch://b/x': fsspec has no driver for 'nosuch'"),
        (["--output", "s3://"], "--output s3:// names no place: give e.g. s3://bucket/snapshot"),
        (["--output", "hdfs:/nn/x"], "--output hdfs:/*** is a URL that lacks a slash: give hdfs://..."),
        (["--output", "file://here"], "--output file://here is no absolute path: give file:///srv/snapshot"),
        (["--output", "\udcff"], "is not UTF-8: give another folder"),
    ],
)
def test_wrong_outputs_are_wrong_usage(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and status 2, before Spark is started."""
    with pytest.raises(SystemExit) as end:
        options("out", *wrong)
    assert end.value.code == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line


def test_an_empty_manifest_is_no_snapshot(bucket: s3fs.S3FileSystem) -> None:
    """A server refuses to give a range of an empty object; the run says the same as of a folder."""
    bucket.pipe_file("snapshots/orders/manifest.json", b"")
    with pytest.raises(BackfillError, match="files that are no snapshot"):
        Output("s3://snapshots/orders", IfExists.REPLACED)
