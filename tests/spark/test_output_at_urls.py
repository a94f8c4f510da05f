"""A snapshot that goes to a URL, by the protocol of S3: whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import s3fs

from dedup_sdk._record import Record
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import MANIFEST_NAME
from dedup_sdk._store.snapshot_source import find_snapshots
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.options import Options, parse_options
from tests.support.archives import write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASE_MS = 1_700_000_000_000


def options(url: str, *more: str) -> Options:
    """The options of a run over an archive that goes to a URL."""
    usual = ["--topic", "orders", "--id", "key", "--window", "1d", "--output", url]
    whose = ["--whole-topic", "--cluster-id", "c", "--topic-id", "t"]
    if "--source" not in more:
        more = (*more, "--source", "archive")
    return parse_options([*usual, *whose, "--archive-isolation", "read_committed", *more], print)


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_goes_to_a_bucket(
    bucket: s3fs.S3FileSystem, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of its manifest and the report are there, a store is made of it, and this machine keeps nothing."""
    records = [Record("orders", 0, at, BASE_MS + at, key=name.encode()) for at, name in enumerate("abac")]
    write_parquet(tmp_path / "archive", records)
    (tmp_path / "own").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    report = backfill(options("s3://snapshots/today", "--source", str(tmp_path / "archive")), lambda: spark)
    assert (report.output, report.marks) == ("s3://snapshots/today", 3)
    assert without_attempts(bucket.find("snapshots")) == [
        f"snapshots/today/{name}" for name in ("0/00000.filter", "0/00000.sst", MANIFEST_NAME, "report.json")
    ]
    assert bucket.cat_file("snapshots/today/report.json").decode() == f"{report}\n"
    assert list((tmp_path / "own").iterdir()) == []
    ((found,), _) = find_snapshots(["s3://snapshots"])
    assert found.manifest.fingerprint == report.fingerprint
    restore_snapshot("s3://snapshots/today", tmp_path / "store", group="g", assume_processed=True)
    with pytest.raises(BackfillError, match=r"output 's3://snapshots/today' holds a snapshot"):
        backfill(options("s3://snapshots/today"), lambda: spark)
    again = backfill(
        options("s3://snapshots/today", "--source", str(tmp_path / "archive"), "--overwrite"), lambda: spark
    )
    assert (again.fingerprint, len(bucket.find("snapshots"))) == (report.fingerprint, 4)


def without_attempts(names: list[str]) -> list[str]:
    """Names of files without the addition of each attempt."""
    return sorted(re.sub(r"-[0-9a-f]{16}-[0-9a-f]{8}(?=\.)", "", name) for name in names)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--output", "nosuch://b/x"], "no driver for 'nosuch'"),
        (["--output", "s3://"], "--output s3:// names no place: give e.g. s3://bucket/snapshot"),
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
