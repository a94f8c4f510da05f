"""A snapshot that lies behind a URL: `s3://bucket/snapshot` and whatever else fsspec has a driver for.

Only what its manifest names is fetched, each file under a name of its own until its SHA-256 is what the manifest says. Names
in a manifest are plain file names (`dedup_sdk.store.fields`), so that nothing is written outside the folder it is fetched to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote, urlsplit

from dedup_sdk.errors import ConfigurationError, SnapshotError
from dedup_sdk.store.manifest import (
    MANIFEST_NAME,
    MOST_MANIFEST_BYTES,
    Manifest,
    PartitionManifest,
    parse_manifest,
)
from dedup_sdk.store.parallel import in_parallel
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX, SortedFile

_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 8 * 2**20
"""What a driver asks for at once: some would ask for fifty megabytes by themselves, and keep them in memory."""
_MASK = "***"
_LEAST_SECRET = 4
"""Characters of what is masked in a driver's words: less is no secret, and part of other words."""


def is_url(place: str) -> bool:
    """Whether a place is a URL and no path."""
    return "://" in place


def shown(url: str) -> str:
    """Return a URL, or a chain of them (``zip://a::https://b``), without what may be a secret: name, password and query."""
    return "::".join(map(_bare, url.split("::")))


def _bare(part: str) -> str:
    scheme, found, rest = part.partition("://")
    if not found:
        return _cut(part).rpartition("@")[2]
    scheme = scheme.rpartition("@")[2]
    try:
        parts = urlsplit(f"//{rest}")
        # A port that is none is the beginning of a password with a slash in it.
        _ = parts.port
    except ValueError:
        return f"{scheme}://{_MASK}"
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _cut(text: str) -> str:
    return text.partition("?")[0].partition("#")[0]


def _secrets(url: str) -> list[str]:
    """What `shown` leaves out, the longest first, also as a driver may have decoded it."""
    found: set[str] = set()
    for part in url.split("::"):
        rest = part.partition("://")[2] or part
        where = _cut(rest)
        query = rest[len(where) :].lstrip("?#")
        user = where.partition("/")[0].rpartition("@")[0]
        found |= {user, query, *re.split(r"[=&#?]", query), user.partition(":")[2]}
        if shown(part).endswith(f"://{_MASK}"):
            found.add(rest)
    found |= {unquote(each) for each in found}
    return sorted((each for each in found if len(each) >= _LEAST_SECRET), key=len, reverse=True)


def require_driver(url: str) -> None:
    """Raise `ConfigurationError` where fsspec, or its driver for this URL, is missing."""
    try:
        import fsspec
    except ImportError:
        raise ConfigurationError(
            f"snapshot={shown(url)!r} needs fsspec; install 'dedup-sdk[remote]'"
        ) from None
    scheme = shown(url).partition("://")[0]
    try:
        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"snapshot={shown(url)!r}: fsspec has no driver for {scheme!r} ({error}); install it"
        ) from None


