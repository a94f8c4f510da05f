from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def test_the_help_is_that_of_the_job(dedup: Dedup) -> None:
    """``dedup backfill --help`` lists the job's options on stdout."""
    done = dedup("backfill", "--help")
    assert done.status == 0
    assert done.stdout.startswith("usage: dedup backfill")
    assert "--assume-processed" in done.stdout


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_exit_status_is_handed_on(dedup: Dedup, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Whatever the job ends with, ``dedup backfill`` ends with, and its arguments arrive as they were given."""
    given: list[str] = []

    def run(arguments: Sequence[str], **_: object) -> int:
        given.extend(arguments)
        return status

    monkeypatch.setattr("spark_backfill.launch.run", run)
    done = dedup("backfill", "--topic", "a b", "--client-config", "x.y=1")
    assert (done.status, done.stderr) == (status, "")
    assert given == ["--topic", "a b", "--client-config", "x.y=1"]
