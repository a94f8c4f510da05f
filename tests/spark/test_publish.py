"""What a run leaves at its output, a folder or a URL: the older snapshot or the new one, whole, and no other files."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import fsspec
import pyarrow.fs
import pytest
import s3fs
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper

from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import MANIFEST_NAME, read_manifest
from dedup_sdk._store.output_folder import OutputFolder
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot_check import check_snapshot, diff_snapshots
from dedup_sdk._store.snapshot_copy import UrlTarget, copy_snapshot
from dedup_sdk._store.snapshot_source import find_snapshots, remove_snapshot
from dedup_sdk.errors import SnapshotError
from spark_backfill import publish
from spark_backfill.ending import EndedError, ended_by, ending_in_order
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.findings.findings import Findings
from spark_backfill.publish import IfExists, Output, Target
from spark_backfill.report_page.document import FORMAT, read_document
from spark_backfill.slot_writer import write_marks
from tests.support.marks import random_marks
from tests.support.outputs import fingerprint_of, manifest_of, put_marks, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


REPORT = {"report.json": "{}\n"}
_DAY_S = 24 * 60 * 60


@pytest.fixture(params=["folder", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place without a snapshot, of each kind."""
    if request.param == "folder":
        yield str(tmp_path / "deep" / "snapshot")
    elif request.param == "s3":
        request.getfixturevalue("bucket")
        yield "s3://snapshots/deep/snapshot"
    else:
        yield "memory://deep/snapshot"
        filesystem, _ = url_to_fs("memory://deep")
        with suppress(FileNotFoundError):
            filesystem.rm("/deep", recursive=True)


def _existing(*, overwrite: bool) -> IfExists:
    return IfExists.REPLACED if overwrite else IfExists.REFUSED


def published(place: str, seed: int, *, overwrite: bool = False) -> str:
    """Publish a snapshot of random marks; return their fingerprint."""
    with Output(place, _existing(overwrite=overwrite)) as output:
        manifest = manifest_of(put_marks(output.target, seed))
        output.publish(manifest, REPORT)
    return manifest.fingerprint


def readable(place: str) -> str:
    """The fingerprint of the snapshot that is there, all files of which are as its manifest says."""
    ((found,), problems) = find_snapshots([place])
    assert not problems
    assert not any(checked.problems for checked in check_snapshot(found))
    return found.manifest.fingerprint


def whole(place: str, *, marked: int = 0) -> str:
    """As `readable`; no other files are there, but so many markers."""
    ((found,), _) = find_snapshots([place])
    files = [
        f"{entry.partition}/{file.name}.{suffix}"
        for entry in found.manifest.partitions
        for file in entry.files
        for suffix in ("filter", "sst")
    ]
    there = written(place)
    assert [name for name in there if not name.startswith(".run-")] == sorted(
        [*files, MANIFEST_NAME, "report.json"]
    )
    assert len([name for name in there if name.startswith(".run-")]) == marked
    return readable(place)


def test_tasks_put_files_and_the_manifest_makes_them_a_snapshot(place: str) -> None:
    """Until then nobody finds a snapshot there; afterwards all of it is there, and nothing else."""
    with Output(place) as output:
        assert output.target == pickle.loads(pickle.dumps(output.target))  # noqa: S301 (our own)
        manifest = manifest_of(put_marks(output.target, 1))
        assert len(written(place)) == 5
        with pytest.raises(SnapshotError, match=r"manifest\.json"):
            find_snapshots([place])
        output.publish(manifest, REPORT)
    assert whole(place) == manifest.fingerprint


def test_a_folder_is_private(tmp_path: Path) -> None:
    """Others may neither list nor read it; a failed run leaves none, and an empty one that was there stays usable."""
    published(str(tmp_path / "snapshot"), 1)
    kinds = {path.stat().st_mode & 0o777 for path in (tmp_path / "snapshot").rglob("*") if path.is_file()}
    assert (kinds, (tmp_path / "snapshot").stat().st_mode & 0o777) == ({0o600}, 0o700)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "snapshot").glob("[0-9]")} == {0o700}
    (tmp_path / "empty").mkdir()
    published(str(tmp_path / "empty"), 1)
    assert whole(str(tmp_path / "empty"))