class RemoteSnapshot:
    """One snapshot behind ``url``; ``place`` is how messages name it."""

    def __init__(self, filesystem: Any, path: str, place: str, url: str) -> None:
        self._filesystem, self._path, self.place, self._url = filesystem, path.rstrip("/"), place, url
        data = b"".join(self._read(MANIFEST_NAME, most_bytes=MOST_MANIFEST_BYTES + 1))
        self.manifest_bytes = data
        self.manifest: Manifest = parse_manifest(data, f"{place}/{MANIFEST_NAME}")

    def fetch(self, entries: tuple[PartitionManifest, ...], folder: Path) -> Iterator[None]:
        """Make ``folder`` a snapshot of some partitions, several files at once; each step waits 20 ms at most.

        Raises `SnapshotError` where a file is not there, or not what the manifest says.
        """
        for entry in entries:
            (folder / str(entry.partition)).mkdir()
        yield from in_parallel(
            partial(self.fetch_file, entry.partition, file, folder / str(entry.partition))
            for entry in entries
            for file in entry.files
        )
        (folder / MANIFEST_NAME).write_bytes(self.manifest_bytes)

    def fetch_file(self, partition: int, file: SortedFile, folder: Path, stop: Event | None = None) -> None:
        """Put one sorted file and its filter words into a folder, each whole and checked; ``stop`` gives it up."""
        for suffix, size, sha256 in (
            (SORTED_SUFFIX, file.bytes, file.sha256),
            (FILTER_SUFFIX, file.filter_bytes, file.filter_sha256),
        ):
            self._fetch(f"{partition}/{file.name}{suffix}", sha256, size, folder, stop or Event())

    def remove(self) -> None:
        """Delete the manifest, and then the files it names; raises `SnapshotError`."""
        try:
            self._filesystem.rm_file(f"{self._path}/{MANIFEST_NAME}")
            for entry in self.manifest.partitions:
                for file in entry.files:
                    for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                        self._filesystem.rm_file(f"{self._path}/{entry.partition}/{file.name}{suffix}")
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(f"{self.place} cannot be removed: {told(error, self._url)}") from None

    def _fetch(self, name: str, sha256: str, size: int, target: Path, stop: Event) -> None:
        path = target / name.rpartition("/")[2]
        partial_path = path.with_name(f"{path.name}.partial")
        digest = hashlib.sha256()
        try:
            with partial_path.open("wb") as file:
                for chunk in self._read(name, most_bytes=size + 1):
                    if stop.is_set():
                        return
                    digest.update(chunk)
                    file.write(chunk)
        except OSError as error:
            raise SnapshotError(
                f"{partial_path} cannot be written: {error.strerror}; make room beside the store"
            ) from None
        if digest.hexdigest() != sha256:
            raise SnapshotError(
                f"{self.place}/{name} has SHA-256 {digest.hexdigest()}, its manifest says {sha256}; "
                "copy or make the snapshot again"
            )
        partial_path.rename(path)

    def _read(self, name: str, *, most_bytes: int) -> Iterator[bytes]:
        try:
            with self._filesystem.open(f"{self._path}/{name}", "rb", block_size=_BLOCK_BYTES) as source:
                while most_bytes > 0 and (chunk := source.read(min(_CHUNK_BYTES, most_bytes))):
                    most_bytes -= len(chunk)
                    yield chunk
        except GeneratorExit:
            raise
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(f"{self.place}/{name} cannot be read: {told(error, self._url)}") from None


def find_remote(url: str) -> list[RemoteSnapshot]:
    """Return the snapshot at a URL, or those in the folders just below it. Raises `SnapshotError` when there is none."""
    require_driver(url)
    from fsspec.core import url_to_fs

    place = shown(url).rstrip("/")
    try:
        filesystem, path = url_to_fs(url)
        path = path.rstrip("/")
        # Drivers remember listings; what was put there since is to be found.
        filesystem.invalidate_cache()
        if filesystem.exists(f"{path}/{MANIFEST_NAME}"):
            below = [path]
        else:
            listed = [each.rstrip("/") for each in filesystem.ls(path, detail=False)]
            named = [each for each in listed if not each.rpartition("/")[2].startswith(".")]
            below = [each for each in named if filesystem.exists(f"{each}/{MANIFEST_NAME}")]
    except Exception as error:  # noqa: BLE001 (as above)
        raise SnapshotError(f"snapshot {place} cannot be looked at: {told(error, url)}") from None
    if not below:
        raise SnapshotError(
            f"{place} has no {MANIFEST_NAME}: it is no snapshot, nor a folder of some; give the one that the backfill wrote"
        )
    names = [place if each == path else f"{place}/{each.rstrip('/').rpartition('/')[2]}" for each in below]
    return [
        RemoteSnapshot(filesystem, each, _masked(name, url), url)
        for each, name in zip(below, names, strict=True)
    ]


def _masked(text: str, url: str) -> str:
    for secret in _secrets(url):
        text = text.replace(secret, _MASK)
    return text


def told(error: Exception, url: str) -> str:
    """Return what a driver says, in one line without what may be a secret of the URL, and what to do."""
    line = _masked(" ".join(str(error).split()), url)[:300]
    return f"{type(error).__name__}: {line}; check the URL and your access to it"
