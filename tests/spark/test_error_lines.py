"""Errors of any origin in one line, without secrets."""

from __future__ import annotations

import re

import pytest

from dedup_sdk.errors import SnapshotError
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.options import parse_options
from tests.spark.test_options import GOOD, WHOLE


def test_no_line_shows_the_password_of_an_archive() -> None:
    """Nor does a failure later on: what names the archive names it without credentials."""
    place = "s3a://app:hunter2@bucket/x"
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([*GOOD, *WHOLE, "--source", place], said.append)
    assert said[0].startswith("error: does 's3a://***@bucket/x' have records of aborted transactions?")
    told = one_line(BackfillError(f"archive {place!r} has no column 'k': say --columns key=COLUMN"))
    assert told == "archive 's3a://***@bucket/x' has no column 'k': say --columns key=COLUMN"


@pytest.mark.parametrize(
    "query", ["X-Amz-Signature=hunter2&X-Amz-Date=1", "sv=1&sig=hunter2", "token=hunter2"]
)
def test_no_line_shows_what_a_presigned_url_bears(query: str) -> None:
    """Neither a wrong command line, nor a failure of ours or of Spark's, nor the report's list of sources."""
    place, shown = f"https://h/x.parquet?{query}", "https://h/x.parquet?***"
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([*GOOD, *WHOLE, "--source", place], said.append)
    assert f"does {shown!r} have" in said[0]
    options = parse_options(
        [*GOOD, *WHOLE, "--source", place, "--archive-isolation", "read_committed"], print
    )
    assert options.sources.described() == (shown,)
    assert (
        one_line(BackfillError(f"archive {place!r} has no column 'k'"))
        == f"archive {shown!r} has no column 'k'"
    )
    assert one_line(RuntimeError(f"java.io.IOException: {place} not found")).endswith(f"{shown} not found")


class Throwable:
    """As py4j shows an exception of the JVM."""

    def __init__(self, text: str, cause: Throwable | None = None) -> None:
        self._text, self._cause = text, cause

    def getCause(self) -> Throwable | None:  # noqa: N802 (Java's name)
        """Return what this one was caused by."""
        return self._cause

    def toString(self) -> str:  # noqa: N802 (Java's name)
        """Return class and message."""
        return self._text


class JavaError(Exception):
    """As py4j raises it."""

    def __init__(self, java: Throwable) -> None:
        super().__init__("An error occurred while calling o42.load.\n\tat java.base/...")
        self.java_exception = java


WORKER = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 2, in main
    process()
dedup_sdk.errors.StoreError: sorted file x.sst cannot be written: No space left on device

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BackfillError("topic 'x' does not exist"), "topic 'x' does not exist"),
        (SnapshotError("two\nlines"), "two lines"),
        (ValueError("plain"), "plain"),
        (ValueError(), "ValueError"),
        (
            JavaError(
                Throwable(
                    "outer", Throwable("org.apache.kafka.common.errors.TimeoutException: no leader\n\tat x")
                )
            ),
            "TimeoutException: no leader",
        ),
        (
            JavaError(Throwable("stage failed", Throwable(WORKER))),
            "StoreError: sorted file x.sst cannot be written: No space left on device",
        ),
        (RuntimeError("y" * 600), "y" * 497 + "..."),
    ],
)
def test_errors_of_any_origin_end_in_one_line(error: Exception, line: str) -> None:
    """The innermost cause is said, without frames of Java or Python, and never at length."""
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "java.lang.ClassNotFoundException: delta.DefaultSource",
            "nothing that reads --format delta: .*--packages",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
            "no driver for s3:// URLs: .*s3a://.*--packages",
        ),
    ],
)
def test_what_spark_cannot_read_says_what_to_give(text: str, says: str) -> None:
    """A format, or a kind of URL, that Spark knows nothing of is named with the option that helps."""
    assert re.search(says, one_line(JavaError(Throwable("failed", Throwable(text)))))


def test_a_missing_connector_says_what_to_give() -> None:
    """Spark's own message about the data source is replaced by the option that helps."""
    assert "--packages" in one_line(RuntimeError("[X] Failed to find data source: kafka. Please deploy"))
