"""Finds snapshots in folders, folders of snapshots, and behind URLs; fetches remote ones to this disk.

A snapshot may be behind any URL that fsspec has a driver for, e.g. `s3://bucket/snapshot`. Its files are
fetched a few at a time, because network latency dominates. Only files in the manifest are fetched, each
under a temporary name until its SHA-256 is verified. The manifest allows plain file names only
(`dedup_sdk._store.identity`), so that nothing is written outside the target folder.

The snapshots of one topic and group are versions of each other; old ones may be removed (`removable_snapshots`).
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from dedup_sdk._checks import scheme_of_url, why_unusable
from dedup_sdk._marks import Marks
from dedup_sdk._masking import is_url, redacted_url, secrets_of_url, shown, without_secrets
from dedup_sdk._store.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    PartitionManifest,
    SortedFile,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from dedup_sdk._store.paths import work_folder
from dedup_sdk._store.snapshot import (
    FILTER_SUFFIX,
    SORTED_SUFFIX,
    check_size,
    files_of,
    read_file,
    read_layers,
)
from dedup_sdk.errors import ConfigurationError, SnapshotError

if TYPE_CHECKING:
    from dedup_sdk._store.rate_limit import RateLimit

AT_ONCE: Final = 4
_STEP_S: Final = 0.02

Task = Callable[[Event], None]
"""Runs one action; must end soon after the event is set."""


def in_parallel(tasks: Iterable[Task]) -> Iterator[None]:
    """Run tasks in `AT_ONCE` threads; each step waits at most 20 ms, so that the caller can do other work in between.

    The first error of a task stops the others and is raised. Closing the iterator stops the tasks and waits
    for them.
    """
    stop = Event()
    left = iter(tasks)
    running: set[Future[None]] = set()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dedup-snapshot") as pool:
        try:
            while True:
                running |= {pool.submit(task, stop) for task in islice(left, AT_ONCE - len(running))}
                if not running:
                    return
                done, running = wait(running, timeout=_STEP_S, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
                yield
        finally:
            # Before the pool ends, which waits for its tasks.
            stop.set()


_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 8 * 2**20
"""Bytes that a driver requests at once; the default of some is fifty megabytes, kept in memory."""
_LEAST_BLOCK_BYTES = 2**16


def require_driver(url: str, name: str = "snapshot=") -> None:
    """Raise `ConfigurationError` where fsspec, or its driver for this URL, is missing; ``name``: who gave it."""
    try:
        import fsspec
    except ImportError:
        raise ConfigurationError(f"{name}{shown(url)} needs fsspec; install 'dedup-sdk[remote]'") from None
    scheme = redacted_url(url).partition("://")[0]
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"{name}{shown(url)}: fsspec has no driver for {shown(scheme)} ({error}); install it"
        ) from None


class RemoteFiles:
    """The files in the folder ``path`` of the file system of ``url``; ``place`` names the folder in messages.

    Can be sent to other processes, which make a driver of their own for the URL.
    """

    def __init__(self, url: str, path: str, place: str, filesystem: Any = None) -> None:
        self._url, self._path, self.place = url, path.rstrip("/"), place
        self._filesystem = _driver(url)[0] if filesystem is None else filesystem

    def __reduce__(self) -> tuple[type[RemoteFiles], tuple[str, str, str]]:
        return RemoteFiles, (self._url, self._path, self.place)

    def fetch_file(
        self,
        partition: int,
        file: SortedFile,
        folder: Path,
        stop: Event | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        """Fetch one sorted file and its filter words to a folder, complete and checked; ``stop`` cancels."""
        self.require_room(folder, file.whole_bytes)
        for suffix, size, sha256 in files_of(file):
            self._fetch(f"{partition}/{file.name}{suffix}", sha256, size, folder, stop or Event(), limit)

    def require_room(self, folder: Path, size: int) -> None:
        """Raise `SnapshotError` if files of the declared size do not fit on the disk of a folder."""
        free = shutil.disk_usage(folder).free
        if size > free:
            raise SnapshotError(
                f"{self.place} needs {size} bytes, as its manifest says, and {folder} has room for {free}; make room "
                "there, or make the snapshot again"
            )

    def read(self, name: str, *, max_bytes: int, block_bytes: int = _BLOCK_BYTES) -> Iterator[bytes]:
        """Yield at most so many bytes of a file, in pieces; raises `SnapshotError`.

        ``block_bytes``: about so many are requested at once.
        """
        piece = min(_CHUNK_BYTES, block_bytes)
        try:
            with self._filesystem.open(f"{self._path}/{name}", "rb", block_size=block_bytes) as source:
                while max_bytes > 0 and (chunk := source.read(min(piece, max_bytes))):
                    max_bytes -= len(chunk)
                    yield chunk
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(
                f"{self.place}/{name} cannot be read: {driver_message(error, self._url)}"
            ) from None

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that are there, one after the other; raises `SnapshotError`."""
        try:
            for name in names:
                with suppress(FileNotFoundError):
                    self._filesystem.rm_file(f"{self._path}/{name}")
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(
                f"{self.place} cannot be removed: {driver_message(error, self._url)}"
            ) from None

    def _fetch(
        self, name: str, sha256: str, size: int, target: Path, stop: Event, limit: RateLimit | None
    ) -> None:
        path = target / name.rpartition("/")[2]
        partial_path = path.with_name(f"{path.name}.partial")
        digest, found = hashlib.sha256(), 0
        try:
            with partial_path.open("wb") as file:
                # One byte more: a longer file must be found out, and is not read to its end.
                for chunk in self.read(name, max_bytes=size + 1, block_bytes=_block_bytes(limit)):
                    if limit is not None:
                        limit.take(len(chunk), stop)
                    if stop.is_set():
                        return
                    found += len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
        except OSError as error:
            raise SnapshotError(
                f"{partial_path} cannot be written: {error.strerror}; free space on the store's disk"
            ) from None
        if found > size:
            raise SnapshotError(
                f"{self.place}/{name} has more than the {size} bytes that its manifest says; copy or make the snapshot "
                "again"
            )
        check_size(f"{self.place}/{name}", found, size)
        if digest.hexdigest() != sha256:
            raise SnapshotError(
                f"{self.place}/{name} has SHA-256 {digest.hexdigest()}, its manifest says {sha256}; "
                "copy or make the snapshot again"
            )
        partial_path.rename(path)


