"""RocksDB's exceptions, which are texts, become this package's errors here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import clear_frames

from rocksdict import DbClosedError

from dedup_sdk.errors import (
    DedupError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)

_LOCKED = re.compile(
    r"while lock file.*resource temporarily unavailable|lock hold by current process", re.DOTALL
)
"""Another failure of the system to lock the file, as on some network disks, is no word about another owner."""
_CORRUPT = (
    "corruption",
    "checksum mismatch",
    "no such file or directory",
    "does not match the expected size",
)
_FAILED = ("io error", "(os error ")
"""How RocksDB and its binding tell what the system refused, whatever that was."""
_FULL = ("no space left on device", "disk quota exceeded", "file too large")


ReportDamage = Callable[[StoreCorruptError], None]


def translated(error: Exception, folder: Path) -> Exception:
    """Return the error to raise instead of one of RocksDB's or the system's; any other is returned as it is.

    The frames that ``error`` has left are emptied: a database handle in one of them keeps the lock for as long as somebody
    looks at the error, and the next opening would be told that the store is open elsewhere.
    """
    clear_frames(error.__traceback__)
    # RocksDB's are plain exceptions: a subclass is somebody else's.
    if type(error) is not Exception and not isinstance(error, DbClosedError | OSError):
        return error
    text = str(error).strip()
    lower = text.lower()
    if isinstance(error, DbClosedError):
        return StoreError(f"store {folder} is closed; open it again")
    if _LOCKED.search(lower):
        return StoreLockedError(
            f"store {folder} is open in another consumer; stop that one, or give this one another store"
        )
    if any(sign in lower for sign in _CORRUPT):
        return StoreCorruptError(
            f"store {folder} is damaged ({text}); move it away and rebuild it from a snapshot or the topic"
        )
    if isinstance(error, OSError) or any(sign in lower for sign in (*_FAILED, *_FULL)):
        return StoreUnavailableError(f"store {folder} cannot be read or written ({text}); {_remedy(lower)}")
    return StoreError(
        f"store {folder} failed: {text}; move it away and rebuild it from a snapshot or the topic"
    )


def _remedy(text: str) -> str:
    if any(sign in text for sign in _FULL):
        return "make room on its disk"
    if "too many open files" in text:
        return "let the process open more files (ulimit -n), or give it fewer partitions"
    return "check the folder, its permissions and its disk"


def unexpected_damage(error: BaseException, folder: Path) -> StoreCorruptError | None:
    """Return the error for files that do not fit together in a way nobody thought of, None for any other error.

    A store is made of its files alone: set aside and made again from the topic it serves, where an error that is raised at every
    opening would end the partition for good.
    """
    if isinstance(error, DedupError) or not isinstance(error, ArithmeticError | LookupError | ValueError):
        return None
    clear_frames(error.__traceback__)
    return StoreCorruptError(
        f"store {folder} does not fit together ({error!r}); move it away and rebuild it from a snapshot or the topic"
    )


@contextmanager
def translating(folder: Path, report_damage: ReportDamage = lambda _: None) -> Iterator[None]:
    """Raise RocksDB's and the system's errors inside as `translated` says, and tell ``report_damage`` of damage."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            # An interruption, whose frames hold handles as well.
            clear_frames(error.__traceback__)
            raise
        better = translated(error, folder)
        if isinstance(better, StoreCorruptError):
            report_damage(better)
        if better is error:
            raise
        raise better from error
