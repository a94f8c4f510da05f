"""The job is a guest of the user's Spark: its settings, logs and UI stay, and the job says what runs.

Every test here is also run with the oldest and the newest PySpark that the package allows (`make smoke`).
"""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.errors import ConfigurationError, DedupError
from spark_backfill import launch
from spark_backfill.column_map import parse_columns
from spark_backfill.json_lines import check_exact_text
from spark_backfill.offset_range import spans
from spark_backfill.session import DEFAULTS, FIXED, chosen, make_session
from spark_backfill.user_settings import user_settings
from tests.support.archives import write_json_lines, write_parquet

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]
ROOT = Path(__file__).parents[2]
BASE_MS = 1_700_000_000_000
ARGUMENTS = [
    "--topic", "orders", "--id", "key", "--window", "1d", "--whole-topic", "--cluster-id", "c", "--topic-id", "t",
    "--archive-isolation", "read_committed",
]  # fmt: skip
DEFAULTS_FILE = """\
spark.app.name                      nightly
spark.sql.shuffle.partitions        7
spark.sql.session.timeZone        = Europe/Berlin
spark.sql.ansi.enabled              false
spark.sql.adaptive.enabled:true
spark.driver.extraJavaOptions       -Dtheirs=yes
spark.eventLog.enabled              true
spark.eventLog.compress             false
spark.eventLog.dir                  {events}
"""
LOGS = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = theirs %p %c{1}: %m%n
"""


class Ran(NamedTuple):
    """A run with a user's configuration: what it said, and the events that Spark logged of it."""

    stdout: str
    stderr: str
    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [each for each in self.events if each["Event"].endswith(kind)]

    @property
    def properties(self) -> Mapping[str, str]:
        """Spark's settings as its UI shows them."""
        [found] = self.of("EnvironmentUpdate")
        return {**found["Spark Properties"], **found["System Properties"]}


