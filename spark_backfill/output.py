"""The folder of a snapshot: built beside its place, and put there whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from dedup_sdk.store.manifest import MANIFEST_NAME
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX
from spark_backfill.errors import BackfillError
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan

REPORT_NAME: Final = "report.json"
_LOCK: Final = "lock"


def check_output(output: Path, *, overwrite: bool) -> None:
    """Refuse a place that a snapshot must not take.

    Raises:
        BackfillError: there is a snapshot and ``overwrite`` is False, or something that is no snapshot.
    """
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


class Output:
    """A snapshot being made: ``attempts`` is where tasks write, ``folder`` becomes the snapshot by `publish`.

    A context manager that leaves nothing behind unless it was published. The folder lies beside its final place, so that
    putting it there is one rename; what a killed run left beside it is removed by the next one.

    Raises:
        BackfillError: the place cannot be used; see `check_output`.
    """

    def __init__(self, output: Path, *, overwrite: bool) -> None:
        self._output = output.absolute()
        self._overwrite = overwrite
        check_output(self._output, overwrite=overwrite)
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self._work = Path(
                tempfile.mkdtemp(prefix=f".{self._output.name}.partial-", dir=self._output.parent)
            )
            self._lock = _locked(self._work / _LOCK)
        except OSError as error:
            raise BackfillError(
                f"output {str(output)!r} cannot be written: {error.strerror}; choose another"
            ) from None
        self.attempts = self._work / "attempts"
        self.folder = self._work / "snapshot"
        self.attempts.mkdir()
        self.folder.mkdir(mode=0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._lock.close()

    def take(self, plan: SlotPlan, outcomes: list[SlotOutcome]) -> None:
        """Move the files of successful attempts to their place in `folder`."""
        for outcome in outcomes:
            if outcome.file is None:
                continue
            place = self.folder / str(plan.slots[outcome.slot].partition)
            place.mkdir(mode=0o700, exist_ok=True)
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                name = f"{outcome.file.name}{suffix}"
                (Path(outcome.folder) / name).replace(place / name)
                (place / name).chmod(0o600)

    def publish(self) -> None:
        """Put the finished snapshot in its place."""
        check_output(self._output, overwrite=self._overwrite)
        if self._output.exists():
            self._output.rename(self._work / "replaced")
        self.folder.rename(self._output)

    def _remove_abandoned(self) -> None:
        for folder in self._output.parent.glob(f".{glob.escape(self._output.name)}.partial-*"):
            try:
                with _locked(folder / _LOCK, create=False):
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue


def _locked(path: Path, *, create: bool = True) -> IO[str]:
    """Open and lock a file; the kernel gives the lock back however this process ends. Raises `OSError` when it is held."""
    file = os.fdopen(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
