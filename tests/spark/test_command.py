"""The command as its users run it: spark-submit, exit statuses, one line of error, one line of report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dedup_sdk._cli.app import run
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.testing import free_port
from spark_backfill import launch
from spark_backfill.errors import BackfillError
from tests.support.producing import with_ids
from tests.support.spark_cluster import is_alive, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]
ROOT = Path(__file__).parents[2]
ON_SPARK = "--master local[*]"
"""Where it is given, a small history is read by Spark, too."""


def arguments(bootstrap: str, topic: str, output: Path, *more: str) -> list[str]:
    """The job's command line, with a spec and a window."""
    usual = [
        "--bootstrap",
        bootstrap,
        "--topic",
        topic,
        "--id",
        "header:dedup-id",
        "--window",
        "1d",
        "--whole-topic",
    ]
    return [*usual, "--output", str(output), *more]


def submit(tmp_path: Path, *job_arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the very command line that the documentation gives."""
    command = [
        "spark-submit",
        str(ROOT / "spark_backfill" / "job.py"), *job_arguments,
    ]  # fmt: skip
    variables = launch.environment(tmp_path)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path, env=variables
    )


def backfilled(*given: str) -> int:
    """The exit status of ``dedup backfill``."""
    return run(["backfill", *given])


def ours(stderr: str) -> list[str]:
    """The job's own lines, but for those about its progress: a slow machine gets one every half a minute."""
    lines = [line for line in stderr.splitlines() if line.startswith("backfill: ")]
    return [line for line in lines if not line.startswith(("backfill: reading: ", "backfill: writing: "))]


def test_spark_submit_makes_a_snapshot(
    broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    """Status 0, the report as the last line of stdout, and a snapshot that checks."""
    topic = make_topic(1)
    produce(topic, with_ids("a", "b", "a"))
    done = submit(tmp_path, *arguments(broker.bootstrap, topic, tmp_path / "snapshot"))
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["records"], report["marks"], report["topic"]) == (3, 2, topic)
    assert verify_snapshot(tmp_path / "snapshot").partitions[0].marks == 2
    first, *told = ours(done.stderr)
    assert first == f"backfill: 1 partition of {topic}, 3 offsets to read"
    assert told[:2] == [
        f"backfill: snapshot    {tmp_path / 'snapshot'}",
        f"backfill: topic       {topic}, 1 partition, history of no single group",
    ]


def test_spark_submit_fails_in_one_line(broker: Broker, tmp_path: Path) -> None:
    """An unknown topic is status 1, a wrong window status 2.

    One line of ours, no traceback of Python or Java, no output.
    """
    output = tmp_path / "snapshot"
    unknown = submit(tmp_path, *arguments(broker.bootstrap, "no-such-topic", output))
    wrong = submit(tmp_path, *arguments(broker.bootstrap, "orders", output, "--window", "soon"))
    for done, status, named in ((unknown, 1, "'no-such-topic'"), (wrong, 2, "'soon'")):
        assert done.returncode == status
        (line,) = ours(done.stderr)
        assert named in line
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert "\tat " not in done.stderr
    assert not output.exists()


@pytest.mark.parametrize("spark", ["", ON_SPARK])
def test_the_launcher_finds_everything_itself(
    broker: Broker,
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    *,
    spark: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From any folder, with a relative output, with and without Spark.

    The report alone on stdout, lines and the summary on stderr, nothing left beside.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEDUP_SPARK_ARGS", spark)
    topic = make_topic(1)
    produce(topic, with_ids("a", "b", "a"))
    capfd.readouterr()  # the producer's lines on a broker that has just started
    assert backfilled(*arguments(broker.bootstrap, topic, Path("snapshot")), "--json") == 0
    out, err = capfd.readouterr()
    (line,) = out.splitlines()
    assert json.loads(line)["marks"] == 2
    assert ours(err) == [f"backfill: 1 partition of {topic}, 3 offsets to read"]
    told = dict(line.split(maxsplit=1) for line in err.splitlines() if not line.startswith("backfill: "))
    assert told["snapshot"] == str(tmp_path / "snapshot")
    assert told["records"] == "3 from kafka, 0 without an ID"
    assert (told["IDs"], told["duplicates"][:2]) == ("2", "1,")
    assert verify_snapshot("snapshot").topic == topic
    assert list(tmp_path.iterdir()) == [tmp_path / "snapshot"]


# An ID that is never found, and the command with more time for a driver to clean up than a user would grant.
ENDLESS = """
from pathlib import Path
from threading import Event
def wait(record):
    Path(__file__).with_name("at work").touch()
    Event().wait()
"""
PATIENT = """
import sys
from dedup_sdk._cli import main
from spark_backfill import submission
submission._GRACE_S = 30
sys.exit(main())
"""


def test_ctrl_c_ends_a_real_run(
    broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], tmp_path: Path
) -> None:
    """While a task works that would never end.

    One line, status 130, no JVM, nothing in the output's or the temporary folder.
    """
    topic = make_topic(1)
    produce(topic, with_ids("a", "b", "a"))
    place, scratch = tmp_path / "place", tmp_path / "scratch"
    place.mkdir()
    scratch.mkdir()
    (tmp_path / "endless.py").write_text(ENDLESS)
    given = arguments(broker.bootstrap, topic, place / "snapshot", "--id", "py:endless:wait@1")
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, "backfill", *given],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={
            **os.environ, "TMPDIR": str(scratch), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "DEDUP_SPARK_ARGS": ON_SPARK,
        },
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == f"backfill: 1 partition of {topic}, 3 offsets to read\n"
    wait_for((tmp_path / "at work").exists, 120)
    family = psutil.Process(process.pid).children(recursive=True)
    machines = {each.pid for each in family if each.name() == "java"}
    assert machines
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, ours(err)) == (130, "", [])
    assert err.splitlines()[-1] == "dedup: interrupted; no snapshot was written"
    assert not any(is_alive(each) for each in family if each.pid in machines)
    wait_for(lambda: not any(map(is_alive, family)), 60)
    assert list(place.iterdir()) == []
    assert list(scratch.iterdir()) == []


