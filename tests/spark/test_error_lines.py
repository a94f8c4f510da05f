"""Errors of any origin in one line, without secrets."""

from __future__ import annotations

import re
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._record import Record
from dedup_sdk.errors import ConfigurationError, SnapshotError
from spark_backfill import kafka_log
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.errors import BackfillError, as_told, one_line, unreadable
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.options import parse_options
from spark_backfill.tables import check_no_table
from tests.spark.test_options import GOOD, WHOLE
from tests.support.archives import spark_archive, write_parquet

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_no_line_shows_the_password_of_an_archive() -> None:
    """Nor does a failure later on: a line that names the archive names it without credentials."""
    place = "s3a://app:hunter2@bucket/x"
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([*GOOD, *WHOLE, "--source", place], said.append)
    assert said[0].startswith("error: does 's3a://***@bucket/x' have records of aborted transactions?")
    told = one_line(BackfillError(f"archive {place!r} has no column 'k': say --columns key=COLUMN"))
    assert told == "archive 's3a://***@bucket/x' has no column 'k': say --columns key=COLUMN"


@pytest.mark.parametrize("before", [400, 460, 480, 495])
@pytest.mark.parametrize("secret", ["Hunter2-SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS", "pa  ss\tword9", "it's\\own"])
def test_no_part_of_a_secret_is_shown_where_a_text_is_cut(secret: str, before: int) -> None:
    """Nor where white space is made one, or a value of an archive is quoted."""
    told = str(as_told(RuntimeError(f"{'x' * before} {secret} tail"), [secret]))
    assert len(told) <= 500
    assert secret[:4] not in told
    value = f"{'y' * (before - 440)}{secret}"
    cast = f'[CAST_INVALID_INPUT] The value \'{value}\' of the type "STRING" cannot be cast to "LONG"'
    assert secret[:4] not in str(as_told(RuntimeError(cast), [secret]))
    read = RuntimeError(f"{'x' * (before + 30)} hunter2")
    assert "hun" not in str(unreadable("x", {"password": "hunter2"}, read))


def test_a_line_is_short_and_has_no_control_characters() -> None:
    """Also where the cause is a known one."""
    said = f"[PATH_NOT_FOUND] Path does not exist: {'x y' * 300}\x1b[2J\0. SQLSTATE: 42K03"
    told = one_line(RuntimeError(said))
    assert len(told) <= 500
    assert told.isprintable()
    assert one_line(BackfillError("a\x1b[2Jb\0")) == "a?[2Jb?"


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
    assert options.sources == (shown,)
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
        """Return the cause of this one."""
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
NEWER_WORKER = f"{WORKER.partition(chr(10) * 2)[0]}\nSQLSTATE: 38000"


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
            JavaError(Throwable("java.io.IOException: cannot read a.orc", Throwable("java.io.EOFException"))),
            "IOException: cannot read a.orc",
        ),
        (
            JavaError(Throwable("java.io.EOFException")),
            "EOFException",
        ),
        (
            JavaError(Throwable("stage failed", Throwable(WORKER))),
            "StoreError: sorted file x.sst cannot be written: No space left on device",
        ),
        (
            JavaError(Throwable("stage failed", Throwable(NEWER_WORKER))),
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
        (
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "no driver for s3a:// URLs: .*--packages",
        ),
        (
            (
                "[CONVERSION_INVALID_INPUT] The value '%%%' ('BASE64') cannot be converted to \"BINARY\" "
                "because it is malformed. SQLSTATE: 1"
            ),
            "^the archive has the value '%%%', which is no base64: check what --columns says",
        ),
        (
            (
                "[CAST_INVALID_INPUT] The value 'tomorrow\nnoon' of the type \"STRING\" cannot be cast to "
                '"TIMESTAMP" because it is malformed.'
            ),
            "^the archive has the value 'tomorrow noon', which cannot be read as TIMESTAMP: check --columns",
        ),
        (
            (
                "org.apache.spark.SparkRuntimeException: [CANNOT_PARSE_JSON_FIELD] Cannot parse the field name "
                "'offset' and the value "
            )
            + 99 * "x"
            + ' of the JSON token type VALUE_STRING to target Spark data type "BIGINT". SQLSTATE: 2203G',
            f"^the archive has a line whose field 'offset' is '{60 * 'x'}...', which cannot be read as BIGINT: check",
        ),
        (
            (
                "[TABLE_OR_VIEW_NOT_FOUND] The table or view `a`.`b c` cannot be found. Verify the spelling and "
                "correctness"
            ),
            "^Spark's catalog has no table `a`.`b c`: check --source table:NAME",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: s3a://u:hunter2@b/x.y. SQLSTATE: 42K03",
            r"^s3a://\*\*\*@b/x.y does not exist: check --source$",
        ),
    ],
)
def test_what_spark_cannot_read_says_what_to_give(text: str, says: str) -> None:
    """A format, or a kind of URL, that Spark knows nothing of is named with the option that helps."""
    assert re.search(says, one_line(JavaError(Throwable("failed", Throwable(text)))))


