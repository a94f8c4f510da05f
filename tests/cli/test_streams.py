"""The command as a process whose standard streams are closed or cannot write every character."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._marks import Marks
from dedup_sdk.ids import digest_one
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import WriteStore


def started(*arguments: str, closing: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``dedup`` with streams closed by the shell (``>&-``)."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", "dedup_sdk._cli", *arguments],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("stats", "--store", "STORE"), 0),
        (("dump", "--store", "STORE", "--topic", "orders", "--partition", "0"), 0),
        (("lookup", "--store", "STORE", "--topic", "orders", "a"), 0),
        (("lookup", "--store", "STORE", "--topic", "orders", "nowhere", "--json"), 1),
        (("--help",), 0),
        (("backfill", "--help"), 0),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else None,
)
def test_a_closed_stdout_changes_nothing_but_the_output(
    write_store: WriteStore, arguments: tuple[str, ...], status: int
) -> None:
    """The exit status is the usual one, and stderr has no more than usual."""
    store = str(write_store("a", "b"))
    line = [store if each == "STORE" else each for each in arguments]
    usual, done = started(*line), started(*line, closing=">&-")
    assert usual.stdout
    assert (done.returncode, done.stderr) == (status, usual.stderr)


def test_a_restore_whose_end_nobody_hears_has_succeeded(tmp_path: Path) -> None:
    """With a closed stdout the store is there, and the exit status says so."""
    mark = Marks(digest_one(b"a"), np.array([0], np.int64), np.array([5], np.int64))
    snapshot = write_snapshot(tmp_path / "snapshot", {0: mark})
    done = started(
        "restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "out"), closing="<&- >&-"
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "out").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("closing", ["2>&-", "<&- >&- 2>&-"])
def test_a_closed_stderr_leaves_the_status(tmp_path: Path, closing: str) -> None:
    """An error that nobody can read is told by the exit status."""
    done = started("stats", "--store", str(tmp_path / "nowhere"), closing=closing)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_stdout_without_the_characters_gets_escapes(write_store: WriteStore) -> None:
    """A group's name that ASCII lacks is shown with escapes, and the table is there."""
    store = str(write_store("a", "b", group="grüppe"))
    done = started("stats", "--store", store, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gr\\xfcppe" in done.stdout
