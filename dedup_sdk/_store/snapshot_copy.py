"""Copies a snapshot between folders and URLs: every file is checked on the way, and the manifest is written last.

Behind a URL, every attempt uses its own file names, as a run of the backfill does. So two attempts never touch each
other's files, and the manifest alone decides which of them is the snapshot.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

from dedup_sdk._masking import is_url
from dedup_sdk._store.manifest import MANIFEST_NAME, SortedFile, manifest_bytes, read_manifest, write_manifest
from dedup_sdk._store.output_folder import MARKER, OutputFolder, new_run
from dedup_sdk._store.paths import new_snapshot
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk._store.snapshot_source import SnapshotSource, Task, in_parallel, put_files, require_driver
from dedup_sdk.errors import SnapshotError


def publish_snapshot(folder: str | Path, target: str) -> None:
    """Copy a snapshot's folder to a URL or another folder, where it appears when complete; see `copy_snapshot`."""
    copy_snapshot(SnapshotSource(place=str(folder), manifest=read_manifest(folder)), target)


def copy_snapshot(source: SnapshotSource, target: str) -> None:
    """Copy a snapshot to a new folder or URL, several files at once; other files are not copied.

    Each file is sent on when it was read.

    Raises:
        ConfigurationError: there is no driver for the URL, or the path is invalid.
        SnapshotError: there is a snapshot already (or, in a folder, anything); a file fails its check, or cannot be
            written. A folder is then as it was; at a URL no manifest of this copy is left, and its files are removed
            where possible.
    """
    for _ in copying_snapshot(source, target):
        pass


def copying_snapshot(source: SnapshotSource, target: str) -> Iterator[None]:
    """Like `copy_snapshot`, in steps of at most 20 ms."""
    if is_url(target):
        require_driver(target)
        return _to_url(source, target)
    return _to_folder(source, Path(target))


def _to_folder(source: SnapshotSource, target: Path) -> Iterator[None]:
    with new_snapshot(target) as folder:
        yield from put_files(source.copy, source.manifest.partitions, folder)
        write_manifest(folder, source.manifest)


def _to_url(source: SnapshotSource, url: str) -> Iterator[None]:
    target = UrlTarget(url)
    try:
        yield from target.upload(source)
        target.finish(source)
    except BaseException as error:
        if not target.take_back() and isinstance(error, SnapshotError):
            raise SnapshotError(f"{error}; the snapshot may be there: look before you copy again") from None
        raise
    yield


class UrlTarget:
    """A URL without a snapshot, to copy one to; ``place`` names it in messages.

    Raises:
        ConfigurationError: there is no driver for the URL.
        SnapshotError: there is a snapshot already, or the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._folder = OutputFolder(url)
        self.place = self._folder.place
        self._run = new_run()
        self._uploaded: list[str] = []
        self._manifest = b""
        self._doubted = False
        if self._folder.has(MANIFEST_NAME):
            raise SnapshotError(
                f"{self.place} has a snapshot already, which is never overwritten; choose another path"
            )
        self._folder.mark(self._run)

    def upload(self, source: SnapshotSource) -> Iterator[None]:
        """Upload a snapshot's files, without its manifest, several at once and each checked, in steps of at most 20 ms.

        Their names are unique to this attempt.
        """

        def upload(partition: int, file: SortedFile, name: str, stop: Event) -> None:
            with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
                folder = source.verified(partition, file, Path(scratch), stop)
                if stop.is_set():
                    return
                for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                    remote = f"{partition}/{name}{suffix}"
                    # Before the file is sent: a failure may leave a part, which must be removed as well.
                    self._uploaded.append(remote)
                    self._folder.put(folder / f"{file.name}{suffix}", remote)

        tasks: Iterator[Task] = (
            partial(upload, entry.partition, file, self._name(number))
            for entry in source.manifest.partitions
            for number, file in enumerate(entry.files)
        )
        yield from in_parallel(tasks)

    def _name(self, number: int) -> str:
        return f"{number:04}-{self._run}"

    def finish(self, source: SnapshotSource) -> None:
        """Write the manifest, which makes it a snapshot.

        Raises:
            SnapshotError: another snapshot was published meanwhile, which stays as it is; or the manifest cannot be
                written.
        """
        entries = tuple(
            replace(
                entry,
                files=tuple(
                    # Numbered as in `upload`: the manifest must name the files that were sent.
                    replace(file, name=self._name(number))
                    for number, file in enumerate(entry.files)
                ),
            )
            for entry in source.manifest.partitions
        )
        self._manifest = manifest_bytes(replace(source.manifest, partitions=entries))
        # From here on the manifest may arrive, whatever the request returns.
        self._doubted = True
        there = self._folder.create_manifest(self._manifest, self._run)
        self._doubted = False
        if not there:
            raise SnapshotError(
                f"{self.place} has a snapshot that was published meanwhile, which is never overwritten; "
                "choose another path"
            )
        self._folder.unmark(self._run)

    def take_back(self) -> bool:
        """Remove this attempt's files, after a failure. False, and nothing is removed: its manifest may yet arrive.

        The snapshot of another attempt stays as it is.
        """
        if self._doubted:
            with suppress(SnapshotError):
                self._doubted = not self._folder.is_local or self._folder.manifest() == self._manifest
        if not self._doubted:
            self._folder.remove([*self._uploaded, f"{MARKER}{self._run}"])
        return not self._doubted
