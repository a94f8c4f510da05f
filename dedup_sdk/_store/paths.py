"""Paths of stores: a partition's database is in ``<store>/<cluster>/<group>/<topic>/<partition>/``.

Names are percent-encoded (UTF-8), so that no name can leave the store's folder. ``.`` and ``..`` become
``%2E`` and ``%2E%2E``, an empty name becomes ``%``. A name of more than 255 bytes keeps its first 180,
followed by ``%`` and 32 hexadecimal digits of its SHA-256. Folders with other names are ignored.

Every folder is created with mode 0700. Files get mode 0600 when the store is opened, flushed and closed;
files that RocksDB creates in between get it at the next of these moments. In a folder that its group may write, what
is created belongs to the group, too (0770 and 0660): users who share a store share a group. The modes of folders that
exist, and of other users' files, are never changed.

Temporary folders (`work_folder`) belong to one run and are removed at its end; the next run removes those
of a killed one. A new snapshot (`new_snapshot`) appears complete, by one rename, or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from dedup_sdk._checks import local_path
from dedup_sdk._masking import shown
from dedup_sdk._store.protocol import Identity
from dedup_sdk.errors import ConfigurationError, SnapshotError, StoreError, StoreUnavailableError

_MAX_NAME_BYTES: Final = 255
_PREFIX_BYTES: Final = 180
MAX_PARTITIONS: Final = 2**31
_CUT: Final = re.compile(r"[!-~]{180}%[0-9a-f]{32}")
_DOTS: Final = {"": "%", ".": "%2E", "..": "%2E%2E"}
PRIVATE: Final = 0o700
_WRONG_FOLDER: Final = frozenset({
    errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
})  # fmt: skip
_PRIVATE_FILE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFolder:
    """A partition's database, as its path names it; `read_partition` returns the full identity stored inside."""

    path: Path
    cluster: str
    group: str
    topic: str
    partition: int


def escape(name: str) -> str:
    """Return a file name for any text; different texts get different names.

    Raises `ConfigurationError` for a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        escaped = _DOTS.get(name) or quote(name, safe="")
    except UnicodeEncodeError:
        message = (
            f"the name {shown(name)} is not valid Unicode; use cluster, group and topic names that UTF-8 can "
            f"encode"
        )
        raise ConfigurationError(message) from None
    if len(escaped) <= _MAX_NAME_BYTES:
        return escaped
    return f"{escaped[:_PREFIX_BYTES]}%{sha256(name.encode()).hexdigest()[:32]}"


def unescape(name: str) -> str:
    """Return the text given to `escape`; for a shortened name, its decoded beginning and the digest."""
    if name == "%":
        return ""
    text = unquote(name)
    return unquote(name[:_PREFIX_BYTES]) + name[_PREFIX_BYTES:] if _is_cut(name, text) else text


def checked_store_path(path: str | Path) -> Path:
    """Return a store's path; raises `ConfigurationError` for a URL, and for a path that RocksDB cannot use."""
    return local_path("store=", path, advice="give a folder, e.g. 'var/dedup'")


def partition_folder(root: Path, identity: Identity) -> Path:
    """Return the folder of a partition's database."""
    names = (identity.cluster, identity.group, identity.topic)
    return root.joinpath(*map(escape, names), str(identity.partition))


