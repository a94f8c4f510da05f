"""The launcher, mostly with a program in spark-submit's place or a run that is none: no broker."""

from __future__ import annotations

import shlex
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.errors import ConfigurationError
from spark_backfill import launch
from spark_backfill.errors import BackfillError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIVEN = [
    "--bootstrap", "b:1", "--topic", "t", "--id", "key", "--window", "1d", "--whole-topic",
    "--output", "snapshot",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's settings of Spark, and a folder of the test's own."""
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    for name in ("DEDUP_SPARK_ARGS", "MASTER", "DEPLOY_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_its_place(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that puts a Python program in the place of spark-submit."""

    def put(program: str) -> None:
        monkeypatch.setattr(launch, "command", lambda *_, **__: [sys.executable, "-c", program])
        monkeypatch.setattr(launch, "environment", lambda *_: {"PATH": "/usr/bin:/bin"})

    return put


@pytest.mark.parametrize(
    "way", ["--deploy-mode cluster", "--conf spark.submit.deployMode=cluster", "file", "variable"]
)
def test_a_job_that_nobody_can_follow_is_refused(
    in_its_place: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    """Before anything is started, wherever the user asked for deploy mode cluster; the last word counts."""
    in_its_place("print('{}')")
    if way == "file":
        (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\n")
    elif way == "variable":
        monkeypatch.setenv("DEPLOY_MODE", "cluster")
    args = "--master k8s://https://k:6443"
    monkeypatch.setenv("DEDUP_SPARK_ARGS", f"{args} {way}" if way.startswith("-") else args)
    with pytest.raises(
        ConfigurationError, match=r"--deploy-mode client, or submit .*docs/spark-clusters\.md"
    ):
        launch.backfill(GIVEN)
    monkeypatch.setenv(
        "DEDUP_SPARK_ARGS", f"{args} {way if way.startswith('--conf') else ''} --deploy-mode client"
    )
    assert launch.backfill(GIVEN) == {}


@pytest.mark.parametrize("output", ["", "no report", "[1]"])
def test_a_job_without_a_report_is_told(in_its_place: Callable[[str], None], output: str) -> None:
    """Where spark-submit ends well, and no line of its stdout is a JSON object."""
    in_its_place(f"print({output!r}, end='')")
    with pytest.raises(
        BackfillError, match="has no report; the snapshot may be there: look before you start again"
    ):
        launch.backfill(GIVEN, on_spark=True)


def test_what_others_print_hides_no_report(in_its_place: Callable[[str], None]) -> None:
    """Spark's log, where the user's settings send it to stdout, or a function of theirs at its end; in any encoding."""
    in_its_place(
        "import sys; sys.stdout.buffer.write(b'{\"marks\": 1}\\n\\xe9t\\xe9\\nINFO Shutdown hook called\\n\\n')"
    )
    assert launch.backfill(GIVEN, on_spark=True) == {"marks": 1}


def test_a_cause_on_stderr_is_told_where_stdout_has_nothing(in_its_place: Callable[[str], None]) -> None:
    """An empty line of stdout is no cause."""
    in_its_place("import sys; print(); print('no such class: Job', file=sys.stderr); sys.exit(3)")
    with pytest.raises(BackfillError, match=r"^spark-submit ended with status 3: no such class: Job$"):
        launch.backfill(GIVEN, on_spark=True)


def test_a_program_that_is_not_there_is_named(
    in_its_place: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other cause that is told before the job can."""
    in_its_place("")
    monkeypatch.setattr(launch, "command", lambda *_, **__: ["/none/spark-submit"])
    with pytest.raises(BackfillError, match=r"ended with status 127: .*/none/spark-submit: No such file"):
        launch.backfill(GIVEN, on_spark=True)


def test_a_run_without_spark_asks_for_no_deploy_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may be that of somebody else."""
    monkeypatch.setenv("DEPLOY_MODE", "cluster")

    def fail(*_: object) -> None:
        raise BackfillError("asked Kafka")

    monkeypatch.setattr(launch, "KafkaLog", fail)
    with pytest.raises(BackfillError, match=r"^asked Kafka$"):
        launch.backfill(GIVEN)


SHOWN = """
from pyspark.sql import SparkSession
java = SparkSession.builder.getOrCreate()._jvm.java.lang.System
print([java.getProperty(name) for name in ("ours", "theirs", "both")])
"""


@pytest.mark.spark
@pytest.mark.parametrize("way", ["file", "--driver-java-options", "--conf"])
def test_options_of_java_are_added_to_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    """The JVM gets both, in whichever way the user gives theirs; of two for one property theirs counts."""
    theirs = "-Dtheirs=yes -Dboth=theirs"
    if way == "file":
        (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {theirs}\n")
    else:
        setting = theirs if way != "--conf" else f"spark.driver.extraJavaOptions={theirs}"
        monkeypatch.setenv("DEDUP_SPARK_ARGS", shlex.join(["--master", "local[1]", way, setting]))
    (tmp_path / "shown.py").write_text(SHOWN)
    line = launch.command([], scratch=tmp_path, job=tmp_path / "shown.py")
    variables = launch.environment(tmp_path, ["-Dours=yes", "-Dboth=ours"])
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["['yes', 'yes', 'theirs']"], done.stderr[-2_000:]


SECRET = "Hunter2-and more"
KNOWN = ["--client-config", "sasl.username=me", "--client-config", f"sasl.password={SECRET}"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_failure_before_the_job_shows_no_secret(in_its_place: Callable[[str], None], stream: str) -> None:
    """Neither a value of --client-config nor one that looks like a credential; the line is short and printable."""
    text = f"java.lang.IOException: {SECRET} s3a://app:pass1@b/x secret.key=pass2 \\x1b{'y' * 600}"
    in_its_place(f"import sys; sys.{stream}.write('first\\n\\t{text}\\n'); sys.exit(3)")
    with pytest.raises(BackfillError) as caught:
        launch.backfill([*GIVEN, *KNOWN], on_spark=True)
    told = str(caught.value)
    assert told.startswith("spark-submit ended with status 3: IOException: *** s3a://***@b/x secret.key=***")
    assert told.isprintable()


def test_the_last_lines_of_a_long_log_tell_the_cause(in_its_place: Callable[[str], None]) -> None:
    """Of those before, nothing is kept."""
    in_its_place(
        "import sys\nfor n in range(1_000): print('Error', n, file=sys.stderr) if n < 800 else "
        "print(n, file=sys.stderr)\nsys.exit(3)"
    )
    with pytest.raises(BackfillError, match=r"^spark-submit ended with status 3: 999$"):
        launch.backfill(GIVEN, on_spark=True)


def test_a_traceback_of_a_failed_run_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that logs the exception of a run in its own process writes its line alone."""

    def fail(*_: object) -> None:
        raise RuntimeError(f"no login with {SECRET}")

    monkeypatch.setattr(launch, "KafkaLog", fail)
    with pytest.raises(BackfillError, match=r"^no login with \*\*\*$") as caught:
        launch.backfill([*GIVEN, *KNOWN])
    assert "Hunter2" not in "".join(traceback.format_exception(caught.value))
