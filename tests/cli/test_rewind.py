"""Arguments that ``dedup rewind`` refuses before asking: a line each, where the client would abort or raise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup

NOT_UTF8 = os.fsdecode(b"\xff")


def refusal(dedup: Dedup, *arguments: str, bootstrap: str = "127.0.0.1:9", group: str = "billing") -> str:
    """The only line of a rewind that is refused as wrong usage."""
    done = dedup(
        "rewind", "--bootstrap", bootstrap, "--group", group, "--topic", "orders", "--to-earliest", *arguments
    )
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("group", ["", " ", NOT_UTF8])
def test_a_group_that_aborts_the_client_is_refused(dedup: Dedup, group: str) -> None:
    """A group's name that is blank or no text ends in a line that names the setting, not in the end of the process."""
    assert "group.id" in refusal(dedup, group=group)


@pytest.mark.parametrize(
    ("setting", "said"), [(f"{NOT_UTF8}.a=1", "is not a file"), (f"client.id={NOT_UTF8}", "not valid UTF-8")]
)
def test_a_setting_that_is_no_text_is_refused(dedup: Dedup, setting: str, said: str) -> None:
    """Names and values that are not UTF-8 never reach the client.

    It dies of a name, and raises without words of a value.
    """
    assert said in refusal(dedup, "--client-config", setting)


def test_the_servers_may_be_in_a_file(dedup: Dedup, tmp_path: Path) -> None:
    """Then no other option names them; without either, or with an empty one, the line names the option to give."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:9\nno.such.setting=hunter2\n")
    arguments = ["rewind", "--group", "billing", "--topic", "orders", "--to-earliest"]
    done = dedup(*arguments, "--client-config", str(file))
    assert (done.status, done.stdout) == (2, "")
    assert "no.such.setting" in done.stderr
    for wrong in ([], ["--bootstrap", ""], ["--bootstrap", " ", "--client-config", str(file)]):
        done = dedup(*arguments, *wrong)
        assert (done.status, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert "no cluster is named; give --bootstrap HOST:PORT" in line


def test_a_bootstrap_that_is_no_text_is_refused(dedup: Dedup) -> None:
    """Bootstrap servers that are not UTF-8 are named as the fault."""
    assert "bootstrap.servers: its value is not valid UTF-8" in refusal(dedup, bootstrap=NOT_UTF8)


@pytest.mark.parametrize(
    "name", ["error_cb", "stats_cb", "throttle_cb", "oauth_cb", "on_commit", "default.topic.config"]
)
def test_what_takes_no_text_is_refused_without_its_value(dedup: Dedup, name: str) -> None:
    """A callback given as text is named, its value is not, and there is no traceback."""
    line = refusal(dedup, "--client-config", f"{name}=hunter2")
    assert f"one of {name} cannot" in line or (name in {"on_commit", "oauth_cb"} and name in line)
    assert "hunter2" not in line


def test_what_only_the_second_client_takes_is_refused_too(dedup: Dedup) -> None:
    """A setting that is ours in the consumer, and wrong in the client that asks for members, is refused alike."""
    assert "enable.auto.commit" in refusal(dedup, "--client-config", "enable.auto.commit=zz")