def _block_bytes(limit: RateLimit | None) -> int:
    """Return how many bytes to request at once: all threads together at most about those of a second."""
    if limit is None:
        return _BLOCK_BYTES
    return min(_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, limit.bytes_per_second // AT_ONCE))


class RemoteSnapshot:
    """The snapshot whose files these are."""

    def __init__(self, files: RemoteFiles) -> None:
        self.files, self.place = files, files.place
        self.manifest_bytes = b"".join(files.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES + 1))
        self.manifest: Manifest = parse_manifest(self.manifest_bytes, f"{self.place}/{MANIFEST_NAME}")

    def fetch(
        self, entries: tuple[PartitionManifest, ...], folder: Path, limit: RateLimit | None = None
    ) -> Iterator[None]:
        """Make ``folder`` a snapshot of some partitions, several files at once; each step waits at most 20 ms.

        Raises `SnapshotError` where a file is missing, or differs from the manifest.
        """
        self.files.require_room(folder, sum(entry.bytes for entry in entries))
        yield from put_files(partial(self.files.fetch_file, limit=limit), entries, folder)
        # Last: a folder with a manifest counts as complete.
        (folder / MANIFEST_NAME).write_bytes(self.manifest_bytes)

    def remove(self) -> None:
        """Delete the manifest, then the files it names, and the reports; raises `SnapshotError`."""
        self.files.remove([MANIFEST_NAME])
        self.files.remove(
            f"{entry.partition}/{file.name}{suffix}"
            for entry in self.manifest.partitions
            for file in entry.files
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX)
        )
        self.files.remove(REPORT_NAMES)


