"""A small history is read without Spark: where that ends, and how it fails."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from dedup_sdk._cli.app import run
from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.errors import ConfigurationError
from spark_backfill import backfill, in_process, launch, unit_ends
from spark_backfill.console import FOLDER
from spark_backfill.ending import EndedError
from spark_backfill.errors import BackfillError
from spark_backfill.in_process import NeedsSparkError
from spark_backfill.options import parse_options
from spark_backfill.progress import Progress
from tests.support.archives import write_parquet
from tests.support.producing import with_ids
from tests.support.spark_cluster import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.brokers import Broker

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
ENDLESS = """
from pathlib import Path
from threading import Event
def wait(record):
    Path(__file__).with_name("at work").touch()
    Event().wait()
"""


@pytest.fixture
def topic(make_topic: Callable[..., str], produce: Callable[..., int]) -> str:
    """Three records of two IDs in one of two partitions."""
    name = make_topic(2)
    produce(name, with_ids("a", "b", "a"))
    return name


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that would have started Spark, by their last argument; they fail."""
    started = list[str]()

    def command(arguments: list[str], **_: object) -> list[str]:
        started.append(arguments[-1])
        raise BackfillError("Spark was to be started")

    monkeypatch.setattr(launch, "command", command)
    return started


def given(broker: Broker, topic: str, output: Path, *more: str) -> list[str]:
    """The options of a run; ``output`` is the last argument."""
    whose = ["--bootstrap", broker.bootstrap, "--topic", topic, "--whole-topic", "--window", "1d"]
    return [*whose, "--id", "header:dedup-id", *more, "--output", str(output)]


def test_a_small_history_starts_no_spark(
    broker: Broker, topic: str, no_spark: list[str], tmp_path: Path
) -> None:
    """The snapshot checks, nothing is left beside it, and progress is told."""
    seen, said = list[Progress](), list[str]()
    report = launch.backfill(given(broker, topic, tmp_path / "s"), say=said.append, watch=seen.append)
    assert (report["records"], report["marks"], report["spark_start_seconds"]) == (3, 2, 0)
    assert said == [f"2 partitions of {topic}, 3 offsets to read"]
    told = [(each.step, each.done, each.tasks, each.read, each.offsets) for each in seen]
    assert list(dict.fromkeys(told)) == [
        ("reading", 0, 1, 0, 3),
        ("reading", 0, 1, 3, 3),
        ("writing", 0, 1, 3, 3),
    ]
    assert [each.marks for each in verify_snapshot(tmp_path / "s").partitions] == [2, 0]
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["0", "manifest.json", "report.json"]
    assert no_spark == []


@pytest.mark.parametrize("large", ["rows", "bytes", "partitions", "report", "order"])
def test_spark_takes_over_what_is_too_large(
    broker: Broker,
    topic: str,
    no_spark: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    large: str,
) -> None:
    """Known before anything is read, or found on the way; nothing is left of the attempt.

    A line that it said is not said again by Spark's job.
    """
    more = {
        "report": ["--report", str(tmp_path / "r")],
        "order": ["--window", "9n"],
    }.get(large, [])
    if large == "rows":
        monkeypatch.setattr(in_process, "MOST_ROWS", 2)
    elif more:
        # Three rows, each of which counts as three.
        monkeypatch.setattr(in_process, "MOST_ROWS", 8)
    elif large == "bytes":
        monkeypatch.setattr(in_process, "MOST_BYTES", 10)
    else:
        monkeypatch.setattr(launch, "MOST_PARTITIONS", 1)
    said, line = list[str](), f"2 partitions of {topic}, 3 offsets to read"
    with pytest.raises(BackfillError, match="Spark was to be started"):
        launch.backfill(given(broker, topic, tmp_path / "s", *more), say=said.append)
    assert no_spark == [str(tmp_path / "s")]
    assert said == ([] if large == "partitions" else [line])
    assert not (tmp_path / "s").exists()
    job = f"import sys; sys.stderr.write('backfill: {line}\\nbackfill: its own\\n'); print('{{}}')"
    monkeypatch.setattr(launch, "command", lambda *_, **__: [sys.executable, "-c", job])
    monkeypatch.setattr(launch, "environment", lambda *_: {"PATH": "/usr/bin:/bin"})
    said.clear()
    assert launch.backfill(given(broker, topic, tmp_path / "s", *more), say=said.append) == {}
    assert said == [line, "its own"]


