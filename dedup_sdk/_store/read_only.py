"""Read-only access to a partition's database, without its lock: its consumer may be running or not."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from dedup_sdk._marks import Marks, Progress, join_marks, select_marks
from dedup_sdk._masking import shown
from dedup_sdk._store.database import (
    IDENTITY,
    JOURNAL,
    PROGRESS,
    STATE,
    StoredGeneration,
    find_in_generation,
    open_read_only,
    read_journal,
    scan_generations,
    translating,
)
from dedup_sdk._store.generations import StoreState
from dedup_sdk._store.identity import decode_identity, decode_window
from dedup_sdk._store.pages import decode_step, digest_words
from dedup_sdk._store.paths import checked_store_path
from dedup_sdk._store.protocol import Identity
from dedup_sdk.errors import StoreCorruptError, StoreError

_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.05


def _may_block(path: Path) -> bool:
    """Whether opening this path could block for ever: it is a pipe, a socket or a device.

    A running consumer may remove a file after it was listed; such a file is none of them.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


class StoredMark(NamedTuple):
    """A stored mark with its payload: b"" where it has none."""

    offset: int
    timestamp_ms: int
    number: int = 0
    payload: bytes = b""


class ReadOnlyPartition:
    """The content of a partition's store at the moment it was opened; a context manager.

    ``identity`` is that of the store, ``window`` the text of the `Window` it was last opened with,
    ``progress`` the last stored one (None: nothing was ever written).
    """

    def __init__(self, path: str | Path) -> None:
        self._folder = checked_store_path(path)
        if not (self._folder / "CURRENT").is_file():
            message = f"{shown(path)} has no partition store; give a folder that list_partitions() returns"
            raise StoreError(message)
        # Before RocksDB opens anything: a pipe in the place of one of its files would block this process.
        strange = next((each.name for each in self._folder.iterdir() if _may_block(each)), None)
        if strange is not None:
            message = f"{shown(path)} has {shown(strange)}, which is neither a file nor a folder; remove it"
            raise StoreError(message)
        with translating(self._folder):
            self._database, names = open_read_only(self._folder)
            identity = self._database.get(IDENTITY)
            if identity is None:
                message = (
                    f"store {self._folder} has no identity: its consumer is just creating it (try again), "
                    "or it is damaged"
                )
                raise StoreCorruptError(message)
            self.identity: Identity = decode_identity(identity, self._folder)[0]
            self.window: str = decode_window(identity, self._folder)
            self._state = StoreState.decode(self._database.get(STATE) or b"", f"store {self._folder}")
            stored = self._database.get(PROGRESS)
            journal = self._database.get_column_family(JOURNAL)
            before = None if stored is None else decode_step(stored)[0]
            progress, steps, _ = read_journal(journal, self._state.first_step, before)
            self.progress: Progress | None = progress
            self._recent: Marks = join_marks(steps)
            lacked = [each.name for each in self._state.generations if each.name not in names]
            if lacked:
                # A running consumer may have made it since the families were listed: then once more.
                message = (
                    f"store {self._folder}: generation {lacked[0]} is missing; move it away and rebuild it"
                )
                raise StoreCorruptError(message)
            self._generations = [
                StoredGeneration(self._database.get_column_family(generation.name), len(generation.extents))
                for generation in self._state.generations
            ]

    def scan_all(self, *, below: int | None = None) -> Iterator[Marks]:
        """Yield flushed and recent marks in pages, ascending by digest, each ID once with its highest offset.

        ``below``: ignore marks at this offset or above.
        """
        with translating(self._folder):
            yield from scan_generations(self._generations, self._state.marks, self._recent, below=below)

    def find_all(self, digest: bytes) -> list[StoredMark]:
        """Return all stored marks of one ID, highest offset first; empty if there is none.

        There is at most one mark per generation and journal step.
        """
        with translating(self._folder):
            flushed = [
                mark for generation in self._generations for mark in find_in_generation(generation, digest)
            ]
        high, low = digest_words(self._recent.digests)
        wanted_high, wanted_low = digest_words(digest)
        recent = select_marks(self._recent, ((high == wanted_high) & (low == wanted_low)).nonzero()[0])
        columns = zip(
            recent.offsets.tolist(),
            recent.timestamps.tolist(),
            repeat(0) if recent.numbers is None else recent.numbers.tolist(),
            recent.payloads or repeat(b""),
            strict=False,
        )
        # A crash in a flush leaves a mark both in the journal and in a file: a set has no mark twice.
        return sorted({StoredMark(*row) for row in (*flushed, *columns)}, reverse=True)

    def close(self) -> None:
        """Release the database; may be called again."""
        self._generations.clear()
        with translating(self._folder):
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_partition(path: str | Path) -> ReadOnlyPartition:
    """Open a partition's folder (`list_partitions`) for reading, without its lock.

    Raises `StoreError` when there is none, `StoreCorruptError` when it cannot be read, `ForeignStoreError`
    for a newer format.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return ReadOnlyPartition(path)
        except StoreCorruptError:
            # A running consumer may remove a file between listing and opening it.
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
    raise AssertionError