def make_folder(folder: Path) -> None:
    """Create a folder for its owner, and for the group if that may write in the folder above; one may be there.

    Raises OSError.
    """
    try:
        folder.mkdir(mode=PRIVATE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    made = folder.stat().st_mode
    # mkdir takes bits away by the umask, and the folder above may hand its group down.
    folder.chmod(PRIVATE | _shared(folder.parent) | made & stat.S_ISGID)


def _shared(folder: Path) -> int:
    """Return the permissions of a folder's group, 0 if that may not write in it."""
    mode = folder.stat().st_mode & stat.S_IRWXG
    return mode if mode == stat.S_IRWXG else 0


def make_private(root: Path, folder: Path) -> None:
    """Create ``root`` with mode 0700, and with `make_folder` ``folder`` below it and every folder in between.

    Raises `StoreError` naming the folder that this user may not use, and `StoreUnavailableError` for other failures.
    """
    try:
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        # From the top: each folder takes the rights of the one above, which must be there.
        for parent in reversed([folder, *folder.parents[: len(folder.relative_to(root).parts) - 1]]):
            make_folder(parent)
        foreign = find_foreign(folder)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise StoreError(
                f"store folder {folder} cannot be created: {error.strerror}; {owners(Path(error.filename or root))}"
            ) from error
        message = (
            f"store folder {folder} cannot be created: {error.strerror}; check store= and its permissions"
        )
        raise StoreUnavailableError(message) from error
    if foreign is not None:
        raise StoreError(f"store {folder} cannot be used: {owners(foreign)}")


def owners(path: Path) -> str:
    """Return whose path it is, who this process is, and what to do; of a missing path: of the folder above it."""
    place = next((each for each in (path, *path.parents) if _owner(each) is not None), Path("/"))
    return (
        f"{place} belongs to user {_owner(place)}, and this process runs as user {os.geteuid()}; choose another "
        "folder, or give both users a group and the group the rights: chmod -R g+rwX"
    )


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def find_foreign(folder: Path) -> Path | None:
    """Return a path of a partition's folder that this user may not use as the store needs it, None if there is none."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        # A disk that failed is waited for.
        return None
    if not os.access(folder, _USE, effective_ids=_BY_EFFECTIVE):
        return folder
    for path in folder.rglob("*"):
        # RocksDB replaces files and appends to none; it locks one, and the store goes on with those of the filters.
        needed = os.R_OK | os.W_OK if path.name == "LOCK" or path.parent != folder else os.R_OK
        if not os.access(path, needed, effective_ids=_BY_EFFECTIVE) and path.exists():
            return path
    return None


_USE: Final = os.R_OK | os.W_OK | os.X_OK
_BY_EFFECTIVE: Final = os.access in os.supports_effective_ids


def _may_use(folder: Path) -> bool:
    return os.access(folder, _USE, effective_ids=_BY_EFFECTIVE)


def try_folder(root: Path, group: str) -> None:
    """Create a store's folder, and a file in it for a moment; look whether this user may use the group's stores in it.

    Raises `ConfigurationError` if the path is wrong, or this user may not write there. A disk that is full or fails
    raises nothing: a consumer waits for that.
    """
    try:
        if root.is_file():
            raise ConfigurationError(f"store={shown(root)} is a file; give a folder, e.g. 'var/dedup'")
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
        foreign = _foreign_store(root, group)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise ConfigurationError(
                f"store={shown(root)} cannot be written: {error.strerror}; {owners(root)}"
            ) from error
        if error.errno in _WRONG_FOLDER:
            message = (
                f"store={shown(root)} cannot be written: {error.strerror}; check the path and its permissions"
            )
            raise ConfigurationError(message) from error
        return
    if foreign is not None:
        raise ConfigurationError(f"store={shown(root)} cannot be used: {owners(foreign)}")


def _foreign_store(root: Path, group: str) -> Path | None:
    """Return a path of the group's stores that this user may not use.

    Folders of other clusters may be another user's, as long as one is usable: the cluster is not known yet.
    """
    clusters = [path for path in root.iterdir() if path.is_dir() and _is_ours(path.name)]
    usable = [path for path in clusters if _may_use(path)]
    if not usable:
        return next(iter(clusters), None)
    for of_group in (path / escape(group) for path in usable):
        for path in (of_group, *_folders(of_group)):
            if path.exists() and not _may_use(path):
                return path
            for partition in _folders(path) if path != of_group else ():
                if _is_partition(partition.name) and (foreign := find_foreign(partition)) is not None:
                    return foreign
    return None


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir()) if _may_use(path) else []


def make_files_private(folder: Path) -> None:
    """Give this user's files below ``folder`` the permissions of a store: RocksDB creates files by the umask."""
    left: list[Path] = []
    user, shared = os.geteuid(), 0
    with suppress(FileNotFoundError):
        left += folder.iterdir()
        shared = _shared(folder) & ~stat.S_IXGRP
    while left:
        place = left.pop()
        with suppress(FileNotFoundError):
            status = place.lstat()
            if stat.S_ISDIR(status.st_mode):
                left += place.iterdir()
            elif (
                status.st_uid == user
                and stat.S_IMODE(status.st_mode) & 0o077 != shared
                # `chmod` follows links, and would change a file outside the store.
                and not stat.S_ISLNK(status.st_mode)
            ):
                place.chmod(_PRIVATE_FILE | shared)


def list_partitions(path: str | Path) -> list[PartitionFolder]:
    """Return the partitions stored under a store's folder, ascending; none when it does not exist.

    Raises `ConfigurationError` for a path that RocksDB cannot use.
    """
    return sorted(
        _partitions(checked_store_path(path)),
        key=lambda entry: (entry.cluster, entry.group, entry.topic, entry.partition),
    )


def _partitions(root: Path) -> Iterator[PartitionFolder]:
    for current in root.glob("*/*/*/*/CURRENT"):
        folder = current.parent
        *names, number = folder.relative_to(root).parts
        if _is_partition(number) and all(map(_is_ours, names)) and current.is_file():
            cluster, group, topic = map(unescape, names)
            yield PartitionFolder(
                path=folder, cluster=cluster, group=group, topic=topic, partition=int(number)
            )


def _is_partition(name: str) -> bool:
    # "00" would be a second name of partition 0.
    return name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < MAX_PARTITIONS


def _is_ours(name: str) -> bool:
    """Whether `escape` returns this name for some text: two names must never mean the same text."""
    if not name.isascii():
        return False
    text = "" if name == "%" else unquote(name)
    return _is_cut(name, text) or escape(text) == name


def _is_cut(name: str, text: str) -> bool:
    return _CUT.fullmatch(name) is not None and escape(text) != name


_ABANDONED_S: Final = 60
"""A younger folder may have been created and not locked yet."""


@contextmanager
def work_folder(sibling: Path, purpose: str) -> Generator[Path, None, None]:
    """Create a private folder next to ``sibling``, locked while it is in use; raises OSError if impossible.

    The block may move it elsewhere.
    """
    prefix = f".{sibling.name}.{purpose}-"
    sibling.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(sibling.parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=sibling.parent))
    descriptor = _locked(folder)
    try:
        yield folder
    finally:
        # Locked until all is gone: another run takes an unlocked rest for abandoned.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        try:
            if time.time() - folder.stat().st_mtime < _ABANDONED_S:
                continue
            descriptor = _locked(folder)
        except OSError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Lock a folder; the kernel releases the lock when this process ends. Raises OSError when it is locked already."""
    # A link of this name would have us lock, and then remove, a folder of somebody else.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def new_snapshot(output: Path) -> Generator[Path, None, None]:
    """Yield an empty private folder that becomes ``output`` when the block ends without an error.

    Raises `ConfigurationError` for an invalid path, `SnapshotError` when something exists there already or
    it cannot be written.
    """
    local_path(
        "output ", output, advice="give a folder, e.g. 'snapshot'; dedup snapshots copy brings one to a URL"
    )
    if not output.name or output.name == "..":
        raise ConfigurationError(f"output {shown(output)} names no new folder; give e.g. 'snapshot'")
    refuse_existing(output)
    place = output.absolute()
    with ExitStack() as stack:
        try:
            partial = stack.enter_context(work_folder(place, "making"))
        except OSError as error:
            raise SnapshotError(
                f"{output} cannot be created: {error.strerror}; choose another path"
            ) from None
        yield partial
        make_files_private(partial)
        refuse_existing(output)
        try:
            partial.rename(place)
        except OSError as error:
            raise SnapshotError(
                f"{output} cannot be created by rename: {error.strerror}; choose a folder that does not exist yet"
            ) from None


def refuse_existing(output: Path) -> None:
    """Raise `SnapshotError` when something exists already at a snapshot's path."""
    try:
        used = output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir())))
    except OSError as error:
        raise SnapshotError(f"{output} cannot be used: {error.strerror}; choose another path") from None
    if used:
        raise SnapshotError(f"{output} is not empty: a snapshot is never overwritten; choose another path")
