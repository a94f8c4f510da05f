"""The folder of a snapshot: built beside its place, and put there whole or not at all.

Beside ``DIR`` lies, while a run goes on, ``.DIR.partial``: a lock, which the kernel gives back however the run
ends, and a folder of that run alone. Tasks that are still at work when the run is over (speculative copies, or
those of a driver that was killed) know only paths in that folder; it is renamed before it is removed, so that
nothing they do makes a file afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from dedup_sdk._store.manifest import MANIFEST_NAME
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from spark_backfill.errors import BackfillError
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan

REPORT_NAME: Final = "report.json"
_LOCK: Final = "lock"
_REPLACED: Final = "replaced"
MOUNTS: Final = Path("/proc/self/mountinfo")
_PLACE_FIELD: Final = 4


def check_output(output: Path, *, overwrite: bool) -> None:
    """Refuse a place that a snapshot must not take.

    Raises:
        BackfillError: there is a snapshot and ``overwrite`` is False, or something that is no snapshot; or the
            place is a link or where a file system is mounted, which no rename can replace.
    """
    what = "a symbolic link" if output.is_symlink() else "a mount point" if _is_mount(output) else ""
    if what:
        raise BackfillError(
            f"output {str(output)!r} is {what}, and the snapshot comes into place by a rename: name "
            + ("the folder itself" if output.is_symlink() else "a folder inside it")
        )
    try:
        empty = not output.exists() or not any(output.iterdir())
        snapshot = not empty and (output / MANIFEST_NAME).is_file()
    except OSError as error:
        raise BackfillError(
            f"output {str(output)!r} cannot be used: {error.strerror}; choose another"
        ) from None
    if empty or (snapshot and overwrite):
        return
    if snapshot:
        raise BackfillError(f"output {str(output)!r} holds a snapshot: choose another, or give --overwrite")
    raise BackfillError(
        f"output {str(output)!r} holds files that are no snapshot: choose an empty or a new folder"
    )


def _is_mount(output: Path) -> bool:
    """Whether a file system is mounted there, also a part of the one around it (as containers have their volumes)."""
    # Unlike the path's own method it takes a path that goes meanwhile for none.
    if os.path.ismount(output):
        return True
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # The fifth field is the place, with blanks as octal numbers.
    place = os.path.realpath(output).replace(" ", r"\040")
    return any(
        fields[_PLACE_FIELD] == place for fields in map(str.split, mounts) if len(fields) > _PLACE_FIELD
    )


class Output:
    """A snapshot being made: ``attempts`` is where tasks write, ``folder`` becomes the snapshot by `publish`.

    ``put`` publishes a finished folder elsewhere instead. A context manager that leaves nothing behind unless it
    was published. The folder lies beside its final place, so that putting it there is one rename; the
    next run puts right the remains of a killed one. One run at a time.

    Raises:
        BackfillError: the place cannot be used (see `check_output`), or another run is writing to it.
    """

    def __init__(self, output: Path, *, overwrite: bool, put: Callable[[Path], None] | None = None) -> None:
        self._put = put
        self._output = Path(os.path.abspath(output))  # noqa: PTH100 (``..`` has no name to put something beside)
        self._overwrite = overwrite
        self._check()
        self._work = self._output.with_name(f".{self._output.name}.partial")
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _claimed(self._work, self._output)
        except OSError as error:
            raise BackfillError(
                f"output {str(output)!r} cannot be written: {error.strerror}; choose another"
            ) from None
        try:
            self._discard_all()
            self._check()
            self._run = Path(tempfile.mkdtemp(prefix="run-", dir=self._work))
            self.attempts = self._run / "attempts"
            self.folder = self._run / "snapshot"
            self.attempts.mkdir()
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            self._discard_all()
            self._leave()
            raise BackfillError(
                f"output {str(output)!r} cannot be written: {error.strerror}; choose another"
            ) from None
        except BackfillError:
            self._leave()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._discard(self._run)
        finally:
            self._leave()

    def take(self, plan: SlotPlan, outcomes: Sequence[SlotOutcome]) -> None:
        """Move the files of successful attempts to their place in the snapshot.

        Raises:
            BackfillError: the driver does not see the files of a task.
        """
        for outcome in outcomes:
            if outcome.file is None:
                continue
            place = self.folder / str(plan.slots[outcome.slot].partition)
            place.mkdir(mode=0o700, exist_ok=True)
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                name = f"{outcome.file.name}{suffix}"
                try:
                    (Path(outcome.folder) / name).replace(place / name)
                    (place / name).chmod(0o600)
                except OSError as error:
                    raise BackfillError(
                        f"{name} of partition {place.name}, which a task wrote to {outcome.folder}, cannot "
                        f"be taken over: {error.strerror}; the output's folder has to be on storage that "
                        "the driver and all workers share, under one path and as one user"
                    ) from None

    def publish(self) -> None:
        """Put the finished snapshot in its place.

        Raises:
            BackfillError: something else has come to the place meanwhile. And the errors of ``put``.
        """
        if self._put is not None:
            self._put(self.folder)
            return
        self._check()
        try:
            if self._output.exists():
                self._output.rename(self._run / _REPLACED)
            self.folder.rename(self._output)
        except OSError as error:
            raise BackfillError(
                f"output {str(self._output)!r} cannot be put in its place: {error.strerror}; choose another"
            ) from None

    def _check(self) -> None:
        check_output(self._output, overwrite=self._overwrite)

    def _discard_all(self) -> None:
        """Remove the files of runs before this one, or of a beginning of this one."""
        for abandoned in self._work.glob("run-*"):
            self._discard(abandoned)

    def _discard(self, run: Path) -> None:
        """Remove a run's folder; the snapshot that it was about to replace goes back to its place if that is empty."""
        replaced = run / _REPLACED
        if replaced.exists() and not self._output.exists():
            replaced.rename(self._output)
        over = run.with_name(f"over-{run.name}")
        with suppress(OSError):
            run.rename(over)
        for each in self._work.glob("over-*"):
            shutil.rmtree(each, ignore_errors=True)

    def _leave(self) -> None:
        """Give the place to others; the lock is held until its file is gone."""
        with suppress(OSError):
            (self._work / _LOCK).unlink()
            self._work.rmdir()
        self._lock.close()


def _claimed(work: Path, output: Path) -> IO[str]:
    """Make the folder of runs to this output, if it is not there, and lock it."""
    while True:
        work.mkdir(mode=0o700, exist_ok=True)
        path = work / _LOCK
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        except FileNotFoundError:
            continue  # the run before has just left, and taken the folder along
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, file):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
                return file
        except OSError as error:
            holder = file.read(200)
            file.close()
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            raise BackfillError(
                f"output {str(output)!r}: another run is writing to it ({holder or 'just started'}); wait "
                "for it, or choose another"
            ) from None
        file.close()


def _is(path: Path, file: IO[str]) -> bool:
    """Whether the file that is open is the one at the path, and not one that was removed meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
