"""A snapshot's folder: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_backfill import output as output_module
from spark_backfill.errors import BackfillError
from spark_backfill.output import Output, check_output
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot, SlotPlan


def published(target: Path, text: str, *, overwrite: bool = False) -> None:
    """Publish a snapshot whose manifest is this text."""
    with Output(target, overwrite=overwrite) as output:
        (output.folder / "manifest.json").write_text(text)
        output.publish()


def test_a_snapshot_appears_at_once(tmp_path: Path) -> None:
    """Before it is published nothing is at its place.

    Afterwards all of it is, private to the user, and nothing beside it.
    """
    target = tmp_path / "deep" / "snapshot"
    with Output(target, overwrite=False) as output:
        (output.folder / "manifest.json").write_text("new")
        assert not target.exists()
        output.publish()
    assert (target / "manifest.json").read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o700
    assert list(target.parent.iterdir()) == [target]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """A folder that was made beforehand is used."""
    target = tmp_path / "snapshot"
    target.mkdir()
    published(target, "new")
    assert (target / "manifest.json").read_text() == "new"


def test_a_link_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """The rename would take the link's place, on a disk that nobody chose."""
    (tmp_path / "big").mkdir()
    (tmp_path / "home").mkdir()
    link = tmp_path / "home" / "snapshot"
    for place in (tmp_path / "big", tmp_path / "nowhere"):
        link.symlink_to(place)
        with pytest.raises(BackfillError, match=r"is a symbolic link.*: name the folder itself$"):
            Output(link, overwrite=True)
        assert list(link.parent.iterdir()) == [link]
        link.unlink()
    published(tmp_path / "home" / ".." / "big", "new")
    assert (tmp_path / "big" / "manifest.json").read_text() == "new"


def test_a_mount_point_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be renamed over it; that would be found out when all the work is done."""
    with pytest.raises(BackfillError, match=r"output '/proc' is a mount point.*: name a folder inside it$"):
        check_output(Path("/proc"), overwrite=True)
    volume = tmp_path / "my snapshots"
    volume.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(rf"36 35 98:0 /data {tmp_path}/my\040snapshots rw,noatime - ext4 /dev/sda rw")
    monkeypatch.setattr(output_module, "MOUNTS", mounts)
    with pytest.raises(BackfillError, match="is a mount point"):
        Output(volume, overwrite=False)
    published(volume / "today", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mounts", "my snapshots"]


def test_a_snapshot_is_replaced_only_on_request(tmp_path: Path) -> None:
    """Without overwrite the old one stays, with it the new one is there alone."""
    target = tmp_path / "snapshot"
    published(target, "old")
    (target / "extra").write_text("of the old one")
    with pytest.raises(BackfillError, match=r"holds a snapshot: choose another, or give --overwrite"):
        Output(target, overwrite=False)
    assert (target / "manifest.json").read_text() == "old"
    published(target, "new", overwrite=True)
    assert [path.name for path in target.iterdir()] == ["manifest.json"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_run_keeps_the_old_snapshot(tmp_path: Path) -> None:
    """Until the new one is whole, overwriting changes nothing."""
    target = tmp_path / "snapshot"
    published(target, "old")
    with pytest.raises(RuntimeError, match="half way"), Output(target, overwrite=True):
        raise RuntimeError("half way")
    assert (target / "manifest.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    """Files that are no snapshot are refused, also with overwrite; so is a file in the folder's place."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BackfillError, match="files that are no snapshot"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(BackfillError, match="Not a directory"):
        check_output(tmp_path / "thesis.txt", overwrite=True)


