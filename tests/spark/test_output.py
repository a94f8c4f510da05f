"""A snapshot's folder: whole or not at all, and never in the place of something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_backfill.errors import BackfillError
from spark_backfill.output import Output, check_output


def published(target: Path, text: str, *, overwrite: bool = False) -> None:
    """Publish a snapshot whose manifest is this text."""
    with Output(target, overwrite=overwrite) as output:
        (output.folder / "manifest.json").write_text(text)
        output.publish()


def test_a_snapshot_appears_at_once(tmp_path: Path) -> None:
    """Before it is published nothing is at its place, afterwards all of it, private to the user, and nothing beside it."""
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


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """The next run to the same place removes an abandoned folder, and leaves that of a run that is still going."""
    target = tmp_path / "snap[1]"
    abandoned = tmp_path / ".snap[1].partial-abandoned"
    (abandoned / "attempts").mkdir(parents=True)
    (abandoned / "lock").touch()
    other = tmp_path / ".snap2.partial-x"
    other.mkdir()
    (other / "lock").touch()
    with Output(target, overwrite=False) as going, Output(target, overwrite=False):
        assert not abandoned.exists()
        assert going.attempts.is_dir()
    assert other.is_dir()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a folder is needed ends in one line with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(
        BackfillError, match=r"file/below/snapshot' can(?:not)? be (?:used|written): Not a directory"
    ):
        Output(tmp_path / "file" / "below" / "snapshot", overwrite=False)