def find_remote(url: str) -> list[RemoteSnapshot]:
    """Return the snapshot at a URL, or those in the folders directly below it.

    Raises `SnapshotError` when there is none.
    """
    place = redacted_url(url).rstrip("/")
    filesystem, path = _driver(url)
    try:
        # Drivers cache listings; find snapshots that were written since.
        filesystem.invalidate_cache()
        if filesystem.exists(f"{path}/{MANIFEST_NAME}"):
            below = [path]
        else:
            listed = [each.rstrip("/") for each in filesystem.ls(path, detail=False)]
            # A name that begins with a dot belongs to a run that is under way.
            named = [each for each in listed if not each.rpartition("/")[2].startswith(".")]
            below = [each for each in named if filesystem.exists(f"{each}/{MANIFEST_NAME}")]
    except Exception as error:  # noqa: BLE001 (as above)
        raise SnapshotError(f"snapshot {place} cannot be read: {driver_message(error, url)}") from None
    if not below:
        raise SnapshotError(
            f"{place} has no {MANIFEST_NAME}: it is neither a snapshot nor a folder of snapshots; "
            "give the one that the backfill wrote"
        )
    names = [place if each == path else f"{place}/{each.rstrip('/').rpartition('/')[2]}" for each in below]
    return [
        RemoteSnapshot(RemoteFiles(url, each, without_secrets(name, secrets_of_url(url)), filesystem))
        for each, name in zip(below, names, strict=True)
    ]


def _driver(url: str) -> tuple[Any, str]:
    """Return the driver for a URL, and the URL's path there."""
    require_driver(url)
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(url)
    except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
        place = redacted_url(url).rstrip("/")
        raise SnapshotError(f"snapshot {place} cannot be read: {driver_message(error, url)}") from None
    return filesystem, path.rstrip("/")


def driver_message(error: Exception, url: str) -> str:
    """Return a driver's error in one line without possible secrets of the URL, and with a remedy."""
    line = without_secrets(" ".join(str(error).split()), secrets_of_url(url))[:300]
    return f"{type(error).__name__}: {line}; check the URL and your access to it"


def put_files(
    put: Callable[[int, SortedFile, Path, Event], None], entries: Iterable[PartitionManifest], folder: Path
) -> Iterator[None]:
    """Put the files of partitions into a folder of each, several at once, in steps of at most 20 ms."""
    for entry in entries:
        (folder / str(entry.partition)).mkdir(mode=0o700)
    yield from in_parallel(
        partial(put, entry.partition, file, folder / str(entry.partition))
        for entry in entries
        for file in entry.files
    )


