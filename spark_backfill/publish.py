"""Where a snapshot goes, a folder or a URL: tasks put its files there themselves, the driver writes the manifest last.

Nothing is moved, and nothing is locked. Each attempt of a task writes on its worker's own disk and puts its files as
``<partition>/<range>-<run>-<attempt>.sst`` and ``.filter``, names that no other attempt and no other run has. The
manifest lists those of the attempts whose results Spark kept, with their checksums; readers know nothing else. So
whatever is killed, and whenever, there is the older snapshot (or none), or the new one, whole.

While a run goes on, an empty file ``.run-<run>`` is there. An attempt looks for it when its files are put, and takes
them back if it is gone. So an attempt that outlives its run (a speculative copy, or a task whose driver has ended)
leaves nothing: what was put before the file was removed is seen by the sweep at the end of the run, which removes what
this run has put and no manifest lists.

A sweep at the beginning of a run removes what others have left: the files of a snapshot that was replaced, which
somebody may have been reading until now, and those of a run whose driver was killed. Such a run may still be at work,
as far as others see: its files go two weeks after it began, or when somebody removes its ``.run-`` file. A run without
that file does not publish, however it lost it.

A run whose request for the manifest was interrupted, or failed on the way to a server, does as one that was killed: the
request may yet arrive.

What a run has put stays where it failed, or was killed, when it has kept a part (`spark_backfill.parts`): there is a
text ``.run-<run>.part-<n>`` for each, and a later run may take it over, and list its files. They go when a snapshot is
published that began later, or after two weeks.

Runs are ordered by the clocks of their drivers. Where a clock goes back, or two differ, a kept part may count as older
than the snapshot, and is read again; or one that ended earlier is taken over first, and the history ends where it ended
then. Files of a run that seems to begin in the future stay that much longer. A clock two weeks ahead takes the marker
of a run at work, which then does not publish. No order of runs removes a file that the manifest lists.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from dedup_sdk._masking import is_url, shown
from dedup_sdk._store.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    SortedFile,
    manifest_bytes,
    parse_manifest,
)
from dedup_sdk._store.output_folder import MARKER, OutputFolder, new_run
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk._store.snapshot_source import REPORT_NAMES
from dedup_sdk.errors import SnapshotError
from spark_backfill.ending import KEPT, MAYBE_WRITTEN, NOT_WRITTEN, WRITTEN, EndedError, ended_by
from spark_backfill.errors import IN_FULL, BackfillError
from spark_backfill.workers import Task

_SECOND_MS: Final = 1_000
_ABANDONED_S: Final = 14 * 24 * 60 * 60
"""Files of runs that began so long ago are removed."""
_OURS: Final = re.compile(
    r"(?:\.run-|\d+/\d+-)(?P<run>[0-9a-f]{16})(?:\.manifest|\.part-\d+|(?:-[0-9a-f]{8})?\.(?:sst|filter))?"
)
"""Markers and files of runs, also of those that copy a snapshot."""
_PART: Final = re.compile(r"\.run-(?P<run>[0-9a-f]{16})\.part-\d+")
"""Texts of kept parts."""
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
                self._check_at_work(folder, f"{files[0]} is taken back: the run of this task is over, or ")
            except BaseException:
                folder.remove(files)
                folder.remove_empty()
                raise
            return file

    def check_before(self, task: Task) -> Task:
        """Return the task so that it checks first, before it reads for hours, that its machine reaches the place.

        Raises in the task:
            BackfillError: it does not see what the driver sees.
            ConfigurationError: it has no driver for the URL.
            SnapshotError: it cannot read there.
        """
        return _CheckingFirst(self, task)

    def check(self) -> None:
        """Raise the errors of `check_before` now."""
        self._check_at_work(OutputFolder(self.url))

    def _check_at_work(self, folder: OutputFolder, said: str = "") -> None:
        if not folder.has_mark(self.run):
            raise BackfillError(
                f"{said}this machine does not see what the driver sees at {folder.place}: give a folder on storage "
                "that the driver and all workers share under one path, or a URL"
            )


@dataclass(frozen=True, slots=True)
class _CheckingFirst:
    target: Target
    task: Task

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        self.target.check()
        return self.task(batches)


class IfExists(Enum):
    """What becomes of a snapshot that is at the output already: the run fails, replaces it, or adds to it."""

    REFUSED = "refused"
    REPLACED = "replaced"
    ADDED_TO = "added to"


def check_output(url: str, existing: IfExists) -> None:
    """Raise the errors of `Output` for what is there, before anything is started or asked."""
    folder = OutputFolder(url)
    _check_free(folder, folder.manifest(), existing)


class Output:
    """A snapshot being made at a folder or URL: tasks write to ``target``, `publish` makes it a snapshot.

    A context manager that removes the files of the run that no manifest lists. Runs to one place at once do not meet;
    the first one publishes, and others find that the snapshot is not the one that they were to replace. ``say`` gets a
    line where others are at work.

    ``outcome`` says in words whether the snapshot is there. Where it may be, because the request for the manifest may
    yet arrive, nothing is removed, as if the run had been killed; nor where a part is kept, or taken over, and the
    snapshot is not there.

    Raises:
        BackfillError: there is a snapshot that is refused or cannot be replaced there, or there are files that are no
            snapshot, or, where it is to be added to, those of one whose manifest is gone.
        SnapshotError: the place cannot be read or written.
    """

    def __init__(
        self,
        url: str,
        existing: IfExists = IfExists.REFUSED,
        *,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._folder, self._say = OutputFolder(url), say
        self.outcome = NOT_WRITTEN
        self._manifest = b""
        self._kept = 0
        self._taken_over: dict[str, str] = {}
        """Runs of which parts are taken over, each with the name of the text of one."""
        self._before = self._folder.manifest()
        _check_free(self._folder, self._before, existing)
        self.target = Target(url if is_url(url) else str(Path(url).absolute()), new_run())
        try:
            # To learn early whether files can be written there.
            self._folder.mark(self.target.run)
            self._sweep_others(existing)
        except BaseException:
            self._folder.unmark(self.target.run)
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
            if (asked := ended_by(error)) is not None:
                asked.tell(self.outcome)
            elif self.outcome == KEPT:
                self._say(f"warning: {KEPT}")

    def _clean(self) -> None:
        with suppress(SnapshotError):
            if self.outcome == MAYBE_WRITTEN and self._folder.is_local:
                self.outcome = WRITTEN if self._folder.manifest() == self._manifest else NOT_WRITTEN
            if self.outcome == NOT_WRITTEN and (self._kept or self._taken_over):
                self.outcome = KEPT
            if self.outcome == MAYBE_WRITTEN:
                return
            self._folder.unmark(self.target.run)
            if self.outcome == KEPT:
                return
            for run in self._taken_over:
                self._folder.unmark(run)
            # What cannot be looked at now is listed by no manifest, or by one that may be ours.
            self._sweep_own()
        self._folder.remove_empty()

    def keep(self, part: str) -> None:
        """Keep a part, of which this is the text, and from now on all files of the run, until the snapshot is there.

        Raises:
            SnapshotError: it cannot be written.
        """
        self._folder.write(f"{MARKER}{self.target.run}.part-{self._kept}", part.encode(), self.target.run)
        self._kept += 1

    def kept(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the names and the texts of parts that other runs have kept, those of the last run first.

        ``names``: of the files that are there. Runs that are older than the snapshot that is there have nothing to add
        to it.

        Raises:
            SnapshotError: they cannot be read.
        """
        for name in sorted(names, reverse=True):
            part = _PART.fullmatch(name)
            if part and part["run"] != self.target.run and _is_younger(part["run"], self._before):
                yield name, self._folder.read(name).decode(errors="replace")

    def names(self) -> frozenset[str]:
        """Return the files that are there, by their paths in the folder."""
        return frozenset(self._folder.names())

    def take_over(self, names: Iterable[str]) -> None:
        """Take over the parts whose texts have these names; the texts go when the snapshot is there."""
        self._taken_over |= {match["run"]: name for name in names if (match := _PART.fullmatch(name))}

    def publish(self, manifest: Manifest, reports: Mapping[str, str]) -> None:
        """Write the manifest, which makes it a snapshot, and then the reports, texts by file name.

        Where a report cannot be written, a line says so.

        Raises:
            BackfillError: another snapshot has come to the place since the run began, or its marker is gone.
            SnapshotError: the manifest cannot be written; the error says whether the snapshot may be there.
        """
        self._manifest = manifest_bytes(manifest)
        own = f"{MARKER}{self.target.run}"
        for name in (own, *self._taken_over.values()):
            if not self._folder.has(name):
                raise self._of_no_use(
                    f"{self._folder.place}/{name} is gone, so that others may have removed files of this run: it was "
                    "removed by hand, or by a run two weeks later; run again"
                )
        found = self._folder.manifest()
        if found not in (None, self._before):
            raise self._surpassed()
        self._check_carried(found)
        self.outcome = MAYBE_WRITTEN
        try:
            if found is None:
                there = self._folder.create_manifest(self._manifest, self.target.run)
            else:
                there = self._folder.replace_manifest(self._manifest, self.target.run)
        except SnapshotError as failed:
            if not self._arrived(failed):
                raise
            there = True
        self.outcome = WRITTEN if there else NOT_WRITTEN
        if not there:
            raise self._surpassed()
        try:
            self._folder.remove([name for name in REPORT_NAMES if name not in reports])
            for name, text in reports.items():
                self._folder.write(name, text.encode("ascii"), self.target.run)
        except SnapshotError as failed:
            self._say(f"warning: {failed}; the snapshot is there and whole, without its report")

    def _check_carried(self, found: bytes | None) -> None:
        """See to it that the manifest can be read, and that all files are there which other runs have put."""
        if len(self._manifest) > MAX_MANIFEST_BYTES:
            raise self._of_no_use(
                f"the manifest would have {len(self._manifest):,} bytes, and nothing reads more than "
                f"{MAX_MANIFEST_BYTES:,}: {IN_FULL}, so that a partition has fewer files"
            )
        try:
            parse_manifest(self._manifest, MANIFEST_NAME)
        except SnapshotError as error:
            raise self._of_no_use(f"nothing could read this snapshot: {error}; please report it") from error
        listed = _listed_in(self._manifest) or frozenset()
        carried = {name for name in listed if self.target.run not in name}
        lacking = carried - set(self._folder.names()) if carried else carried
        if lacking or (found is None and carried & (_listed_in(self._before) or frozenset())):
            gone = min(lacking or {MANIFEST_NAME})
            raise self._of_no_use(
                f"output {shown(self._folder.place)} lacks {gone}, which this run has not written itself: it was "
                "removed meanwhile; run again without --add and --resume"
            )

    def _surpassed(self) -> BackfillError:
        return self._of_no_use(
            f"output {shown(self._folder.place)} holds a snapshot that was published since this run began: it stays"
        )

    def _of_no_use(self, message: str) -> BackfillError:
        """Return the error of a run of whose parts none is of use to another one."""
        self._kept, self._taken_over = 0, {}
        return BackfillError(message)

    def _arrived(self, failed: SnapshotError) -> bool:
        """Whether the manifest is there though writing it failed; False: it is not, and cannot come any more."""
        with suppress(SnapshotError):
            if self._folder.manifest() == self._manifest:
                return True
            if self._folder.is_local:
                return False
        raise SnapshotError(f"{failed}; {self._folder.place}: {MAYBE_WRITTEN}")

    def _sweep_others(self, existing: IfExists) -> None:
        """Remove what is left of replaced snapshots and of runs that are over; tell of those that may be at work."""
        # In this order: a run makes its marker before its files, and removes it after its manifest is written.
        names, at_work = self._folder.names(), self._folder.marked()
        for run in filter(_is_abandoned, list(at_work)):
            at_work.remove(run)
            # First, so that it does not publish any more.
            self._folder.unmark(run)
        keeping = {each["run"] for each in map(_PART.fullmatch, names) if each is not None}
        spared = at_work | {run for run in keeping if not _is_abandoned(run)}
        listed = _listed_in(self._folder.manifest())
        if listed is not None:
            over = [
                name
                for name in names
                if name not in listed and (ours := _OURS.fullmatch(name)) and ours["run"] not in spared
            ]
            if existing is IfExists.ADDED_TO and over and self._before is None:
                raise BackfillError(
                    f"output {shown(self._folder.place)} holds {over[0]} and other files, but no manifest.json that "
                    "lists them: put it back to add to that snapshot, or run without --add to make a new one"
                )
            self._folder.remove(over)
        for run in sorted(spared - {self.target.run}):
            began = datetime.fromtimestamp(_began_s(run), UTC).isoformat(" ", "minutes")
            place, remedy = self._folder.place, "--resume takes over the partitions that it has finished"
            if run not in at_work:
                self._say(f"a run that began at {began} has failed at {place}: {remedy}")
                continue
            self._say(
                f"another run that began at {began} is at work at {place}, or was killed: if it was, remove "
                f"{MARKER}{run} there, and the next run removes its files"
                f"{f', or {remedy}' if run in keeping else ''}; else the first to end publishes"
            )

    def _sweep_own(self) -> None:
        """Remove what this run has put and no manifest lists; of the snapshot it replaced, files that bear no run."""
        names, found = self._folder.names(), self._folder.manifest()
        listed, replaced = _listed_in(found), _listed_in(self._before) if found == self._manifest else None
        if listed is None:
            return
        at_work = self._folder.marked() if found == self._manifest else None

        def is_over(name: str) -> bool:
            ours = _OURS.fullmatch(name)
            if ours is None:
                return name in (replaced or ())
            # Other files of a run of which parts are taken over may be those of a manifest that is yet to arrive.
            is_text = at_work is not None and ours["run"] not in at_work and _PART.fullmatch(name) is not None
            return is_text or ours["run"] == self.target.run

        self._folder.remove([name for name in names if name not in listed and is_over(name)])