def records() -> list[Record]:
    """Two partitions, three IDs; one record has none."""
    keys = [b"a", b"b", b"a", None, b"c", b"a"]
    return [Record("orders", n % 2, n // 2, BASE_MS + n * 60_000, key=key) for n, key in enumerate(keys)]


def configured(folder: Path) -> tuple[Path, Path]:
    """A user's folder of configuration, and the folder where Spark logs its events."""
    conf, events = folder / "conf", folder / "events"
    conf.mkdir()
    events.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS_FILE.format(events=events.as_uri()), encoding="ascii")
    (conf / "log4j2.properties").write_text(LOGS, encoding="ascii")
    return conf, events


def submit(
    conf: Path, folder: Path, *arguments: str, settings: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run spark-submit with a user's configuration."""
    try:
        variables = launch.environment(folder) | {"SPARK_CONF_DIR": str(conf)}
    except DedupError as error:
        pytest.skip(str(error))
    command = ["spark-submit", *settings, str(ROOT / "spark_backfill" / "job.py"), *ARGUMENTS, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=variables
    )


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run by spark-submit, with settings of the user in spark-defaults.conf and on the command line."""
    folder = tmp_path_factory.mktemp("guest")
    conf, events = configured(folder)
    write_parquet(folder / "archive", records())
    done = submit(
        conf, folder, "--source", str(folder / "archive"), "--output", str(folder / "snapshot"),
        settings=("--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=999"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert sum(each.marks for each in verify_snapshot(folder / "snapshot").partitions) == 4
    return Ran(done.stdout, done.stderr, list(logged(events)))


def logged(folder: Path) -> list[dict[str, Any]]:
    """The events of the one application that logged there, in a file or (Spark 4) in a folder of files."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "appstatus"))
    )
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_users_settings_win(submitted: Ran) -> None:
    """Those of the command line and of spark-defaults.conf, where the job has defaults of its own, too."""
    found = submitted.properties
    assert found["spark.sql.execution.arrow.maxRecordsPerBatch"] == "999"
    assert found["spark.sql.shuffle.partitions"] == "7"
    assert found["spark.sql.adaptive.enabled"] == "true"
    assert found["spark.app.name"] == "nightly"
    assert found["theirs"] == "yes"
    assert "spark.ui.enabled" not in found
    assert "spark.log.level" not in found


def test_logs_stay_as_they_are_configured(submitted: Ran) -> None:
    """Spark's logs go on after the session was made, in the user's layout."""
    assert "theirs INFO DAGScheduler" in submitted.stderr
    assert json.loads(submitted.stdout.splitlines()[-1])["marks"] == 4


def test_a_setting_that_stays_is_told(submitted: Ran) -> None:
    """Results depend on them, so that the user's are not used, and a line says so."""
    said = [line for line in submitted.stderr.splitlines() if line.startswith("backfill: ")]
    assert "backfill: spark.sql.session.timeZone=Europe/Berlin is not used: the job needs UTC" in said
    assert "backfill: spark.sql.ansi.enabled=false is not used: the job needs true" in said


def test_spark_says_what_runs(submitted: Ran) -> None:
    """Every job has a group and a description, which Spark's UI shows of its stages, too."""
    told = [each["Properties"] for each in submitted.of("JobStart")]
    assert {each["spark.jobGroup.id"] for each in told} == {"dedup backfill orders"}
    steps = dict.fromkeys(each["spark.job.description"] for each in told)
    assert list(steps) == ["look through the archive of orders", "read orders[0-1]; fold and write marks"]


def test_the_driver_logs_the_totals(submitted: Ran) -> None:
    """Records, IDs, duplicates, records without an ID and bytes, at the end, for those who read the driver's log."""
    said = [line.split(maxsplit=2) for line in submitted.stderr.splitlines() if line.startswith("backfill: ")]
    told = {words[1]: words[2] for words in said}
    assert told["records"].startswith("6 from ")
    assert told["records"].endswith(", 1 without an ID")
    assert told["IDs"] == "4"
    assert told["duplicates"].startswith("1, ")
    assert told["size"].endswith(" files")


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 5, 7, 8, 9], "0,2-3,5,7-9")]
)
def test_spans(numbers: list[int], text: str) -> None:
    """Numbers that follow each other are one word."""
    assert spans(numbers) == text