def killed_while(target: Path, step: str) -> Path:
    """Run a process that makes a snapshot at the place, kill it as it begins a step, and return the folder it left."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(target), step], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = target.with_name(f".{target.name}.partial")
    assert list(left.glob("run-*"))
    return left


KILLED = """
import os, signal, sys
from pathlib import Path
from spark_backfill.output import Output
target, step = Path(sys.argv[1]), sys.argv[2]
with Output(target, overwrite=True) as output:
    (output.attempts / "half").write_text("written")
    (output.folder / "manifest.json").write_text("new")
    if step == "publish":
        rename = Path.rename
        def killed(self, place):
            if self == output.folder:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, place)
        Path.rename = killed
        output.publish()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """The next run to the same place removes the remains of a killed one there, and nothing of another place."""
    target = tmp_path / "snap[1]"
    other = tmp_path / ".snap1.partial"
    (other / "run-x").mkdir(parents=True)
    killed_while(target, "write")
    published(target, "next")
    assert (target / "manifest.json").read_text() == "next"
    assert sorted(tmp_path.iterdir()) == [other, target]
    assert list(other.iterdir()) == [other / "run-x"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_killed_while_it_replaces_a_snapshot_loses_nothing(tmp_path: Path, *, overwrite: bool) -> None:
    """Killed with the old one taken away and the new one not in its place: the next run puts the old one back first."""
    target = tmp_path / "snapshot"
    published(target, "old")
    left = killed_while(target, "publish")
    assert not target.exists()
    if overwrite:
        with Output(target, overwrite=True):
            assert (target / "manifest.json").read_text() == "old"
    else:
        with pytest.raises(BackfillError, match="holds a snapshot"):
            Output(target, overwrite=False)
    assert (target / "manifest.json").read_text() == "old"
    assert not left.exists()


def test_an_error_while_a_snapshot_is_replaced_puts_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the new one cannot be put in its place, one line says so, and the old one is there as before."""
    target = tmp_path / "snapshot"
    published(target, "old")
    rename = Path.rename

    def refused(self: Path, place: Path) -> Path:
        if self.name == "snapshot" and place == target and self.parent != tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(BackfillError, match="cannot be put in its place: Input/output error"):
        published(target, "new", overwrite=True)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [target]
    published(target, "newer", overwrite=True)
    assert (target / "manifest.json").read_text() == "newer"


def test_two_runs_to_one_place_exclude_each_other(tmp_path: Path) -> None:
    """The second is refused with the number of the first.

    It touches nothing of that one, and may come when the first is over.
    """
    target = tmp_path / "snapshot"
    with Output(target, overwrite=True) as first:
        with pytest.raises(BackfillError, match=rf"another run is writing to it \(process {os.getpid()} on"):
            Output(target, overwrite=True)
        (first.folder / "manifest.json").write_text("first")
        first.publish()
    assert list(tmp_path.iterdir()) == [target]
    published(target, "second", overwrite=True)
    assert (target / "manifest.json").read_text() == "second"


def test_runs_that_race_leave_one_whole_snapshot(tmp_path: Path) -> None:
    """Of many runs that begin and end at once each publishes a whole snapshot or is refused.

    Nothing stays beside it.
    """
    target = tmp_path / "snapshot"

    def run(number: int) -> int:
        ended = 0
        for each in range(30):
            with suppress(BackfillError):
                published(target, f"{number}-{each}", overwrite=True)
                ended += 1
        return ended

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(run, range(6))) > 0
    assert list(tmp_path.iterdir()) == [target]
    assert [path.name for path in target.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("published_first", [False, True])
def test_tasks_that_outlive_the_run_leave_nothing(tmp_path: Path, *, published_first: bool) -> None:
    """An attempt that still makes folders and files when the run ends fails there, and its files are gone."""
    target = tmp_path / "snapshot"
    writing = threading.Barrier(5)
    failures: list[str] = []

    def attempt(folder: Path) -> None:
        try:
            for number in range(1_000_000):
                place = Path(tempfile.mkdtemp(prefix="0-0-", dir=folder))
                (place / "00000.sst").write_bytes(bytes(1_000))
                if number == 2:
                    writing.wait(30)
        except FileNotFoundError as error:
            failures.append(str(error))

    with ThreadPoolExecutor(4) as pool:
        with Output(target, overwrite=False) as output:
            tasks = [pool.submit(attempt, output.attempts) for _ in range(4)]
            writing.wait(30)
            (output.folder / "manifest.json").write_text("new")
            if published_first:
                output.publish()
        assert list(tmp_path.iterdir()) == ([target] if published_first else [])
        assert [task.result(30) for task in tasks] == [None] * 4
    assert len(failures) == 4
    assert list(tmp_path.iterdir()) == ([target] if published_first else [])


def test_files_that_the_driver_does_not_see_are_named(tmp_path: Path) -> None:
    """When a worker wrote to a disk of its own, one line names the folder to share, and nothing is published."""
    plan = SlotPlan((Slot(3, 0, 1),))
    told = SimpleNamespace(slot=0, folder="/elsewhere/3-0-x", file=SimpleNamespace(name="00000"))
    with (
        pytest.raises(
            BackfillError, match=r"00000\.sst of partition 3, .*/elsewhere/3-0-x.* all workers share"
        ),
        Output(tmp_path / "snapshot", overwrite=False) as output,
    ):
        output.take(plan, [cast("SlotOutcome", told)])
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a folder is needed ends in one line with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(
        BackfillError, match=r"file/below/snapshot' can(?:not)? be (?:used|written): Not a directory"
    ):
        Output(tmp_path / "file" / "below" / "snapshot", overwrite=False)
