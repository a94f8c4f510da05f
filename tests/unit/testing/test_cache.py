from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dedup_sdk.testing._cache import cache_folder, filled_once, is_complete


def _write_one(folder: Path) -> None:
    (folder / "a.jar").write_text("content")


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    """A filled folder is not filled again."""
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        _write_one(folder)

    first = filled_once(tmp_path / "jars", fill)
    second = filled_once(tmp_path / "jars", fill)

    assert first == second == tmp_path / "jars"
    assert len(calls) == 1
    assert (first / "a.jar").read_text() == "content"


@pytest.mark.parametrize("harm", ["removed", "shortened", "added"], ids=str)
def test_a_folder_that_changed_is_filled_again(tmp_path: Path, harm: str) -> None:
    """A cache from which something was lost is not trusted."""
    folder = filled_once(tmp_path / "jars", _write_one)
    if harm == "removed":
        (folder / "a.jar").unlink()
    elif harm == "shortened":
        (folder / "a.jar").write_text("c")
    else:
        (folder / "b.jar").write_text("?")
    assert not is_complete(folder)

    filled_once(folder, _write_one)

    assert is_complete(folder)
    assert {path.name for path in folder.glob("*.jar")} == {"a.jar"}


def test_a_failed_filling_leaves_nothing(tmp_path: Path) -> None:
    """After a failed download there is no folder that looks like a finished one."""

    def fill(folder: Path) -> None:
        _write_one(folder)
        raise RuntimeError("network")

    with pytest.raises(RuntimeError, match="network"):
        filled_once(tmp_path / "jars", fill)

    assert [path.name for path in tmp_path.iterdir()] == ["jars.lock"]


FILLER = """
import sys, time
from pathlib import Path
from dedup_sdk.testing._cache import filled_once
def fill(folder):
    print("filled", flush=True)
    time.sleep(0.3)  # the other process comes while this one is at it: there is no event for a wait on a lock
    (folder / "a.jar").write_text("content")
filled_once(Path(sys.argv[1]), fill)
"""


def test_two_processes_fill_a_folder_once(tmp_path: Path) -> None:
    """Two test runs that start together download once, and both find all of it."""
    command = [sys.executable, "-c", FILLER, str(tmp_path / "jars")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in running]

    assert [process.returncode for process in running] == [0, 0]
    assert "".join(said) == "filled\n"


def test_the_cache_is_where_it_is_asked_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEDUP_CACHE goes before XDG_CACHE_HOME, which goes before the home directory."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.delenv("DEDUP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "dedup"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "dedup"

    monkeypatch.setenv("DEDUP_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