def test_the_launcher_keeps_the_users_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dedup backfill` on one machine: spark-defaults.conf counts before the launcher's own choices."""
    conf, events = configured(tmp_path)
    with (conf / "spark-defaults.conf").open("a", encoding="ascii") as file:
        file.write("spark.ui.enabled true\nspark.ui.port 0\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    monkeypatch.setenv("DEDUP_SPARK_ARGS", "--conf spark.sql.shuffle.partitions=3")
    archive = tmp_path / "archive.jsonl"
    write_json_lines(archive, records())
    report = launch.backfill([
        *ARGUMENTS, "--source", str(archive), "--format", "json", "--output", str(tmp_path / "snapshot"),
        "--columns", "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64",
    ])  # fmt: skip
    assert report["marks"] == 4
    found = Ran("", "", logged(events)).properties
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.app.name"] == "nightly"
    assert found["theirs"] == "yes"


def test_a_task_that_fails_is_seen_from_outside(tmp_path: Path) -> None:
    """In client mode by spark-submit's exit status, in any mode by the missing manifest.

    The task fails although the user's Spark would read the text, which is no time, as null.
    """
    conf, _ = configured(tmp_path)
    odd = {"topic": "orders", "partition": 0, "offset": 6, "ts": "soon", "key": "YQ=="}
    archive, output = tmp_path / "archive.jsonl", tmp_path / "snapshot"
    archive.write_text(json.dumps(odd) + "\n", encoding="ascii")
    done = submit(
        conf, tmp_path, "--source", str(archive), "--format", "json", "--output", str(output),
        "--columns", "timestamp=ts:iso,key=key:base64,value=-",
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "backfill: error: the archive has the value 'soon', which cannot be read as TIMESTAMP" in done.stderr
    )
    assert not (output / "manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "master"),
    [
        ("", "spark://defaults:7077"),
        ("--conf spark.master=yarn", "yarn"),
        ("-c spark.master=yarn", "yarn"),
        ("--master k8s://x --conf spark.master=yarn", "k8s://x"),
        ("--properties-file OTHER", "spark://other:7077"),
        ("--properties-file EMPTY", "local[*]"),
        ("--properties-file EMPTY --load-spark-defaults", "spark://defaults:7077"),
        ("--archives environment.zip#environment --driver-java-options -client", "spark://defaults:7077"),
    ],
)
def test_the_master_is_found_where_the_user_named_it(
    arguments: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, in a file of properties, or in spark-defaults.conf, in Spark's own order."""
    files = {"spark-defaults.conf": "defaults", "OTHER": "other", "EMPTY": ""}
    for name, host in files.items():
        text = f"# spark.master local\n  spark.master=spark://{host}:7077\n" if host else ""
        (tmp_path / name).write_text(text, encoding="ascii")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    words = [str(tmp_path / word) if word in files else word for word in arguments.split()]
    assert user_settings(words)["spark.master"] == master


def test_on_a_cluster_the_launcher_leaves_the_driver_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its address nor its logs, UI and Java options are set where the master is another machine."""
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://master:7077\n", encoding="ascii")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/theirs/python3")
    line = launch.command([], scratch=tmp_path)
    settings = [word.partition("=")[0] for before, word in pairwise(line) if before == "--conf"]
    assert settings == ["spark.jars.ivy", "spark.pyspark.driver.python"]
    assert "--driver-java-options" not in line
    variables = launch.environment(tmp_path)
    assert variables["PYSPARK_PYTHON"] == "/theirs/python3"
    assert "SPARK_LOCAL_IP" not in variables


@pytest.mark.parametrize(
    "columns", ["key=k:base64", "key=k:base64,value=v", "value=v:hex,key=-", "key=-,value=-"]
)
def test_json_lines_need_a_spark_that_keeps_their_text(columns: str) -> None:
    """Before Spark 4 a number is written anew, and with it the ID: only coded keys and values are read there."""
    places = parse_columns([columns])
    if "value=v" in columns.split(","):
        with pytest.raises(ConfigurationError, match=r"Spark 3\.5\.9 changes numbers .* value=v:base64"):
            check_exact_text("3.5.9", places, ("key", "value"))
    else:
        check_exact_text("3.5.9", places, [name for name in ("key", "value") if name in columns])
    check_exact_text("4.0.0", places, ("key", "value"))


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark is reached by Connect, as on serverless compute, one line says so."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="Spark Connect, which has no SparkContext"):
        make_session({}, pytest.fail)


def test_what_is_chosen() -> None:
    """The user's settings before our defaults, ours before the user's where results depend on them."""
    given = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.ansi.enabled": "TRUE",
        "spark.app.name": "job.py",
    }
    settings, told = chosen(given, {"spark.sql.adaptive.enabled": "x", "more": "1"}, program="/a/job.py")
    assert settings == {
        **{name: value for name, value in DEFAULTS.items() if name != "spark.sql.adaptive.enabled"},
        **FIXED,
        "more": "1",
    }
    assert settings["spark.app.name"] == "dedup backfill"
    assert told == []


def test_only_the_console_reaches_behind_the_public_interface() -> None:
    """Names of PySpark's that may be gone in its next version are used where no public way exists, which is said."""
    inner = re.compile(r"\b_(?:jvm|jsc|jdf|jsparkSession|gateway|ensure_initialized)\b")
    modules = (ROOT / "spark_backfill").rglob("*.py")
    assert {path.name for path in modules if inner.search(path.read_text(encoding="utf-8"))} == {"console.py"}