def test_lines_are_said_at_once(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when all is read, which takes long where a broker is slow."""
    said, before = list[str](), list[list[str]]()
    (tmp_path / "looking.py").write_text("def read(record): look(); return record.offset\n")
    monkeypatch.syspath_prepend(tmp_path)
    looking = importlib.import_module("looking")
    monkeypatch.setattr(looking, "look", lambda: before.append(list(said)), raising=False)
    launch.backfill(given(broker, topic, tmp_path / "s", "--id", "py:looking:read@1"), say=said.append)
    assert before == [[f"2 partitions of {topic}, 3 offsets to read"]] * 3


@pytest.mark.parametrize("way", ["asked", "arguments", "packages", "archive"])
def test_spark_is_used_where_it_is_wanted(
    broker: Broker,
    topic: str,
    no_spark: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    way: str,
) -> None:
    """By the caller, by its arguments or packages, or because an archive is read."""
    more = list[str]()
    if way == "arguments":
        monkeypatch.setenv("DEDUP_SPARK_ARGS", "--conf spark.x=y")
    elif way == "packages":
        more = ["--packages", "a:b:1"]
    elif way == "archive":
        archive = write_parquet(tmp_path / "archive", [Record(topic, 0, 0, 0, key=b"k")])
        more = ["--source", str(archive), "--archive-isolation", "read_committed"]
    with pytest.raises(BackfillError, match="Spark was to be started"):
        launch.backfill(given(broker, topic, tmp_path / "s", *more), on_spark=way == "asked")
    assert no_spark == [str(tmp_path / "s")]


def test_a_run_without_a_session_says_that_it_needs_one(tmp_path: Path) -> None:
    """Where it reads an archive."""
    archive = write_parquet(tmp_path / "archive", [Record("orders", 0, 0, 0, key=b"k")])
    options = parse_options(
        [
            "--source", str(archive), "--archive-isolation", "read_committed", "--topic", "orders", "--whole-topic",
            "--cluster-id", "c", "--topic-id", "t", "--id", "key", "--window", "1d", "--output", str(tmp_path / "s"),
        ],
        pytest.fail,
    )  # fmt: skip
    with pytest.raises(NeedsSparkError):
        backfill.backfill(options, lambda _: in_process.InProcess())
    assert not (tmp_path / "s").exists()


def test_what_is_wrong_is_known_before_spark_starts(no_spark: list[str], tmp_path: Path) -> None:
    """A folder that is not free, and all columns that an archive lacks, in one line."""
    (tmp_path / "archive").mkdir()
    pq.write_table(pa.table({"at": [0], "topic": ["orders"]}), tmp_path / "archive" / "a.parquet")
    arguments = [
        *(
            "--source",
            str(tmp_path / "archive"),
            "--archive-isolation",
            "read_committed",
            "--topic",
            "orders",
        ),
        *(
            "--whole-topic",
            "--cluster-id",
            "c",
            "--topic-id",
            "t",
            "--id",
            "header:dedup-id+key",
            "--window",
            "1d",
        ),
        *("--columns", "key=nope", "--output"),
    ]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(BackfillError, match="full' holds files that are no snapshot"):
        launch.backfill([*arguments, str(tmp_path / "full")])
    with pytest.raises(ConfigurationError) as caught:
        launch.backfill([*arguments, str(tmp_path / "s")])
    told = str(caught.value)
    for part in (
        "no offsets, without which",
        "no column 'partition': say where it stands with --columns partition=COLUMN;",
        "--columns timestamp=COLUMN:ms, or --columns timestamp=- if",
        "no column 'headers': say",
        "no column 'nope', where --columns says that key stands",
        "it has at, topic",
    ):
        assert part in told
    assert no_spark == []


HASTY = """
import sys
from spark_backfill import launch
from spark_backfill.errors import BackfillError
try:
    launch.backfill(sys.argv[1:])
except BackfillError as error:
    print(error, "pyspark" in sys.modules, sep="|")
"""
WRONG = (
    "--bootstrap",
    "no-such-host.invalid:1",
    "--topic",
    "t",
    "--whole-topic",
    "--id",
    "key",
    "--window",
    "1d",
)


@pytest.mark.parametrize(
    ("full", "says"),
    [
        (True, "full' holds files that are no snapshot: choose an empty or a new folder"),
        (False, "no broker answers at no-such-host.invalid:1 within 3 s"),
    ],
    ids=["full", "unknown"],
)
def test_a_wrong_place_is_told_before_spark_is_loaded(tmp_path: Path, *, full: bool, says: str) -> None:
    """A full folder before any broker is asked; an unknown host after the time that a broker takes to start.

    To load pyspark takes as long as all else.
    """
    folder = tmp_path / "full"
    folder.mkdir()
    if full:
        (folder / "a").touch()
    asked = subprocess.run(
        [sys.executable, "-c", HASTY, *WRONG, "--output", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    told, loads_spark = asked.stdout.rsplit("|", 1)
    assert says in told
    assert loads_spark.strip() == "False"


def test_its_errors_are_one_line(broker: Broker, topic: str, no_spark: list[str], tmp_path: Path) -> None:
    """As those of Spark's driver."""
    with pytest.raises(BackfillError, match=r"^topic 'no-such-topic' does not exist at "):
        launch.backfill(given(broker, "no-such-topic", tmp_path / "s"))
    launch.backfill(given(broker, topic, tmp_path / "s"))
    with pytest.raises(BackfillError, match="holds a snapshot: choose another, or give --overwrite"):
        launch.backfill(given(broker, topic, tmp_path / "s"))
    with pytest.raises(ConfigurationError, match="'soon'"):
        launch.backfill(given(broker, topic, tmp_path / "t", "--window", "soon"))
    assert no_spark == []


@pytest.mark.parametrize("raised", ["SystemExit(0)", "Odd('x')"])
def test_no_function_of_users_ends_the_command_silently(
    broker: Broker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    raised: str,
) -> None:
    """Status 0 says that the snapshot is there."""
    name = f"raising_{'odd' if 'Odd' in raised else 'exit'}"
    (tmp_path / f"{name}.py").write_text(f"class Odd(BaseException): ...\ndef read(record): raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["backfill", *given(broker, topic, tmp_path / "s", "--id", f"py:{name}:read@1")]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert (
        last
        == f"dedup: a function that reads IDs raised {raised.partition('(')[0]}: it must raise an Exception"
    )
    assert not (tmp_path / "s").exists()


def test_a_function_that_prints_spoils_no_report(
    broker: Broker,
    topic: str,
    no_spark: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither when its module is imported nor when it reads: stdout has the JSON alone."""
    (tmp_path / "talking.py").write_text(
        "print('imported')\ndef read(record):\n    print('read')\n    return record.offset\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    capfd.readouterr()
    assert (
        run(["backfill", *given(broker, topic, tmp_path / "s", "--id", "py:talking:read@1"), "--json"]) == 0
    )
    out, err = capfd.readouterr()
    assert json.loads(out)["records"] == 3
    lines = err.splitlines()
    assert (lines.count("imported"), lines.count("read"), no_spark) == (1, 3, [])


def test_files_that_settings_name_are_found_from_the_folder_of_the_command(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Spark's job too, which is started elsewhere; what is not here, or no file, stays as it is."""
    passed = list[str]()

    def command(arguments: Sequence[str], **_: object) -> list[str]:
        passed.extend(arguments)
        raise BackfillError("Spark was to be started")

    monkeypatch.setattr(launch, "command", command)
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "own.pem", "me"):
        Path(name).touch()
    Path("client.properties").write_text(
        "ssl.ca.location=ca.pem\nssl.key.location=elsewhere.pem\nclient.id=me\n"
    )
    more = ["--client-config", "client.properties", "--client-config", "ssl.certificate.location=own.pem"]
    arguments = given(broker, topic, tmp_path / "s", *more)
    with pytest.raises(BackfillError, match="Spark was to be started"):
        launch.backfill(arguments, on_spark=True)
    # As the job does, which enters that folder first.
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert parse_options(passed, pytest.fail).client_config == {
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "own.pem"),
        "ssl.key.location": "elsewhere.pem",
        "client.id": "me",
    }


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "dedup: interrupted; no snapshot was written"),
        (signal.SIGTERM, 143, "dedup: ended by SIGTERM; no snapshot was written"),
        (signal.SIGHUP, 129, "dedup: ended by SIGHUP; no snapshot was written"),
    ],
)
def test_it_ends_in_order(
    broker: Broker, topic: str, tmp_path: Path, number: signal.Signals, status: int, line: str
) -> None:
    """While an ID is read that is never found: one line, the status that shells expect, no file is left."""
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "endless.py").write_text(ENDLESS)
    arguments = given(broker, topic, place / "snapshot", "--id", "py:endless:wait@1")
    process = subprocess.Popen(
        [sys.executable, "-m", "dedup_sdk._cli", "backfill", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "DEDUP_SPARK_ARGS": "", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    wait_for((tmp_path / "at work").exists, 60)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert err.splitlines()[-1] == line
    assert list(place.iterdir()) == []


def test_a_topic_of_aborted_records_has_no_marks(
    broker: Broker, make_topic: Callable[..., str], no_spark: list[str], tmp_path: Path
) -> None:
    """Its offsets are read, and give no record."""
    name = make_topic(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"x", headers={"dedup-id": b"a"})
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    for more in (["--window", "9n"], ["--add"]):
        report = launch.backfill(given(broker, name, tmp_path / more[-1], *more))
        assert (report["records"], report["marks"], no_spark) == (0, 0, [])
        assert [each.high for each in verify_snapshot(tmp_path / more[-1]).partitions] == [2]


def test_a_small_night_for_a_large_snapshot_is_small(
    broker: Broker,
    topic: str,
    produce: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_spark: list[str],
) -> None:
    """The marks of files that stay are not read."""
    launch.backfill(given(broker, topic, tmp_path / "s", "--add"))
    produce(topic, with_ids("c"))
    monkeypatch.setattr(in_process, "MOST_ROWS", 1)
    report = launch.backfill(given(broker, topic, tmp_path / "s", "--add"))
    assert (report["records"], report["base_marks"], report["marks"], no_spark) == (1, 2, 3, [])


def test_a_small_snapshot_is_compacted_without_spark(
    broker: Broker, topic: str, no_spark: list[str], tmp_path: Path
) -> None:
    """And without a broker."""
    launch.backfill(given(broker, topic, tmp_path / "s"))
    report = launch.backfill(["--base", str(tmp_path / "s"), "--compact", "--output", str(tmp_path / "t")])
    assert (report["base_marks"], report["marks"], no_spark) == (2, 2, [])


def test_an_end_inside_of_a_failure_is_an_end(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where files cannot be removed on the way out."""

    def fail(*_: object, **__: object) -> None:
        error = OSError("cannot be removed")
        error.__context__ = EndedError(signal.SIGINT)
        raise error

    monkeypatch.setattr("spark_backfill.backfill.backfill", fail)
    with pytest.raises(EndedError):
        launch.backfill(given(broker, topic, tmp_path / "s"))


def test_a_reader_of_lines_that_goes_away_costs_no_snapshot(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """As ``| head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    arguments = given(broker, topic, tmp_path / "s")
    process = subprocess.run(
        [sys.executable, "-m", "dedup_sdk._cli", "backfill", *arguments, "--json"],
        stdout=subprocess.PIPE, stderr=writing, timeout=120, check=False,
        env={**os.environ, "DEDUP_SPARK_ARGS": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(writing)
    assert [each.marks for each in verify_snapshot(tmp_path / "s").partitions] == [2, 0]
    assert process.returncode in (0, 1)


def test_another_thread_may_run_it(broker: Broker, topic: str, no_spark: list[str], tmp_path: Path) -> None:
    """Where no signal can be handled."""
    found = list[int]()
    thread = threading.Thread(
        target=lambda: found.append(launch.backfill(given(broker, topic, tmp_path / "s"))["marks"])
    )
    thread.start()
    thread.join(60)
    assert (found, no_spark) == ([2], [])


@pytest.mark.parametrize(
    ("size", "held_back", "marks", "says"),
    [
        (b"2", 100, 60, ""),
        (b"x", 100, 58, "partition 0: a unit with the record at offset 31 is malformed or has no end"),
        (
            b"3",
            100,
            30,
            "the history of 1 partition ends early, at a unit that is open, at most that of partition 0",
        ),
        (b"3", 10, 58, "partition 0: a unit with the record at offset 31 is malformed or has no end"),
    ],
    ids=["whole", "malformed", "open", "open for long"],
)
def test_a_unit_that_fails_is_told(
    broker: Broker,
    make_topic: Callable[..., str],
    no_spark: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    size: bytes,
    held_back: int,
    marks: int,
    says: str,
) -> None:
    """One line has its offset, and what is not known because of it."""
    monkeypatch.setattr(unit_ends, "MOST_HELD_BACK", held_back)
    name, said = make_topic(1), list[str]()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for row in range(60):
        unit = row // 2
        headers: dict[str, str | bytes | None] = {
            "dedup-id": b"%d" % row, "dedup-unit": b"%d" % unit, "dedup-unit-size": size if row == 31 else b"2",
        }  # fmt: skip
        if size == b"3" and row == 30:
            headers["dedup-unit-size"] = size
        producer.produce(name, b"", headers=headers, partition=0, timestamp=1_700_000_000_000 + row)
    assert producer.flush(30) == 0
    report = launch.backfill(
        given(broker, name, tmp_path / "s", "--unit", "header:dedup-unit"),
        say=said.append,
        watch=lambda _: None,
    )
    assert report["marks"] == marks
    told = [line for line in said if line.startswith("warning: ")]
    assert len(told) == bool(says)
    assert all(says in line for line in told)
    assert no_spark == []
