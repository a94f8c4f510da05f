"""A snapshot that goes to a URL, by the protocol of S3: whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import s3fs
from fsspec.core import url_to_fs

from dedup_sdk._record import Record
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import MANIFEST_NAME
from dedup_sdk._store.snapshot_copy import UrlTarget
from dedup_sdk._store.snapshot_source import find_snapshots
from dedup_sdk.errors import SnapshotError
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError
from spark_backfill.options import Options, parse_options
from spark_backfill.remote_output import check_scratch, open_output
from tests.support.archives import write_parquet
from tests.support.marks import random_marks, write_snapshot

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
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    report = backfill(
        options("s3://snapshots/today", "--source", str(tmp_path / "archive"), "--scratch", "scratch"),
        lambda: spark,
    )
    assert (report.output, report.marks) == ("s3://snapshots/today", 3)
    assert without_attempts(bucket.find("snapshots")) == [
        f"snapshots/today/{name}" for name in ("0/0000.filter", "0/0000.sst", MANIFEST_NAME, "report.json")
    ]
    assert bucket.cat_file("snapshots/today/report.json").decode() == f"{report}\n"
    assert list((tmp_path / "scratch").iterdir()) == []
    ((found,), _) = find_snapshots(["s3://snapshots"])
    assert found.manifest.fingerprint == report.fingerprint
    restore_snapshot("s3://snapshots/today", tmp_path / "store", group="g", assume_processed=True)
    with pytest.raises(SnapshotError, match="s3://snapshots/today has a snapshot already"):
        backfill(options("s3://snapshots/today"), lambda: spark)


def without_attempts(names: list[str]) -> list[str]:
    """Names of files without the addition of each attempt."""
    return sorted(re.sub(r"-[0-9a-f]{16}(?=\.)", "", name) for name in names)


def seen_before_manifests(bucket: s3fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The contents of the bucket right before each manifest goes up, as it comes to pass."""
    seen: list[list[str]] = []
    finish = UrlTarget.finish

    def watched(target: UrlTarget, source: Any) -> None:
        seen.append(without_attempts(bucket.find("snapshots")))
        finish(target, source)

    monkeypatch.setattr(UrlTarget, "finish", watched)
    return seen


def test_the_manifest_goes_up_last(
    bucket: s3fs.S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the manifest is written all other files are there; then it is a snapshot, and this machine keeps nothing."""
    seen = seen_before_manifests(bucket, monkeypatch)
    publish(tmp_path)
    files = [f"3/{number:04}.{suffix}" for number in range(2) for suffix in ("filter", "sst")]
    assert seen == [[f"snapshots/today/{file}" for file in files]]
    assert [each.place for each in find_snapshots(["s3://snapshots"])[0]] == ["s3://snapshots/today"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_half_published(
    bucket: s3fs.S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the manifest's arrival is not certain it goes again; where a run fails nothing was there."""
    finish = UrlTarget.finish

    def doubted(target: UrlTarget, source: Any) -> None:
        finish(target, source)
        raise SnapshotError(f"{target.place} cannot be written")

    monkeypatch.setattr(UrlTarget, "finish", doubted)
    with pytest.raises(SnapshotError, match="today cannot be written"):
        publish(tmp_path)
    assert bucket.find("snapshots") == []
    with pytest.raises(RuntimeError, match="half way"), open_output(scratched(tmp_path)):
        raise RuntimeError("half way")
    assert bucket.find("snapshots") == []
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_taken_back_is_named(
    bucket: s3fs.S3FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write and not remove learns that the snapshot of a failed run is there."""
    finish = UrlTarget.finish

    def failing(target: UrlTarget, source: Any) -> None:
        finish(target, source)
        # The methods of this driver are each instance's own; fsspec keeps one instance a process.
        driver, _ = url_to_fs(target.place)
        monkeypatch.setattr(driver, "rm_file", _refused)
        raise SnapshotError(f"{target.place} cannot be written")

    monkeypatch.setattr(UrlTarget, "finish", failing)
    with pytest.raises(SnapshotError, match=r"today cannot be written; s3://\S+today may be there and whole"):
        publish(tmp_path)
    assert bucket.find("snapshots")


def _refused(*_: Any) -> None:
    raise PermissionError("denied")


def test_what_cannot_be_written_is_known_before_anything_is_read(
    bucket: s3fs.S3FileSystem, tmp_path: Path
) -> None:
    """A bucket that is not there is one line that names it, and so is a scratch folder that is none."""
    assert bucket.find("snapshots") == []
    with (
        pytest.raises(SnapshotError, match=r"s3://nowhere/x/\.writable-\w+ cannot be written"),
        open_output(options("s3://nowhere/x")),
    ):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(BackfillError, match=r"scratch folder .*file' cannot be used: .*--scratch"),
        open_output(options("s3://snapshots/x", "--scratch", str(tmp_path / "file"))),
    ):
        pass
    assert bucket.find("snapshots") == []


@pytest.mark.parametrize(("master", "shared", "refused"), [
    ("local[2]", False, False), ("spark://m:7077", False, True), ("spark://m:7077", True, False),
])  # fmt: skip
def test_workers_elsewhere_need_a_shared_folder(
    tmp_path: Path,
    master: str,
    *,
    shared: bool,
    refused: bool,
) -> None:
    """On a cluster the driver can only upload files that it sees: without a shared folder one line says so."""
    pytest.importorskip("s3fs")
    spark = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(master=master)))
    chosen = options("s3://name:word@snapshots/x", *(["--scratch", str(tmp_path)] if shared else []))
    if not refused:
        check_scratch(chosen, spark)
        return
    with pytest.raises(BackfillError, match=r"s3://snapshots/x with Spark at spark://m:7077.* --scratch DIR"):
        check_scratch(chosen, spark)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--output", "s3://b/x", "--overwrite"], "--overwrite replaces a folder, and s3://b/x is a URL"),
        (["--output", "folder", "--scratch", "x"], "--scratch is for an output behind a URL: 'folder'"),
        (["--output", "s3://b/x", "--scratch", ""], "--scratch is empty"),
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


def scratched(folder: Path) -> Options:
    """The options of a run whose snapshot is made in a folder."""
    return options("s3://snapshots/today", "--scratch", str(folder))


def publish(folder: Path) -> None:
    """Publish a snapshot of some marks as a run does."""
    with open_output(scratched(folder)) as output:
        output.folder.rmdir()
        write_snapshot(output.folder, random_marks(3_000, 1), cuts=(1_000,), high=3_000)
        output.publish()
