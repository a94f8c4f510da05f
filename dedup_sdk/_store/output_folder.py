"""A folder that a snapshot is written to, on this machine or behind a URL: files one by one, the manifest last.

All writers of snapshots that are not made beside their place share it: they put files under names of their own run
(`new_run`), and the manifest alone decides whose files are the snapshot. While a run goes on, its marker is there, an
empty file. fsspec has the drivers; a folder of this machine is one of them.

The manifest is *created* only where there is none: by a hard link in a folder, by a condition at object stores
(``If-None-Match``); where a driver or a server has no conditions one is looked for first. It is *replaced* by one
request, or in a folder by the rename of one file, so that readers find the old or the new one, whole. Drivers that can
do neither (``hdfs://``, ``sftp://``) refuse to replace.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from dedup_sdk._masking import is_url, redacted_url
from dedup_sdk._store.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, open_manifest
from dedup_sdk._store.snapshot_source import Task, driver_message, in_parallel, require_driver
from dedup_sdk.errors import ConfigurationError, SnapshotError

logger = logging.getLogger("dedup_sdk")

MARKER: Final = ".run-"
_MARKED: Final = re.compile(rf"{re.escape(MARKER)}[0-9a-f]{{16}}")
_WITHOUT_FOLDERS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})
"""Object stores: a path needs no folder, and an object is written whole or not at all."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_REMOVED_AT_ONCE: Final = 1_000
_PUT_TRIES: Final = 5
_PIECE_BYTES: Final = 2**20


def new_run() -> str:
    """Return a name for a run that begins now: 16 hexadecimal digits, of which the first 8 are the time in seconds."""
    return f"{int(time.time()):08x}{secrets.token_hex(4)}"


