"""The folders that one run reads and writes may not lie in each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk.errors import ConfigurationError
from spark_backfill.options import parse_options
from spark_backfill.places import check_places
from tests.spark.test_options import COMMITTED, GOOD, WHOLE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--report", "out"], "--report 'out' lies in --output 'out'"),
        (["--report", "./out/page"], "--report './out/page' lies in --output 'out'"),
        (["--report", "archive", "--source", "archive"], "--report 'archive' lies in --source 'archive'"),
        (["--output", "archive", "--source", "archive"], "--output 'archive' lies in --source 'archive'"),
        (
            ["--output", "a/b/out", "--source", "c", "--source", "a"],
            "--output 'a/b/out' lies in --source 'a'",
        ),
        (["--output", "a/b", "--source", "*"], "--output 'a/b' lies in --source '*'"),
        (["--source", "out/archive"], "--source 'out/archive' lies in --output 'out'"),
        (["--source", "out/*.parquet"], "--source 'out/*.parquet' lies in --output 'out'"),
        (["--source", "out", "--overwrite"], "--output 'out' lies in --source 'out'"),
    ],
)
def test_they_are_refused_before_spark_is_started(
    more: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names both, and the status is that of wrong usage; nothing is made."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with pytest.raises(SystemExit) as end:
        parse_options([*GOOD, *WHOLE, *more, *(COMMITTED if "--source" in more else ())], said.append)
    assert end.value.code == 2
    (line,) = said
    assert line.startswith(f"error: {says}, ")
    assert "choose" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "source"),
    [
        ("s3://u:secret@b/x/y", "s3a://b/x"),
        ("s3://b/x", "s3n://b/x/part-0.parquet"),
        ("/a/out", "file:///a"),
        ("/a/out", "file:/a"),
        ("local:///a/out", "/a"),
        ("gcs://b/x/y", "gs://b/x"),
    ],
)
def test_stores_and_their_names_are_seen_through(output: str, source: str) -> None:
    """Hadoop and fsspec call one bucket, and one folder, otherwise; secrets are not shown."""
    with pytest.raises(ConfigurationError, match="lies in") as caught:
        check_places(output, sources=[source])
    assert "secret" not in str(caught.value)


def test_a_link_leads_where_it_leads(tmp_path: Path) -> None:
    """A path in a folder under another name lies there all the same."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "link").symlink_to("archive")
    with pytest.raises(ConfigurationError, match="lies in --source"):
        check_places(str(tmp_path / "link" / "out"), sources=[str(tmp_path / "archive")])


@pytest.mark.parametrize(
    ("output", "source", "report"),
    [
        ("/a/out", "/a/archive", "/a/report"),
        ("/report/out", "/archive", "/report"),
        ("/a/out", "/a/output", "/a/ou"),
        ("/a/out", "/a/*.parquet", None),
        ("s3://b/out", "s3a://other/out", None),
        ("/b/out", "s3a://b", None),
        ("/a/x", "table:a", None),
    ],
)
def test_what_lies_side_by_side_is_taken(output: str, source: str, report: str | None) -> None:
    """Also a snapshot beside the pages of reports, and names of which one begins like the other."""
    check_places(output, sources=[source], report=report)


def test_bare_paths_of_another_file_system_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of HDFS and a folder here have nothing to do with each other."""
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    check_places("/a/out", sources=["/a"])
    with pytest.raises(ConfigurationError):
        check_places("/a/out", sources=["file:///a"])