def test_a_setting_that_no_client_knows_is_wrong_usage() -> None:
    """One line names it and the options that it may have come from; the job ends with status 2 for it."""
    with pytest.raises(ConfigurationError, match=r'"no\.such\.setting"; correct it in --client-config'):
        KafkaLog("127.0.0.1:1", "orders", {"no.such.setting": "1"})


def test_a_client_that_takes_long_to_close_is_made_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown host is told when the wait for a broker is over, and not when consumers have given it up, too."""
    monkeypatch.setattr(kafka_log, "Consumer", None)
    with (
        KafkaLog("127.0.0.1:1", "orders", {}) as log,
        pytest.raises(BackfillError, match=r"no broker answers at 127\.0\.0\.1:1"),
    ):
        log.partitions()


def test_a_broker_that_does_not_describe_the_topic_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that ends has no text of its own."""
    silent: Future[Any] = Future()
    silent.set_exception(TimeoutError())
    admin = SimpleNamespace(describe_topics=lambda *_, **__: {"orders": silent})
    monkeypatch.setattr(kafka_log, "AdminClient", lambda *_, **__: admin)
    with (
        KafkaLog("127.0.0.1:1", "orders", {}) as log,
        pytest.raises(BackfillError, match=r"describing the topic: Kafka at 127.0.0.1:1 said TimeoutErr"),
    ):
        log.topic_id()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("s3a://bucket/x", "^Spark has no driver for s3a:// URLs: .*hadoop-aws"),
        ("s3://bucket/x", "^Spark has no driver for s3:// URLs: .*s3a://"),
        ("archive/[", "^archive 'archive/\\[' cannot be opened: Spark said .*Unclosed.*; check --source"),
    ],
)
def test_where_spark_cannot_look_is_told_with_the_place(spark: SparkSession, place: str, says: str) -> None:
    """Before anything is read: no driver, which is named, or a pattern that is none."""
    archive = ArchiveOptions(places=(place,), format="parquet", isolation="read_committed")
    with pytest.raises(BackfillError) as caught:
        check_no_table(spark, archive)
    assert re.search(says, one_line(caught.value))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"recursiveFileLookup": "perhaps"},
            "perhaps.*check --source, --format, --read-option recursiveFile",
        ),
        (
            {"mergeSchema": "false", "modifiedBefore": "x"},
            "--read-option mergeSchema, --read-option modifiedB",
        ),
    ],
)
def test_what_spark_calls_no_option_is_told_with_the_options(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    """Spark names the value only; the line names the archive, and the option to look at."""
    write_parquet(tmp_path, [Record("orders", 0, 0, 1_700_000_000_000, key=b"a")])
    archive = ArchiveOptions(
        places=(str(tmp_path),), format="parquet", read_options=options, isolation="read_committed"
    )
    with pytest.raises(BackfillError, match=says) as caught:
        spark_archive(spark, archive)
    assert one_line(caught.value).startswith(f"archive {str(tmp_path)!r} cannot be opened: Spark said ")