class OutputFolder:
    """The folder at a path or URL; ``place`` names it in messages.

    Raises:
        ConfigurationError: fsspec, or its driver for the URL, is missing.
        SnapshotError: the driver cannot be used. So do all methods, in one line without secrets of the URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        if is_url(url):
            require_driver(url)
            from fsspec.core import url_to_fs

            self.place = redacted_url(url).rstrip("/")
            with self._told("read"):
                self._filesystem, path = url_to_fs(url)
        else:
            self.place = url
            self._filesystem, path = _local_filesystem(), str(Path(url).absolute())
        self._path = path.rstrip("/")
        protocols = _protocols(self._filesystem)
        self.is_local = "file" in protocols or "local" in protocols
        self._is_object_store = not self.is_local and bool(_WITHOUT_FOLDERS & set(protocols))

    @property
    def replaces(self) -> bool:
        """Whether a manifest can be replaced by one request, so that there is a whole one at any time."""
        return self.is_local or self._is_object_store

    def manifest(self) -> bytes | None:
        """Return the manifest that is there now; None: there is none.

        It is read no further than a manifest can be long; a longer one raises `SnapshotError`.
        """
        with self._told("read", MANIFEST_NAME):
            # Drivers cache listings and sizes.
            self._filesystem.invalidate_cache()
            try:
                return self._bounded(MANIFEST_NAME)
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes:
        """Return what a small file has, which is no longer than a manifest can be; a longer one is not read further."""
        with self._told("read", name):
            return self._bounded(name)

    def has(self, name: str) -> bool:
        """Whether a file of this name is there now."""
        with self._told("read", name):
            self._filesystem.invalidate_cache()
            try:
                self._filesystem.info(self._at(name))
            except FileNotFoundError:
                return False
            return True

    def marked(self) -> set[str]:
        """Return the runs whose markers are there now; none where the folder does not exist."""
        with self._told("read"):
            self._filesystem.invalidate_cache()
            try:
                listed = self._filesystem.ls(self._path, detail=False)
            except FileNotFoundError:
                return set()
        names = (each.rstrip("/").rpartition("/")[2] for each in listed)
        return {name.removeprefix(MARKER) for name in names if _MARKED.fullmatch(name)}

    def names(self) -> list[str]:
        """Return all files below it, by their paths in it; none where it does not exist."""
        if self.is_local:
            # Files may go meanwhile, which the driver takes for an empty folder.
            with self._told("read"):
                return [
                    os.path.relpath(os.path.join(folder, name), self._path)  # noqa: PTH118 (many)
                    for folder, _, files in os.walk(self._path, onerror=_unless_gone)
                    for name in files
                ]
        with self._told("read"):
            self._filesystem.invalidate_cache()
            try:
                found = self._filesystem.find(self._path)
            except FileNotFoundError:
                return []
        beginning = f"{self._path.lstrip('/')}/"
        paths = (each.lstrip("/") for each in found)
        return [each.removeprefix(beginning) for each in paths if each.startswith(beginning)]

    def make(self, name: str = "") -> None:
        """Make the folder, or one in it, private to the user, if it is not there and the driver has folders."""
        if self._is_object_store:
            return
        path = self._at(name) if name else self._path
        with self._told("written", name):
            if self.is_local:
                # Only a flush of the folder above lets a new name outlive a power cut.
                new = [each for each in (Path(path), *Path(path).parents) if not each.exists()]
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).mkdir(mode=0o700, exist_ok=True)
                for each in new:
                    _flush_folder(str(each.parent))
            else:
                self._filesystem.makedirs(path, exist_ok=True)

    def mark(self, run: str) -> None:
        """Make the folder, and in it the marker of a run."""
        self.make()
        with self._told("written", f"{MARKER}{run}"):
            if self.is_local:
                _write_durably(Path(self._at(f"{MARKER}{run}")), b"")
            else:
                self._filesystem.pipe_file(self._at(f"{MARKER}{run}"), b"")

    def has_mark(self, run: str) -> bool:
        """Whether the marker of a run is there now."""
        return self.has(f"{MARKER}{run}")

    def unmark(self, run: str) -> None:
        """Remove the marker of a run as far as possible."""
        self.remove([f"{MARKER}{run}"])

    def put(self, local: Path, name: str = "") -> None:
        """Put one file there as ``name``, a path in the folder, or under its own name.

        In a folder of this machine it is flushed to the disk, and private to the user. Raises `SnapshotError` also
        where it arrives with another size.
        """
        name = name or local.name
        remote, size = self._at(name), -1
        for tries in range(_PUT_TRIES):
            self.make(name.rpartition("/")[0])
            with self._told("written", name):
                try:
                    self._filesystem.put_file(str(local), remote)
                    if self.is_local:
                        _make_durable(Path(remote))
                    size = self._filesystem.info(remote)["size"]
                    break
                except FileNotFoundError:
                    # Another run may have removed the folder while it was empty.
                    if not self.is_local or tries + 1 == _PUT_TRIES or not local.exists():
                        raise
        expected = local.stat().st_size
        if size != expected:
            raise SnapshotError(
                f"{self.place}/{name} has {size} bytes there, but {expected} were written; copy it again"
            )

    def write(self, name: str, data: bytes, run: str) -> None:
        """Write a small file of a run in place of another one, whole at any time where the driver can do that."""
        with self._told("written", name):
            if self.is_local:
                self._written_beside(data, run).replace(self._at(name))
            else:
                self._filesystem.pipe_file(self._at(name), data)

    def create_manifest(self, data: bytes, run: str) -> bool:
        """Write the manifest of a run if there is none; False: there is another one, which stays as it is.

        Raises `SnapshotError` where the request failed; unless the folder is local, it may yet arrive.
        """
        with self._told("written", MANIFEST_NAME):
            self._create(data, run)
        # Read back: a driver that got no answer repeats its request, which its own file then refuses.
        return self.manifest() == data

    def replace_manifest(self, data: bytes, run: str) -> bool:
        """Write the manifest of a run in the place of another one, whole until then; False: it was replaced, too.

        Raises `SnapshotError` where the driver has no such request, or it failed; unless the folder is local, it may
        yet arrive.
        """
        if not self.replaces:
            raise SnapshotError(
                f"{self.place} has a snapshot, which this driver cannot replace at once; choose another path"
            )
        with self._told("written", MANIFEST_NAME):
            if self.is_local:
                self._written_beside(data, run).replace(self._at(MANIFEST_NAME))
                _flush_folder(self._path)
            else:
                self._filesystem.pipe_file(self._at(MANIFEST_NAME), data)
        return self.manifest() == data

    def remove(self, names: Sequence[str]) -> None:
        """Remove files as far as possible; in a folder of this machine, also the folders that are empty then."""
        paths = [self._at(name) for name in names]
        magic = any(each in self._path for each in "*?[")
        if getattr(self._filesystem, "async_impl", False) and self._is_object_store and not magic:
            # One request for many; drivers take such names for patterns.
            for start in range(0, len(paths), _REMOVED_AT_ONCE):
                with suppress(Exception):
                    self._filesystem.rm(paths[start : start + _REMOVED_AT_ONCE])
            return

        def task(path: str) -> Task:
            def remove(_: object) -> None:
                with suppress(Exception):
                    self._filesystem.rm_file(path)

            return remove

        for _ in in_parallel(map(task, paths)):
            pass
        if self.is_local:
            for name in {name.rpartition("/")[0] for name in names} - {""}:
                with suppress(OSError):
                    # Fails unless the folder is empty: other runs may have files there.
                    Path(self._at(name)).rmdir()

    def remove_empty(self) -> None:
        """Remove the folder itself if nothing is in it, on this machine."""
        if self.is_local:
            with suppress(OSError):
                Path(self._path).rmdir()

    def _create(self, data: bytes, run: str) -> None:
        place = self._at(MANIFEST_NAME)
        if self.is_local:
            self._link(data, run)
            return
        # Looked for first: some drivers ignore the condition, and would write over a manifest.
        if self._is_object_store and self.manifest() is None:
            try:
                self._filesystem.pipe_file(place, data, mode="create")
            except FileExistsError:
                return
            except Exception as error:
                # Drivers also have other errors for it.
                if self.manifest() is not None:
                    return
                if not _is_unsupported(error):
                    raise
                # No traceback: the driver's texts in it may contain a secret of the URL.
                logger.debug(
                    "%s: no exclusive write of %s: %s",
                    self.place,
                    MANIFEST_NAME,
                    driver_message(error, self._url),
                    extra={"event": "exclusive-write-unsupported"},
                )
            else:
                return
        if self.manifest() is not None:
            return
        if self._is_object_store:
            # Without conditions the last run wins: the caller reads back whose manifest is there.
            self._filesystem.pipe_file(place, data)
            return
        # Who is killed half way leaves no half manifest.
        beside = self._at(f"{MARKER}{run}.manifest")
        self._filesystem.pipe_file(beside, data)
        self._filesystem.mv(beside, place)

    def _link(self, data: bytes, run: str) -> None:
        """Create the manifest of a folder; one that is there stays."""
        place = Path(self._at(MANIFEST_NAME))
        beside = self._written_beside(data, run)
        try:
            with suppress(FileExistsError):
                try:
                    place.hardlink_to(beside)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    # No links here: a kill between these two may leave a manifest that is refused as incomplete.
                    _write_durably(place, data)
        finally:
            beside.unlink(missing_ok=True)
        _flush_folder(self._path)

    def _written_beside(self, data: bytes, run: str) -> Path:
        path = Path(self._at(f"{MARKER}{run}.manifest"))
        _write_durably(path, data)
        return path

    def _bounded(self, name: str) -> bytes:
        """Read a text; `SnapshotError` where it is longer than any that this package writes."""
        most = MAX_MANIFEST_BYTES + 1
        if self.is_local and name == MANIFEST_NAME:
            found = open_manifest(self._path)
        elif self._is_object_store:
            # One request, whose answer is a whole text also where it is just being replaced.
            try:
                found = self._filesystem.cat_file(self._at(name), start=0, end=most)
            except FileNotFoundError:
                raise
            except Exception:
                # An empty object has no such range.
                if self._filesystem.info(self._at(name))["size"]:
                    raise
                found = b""
        else:
            with self._filesystem.open(self._at(name), "rb") as file:
                found = b"".join(_pieces(file, most))
        if len(found) >= most:
            raise SnapshotError(
                f"{self.place}/{name} is larger than {most - 1} bytes, so no backfill wrote it; check the path"
            )
        return found

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _told(self, done: str, name: str = "") -> Iterator[None]:
        """Raise what a driver raises as one line: what cannot be ``done``, and why."""
        try:
            yield
        except (SnapshotError, ConfigurationError):
            raise
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            shown = f"{self.place}/{name}" if name else self.place
            if is_url(self._url):
                why = driver_message(error, self._url)
            else:
                why = f"{getattr(error, 'strerror', None) or error}; choose another folder"
            raise SnapshotError(f"{shown} cannot be {done}: {why}") from None


def _local_filesystem() -> Any:
    try:
        from fsspec.implementations.local import LocalFileSystem
    except ImportError:
        raise ConfigurationError("writing a snapshot needs fsspec; install 'dedup-sdk[remote]'") from None
    return LocalFileSystem()


def _is_unsupported(error: Exception) -> bool:
    """Whether a driver or a server says that it has no exclusive write."""
    told = f"{type(error).__name__} {error}".replace(" ", "").lower()
    return any(
        each in told for each in ("notimplemented", "typeerror", "paramvalidation", "unknownparameter")
    )


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _protocols(filesystem: Any) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _pieces(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield what a file has, so many bytes of it at most; a driver may read fewer than it is asked for."""
    while most > 0 and (piece := file.read(min(most, _PIECE_BYTES))):
        most -= len(piece)
        yield piece


def _write_durably(path: Path, data: bytes) -> None:
    """Make a private file, which must not be there."""
    # Exclusive: also a symbolic link that somebody has put there is not followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _make_durable(path: Path) -> None:
    path.chmod(0o600)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _flush_folder(str(path.parent))


def _flush_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
