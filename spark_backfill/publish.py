"""Where a snapshot goes, a folder or a URL: tasks put its files there themselves, the driver writes the manifest last.

Nothing is moved, and nothing is locked. Each attempt of a task writes on its worker's own disk and puts its files as
``<partition>/<range>-<run>-<attempt>.sst`` and ``.filter``, names that no other attempt and no other run has. The
manifest lists those of the attempts whose results Spark kept, with their checksums; readers know nothing else. So
whatever is killed, and whenever, there is the older snapshot (or none), or the new one, whole.

While a run goes on, an empty file ``.run-<run>`` is there. An attempt looks for it when its files are put, and takes
them back if it is gone. So an attempt that outlives its run (a speculative copy, or a task whose driver has ended)
leaves nothing: what was put before the file was removed is seen by the sweep at the end of the run. A sweep also
removes files of other runs that are over, which no manifest lists. What stays are those of a run whose driver was
killed: it may still be at work, as far as others see, so that they are removed by a run that begins two weeks later. A
run that took longer than that does not publish. A run whose request for the manifest was interrupted, or failed on the
way to a server, does as one that was killed: the request may yet arrive.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dedup_sdk._store.manifest import Manifest, SortedFile, manifest_bytes
from dedup_sdk._store.output_folder import OutputFolder
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk._store.snapshot_source import REPORT_NAMES, is_url
from dedup_sdk.errors import SnapshotError
from spark_backfill.ending import MAYBE_WRITTEN, NOT_WRITTEN, WRITTEN, EndedError
from spark_backfill.errors import BackfillError

_DAY_S: Final = 24 * 60 * 60
_LONGEST_RUN_S: Final = 13 * _DAY_S
_ABANDONED_S: Final = 14 * _DAY_S
"""Files of runs that began so long ago are removed; a day more than the longest run, as clocks differ."""
_MARKER: Final = ".run-"
_RUN: Final = re.compile(
    r"(?:\.run-|\d+/\d+-)(?P<run>(?P<began>[0-9a-f]{8})[0-9a-f]{8})(?:-[0-9a-f]{8}\.\w+)?"
)
_OURS: Final = re.compile(r"\d+|\..*")
_LISTED: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """The place of one run's files, for its tasks: the folder or URL, and the name of the run."""

    url: str
    run: str

    def put(
        self, partition: int, number: int, write: Callable[[Path], SortedFile | None]
    ) -> SortedFile | None:
        """Have ``write`` write a sorted file to this worker's disk, and put it in its place; return its entry.

        ``number`` is that of the file in its partition. The folder of the path that ``write`` gets is empty, and its
        own. None, and no file, where ``write`` returns None.

        Raises:
            BackfillError: the run is over, or this machine does not see its folder.
            SnapshotError: a file cannot be written.
        """
        with own_folder() as own:
            name = f"{number:05d}-{self.run}-{secrets.token_hex(4)}"
            path = own / f"{name}{SORTED_SUFFIX}"
            file = write(path)
            if file is None:
                return None
            folder = OutputFolder(self.url)
            files = [f"{partition}/{name}{suffix}" for suffix in (SORTED_SUFFIX, FILTER_SUFFIX)]
            try:
                for each in files:
                    folder.put(path.with_suffix(Path(each).suffix), each)
                self._check_at_work(folder, files[0])
            except BaseException:
                folder.remove(files)
                folder.remove_empty()
                raise
            return file

    def _check_at_work(self, folder: OutputFolder, name: str) -> None:
        if not folder.has(f"{_MARKER}{self.run}"):
            raise BackfillError(
                f"{name} is taken back: the run of this task is over, or this machine does not see what the driver "
                f"sees at {folder.place}: give a folder on storage that the driver and all workers share under one "
                "path, or a URL"
            )