def test_links_and_mounts_are_folders(tmp_path: Path) -> None:
    """Nothing is renamed, so that the folder may be a link."""
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to("big")
    assert published(str(tmp_path / "link"), 1) == whole(str(tmp_path / "big"))


def test_a_failed_run_leaves_nothing(place: str) -> None:
    """Files that were put are gone; an older snapshot stays, also when it was to be replaced."""
    fail_half_way(place, 1, overwrite=False)
    assert written(place) == []
    older = published(place, 1)
    fail_half_way(place, 2, overwrite=True)
    assert whole(place) == older


def fail_half_way(place: str, seed: int, *, overwrite: bool) -> None:
    """Run a job that fails when its files are put."""

    def run() -> None:
        with Output(place, _existing(overwrite=overwrite)) as output:
            put_marks(output.target, seed)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        run()


def test_a_snapshot_is_replaced_only_on_request(place: str) -> None:
    """Nothing else is asked."""
    older = published(place, 1)
    with pytest.raises(BackfillError, match="holds a snapshot: choose another, or give --overwrite"):
        Output(place)
    assert whole(place) == older
    newer = published(place, 2, overwrite=True)
    assert (readable(place), newer == older) == (newer, False)


def test_a_manifest_that_nothing_reads_is_not_written(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older snapshot stays, and nothing is left beside it."""
    older = published(place, 1)
    monkeypatch.setattr(publish, "MAX_MANIFEST_BYTES", 10)
    with pytest.raises(BackfillError, match=r"bytes, and nothing reads more than 10: rebuild in full"):
        published(place, 2, overwrite=True)
    monkeypatch.undo()
    assert whole(place) == older


def test_a_manifest_that_readers_refuse_is_not_written(place: str) -> None:
    """An offset that no manifest can have: the reader's own error ends the run, and nothing is left."""
    with Output(place) as output:
        manifest = manifest_of(put_marks(output.target, 1))
        entries = tuple(replace(each, high=2**63) for each in manifest.partitions)
        with pytest.raises(BackfillError, match=r"high=9223372036854775808.*; please report it"):
            output.publish(replace(manifest, partitions=entries), REPORT)
    assert written(place) == []


def test_a_snapshot_of_another_format_is_replaced(tmp_path: Path) -> None:
    """All files that its manifest lists go, and nothing that it does not, nor anything outside."""
    target = tmp_path / "snapshot"
    (target / "0").mkdir(parents=True)
    for name in ("0/00000.sst", "0/00000.filter", "0/mine.sst", "../outside.sst"):
        (target / name).touch()
    (target / MANIFEST_NAME).write_text(
        '{"format": 4, "partitions": [{"partition": 0, "files": [{"name": "00000"}, {"name": "../../outside"}]}]}'
    )
    published(str(target), 1, overwrite=True)
    left = {name for name in written(str(target)) if name.startswith("0/") and "-" not in name}
    assert (left, (tmp_path / "outside.sst").exists()) == ({"0/mine.sst"}, True)


def test_a_foreign_folder_is_refused(place: str, tmp_path: Path) -> None:
    """Files that are no snapshot are refused, also with overwrite; so is a file in the folder's place."""
    filesystem, path = url_to_fs(place)
    filesystem.makedirs(path, exist_ok=True)
    filesystem.pipe_file(f"{path}/thesis.txt", b"years of work")
    with pytest.raises(BackfillError, match="files that are no snapshot"):
        Output(place, IfExists.REPLACED)
    assert written(place) == ["thesis.txt"]
    (tmp_path / "file").touch()
    for below in ("file", "file/below"):
        with pytest.raises(SnapshotError, match=r"file.* cannot be read: Not a directory"):
            Output(str(tmp_path / below), IfExists.REPLACED)


@pytest.mark.parametrize("text", ["{}", '{"name": "a web app"}', "[" * 100_000, '{"partitions": 7}', ""])
def test_a_manifest_of_something_else_stays(tmp_path: Path, text: str) -> None:
    """It is not replaced, and the run ends before anything is read."""
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(BackfillError, match="files that are no snapshot"):
        Output(str(tmp_path), IfExists.REPLACED)
    assert (tmp_path / MANIFEST_NAME).read_text() == text


def test_a_manifest_without_an_end_is_none(tmp_path: Path) -> None:
    """Neither a pipe nor a device is waited for, or read to the end."""
    os.mkfifo(tmp_path / MANIFEST_NAME)
    assert OutputFolder(str(tmp_path)).manifest() == b""
    (tmp_path / MANIFEST_NAME).unlink()
    (tmp_path / MANIFEST_NAME).symlink_to("/dev/zero")
    with pytest.raises(SnapshotError, match="is larger than 536870912 bytes"):
        Output(str(tmp_path), IfExists.REPLACED)


@pytest.mark.parametrize(
    "name", ["20240501/manifest.json", "2024/05.parquet", ".git/config", ".env", "0/1.sst"]
)
def test_folders_of_numbers_and_dots_may_be_foreign_too(place: str, name: str) -> None:
    """Only what a run or a copy writes is taken for what one has left."""
    filesystem, path = url_to_fs(place)
    filesystem.makedirs(f"{path}/{name.rpartition('/')[0]}", exist_ok=True)
    filesystem.pipe_file(f"{path}/{name}", b"mine")
    with pytest.raises(BackfillError, match="files that are no snapshot"):
        Output(place, IfExists.REPLACED)
    assert written(place) == [name]


def test_what_killed_copies_and_manifests_leave_is_swept(place: str, tmp_path: Path) -> None:
    """They have the marker of a run, too."""
    published(str(tmp_path / "from"), 1)
    ((source,), _) = find_snapshots([str(tmp_path / "from")])
    for _ in UrlTarget(place if "://" in place else f"file://{place}").upload(source):
        pass
    filesystem, path = url_to_fs(place)
    (marker,) = [name for name in written(place) if name.startswith(".run-")]
    filesystem.pipe_file(f"{path}/{marker}.manifest", b"{}")
    published(place, 2)
    assert len(written(place)) == 2 * 6
    filesystem.rm_file(f"{path}/{marker}")
    with Output(place, IfExists.REPLACED):
        assert whole(place, marked=1) == fingerprint_of(2)


def test_files_without_a_manifest_are_no_snapshot_yet(place: str) -> None:
    """What a killed run left does not stand in the way of the next one, and is no snapshot for readers."""
    left = Output(place)
    put_marks(left.target, 1)
    with pytest.raises(SnapshotError):
        find_snapshots([place])
    with Output(place) as output:
        manifest = manifest_of(put_marks(output.target, 2))
        output.publish(manifest, REPORT)
    assert readable(place) == manifest.fingerprint


def test_readers_know_only_what_the_manifest_lists(place: str, tmp_path: Path) -> None:
    """Files of another run, and of attempts, change nothing for those who check, compare, copy, load and remove."""
    left = Output(place)
    put_marks(left.target, 1)
    published(place, 2)
    ((found,), _) = find_snapshots([place])
    assert not any(difference.differs for difference in diff_snapshots(found, found))
    copy_snapshot(found, str(tmp_path / "copy"))
    assert read_manifest(tmp_path / "copy").fingerprint == found.manifest.fingerprint
    restore_snapshot(place, tmp_path / "store", group="billing")
    remove_snapshot(found)
    assert [name for name in written(place) if left.target.run not in name] == []
    assert published(place, 3)


def test_files_of_a_killed_run_go_after_two_weeks(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it may still be at work; a run that took as long does not publish."""
    left, slow = Output(place), Output(place, IfExists.REPLACED)
    put_marks(left.target, 1)
    manifest = manifest_of(put_marks(slow.target, 5))
    published(place, 2)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 13.5 * _DAY_S)
    published(place, 3, overwrite=True)
    assert len([name for name in written(place) if left.target.run in name]) == 5
    monkeypatch.setattr("time.time", lambda: now + 15 * _DAY_S)
    with Output(place, IfExists.REPLACED):
        assert whole(place, marked=1) == fingerprint_of(3)
    with pytest.raises(BackfillError, match="is gone"), slow:
        slow.publish(manifest, REPORT)
    assert whole(place) == fingerprint_of(3)


def test_a_killed_attempt_is_swept_and_the_winner_is_listed(place: str) -> None:
    """Two attempts put their files: the manifest lists those of one, and the others are gone."""
    with Output(place) as output:
        put_marks(output.target, 1)
        won = put_marks(output.target, 1)
        assert len(written(place)) == 9
        output.publish(manifest_of(won), REPORT)
    assert whole(place) == manifest_of(won).fingerprint


@pytest.mark.parametrize("publishes", [False, True])
def test_an_attempt_that_outlives_its_run_leaves_nothing(place: str, *, publishes: bool) -> None:
    """Files that it puts afterwards are taken back, and it fails."""
    with Output(place) as output:
        if publishes:
            output.publish(manifest_of(put_marks(output.target, 1)), REPORT)
    before = written(place)
    with pytest.raises(BackfillError, match="is taken back: the run of this task is over, or this machine"):
        put_marks(output.target, 2)
    assert written(place) == before


def test_attempts_at_work_when_the_run_ends_leave_nothing(tmp_path: Path) -> None:
    """Whenever the run ends while they put files."""
    target = tmp_path / "snapshot"
    writing = threading.Barrier(4)
    marks = newest_per_digest(random_marks(10, 1))

    def attempt(goal: Target) -> None:
        for number in range(1_000_000):
            goal.put(number % 3, 0, lambda path: write_marks(path, marks))
            if number == 2:
                writing.wait(30)

    with ThreadPoolExecutor(3) as pool:
        with Output(str(target)) as output:
            tasks = [pool.submit(attempt, output.target) for _ in range(3)]
            writing.wait(30)
        ended = [str(task.exception(30)) for task in tasks]
    assert ["is taken back" in each for each in ended] == [True] * 3, ended
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_runs_at_once_the_first_publishes(place: str, *, overwrite: bool) -> None:
    """The other one finds its snapshot, and takes its own files back: nothing newer is replaced by what is older."""
    if overwrite:
        published(place, 3)
    with Output(place, _existing(overwrite=overwrite)) as first:
        one = manifest_of(put_marks(first.target, 1))
        said: list[str] = []
        with Output(place, _existing(overwrite=overwrite), say=said.append) as second:
            assert [f"remove .run-{first.target.run} there, and the next run" in line for line in said] == [
                True
            ]
            other = manifest_of(put_marks(second.target, 2))
            second.publish(other, REPORT)
        with pytest.raises(BackfillError, match="holds a snapshot that was published since this run began"):
            first.publish(one, REPORT)
    assert readable(place) == other.fingerprint
    assert not any(first.target.run in name for name in written(place))


def test_readers_of_a_replaced_snapshot_may_end(place: str) -> None:
    """Its files stay until the next run begins."""
    published(place, 1)
    ((older,), _) = find_snapshots([place])
    published(place, 2, overwrite=True)
    assert not any(checked.problems for checked in check_snapshot(older))
    with Output(place, IfExists.REPLACED):
        assert whole(place, marked=1) == fingerprint_of(2)


def test_a_run_without_its_marker_does_not_publish(place: str) -> None:
    """Who takes it away takes the run for killed: its files go with the beginning of the next run."""
    with Output(place) as slow:
        manifest = manifest_of(put_marks(slow.target, 1))
        OutputFolder(place).unmark(slow.target.run)
        newer = published(place, 2)
        with pytest.raises(
            BackfillError, match=r"\.run-\w+ is gone, so that others may have removed files of this run"
        ):
            slow.publish(manifest, REPORT)
    assert whole(place) == newer


def test_a_snapshot_that_comes_between_look_and_write_stays(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is written only where there is none, by one request."""
    with Output(place, IfExists.REPLACED) as first:
        one = manifest_of(put_marks(first.target, 1))
        create = OutputFolder.create_manifest

        def late(folder: OutputFolder, data: bytes, run: str) -> bool:
            monkeypatch.undo()
            published(place, 2)
            return create(folder, data, run)

        monkeypatch.setattr(OutputFolder, "create_manifest", late)
        with pytest.raises(
            BackfillError, match="holds a snapshot that was published since this run began: it stays"
        ):
            first.publish(one, REPORT)
    assert whole(place) == fingerprint_of(2)


@pytest.mark.parametrize("overwrite", [False, True])
def test_runs_that_race_leave_one_whole_snapshot(place: str, *, overwrite: bool) -> None:
    """Of many runs that begin and end at once each publishes a whole snapshot or is refused; nothing else stays."""

    def run(number: int) -> int:
        ended = 0
        for each in range(2 if place.startswith("s3") else 6):
            with suppress(BackfillError, SnapshotError):
                published(place, 10 * number + each, overwrite=overwrite)
                ended += 1
        return ended

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, range(4))) >= 1
    with Output(place, IfExists.REPLACED):
        whole(place, marked=1)


