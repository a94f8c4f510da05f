from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from dedup_sdk._cli.app import app
from dedup_sdk.errors import ConfigurationError
from spark_backfill.errors import BackfillError
from spark_backfill.options import job_parser
from spark_backfill.report import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.cli.conftest import Dedup


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"--window": "0d"}, "window of zero"),
        ({"--id": "no-such-spec"}, "no-such-spec"),
        ({"--topic": ""}, "--topic is empty"),
        ({"--no-such-option": "1"}, "--no-such-option"),
    ],
)
def test_wrong_options_are_status_2_and_one_line(dedup: Dedup, changed: dict[str, str], named: str) -> None:
    """The job's own parser speaks: status 2, one line that names the value, and no Spark is started for it."""
    options = {
        "--bootstrap": "h:1",
        "--topic": "t",
        "--id": "key",
        "--window": "7d",
        "--output": "o",
        "--group": "g",
    } | changed
    done = dedup("backfill", *(text for option in options.items() for text in option))
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert named in line


def test_the_help_has_every_option_of_the_job(dedup: Dedup) -> None:
    """``dedup backfill --help`` has the examples, the exit statuses, and each option that the job's parser takes."""
    done = dedup("backfill", "--help")
    assert done.status == 0
    assert "    dedup backfill --bootstrap" in done.stdout
    assert "143" in done.stdout
    assert "129" in done.stdout
    shown = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE))
    of_job = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", job_parser().format_help(), re.MULTILINE))
    assert shown == of_job | {"--json", "--quiet"}


@pytest.mark.parametrize("arguments", [["-h"], ["--no-such-option", "--help"], ["--topic", "--help"]])
def test_the_help_is_shown_whatever_else_is_given(dedup: Dedup, arguments: list[str]) -> None:
    """A line that is not finished yet is no error where the help is asked for."""
    assert dedup("backfill", *arguments) == dedup("backfill", "--help")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ([], "--topic, --id, --window, --output"),
        (["--topic", "t", "--id", "key", "--window", "7d"], "--output"),
        (["--output", "o", "--id", "key"], "--topic, --window"),
    ],
)
def test_what_is_missing_is_said(dedup: Dedup, arguments: list[str], missing: str) -> None:
    """All of it in one line."""
    done = dedup("backfill", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert (
        done.stderr == f"dedup: the following arguments are required: {missing}; see dedup backfill --help\n"
    )


REPORT = {
    "output": "/data/snapshot", "cluster": "c", "topic": "orders", "group": "billing", "vouched": False,
    "id_spec": "key",
    "window": "7d", "partitions": 4, "sources": ["kafka"], "base": None, "base_marks": 0, "known_since_ms": None,
    "skipped": {"3": "without a commit"}, "offsets": 345_600, "records": 345_510, "unkeyed": 3, "marks": 336_776,
    "layers": 1, "files": 8,
    "bytes": 11_796_480, "filter_bytes": 1_048_576, "fingerprint": "f", "spark_start_seconds": 5.21, "seconds": 200.4,
    "records_per_second": 1724.1,
    "keyless": 0, "moved": 0, "malformed": 0, "duplicates_or_expired": 8_731,
}  # fmt: skip
SUMMARY = """\
snapshot    /data/snapshot
topic       orders, 4 partitions, history of group billing
left out    partition 3: without a commit
records     345,510 from kafka, 3 without an ID
IDs         336,776
duplicates  8,731, with records that the window does not reach
size        12 MiB, 1.0 MiB of it filters, 8 files
time        3 min 20 s, and 5 s for the start of Spark; 1,724 records/s
"""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of the job, in whose place stands one that says a line and makes a report."""
    arguments: list[str] = []

    def backfill(passed: Sequence[str], *, say: Callable[[str], None], **_: object) -> dict[str, object]:
        arguments.extend(passed)
        say("4 partitions of orders, 345,600 offsets to read")
        return REPORT

    monkeypatch.setattr("spark_backfill.launch.backfill", backfill)
    return arguments


def test_a_person_gets_a_summary(dedup: Dedup, given: list[str]) -> None:
    """On stderr, in units for people, behind the lines of the job, whose arguments arrive as they were given."""
    done = dedup("backfill", "--topic", "a b", "--client-config", "x.y=1")
    assert (done.status, done.stdout) == (0, "")
    assert done.stderr == f"backfill: 4 partitions of orders, 345,600 offsets to read\n{SUMMARY}"
    assert given == ["--topic", "a b", "--client-config", "x.y=1"]


def test_a_program_gets_the_report(dedup: Dedup, given: list[str]) -> None:
    """As one line of JSON on stdout; the options for that, and to be quiet, are not the job's."""
    done = dedup("backfill", "--json", "--topic", "a b", "-q")
    assert (done.status, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == REPORT
    assert given == ["--topic", "a b"]


def test_an_id_of_several_layers_is_counted_in_each() -> None:
    """The summary says so."""
    (line,) = (line for line in summary({**REPORT, "layers": 2}) if line.startswith("IDs"))
    assert line.endswith("336,776, some in several layers")


def test_a_missing_figure_has_no_line() -> None:
    """Of a run without a group, over a base alone, that counts no duplicates."""
    lines = summary({**REPORT, "skipped": {}, "duplicates_or_expired": None, "group": None, "sources": []})
    assert lines[1:3] == [
        "topic       orders, 4 partitions, history of no single group",
        "records     345,510 from the base, 3 without an ID",
    ]
    assert not any(line.startswith(("left out", "duplicates")) for line in lines)


@pytest.mark.parametrize(("error", "status"), [(BackfillError, 1), (ConfigurationError, 2)])
def test_a_failed_job_is_one_line(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int
) -> None:
    """With the status of its kind, also where JSON was asked for; texts like a secret are masked."""

    def backfill(*_: object, **__: object) -> None:
        raise error("no snapshot at s3://key:hunter2@bucket")

    monkeypatch.setattr("spark_backfill.launch.backfill", backfill)
    done = dedup("backfill", "--json")
    assert (done.status, done.stdout) == (status, "")
    assert done.stderr == "dedup: no snapshot at s3://***@bucket\n"


def test_options_are_completed(dedup: Dedup) -> None:
    """A shell is offered the options of the job and the command's own."""
    command = get_command(app).commands["backfill"]  # type: ignore[attr-defined]  # a group, because it has commands
    context = command.make_context("backfill", [], resilient_parsing=True)
    offered = {each.value for each in command.shell_complete(context, "--")}
    assert {"--topic", "--client-config", "--json", "--quiet", "--help"} <= offered
    assert [each.value for each in command.shell_complete(context, "--unit-rec")] == ["--unit-records"]
    assert all(each.help for each in command.shell_complete(context, "--"))
    assert offered <= set(re.findall(r"--[a-z-]+", dedup("backfill", "--help").stdout))
