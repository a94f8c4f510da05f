"""Where snapshots are found: folders, folders that hold several, and URLs; and one of them as a folder on this disk."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedup_sdk.errors import ConfigurationError, SnapshotError
from dedup_sdk.store.manifest import MANIFEST_NAME, Manifest, PartitionManifest, read_manifest
from dedup_sdk.store.remote_snapshot import RemoteSnapshot, find_remote, is_url, require_driver
from dedup_sdk.store.snapshot import read_file
from dedup_sdk.store.sorted_file import SortedFile
from dedup_sdk.store.work_folder import work_folder

Places = str | Path | Iterable[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One snapshot that was found; ``place`` is how messages name it."""

    place: str
    manifest: Manifest
    remote: RemoteSnapshot | None = None

    def copy(self, partition: int, file: SortedFile, folder: Path) -> None:
        """Put one sorted file and its filter words into a folder on this disk, each checked by size and SHA-256.

        Raises `SnapshotError` naming the file and what differs.
        """
        if self.remote is not None:
            self.remote.fetch_file(partition, file, folder)
        else:
            read_file(Path(self.place) / str(partition), file, folder)

    def verified(self, partition: int, file: SortedFile, scratch: Path) -> Path:
        """Check one file as `copy` does and return the folder it is in: where it is, or ``scratch`` if it has to be fetched."""
        if self.remote is None:
            folder = Path(self.place) / str(partition)
            read_file(folder, file, None)
            return folder
        self.copy(partition, file, scratch)
        return scratch


def snapshot_places(snapshot: Places | None) -> tuple[str, ...]:
    """Return folders and URLs as text; raises `ConfigurationError` where that is none, or its driver is not installed."""
    if snapshot is None:
        return ()
    given: list[Any]
    if isinstance(snapshot, str | bytes | Path) or not isinstance(snapshot, Iterable):
        given = [snapshot]
    else:
        given = list(snapshot)
    for each in given:
        if not isinstance(each, str | Path) or not str(each):
            raise ConfigurationError(
                f"snapshot={each!r} is no folder; give one, several, or a URL, or leave it out"
            )
        if is_url(str(each)):
            require_driver(str(each))
    return tuple(map(str, given))


def find_snapshots(places: Iterable[str]) -> tuple[list[Source], list[str]]:
    """Return the snapshots in some places, and one line for each place or snapshot that cannot be read.

    Raises `SnapshotError` where none can be read.
    """
    found: list[Source] = []
    errors: list[SnapshotError] = []
    for place in places:
        try:
            if is_url(place):
                found += [
                    Source(place=each.place, manifest=each.manifest, remote=each)
                    for each in find_remote(place)
                ]
                continue
            for folder in _folders(Path(place)):
                try:
                    found.append(Source(place=str(folder), manifest=read_manifest(folder)))
                except SnapshotError as error:
                    errors.append(error)
        except SnapshotError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return found, list(map(str, errors))


def _folders(place: Path) -> list[Path]:
    try:
        if not (place / MANIFEST_NAME).exists():
            below = sorted(each.parent for each in place.glob(f"[!.]*/{MANIFEST_NAME}"))
            if below:
                return below
    except (OSError, ValueError):
        # Whatever is wrong with it, the one who reads its manifest says so in one line.
        return [place]
    return [place]


@contextmanager
def scratch(beside: Path | None) -> Generator[Path, None, None]:
    """Make a private folder next to a store (None: where temporary files go) that is gone afterwards."""
    with ExitStack() as stack:
        try:
            if beside is None:
                made = tempfile.TemporaryDirectory(prefix="dedup-snapshot-")
                folder = Path(stack.enter_context(made))
            else:
                folder = stack.enter_context(work_folder(beside.absolute(), "fetch"))
        except OSError as error:
            raise SnapshotError(
                f"no folder can be made next to {beside} to fetch a snapshot to: {error.strerror}; give a store= beside which you may write"
            ) from None
        yield folder


def fetched(
    source: Source, entries: tuple[PartitionManifest, ...], folder: Path
) -> Generator[None, None, str]:
    """Return the folder of a snapshot on this disk; of a remote one these partitions are fetched to ``folder``, in steps."""
    if source.remote is None:
        return source.place
    yield from source.remote.fetch(entries, folder)
    return str(folder)


@contextmanager
def whole_snapshot(place: str, group: str | None, beside: Path) -> Generator[tuple[Path, bool], None, None]:
    """Give the folder of a snapshot with all its partitions; of several in one place the newest that may be the group's.

    And whether its files were fetched, and checked: then they are the caller's to move. Raises `SnapshotError` where there is
    none.
    """
    found, _ = find_snapshots([place])
    fit = [source for source in found if group is None or source.manifest.group in (None, group)] or found
    source = max(fit, key=lambda each: each.manifest.created_ms)
    if source.remote is None:
        yield Path(source.place), False
        return
    with scratch(beside) as folder:
        for _ in source.remote.fetch(source.manifest.partitions, folder):
            pass
        yield folder, True