def test_the_launcher_passes_failures_on(
    broker: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failing job is status 1 with its own single line."""
    given = arguments(broker.bootstrap, "no-such-topic", tmp_path / "snapshot")
    assert backfilled(*given) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"dedup: topic 'no-such-topic' does not exist at {broker.bootstrap}: check --topic\n"


def test_an_unreachable_broker_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody listening is status 1 and one line with the address."""
    address = f"127.0.0.1:{free_port()}"
    assert backfilled(*arguments(address, "orders", tmp_path / "snapshot")) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"dedup: no broker answers at {address} within 3 s")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(["--window", "0s"], "window of zero"), (["--id", "headr:x"], "'headr:x'"), (["--nope"], "--nope")],
)
def test_wrong_usage_starts_no_java(
    wrong: list[str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The command line is read before anything is started.

    Status 2 and one line, or `ConfigurationError` from Python.
    """
    monkeypatch.setattr(launch, "command", lambda *_, **__: pytest.fail("a command was made"))
    given = arguments("127.0.0.1:1", "orders", tmp_path / "snapshot", *wrong)
    assert backfilled(*given) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert named in line
    with pytest.raises(ConfigurationError, match=named):
        launch.backfill(given)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('--conf "spark.x=secret', r"\$DEDUP_SPARK_ARGS .*No closing quotation\): check its quotes"),
        ("--master", r"\$DEDUP_SPARK_ARGS: argument --master: expected one argument"),
    ],
)
def test_further_arguments_that_are_none_end_in_one_line(
    settings: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """An open quote, and a master without its value, are wrong usage; their text is not shown."""
    monkeypatch.setenv("DEDUP_SPARK_ARGS", settings)
    assert backfilled(*arguments("127.0.0.1:1", "orders", tmp_path / "snapshot")) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(says, line)
    assert "secret" not in line


def test_help_is_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    """``--help`` prints every option and ends with status 0."""
    assert backfilled("--help") == 0
    out = capfd.readouterr().out
    assert all(
        option in out
        for option in ("--bootstrap", "--group", "--whole-topic", "--assume-processed", "--overwrite")
    )


def test_a_package_that_cannot_be_had_is_named(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """When Ivy does not find the coordinates, the exception names them, in one line; nothing is printed from Python."""
    given = arguments(broker.bootstrap, make_topic(1), tmp_path / "snapshot")
    with pytest.raises(BackfillError, match=r"local\.nowhere#nothing_2\.13;0\.0\.1") as caught:
        launch.backfill([*given, "--packages", "local.nowhere:nothing_2.13:0.0.1"])
    assert "\n" not in str(caught.value)
    assert "".join(capfd.readouterr()) == ""


def test_the_command_line_of_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has the packages that are named, arguments from the environment, and this interpreter."""
    command = launch.command([], packages=["a:b:1", "c:d:2"], scratch=tmp_path)
    assert command[command.index("--packages") + 1] == "a:b:1,c:d:2"
    assert "--packages" not in launch.command([], scratch=tmp_path)
    monkeypatch.setenv("DEDUP_SPARK_ARGS", "--master 'local[1]'")
    command = launch.command(["--help"], scratch=tmp_path)
    assert command[command.index("--master") + 1] == "local[1]"
    assert command[-1] == "--help"
    assert launch.environment(tmp_path)["PATH"].startswith(str(Path(sys.executable).parent))