def _check_free(folder: OutputFolder, before: bytes | None, existing: IfExists) -> None:
    """Refuse a place that a snapshot must not take; ``before`` is the manifest there."""
    place, foreign = folder.place, _listed_in(before) is None
    if before is not None:
        if existing is IfExists.REFUSED:
            raise BackfillError(
                f"output {shown(place)} holds a snapshot: choose another, or give --overwrite"
            )
        if not folder.replaces:
            raise BackfillError(
                f"output {shown(place)} holds a snapshot, which this file system cannot replace at once: choose another"
            )
    else:
        # A snapshot may have come since: then it is found again at the end.
        known = {*REPORT_NAMES, MANIFEST_NAME}
        foreign = not all(name in known or _OURS.fullmatch(name) for name in folder.names())
    if foreign:
        raise BackfillError(
            f"output {shown(place)} holds files that are no snapshot: choose an empty or a new folder"
        )


def _is_abandoned(run: str) -> bool:
    return time.time() - _began_s(run) > _ABANDONED_S


def _began_s(run: str) -> int:
    return int(run[:8], 16)


def _is_younger(run: str, manifest: bytes | None) -> bool:
    """Whether a run began behind the one that made a snapshot, and did not make it itself."""
    if manifest is None:
        return True
    listed = _listed_in(manifest)
    if listed is None or any((ours := _OURS.fullmatch(name)) and ours["run"] == run for name in listed):
        return False
    with suppress(ValueError, TypeError, KeyError):
        return _began_s(run) * _SECOND_MS > int(json.loads(manifest)["created_ms"])
    return False


def paths_of(partition: int, file: SortedFile) -> tuple[str, str]:
    """Return where a sorted file and its filter words are in the folder of a snapshot."""
    return f"{partition}/{file.name}{SORTED_SUFFIX}", f"{partition}/{file.name}{FILTER_SUFFIX}"


def _listed_in(manifest: bytes | None) -> frozenset[str] | None:
    """Return the files that a manifest of any format lists, by their paths in the folder; None: it says nothing."""
    if manifest is None:
        return frozenset()
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        content = json.loads(manifest)
        return frozenset(
            f"{entry['partition']:d}/{file['name']}{suffix}"
            for entry in content["partitions"]
            for file in entry["files"]
            if _LISTED.fullmatch(file["name"])
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX)
        )
    return None


@contextmanager
def own_folder() -> Iterator[Path]:
    """Yield an empty folder on the disk of this worker, where Spark shuffles if it says so; it is gone afterwards."""
    disks = [
        each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each and Path(each).is_dir()
    ]
    disk = secrets.choice(disks) if disks else None
    with tempfile.TemporaryDirectory(prefix="dedup-backfill-", dir=disk) as folder:
        yield Path(folder)