REQUESTS = [
    "put", "create_manifest", "replace_manifest", "remove", "manifest", "has", "names", "mark", "unmark", "marked",
    "write",
]  # fmt: skip
_LAST_REQUESTS = 12
"""Where the last requests of a run begin, those for the manifest and after it; there are some 25."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_at_any_request_leaves_a_whole_snapshot_or_none(
    place: str, monkeypatch: pytest.MonkeyPatch, fresh_seed: int, *, overwrite: bool
) -> None:
    """The older one, if there was one, or the new one; the next run publishes as if nothing had been.

    Each request to S3 is many: there every third one is that of the kill, others in each run, and each of the last.
    """
    older = published(place, 1) if overwrite else None
    newer = fingerprint_of(2)
    outcomes: list[str | None] = []
    step = 3 if place.startswith("s3") else 1
    kills = [*range(fresh_seed % step, _LAST_REQUESTS, step), *range(_LAST_REQUESTS, 1_000)]
    for kill_at in kills:
        left = _Dying(kill_at)
        for name in REQUESTS:
            monkeypatch.setattr(OutputFolder, name, left.guard(getattr(OutputFolder, name)))
        with suppress(_KilledError):
            published(place, 2, overwrite=overwrite)
        monkeypatch.undo()
        try:
            ((found,), _) = find_snapshots([place])
        except SnapshotError:
            outcomes.append(None)
        else:
            assert not any(checked.problems for checked in check_snapshot(found))
            outcomes.append(found.manifest.fingerprint)
        if not left.dead:
            break
        if overwrite:
            published(place, 1, overwrite=True)
        elif outcomes[-1] is not None:
            filesystem, path = url_to_fs(place)
            filesystem.rm(path, recursive=True)
    first_new = outcomes.index(newer)
    assert set(outcomes[:first_new]) == {older}
    assert set(outcomes[first_new:]) == {newer}
    assert kills[first_new] > 5
    assert first_new < len(outcomes) - 1


class _KilledError(BaseException):
    pass


class _Dying:
    """A process that is killed at its n-th request: nothing that it still does has an effect."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at
        self.dead = False

    def guard(self, method: Any) -> Any:
        """Return the method as the process calls it."""

        def guarded(*arguments: Any) -> Any:
            if self._left == 0:
                self.dead = True
                raise _KilledError
            self._left -= 1
            return method(*arguments)

        return guarded


