from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dedup_sdk._window import Window
from spark_backfill.options import parse_options
from tests.docs.test_commands import check_spark_submit
from tests.support.naive_fold import Row, digest_of
from tests.support.pages import ROOT
from tests.support.rebuilding import rebuild

PAGE = (ROOT / "docs" / "spark-clusters.md").read_text(encoding="utf-8")
OPTIONS = {
    "archives": "--archives", "executor_cores": "--executor-cores", "executor_memory": "--executor-memory",
    "num_executors": "--num-executors", "packages": "--packages", "name": "--name",
}  # fmt: skip
"""The option of spark-submit for each of the operator's arguments, as its provider (version 5) makes it."""
OF_AIRFLOW = {
    "task_id",
    "conn_id",
    "retries",
    "retry_delay",
    "env_vars",
    "application",
    "application_args",
    "conf",
}


class Dag:
    """Stand-in for Airflow's DAG."""

    def __init__(self, dag_id: str, **settings: Any) -> None:
        assert dag_id
        assert set(settings) == {"schedule", "start_date", "catchup", "max_active_runs"}

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Operator:
    """Stand-in for the operator: it knows the words that follow ``spark-submit`` on its command line."""

    made: list[Operator]

    def __init__(self, **given: Any) -> None:
        assert set(given) <= OF_AIRFLOW | set(OPTIONS)
        self.given = given
        self.made.append(self)

    def words(self) -> list[str]:
        """The command line after ``spark-submit --master …``."""
        words = [word for name, value in self.given["conf"].items() for word in ("--conf", f"{name}={value}")]
        for name, option in OPTIONS.items():
            if name in self.given:
                words += [option, str(self.given[name])]
        return [*words, self.given["application"], *self.given["application_args"]]


def operators(source: str, monkeypatch: pytest.MonkeyPatch) -> list[Operator]:
    """Run a DAG's file against the stand-ins, and return its operators."""
    Operator.made = []
    parts = ["airflow", "providers", "apache", "spark", "operators", "spark_submit"]
    modules = {".".join(parts[:n]): ModuleType(parts[n - 1]) for n in range(1, len(parts) + 1)}
    modules["airflow.sdk"] = ModuleType("sdk")
    vars(modules["airflow.sdk"])["DAG"] = Dag
    vars(modules[".".join(parts)])["SparkSubmitOperator"] = Operator
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, "dag.py", "exec"), {})  # noqa: S102 (the page's own text)
    return Operator.made


def test_the_dag_submits_a_command_that_the_job_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DAG runs, and spark-submit and the job's parser take the operator's arguments as they stand."""
    [source] = re.findall(r"^```python\n(# dags/.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [operator] = operators(source, monkeypatch)
    snapshot, config = tmp_path / "snapshot", tmp_path / "client.properties"
    rebuild([Row(0, 0, 1, digest_of("a"))], Window(days=1), snapshot, high=1)
    config.write_text("bootstrap.servers=kafka:9092\nsasl.password=${env:KAFKA_PASSWORD}\n", encoding="ascii")
    for name in operator.given["env_vars"]:
        monkeypatch.setenv(name, "secret")
    moved = {
        "s3://bucket/snapshot": str(snapshot),
        "/srv/dedup/client.properties": str(config),
        "/srv/dedup/job.py": "spark_backfill/job.py",
    }
    words = [moved.get(word, word) for word in operator.words()]
    check_spark_submit(words)
    job = parse_options(words[words.index("spark_backfill/job.py") + 1 :], pytest.fail)
    assert job.base == str(snapshot)
    assert "secret" not in " ".join(words)


def test_a_misspelt_option_of_the_dag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that the operator, or the job, does not have fails the test above."""
    [source] = re.findall(r"^```python\n(# dags/.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with pytest.raises(AssertionError):
        operators(source.replace("executor_memory=", "executor_memroy="), monkeypatch)
    [operator] = operators(source.replace('"--add"', '"--adad"'), monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        check_spark_submit(["spark_backfill/job.py", *operator.words()[-11:]])