SnapshotLocations = str | Path | Iterable[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A snapshot that was found; ``place`` names it in messages, and its files are read no faster than ``limit``."""

    place: str
    manifest: Manifest
    remote: RemoteSnapshot | None = None
    limit: RateLimit | None = None

    def copy(self, partition: int, file: SortedFile, folder: Path, stop: Event | None = None) -> None:
        """Put one sorted file and its filter words into a folder on this disk, checked by size and SHA-256.

        ``stop`` cancels. Raises `SnapshotError` naming the file and the difference.
        """
        if self.remote is not None:
            self.remote.files.fetch_file(partition, file, folder, stop, self.limit)
        else:
            read_file(Path(self.place) / str(partition), file, folder, stop, self._took(stop))

    def verified(self, partition: int, file: SortedFile, scratch: Path, stop: Event | None = None) -> Path:
        """Check one file as `copy` does, and return its folder.

        That is its own folder, or ``scratch`` if it had to be fetched.
        """
        if self.remote is None:
            folder = Path(self.place) / str(partition)
            read_file(folder, file, None, stop, self._took(stop))
            return folder
        self.copy(partition, file, scratch, stop)
        return scratch

    def _took(self, stop: Event | None) -> Callable[[int], object] | None:
        return None if self.limit is None else partial(self.limit.take, stop=stop or Event())

    def copy_all(self, folder: Path) -> Iterator[None]:
        """Make ``folder`` the same snapshot, several files at once and each checked, in steps of at most 20 ms."""
        if self.remote is not None:
            yield from self.remote.fetch(self.manifest.partitions, folder, self.limit)
            return
        yield from put_files(self.copy, self.manifest.partitions, folder)
        write_manifest(folder, self.manifest)


def snapshot_locations(snapshot: SnapshotLocations | None) -> tuple[str, ...]:
    """Return folders and URLs as text.

    Raises `ConfigurationError` for other values, for URLs without a driver, and for paths that no folder can have. A
    folder that does not exist is none of these.
    """
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
                f"snapshot={shown(each)} is not a path; give a folder or a URL, or a list of them, or leave it out"
            )
        if is_url(str(each)):
            require_driver(str(each))
        else:
            _refuse_unusable(each)
    return tuple(map(str, given))


def _refuse_unusable(path: str | Path) -> None:
    if scheme := scheme_of_url(path):
        raise ConfigurationError(
            f"snapshot={scheme}:/*** is a URL that lacks a slash; give it as text, e.g. '{scheme}://bucket/snapshots'"
        )
    why = why_unusable(path)
    with suppress(OSError):
        # One that cannot be looked at now may be readable when a partition needs it.
        if why is None and Path(path).exists() and not Path(path).is_dir():
            why = "is not a folder"
    if why:
        raise ConfigurationError(f"snapshot={shown(path)} {why}; give the folder that the backfill wrote")


def read_source(
    source: SnapshotSource, entry: PartitionManifest, *, temp_dir: Path | None = None
) -> Generator[Marks, None, None]:
    """Like `read_snapshot`, for a folder or URL; ``temp_dir``: a folder for copies [the temporary folder]."""
    return read_layers(
        entry,
        lambda file, target: source.copy(entry.partition, file, target),
        place=f"{source.place}/{entry.partition}",
        temp_dir=temp_dir,
    )


def find_snapshots(places: Iterable[str]) -> tuple[list[SnapshotSource], list[str]]:
    """Return the snapshots at some locations, and one line for each location or snapshot that cannot be read.

    Raises `SnapshotError` where none can be read.
    """
    found: list[SnapshotSource] = []
    errors: list[SnapshotError] = []
    for place in places:
        try:
            if is_url(place):
                found += [
                    SnapshotSource(place=each.place, manifest=each.manifest, remote=each)
                    for each in find_remote(place)
                ]
                continue
            for folder in _folders(Path(place)):
                try:
                    found.append(SnapshotSource(place=str(folder), manifest=read_manifest(folder)))
                except SnapshotError as error:
                    errors.append(error)
        except SnapshotError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return found, list(map(str, errors))


def why_unreadable(places: Iterable[str]) -> SnapshotError | None:
    """Return the first error if no folder has a snapshot that can be read, else None; it stops at one that can."""
    first: SnapshotError | None = None
    for folder in chain.from_iterable(_folders(Path(place)) for place in places):
        try:
            read_manifest(folder)
        except SnapshotError as error:
            first = first or error
        else:
            return None
    return first


def _folders(place: Path) -> list[Path]:
    try:
        if not (place / MANIFEST_NAME).exists():
            below = sorted(each.parent for each in place.glob(f"[!.]*/{MANIFEST_NAME}"))
            if below:
                return below
    except (OSError, ValueError):
        # An unreadable path: reading its manifest reports the error in one line.
        return [place]
    return [place]


@contextmanager
def scratch(sibling: Path | None) -> Generator[Path, None, None]:
    """Create a private folder next to a store (None: in the temporary folder) that is removed afterwards."""
    with ExitStack() as stack:
        try:
            if sibling is None:
                made = tempfile.TemporaryDirectory(prefix="dedup-snapshot-")
                folder = Path(stack.enter_context(made))
            else:
                folder = stack.enter_context(work_folder(sibling.absolute(), "fetch"))
        except OSError as error:
            raise SnapshotError(
                f"a folder to fetch the snapshot to cannot be created next to {sibling}: {error.strerror}; "
                "give a store= in a folder you may write to"
            ) from None
        yield folder


def fetched(
    source: SnapshotSource, entries: tuple[PartitionManifest, ...], folder: Path
) -> Generator[None, None, str]:
    """Return a snapshot's folder on this disk; these partitions of a remote one are fetched to ``folder``, in steps."""
    if source.remote is None:
        return source.place
    yield from source.remote.fetch(entries, folder)
    return str(folder)


@contextmanager
def open_newest(
    place: str, group: str | None, sibling: Path, limit: RateLimit | None = None
) -> Generator[tuple[Path, bool], None, None]:
    """Yield the folder of a snapshot with all its partitions, and whether the caller may move its files.

    Of several snapshots at the location it is the newest one for this group. Files that were fetched, and
    checked, may be moved; with a limit those of a folder are fetched, too. Raises `SnapshotError` where there is none.
    """
    found, _ = find_snapshots([place])
    # Without one for this group any other: the caller then says which group the snapshot is of.
    fit = [source for source in found if group is None or source.manifest.group in (None, group)] or found
    source = replace(max(fit, key=lambda each: each.manifest.created_ms), limit=limit)
    if source.remote is None and limit is None:
        yield Path(source.place), False
        return
    with scratch(sibling) as folder:
        for _ in source.copy_all(folder):
            pass
        yield folder, True


REPORT_NAMES = ("report.json", "findings.json")
"""Files that a backfill writes beside those of a snapshot."""


def newest_first(found: Iterable[SnapshotSource]) -> list[SnapshotSource]:
    """Return snapshots by creation time, the newest first; of the same moment by name."""
    return sorted(found, key=lambda each: (-each.manifest.created_ms, each.place))


def snapshots_of_one_group(
    found: Sequence[SnapshotSource], topic: str | None = None, group: str | None = None
) -> list[SnapshotSource]:
    """Return the snapshots of this topic and group, the newest first; ``group`` "" selects those made without a group.

    Raises `SnapshotError` when there is none, or they are of several topics, groups or clusters.
    """
    kept = newest_first(
        each
        for each in found
        if (topic is None or each.manifest.topic == topic)
        and (group is None or (each.manifest.group or "") == group)
    )
    if not kept:
        there = sorted({f"{each.manifest.topic} of {each.manifest.group or 'no group'}" for each in found})
        raise SnapshotError(
            f"there is no such snapshot, only snapshots of {', '.join(there)}; select one of these"
        )
    for name in ("topic", "group", "cluster"):
        values = sorted({str(getattr(each.manifest, name)) for each in kept})
        if len(values) > 1:
            remedy = (
                "keep each cluster in its own folder" if name == "cluster" else f"select one with --{name}"
            )
            raise SnapshotError(
                f"there are snapshots of several values of {name}: {', '.join(values)}; {remedy}"
            )
    return kept


def removable_snapshots(
    family: Sequence[SnapshotSource], keep: int, before_ms: int | None = None
) -> list[SnapshotSource]:
    """Return the snapshots except the ``keep`` newest (at least one); with a time, only those made before it."""
    if keep < 1:
        raise SnapshotError(f"keep={keep} would leave no snapshot; keep at least 1")
    beyond = newest_first(family)[keep:]
    return [each for each in beyond if before_ms is None or each.manifest.created_ms < before_ms]


def remove_snapshot(source: SnapshotSource) -> list[str]:
    """Remove the files that a manifest lists, the manifest first, so that an interrupted removal leaves no snapshot.

    Returns the names of other files in its folder, which stay. Raises `SnapshotError` when something cannot
    be removed, or another snapshot has taken its place, which stays.
    """
    now = (
        read_manifest(source.place) if source.remote is None else RemoteSnapshot(source.remote.files).manifest
    )
    # A run may have replaced the snapshot since, under the same name.
    if now != source.manifest:
        raise SnapshotError(f"{source.place} holds another snapshot since it was looked at, which stays")
    if source.remote is not None:
        source.remote.remove()
        return []
    folder = Path(source.place)
    try:
        (folder / MANIFEST_NAME).unlink()
        for entry in source.manifest.partitions:
            for file in entry.files:
                for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                    (folder / str(entry.partition) / f"{file.name}{suffix}").unlink(missing_ok=True)
            _remove_empty(folder / str(entry.partition))
        for name in REPORT_NAMES:
            (folder / name).unlink(missing_ok=True)
        _remove_empty(folder)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise SnapshotError(
            f"{folder} cannot be removed: {error.strerror}; remove the rest by hand"
        ) from None


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