class Output:
    """A snapshot being made at a folder or URL: tasks write to ``target``, `publish` makes it a snapshot.

    A context manager that removes the files of the run that no manifest lists. Runs to one place at once do not meet;
    of those without ``overwrite`` one publishes, and others find its snapshot. ``outcome`` says in words whether the
    snapshot is there. Where it may be, because the request for the manifest may yet arrive, nothing is removed, as if
    the run had been killed.

    Raises:
        BackfillError: there is a snapshot and ``overwrite`` is False or cannot be done there, or there are files that
            are no snapshot.
        SnapshotError: the place cannot be read or written.
    """

    def __init__(self, url: str, *, overwrite: bool) -> None:
        self._folder = OutputFolder(url)
        self._overwrite = overwrite
        self._began_s = time.time()
        run = f"{int(self._began_s):08x}{secrets.token_hex(4)}"
        self.target = Target(url if is_url(url) else os.path.abspath(url), run)  # noqa: PTH100 (links stay)
        self.outcome = NOT_WRITTEN
        self._manifest = b""
        self._replaced: frozenset[str] = frozenset()
        self._check()
        self._folder.make()
        try:
            # To learn early whether files can be written there.
            self._put({f"{_MARKER}{run}": ""})
        except BaseException:
            self._folder.remove([f"{_MARKER}{run}"])
            self._folder.remove_empty()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clean()
        except EndedError as ended:
            error = ended
            raise
        finally:
            if isinstance(error, EndedError):
                error.tell(self.outcome)

    def _clean(self) -> None:
        with suppress(SnapshotError):
            if self.outcome == MAYBE_WRITTEN and self._folder.is_local:
                self.outcome = WRITTEN if self._folder.manifest() == self._manifest else NOT_WRITTEN
            if self.outcome == MAYBE_WRITTEN:
                return
            self._folder.remove([f"{_MARKER}{self.target.run}"])
            # What cannot be looked at now is listed by no manifest, or by one that may be ours.
            self._sweep()
        self._folder.remove_empty()

    def publish(self, manifest: Manifest, reports: Mapping[str, str]) -> None:
        """Write the manifest, which makes it a snapshot, and then the reports, texts by file name.

        Raises:
            BackfillError: a snapshot has come to the place meanwhile, or the run took too long.
            SnapshotError: the manifest or a report cannot be written; the error says whether the snapshot may be there.
        """
        if time.time() - self._began_s > _LONGEST_RUN_S:
            raise BackfillError(
                f"the run took longer than {_LONGEST_RUN_S // _DAY_S} days, after which another one may have removed "
                "its files: fold a shorter part, or take more workers"
            )
        self._manifest = manifest_bytes(manifest)
        before = self._check()
        self._replaced = _listed_in(before)
        self.outcome = MAYBE_WRITTEN
        try:
            if before is None:
                there = self._folder.create_manifest(self._manifest)
            else:
                there = self._folder.replace_manifest(self._manifest)
        except SnapshotError as failed:
            if not self._arrived(failed):
                raise
            there = True
        self.outcome = WRITTEN if there else NOT_WRITTEN
        if not there:
            raise BackfillError(
                f"output {self._folder.place!r} holds a snapshot that was published meanwhile: it stays"
            )
        try:
            self._put(reports)
        except SnapshotError as failed:
            raise SnapshotError(f"{failed}; the snapshot is there and whole, without its report") from None
        if before is not None:
            self._folder.remove([name for name in REPORT_NAMES if name not in reports])

    def _check(self) -> bytes | None:
        """Refuse a place that a snapshot must not take; return the manifest that is there."""
        place, found = self._folder.place, self._folder.manifest()
        if found is not None:
            if not self._overwrite:
                raise BackfillError(f"output {place!r} holds a snapshot: choose another, or give --overwrite")
            if not self._folder.replaces:
                raise BackfillError(
                    f"output {place!r} holds a snapshot, which this file system cannot replace at once: choose "
                    "another"
                )
            return found
        if not all(_OURS.fullmatch(name) or name in REPORT_NAMES for name in self._folder.entries()):
            raise BackfillError(
                f"output {place!r} holds files that are no snapshot: choose an empty or a new folder"
            )
        return None

    def _arrived(self, failed: SnapshotError) -> bool:
        """Whether the manifest is there though writing it failed; False: it is not, and cannot come any more."""
        with suppress(SnapshotError):
            if self._folder.manifest() == self._manifest:
                return True
            if self._folder.is_local:
                return False
        raise SnapshotError(f"{failed}; {self._folder.place}: {MAYBE_WRITTEN}")

    def _put(self, texts: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="dedup-backfill-") as own:
            for name, text in texts.items():
                path = Path(own) / name
                path.write_text(text, encoding="ascii")
                self._folder.put(path)

    def _sweep(self) -> None:
        """Remove files that no reader knows: those of this run, of the snapshot it replaced, of runs that are over."""
        names = self._folder.names()
        # In this order: a run makes its marker before its files, and removes it after its manifest is written.
        at_work = {name.removeprefix(_MARKER) for name in self._folder.entries() if name.startswith(_MARKER)}
        found = self._folder.manifest()
        kept = _listed_in(found)
        replaced = self._replaced if self._manifest and found == self._manifest else frozenset[str]()

        def is_over(name: str) -> bool:
            run = _RUN.fullmatch(name)
            if run is None:
                return name in replaced
            return (
                run["run"] == self.target.run
                or run["run"] not in at_work
                or self._began_s - int(run["began"], 16) > _ABANDONED_S
            )

        self._folder.remove([name for name in names if name not in kept and is_over(name)])


def _listed_in(manifest: bytes | None) -> frozenset[str]:
    """Return the files that a manifest of any format lists, by their paths in the folder."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        content = json.loads(manifest or b"{}")
        return frozenset(
            f"{entry['partition']:d}/{file['name']}{suffix}"
            for entry in content["partitions"]
            for file in entry["files"]
            if _LISTED.fullmatch(file["name"])
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX)
        )
    return frozenset()


@contextmanager
def own_folder() -> Iterator[Path]:
    """Yield an empty folder on the disk of this worker, where Spark shuffles if it says so; it is gone afterwards."""
    disks = [
        each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each and Path(each).is_dir()
    ]
    disk = secrets.choice(disks) if disks else None
    with tempfile.TemporaryDirectory(prefix="dedup-backfill-", dir=disk) as folder:
        yield Path(folder)