KILLED = """
import os, signal, sys
from dedup_sdk._store.output_folder import OutputFolder
from spark_backfill.publish import IfExists, Output
from tests.support.outputs import manifest_of, put_marks
output = Output(sys.argv[1], IfExists.REPLACED)
manifest = manifest_of(put_marks(output.target, 2))
if sys.argv[2] == "after":
    OutputFolder.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    output.publish(manifest, {"report.json": ""})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_process_leaves_a_whole_snapshot(tmp_path: Path, moment: str) -> None:
    """SIGKILLed before the manifest: the older one; right after: the new one."""
    place = str(tmp_path / "snapshot")
    older = published(place, 1)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place, moment], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert readable(place) == (older if moment == "before" else fingerprint_of(2))


def test_an_overwrite_that_fails_half_way_keeps_the_older(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request for the manifest fails: the older one is there.

    The files of the run are gone from a folder; elsewhere it may yet arrive.
    """
    older = published(place, 1)

    def failing(folder: OutputFolder, *_: Any) -> NoReturn:
        raise SnapshotError(f"{folder.place} cannot be written")

    with Output(place, IfExists.REPLACED) as output:
        manifest = manifest_of(put_marks(output.target, 2))
        with monkeypatch.context() as patched:
            patched.setattr(OutputFolder, "replace_manifest", failing)
            with pytest.raises(SnapshotError, match="cannot be written"):
                output.publish(manifest, REPORT)
    if "://" not in place:
        assert whole(place) == older
    assert readable(place) == older


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_manifest_that_arrives_late_has_its_files(
    bucket: s3fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool, overwrite: bool
) -> None:
    """A request may arrive after a signal has ended the run, or its client gave it up: the run is then as if killed."""
    place, arrived = "s3://snapshots/late", threading.Event()
    if overwrite:
        published(place, 1)
    put = s3fs.S3FileSystem._pipe_file

    async def slow(self: Any, path: str, data: bytes, mode: str = "overwrite", **given: Any) -> None:
        if not path.endswith(MANIFEST_NAME):
            await put(self, path, data, mode=mode, **given)
            return

        async def arrive() -> None:
            await asyncio.sleep(1)
            await put(self, path, data, mode=mode, **given)
            arrived.set()

        self.late = asyncio.ensure_future(arrive())
        if not interrupted:
            raise TimeoutError("read timeout")
        os.kill(os.getpid(), signal.SIGTERM)
        await self.late

    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", slow)
    bucket.clear_instance_cache()
    with pytest.raises((EndedError, SnapshotError)) as caught, ending_in_order():
        published(place, 2, overwrite=overwrite)
    assert str(caught.value).endswith("the snapshot may be there: look before you start again")
    assert arrived.wait(30)
    monkeypatch.undo()
    bucket.clear_instance_cache()
    assert readable(place) == fingerprint_of(2)


