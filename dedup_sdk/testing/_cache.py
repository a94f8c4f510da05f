"""The cache folder for downloads, and a way for several processes to fill a folder in it once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MANIFEST = "complete.json"


def cache_folder() -> Path:
    """The folder for downloads: ``$DEDUP_CACHE``, else ``dedup`` in the user's cache folder.

    The user's cache folder is ``$XDG_CACHE_HOME``, else ``~/.cache``. The folder is made if it does not exist.
    """
    chosen = os.environ.get("DEDUP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(base) / "dedup"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def filled_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return `folder`, complete: as it was found, or filled by `fill` and renamed into place.

    `fill` gets an empty folder on the same file system. Its files are listed with their sizes; each later
    use compares the list, and fills a folder again that lost a file. A second process waits meanwhile.
    Errors of `fill` are raised, and leave no files.
    """
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if is_complete(folder):
            return folder
        partial = Path(tempfile.mkdtemp(prefix=folder.name + ".partial-", dir=folder.parent))
        try:
            fill(partial)
            (partial / _MANIFEST).write_text(json.dumps(_sizes(partial), indent=1), encoding="utf-8")
            partial.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether every file that was written to `folder` exists with its size."""
    try:
        expected = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(expected == _sizes(folder))


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _MANIFEST
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel releases it however this process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
