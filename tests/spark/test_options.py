"""The command line, and errors in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup_sdk.errors import SnapshotError
from dedup_sdk.window import Window
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.options import Options, parse_options

GOOD = [
    "--bootstrap",
    "b:9092",
    "--topic",
    "orders",
    "--id",
    "header:dedup-id",
    "--window",
    "7d",
    "--output",
    "out",
]
GROUP = ["--group", "billing"]
WHOLE = ["--whole-topic"]


def parsed(*more: str) -> Options:
    """The options of a good command line and what is added."""
    return parse_options([*GOOD, *more], print)


def test_values_are_read_into_their_types() -> None:
    """Spec, window and path are values; for the whole topic the user vouches."""
    options = parsed(*WHOLE)
    assert (str(options.id), options.window, options.output) == (
        "header:dedup-id",
        Window(days=7),
        Path("out"),
    )
    assert options.vouched
    assert options.group is None
    assert not parsed(*GROUP).vouched
    assert parsed(*GROUP, "--assume-processed").vouched


def test_settings_reach_the_client_they_are_meant_for() -> None:
    """Common settings go to both clients, an equals sign may be in a value, and a client's own setting wins."""
    options = parsed(
        *GROUP, "--source", "kafka-jvm", "--kafka-config", "security.protocol=SSL", "--kafka-config", "a=1", "--reader-config", "a=2", "--admin-config", "x=y=z"
    )  # fmt: skip
    assert options.reader_config == {"security.protocol": "SSL", "a": "2"}
    assert options.admin_config == {"security.protocol": "SSL", "a": "1", "x": "y=z"}


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ([*GROUP, "--window", "0d"], "window of zero"),
        ([*GROUP, "--reader-config", "a=1"], "--source kafka-jvm"),
        ([*GROUP, "--window", "a week"], "'a week'"),
        ([*GROUP, "--id", "headr:x"], "'headr:x'"),
        ([*GROUP, "--id", "py:no_such_module:f"], "no_such_module"),
        ([*GROUP, "--kafka-config", "isolation.level=read_uncommitted"], "isolation.level cannot be set"),
        ([*GROUP, "--kafka-config", "group.id"], "'group.id' is no setting"),
        ([*GROUP, "--admin-config", "=1"], "'=1'"),
        ([], "give --group GROUP (what that group has processed), or --whole-topic (you vouch"),
        ([*GROUP, *WHOLE], "--whole-topic and --group billing exclude each other"),
        ([*WHOLE, "--assume-processed"], "--assume-processed needs --group"),
        ([*WHOLE, "--dead-letters", "x"], "--dead-letters needs --group"),
        ([*GROUP, "--dead-letters", ""], "--dead-letters is empty"),
        ([*GROUP, "--topic", ""], "--topic is empty"),
        (["--group", ""], "--group is empty"),
        (["--over"], "--over"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(wrong: list[str], names: str) -> None:
    """Whatever is wrong with the arguments, one line names it."""
    said: list[str] = []
    with pytest.raises(SystemExit) as end:
        parse_options([*GOOD, *wrong], said.append)
    assert end.value.code == 2
    (line,) = said
    assert line.startswith("error: ")
    assert names in line
    assert "\n" not in line


def test_missing_options_are_named() -> None:
    """A call without anything names what is required."""
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([], said.append)
    assert all(option in said[0] for option in ("--bootstrap", "--topic", "--id", "--window", "--output"))


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


def test_a_missing_connector_says_what_to_give() -> None:
    """Spark's own message about the data source is replaced by the option that helps."""
    assert "--packages" in one_line(RuntimeError("[X] Failed to find data source: kafka. Please deploy"))