def test_a_run_that_is_ended_when_its_snapshot_is_there_says_so(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the report is written, or files are removed."""

    def ended(*_: Any) -> None:
        monkeypatch.undo()
        raise EndedError(signal.SIGTERM)

    for seed, name in enumerate(("write", "unmark")):
        monkeypatch.setattr(OutputFolder, name, ended)
        with pytest.raises(EndedError, match=r"ended by SIGTERM; the snapshot is there$"):
            published(place, seed, overwrite=True)
        assert readable(place) == fingerprint_of(seed)


def test_an_error_on_the_way_out_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    """PySpark asks the JVM once more, which may be gone."""
    asked = EndedError(signal.SIGTERM)

    def run() -> None:
        with Output(str(tmp_path / "snapshot")) as output:
            output.publish(manifest_of(put_marks(output.target, 1)), REPORT)
            try:
                raise asked
            finally:
                raise RuntimeError("the JVM is gone")

    with pytest.raises(RuntimeError) as caught:
        run()
    assert ended_by(caught.value) is asked
    assert str(asked) == "ended by SIGTERM; the snapshot is there"


@pytest.mark.parametrize(
    ("arrives", "says"), [(False, "no snapshot was written"), (True, "the snapshot is there")]
)
def test_an_interrupted_manifest_of_a_folder_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, *, arrives: bool
) -> None:
    """There is nothing on its way any more: it is there or not, and the run cleans up."""
    create, place = OutputFolder.create_manifest, tmp_path / "snapshot"

    def interrupted(folder: OutputFolder, data: bytes, run: str) -> NoReturn:
        if arrives:
            create(folder, data, run)
        raise EndedError(signal.SIGINT)

    monkeypatch.setattr(OutputFolder, "create_manifest", interrupted)
    with pytest.raises(EndedError, match=f"interrupted; {says}$"):
        published(str(place), 1)
    assert place.exists() == arrives
    assert not arrives or readable(str(place)) == fingerprint_of(1)


def test_a_manifest_that_arrives_with_an_error_counts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the answer of the store is lost, the run looks; it does not remove files that a manifest lists."""
    create = OutputFolder.create_manifest

    def doubted(folder: OutputFolder, data: bytes, run: str) -> NoReturn:
        create(folder, data, run)
        raise SnapshotError(f"{folder.place} cannot be written")

    monkeypatch.setattr(OutputFolder, "create_manifest", doubted)
    assert published(place, 1) == whole(place)


def test_a_report_that_cannot_be_written_is_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line says so: the snapshot is there nevertheless."""

    def refused(folder: OutputFolder, *_: Any) -> NoReturn:
        raise SnapshotError(f"{folder.place} cannot be written")

    said: list[str] = []
    monkeypatch.setattr(OutputFolder, "write", refused)
    with Output(place, say=said.append) as output:
        manifest = manifest_of(put_marks(output.target, 1))
        output.publish(manifest, REPORT)
    assert readable(place) == manifest.fingerprint
    assert [line.endswith("the snapshot is there and whole, without its report") for line in said] == [True]


def test_a_report_is_that_of_the_snapshot_beside_it(place: str, tmp_path: Path) -> None:
    """Others that are there go, and are not drawn."""
    filesystem, path = url_to_fs(place)
    filesystem.makedirs(path, exist_ok=True)
    filesystem.pipe_file(f"{path}/findings.json", b"{}")
    published(place, 1)
    assert whole(place) == fingerprint_of(1)
    folder = tmp_path / "other"
    published(str(folder), 2)
    facts = {"fingerprint": fingerprint_of(1)}
    text = json.dumps(
        {"format": FORMAT, "facts": facts, "findings": Findings().to_json(), "producer_header": None}
    )
    (folder / "findings.json").write_text(text)
    with pytest.raises(
        BackfillError, match=r"findings\.json is of another snapshot than manifest\.json beside it"
    ):
        read_document(folder)
    (folder / "findings.json").write_text(text.replace(fingerprint_of(1), fingerprint_of(2)))
    assert read_document(folder).facts == {"fingerprint": fingerprint_of(2)}


def test_what_cannot_be_written_is_known_before_anything_is_read(bucket: s3fs.S3FileSystem) -> None:
    """A bucket that is not there is one line that names it."""
    with pytest.raises(SnapshotError, match=r"s3://nowhere/x/\.run-\w+ cannot be written"):
        Output("s3://nowhere/x")
    assert bucket.find("snapshots") == []


def test_a_store_that_cannot_replace_at_once_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a kill could leave no snapshot at all; a new one is made by a file beside the manifest."""
    monkeypatch.setattr(OutputFolder, "replaces", property(lambda _: False))
    published(str(tmp_path / "snapshot"), 1, overwrite=True)
    with pytest.raises(BackfillError, match="which this file system cannot replace at once"):
        Output(str(tmp_path / "snapshot"), IfExists.REPLACED)


class Arrowed(ArrowFSWrapper):  # type: ignore[misc]  # fsspec has no types
    """The driver of hdfs://, with a folder of this machine behind it."""

    protocol = "arrowed"

    def __init__(self, **options: Any) -> None:
        super().__init__(fs=pyarrow.fs.LocalFileSystem(), **options)


def test_the_driver_of_hdfs(tmp_path: Path) -> None:
    """No links and no exclusive writes: the manifest is written beside its place, and moved there if there is none."""
    fsspec.register_implementation("arrowed", Arrowed, clobber=True)
    place = f"arrowed://{tmp_path}/snapshot"
    fail_half_way(place, 1, overwrite=True)
    assert written(place) == []
    with Output(place) as first:
        one = manifest_of(put_marks(first.target, 1))
        older = published(place, 2)
        with pytest.raises(BackfillError, match="holds a snapshot"):
            first.publish(one, REPORT)
    with pytest.raises(BackfillError, match="which this file system cannot replace at once"):
        Output(place, IfExists.REPLACED)
    assert whole(place) == older


def test_names_that_look_like_patterns(bucket: s3fs.S3FileSystem) -> None:
    """What goes at one place is not taken for a pattern that fits another."""
    for name in ("1", "[1]", "*"):
        bucket.pipe_file(f"snapshots/a{name}/thesis", b"")
        published(f"s3://snapshots/a{name}/snapshot", 1)
    fail_half_way("s3://snapshots/a[1]/snapshot", 3, overwrite=True)
    published("s3://snapshots/a*/snapshot", 2, overwrite=True)
    with Output("s3://snapshots/a*/snapshot", IfExists.REPLACED):
        assert bucket.exists("snapshots/a1/snapshot/manifest.json")
    assert [whole(f"s3://snapshots/a{name}/snapshot") for name in ("1", "[1]", "*")] == [
        fingerprint_of(1), fingerprint_of(1), fingerprint_of(2),
    ]  # fmt: skip


def test_a_folder_that_a_worker_does_not_see_is_named(tmp_path: Path) -> None:
    """When a worker would write to a disk of its own, one line says so, and it keeps nothing."""
    elsewhere = Target(str(tmp_path / "elsewhere"), "0" * 16)
    with pytest.raises(
        BackfillError, match="storage that the driver and all workers share under one path, or a URL"
    ):
        put_marks(elsewhere, 1)
    assert list(tmp_path.iterdir()) == []


def test_workers_that_do_not_see_the_output_are_known_before_they_read(
    place: str, spark: SparkSession
) -> None:
    """A task looks for the marker of the run first."""
    with Output(place) as output:
        assert list(output.target.check_before(iter)(iter([1]))) == [1]
        if not place.startswith("memory"):
            return
        rows = spark.range(0, 2, 1, 2).mapInArrow(output.target.check_before(_too_early), "nothing long")
        with pytest.raises(
            Exception, match="does not see what the driver sees at memory://deep/snapshot"
        ) as caught:
            rows.collect()
    assert one_line(caught.value).startswith("this machine does not see what the driver sees")


def _too_early(_batches: Iterable[object]) -> Iterator[object]:
    raise AssertionError


def test_tasks_write_where_spark_shuffles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are made on one of Spark's own disks, and are gone when they are put."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'disk'},{tmp_path / 'gone'}")
    (tmp_path / "disk").mkdir()
    seen: list[Path] = []

    def write(path: Path) -> Any:
        seen.append(path)
        return write_marks(path, newest_per_digest(random_marks(10, 1)))

    with Output(str(tmp_path / "snapshot")) as output:
        assert output.target.put(0, 7, write) is not None
    assert [path.parents[1] for path in seen] == [tmp_path / "disk"]
    assert seen[0].name.startswith(f"00007-{output.target.run}-")
    assert list(tmp_path.iterdir()) == [tmp_path / "disk"]
    assert list((tmp_path / "disk").iterdir()) == []
