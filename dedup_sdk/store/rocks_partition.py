"""One partition's memory in RocksDB: a journal of recent steps, and generations of flushed marks.

Column families: ``default`` (keys ``identity``, ``state``, ``progress``), ``journal`` (key: 8-byte big-endian sequence; value:
`journal.encode_step`), and one a generation (`pages`). Beside the database lie
``filters/g<number>.filter`` (filter words), ``filters/image`` (see `filter_image`) and ``incoming/`` (files on their way in, emptied on open).

Order of a flush, each step safe to be the last before a crash: the filter words of its file are written; its generation is
widened in the state; the file is taken in; state, progress and the emptied journal become valid in one write. A crash in
between leaves marks both in the journal and in the generation, which is harmless: the highest offset wins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from traceback import clear_frames

from rocksdict import DbClosedError, Rdict, WriteBatch, WriteOptions

from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, NONE_FOUND, Found, Marks, join_marks
from dedup_sdk.progress import Progress
from dedup_sdk.store.database import (
    JOURNAL,
    PROGRESS,
    STATE,
    close_database,
    has_tables,
    last_key,
    open_database,
    sequence_key,
)
from dedup_sdk.store.generations import Generation, State
from dedup_sdk.store.journal import decode_step, encode_step
from dedup_sdk.store.manifest import read_manifest
from dedup_sdk.store.open_files import OPEN_FILES
from dedup_sdk.store.options import SharedMemory
from dedup_sdk.store.pages import newest_per_digest
from dedup_sdk.store.paths import make_files_private
from dedup_sdk.store.protocol import Identity, Loaded, StoreStats
from dedup_sdk.store.rocks_errors import ReportDamage, translated, translating, unexpected_damage
from dedup_sdk.store.rocks_generations import RocksGenerations
from dedup_sdk.store.rocks_identity import recognise
from dedup_sdk.store.rocks_install import copy_in
from dedup_sdk.store.rocks_scan import read_journal
from dedup_sdk.store.rocks_stats import is_writable, live_bytes, stats_of
from dedup_sdk.store.snapshot_fit import fitting_partition
from dedup_sdk.window import Window

log = logging.getLogger(__name__)


class RocksPartition:
    """A `PartitionStore` in the RocksDB database at ``folder``, which exists and is private.

    ``generation_marks`` is how many marks a generation holds at least before another is begun; ``fsync`` flushes each step to
    the disk, so that it outlives a power cut as well as the process. ``report_damage`` is called with every error that says that
    the store, once open, turned out to be damaged.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        window: Window,
        memory: SharedMemory,
        *,
        fsync: bool = False,
        generation_marks: int = 100_000,
        report_damage: ReportDamage = lambda _: None,
    ) -> None:
        self._folder = folder
        self._report_damage = report_damage
        self._identity = identity
        self._window = window
        self._generation_marks = generation_marks
        self._numbered = window.count is not None
        self._write_options = WriteOptions()
        self._write_options.sync = fsync
        self._memory = memory
        self._recent = 0
        self._open_files = 0
        # One that is empty when it is opened again was emptied: it must not pass for a new one.
        self._was_open = False
        self._installs = False
        self.disk_bytes = 0
        self._closed = True
        try:
            self._open()
        except BaseException:
            # Interrupted on its way out: nobody else would.
            self.close()
            raise

    def _open(self) -> None:
        # What does not open is closed: there is nothing to let go of.
        self._closed = True
        self._journal: Rdict | None = None
        self._generations: RocksGenerations | None = None
        folder, memory = self._folder, self._memory
        with translating(folder):
            had_tables = has_tables(folder)
            self._open_files = OPEN_FILES.take()
            try:
                self._database, names = open_database(folder, memory, self._open_files)
            except BaseException as error:
                OPEN_FILES.give_back(self._open_files)
                clear_frames(error.__traceback__)
                raise
            self._closed = False
            try:
                self._journal = self._database.get_column_family(JOURNAL)
                last = last_key(self._journal)
                is_new = last is None and not (had_tables or self._was_open)
                state = recognise(
                    self._database, folder, self._identity, self._window, self._write_options, is_new=is_new
                )
                self._first = state.first_step or 0
                self._next = self._first if last is None else int.from_bytes(last, "big") + 1
                self._generations = RocksGenerations(self._database, folder, state, memory, names)
                self._measure()
                make_files_private(folder)
                self._was_open = True
            except BaseException as error:
                clear_frames(error.__traceback__)
                self.close()
                if (damage := unexpected_damage(error, folder)) is not None:
                    raise damage from None
                raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`."""
        with self._translating():
            stored = self._database.get(PROGRESS)
            progress, marks, self._first, self._next = read_journal(
                self._open_journal(),
                self._open_generations().state.first_step,
                None if stored is None else decode_step(stored)[0],
            )
        if progress is None:
            return None
        recent = join_marks(marks)
        self._recent = recent.count
        return Loaded(progress=progress, recent=recent)

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        journal = self._journal or self._open_journal()
        record = encode_step(progress, marks)
        try:
            journal.put(sequence_key(self._next), record, self._write_options)
        except BaseException as error:
            # Who keeps the error keeps this frame, and a handle in it would keep RocksDB's lock.
            del journal
            if not isinstance(error, Exception):
                raise
            raise self._failure(error) from error
        self._next += 1
        self._recent += marks.count

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        generations = self._generations or self._open_generations()
        if len(digests) != DIGEST_BYTES * count:
            message = (
                f"{len(digests)} bytes are not {count} digests of {DIGEST_BYTES} bytes; give whole digests"
            )
            raise StoreError(message)
        try:
            found = generations.find(digests)
        except Exception as error:
            raise self._failure(error) from error
        if not found:
            return NONE_FOUND
        indexes, marks = zip(*found, strict=True)
        offsets, timestamps, numbers, payloads = map(list, zip(*marks, strict=True))
        return Found(
            list(indexes),
            offsets,
            timestamps,
            numbers if self._numbered else None,
            payloads if any(payloads) else None,
        )

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        generations = self._open_generations()
        with self._translating():
            kept = generations.newer_than_stored(newest_per_digest(marks))
            if kept.count:
                generations.take_in(kept, self._window, self._generation_marks)
            generations.state = self._settle(generations.state, progress)
            make_files_private(self._folder)
            self._measure()

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """See `PartitionStore.expire`.

        Generations go one by one: where timestamps ran backwards, an older mark of an ID may show again whose timestamp is still
        inside the window.
        """
        return self._drop(
            [
                entry
                for entry in self._open_generations().state.generations
                if entry.is_out(before_ms, up_to_number)
            ]
        )

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`."""
        oldest = self._oldest()
        return None if oldest is None else oldest.began_ms

    def shed(self) -> int | None:
        """See `PartitionStore.shed`: a generation goes, also the only one."""
        oldest = self._oldest()
        return None if oldest is None else self._drop([oldest])

    def _oldest(self) -> Generation | None:
        return min(self._open_generations().state.generations, key=lambda entry: entry.began_ms, default=None)

    def _drop(self, dropped: list[Generation]) -> int | None:
        # What is on its way in is in no valid state yet, and would go too.
        if not dropped or self._installs:
            return None
        generations = self._open_generations()
        with self._translating():
            kept = tuple(entry for entry in generations.state.generations if entry not in dropped)
            remaining = replace(generations.state, generations=kept)
            self._database.put(STATE, remaining.encode(), self._write_options)
            generations.adopt(remaining)
            self._measure()
        return max(entry.newest_ms for entry in dropped)

    def revive(self) -> bool:
        """See `PartitionStore.revive`."""
        self._open_journal()
        with self._translating():
            if not is_writable(self._folder):
                return False
        self.close()
        try:
            self._open()
            self.load()
        except StoreCorruptError as error:
            self._report_damage(error)
            raise
        except StoreError as error:
            # Closed as it is, it can only be opened anew, as the store of a disk that is still full.
            self.close()
            message = f"store {self._folder} did not open again when it could be written: {error}"
            raise StoreUnavailableError(message) from error
        return True

    def _measure(self) -> None:
        """Note the bytes on disk: of sorted files those that are valid, since what was dropped goes a little later."""
        self.disk_bytes = live_bytes(self._folder, self._database)

    def install(
        self,
        snapshot: str,
        progress: Progress,
        *,
        move: bool = False,
    ) -> None:
        """See `PartitionStore.install`."""
        for _ in self.installing(snapshot, progress, move=move):
            pass

    def installing(
        self,
        snapshot: str,
        progress: Progress,
        *,
        move: bool = False,
    ) -> Iterator[None]:
        """See `PartitionStore.installing`."""
        generations = self._open_generations()
        manifest = read_manifest(snapshot)
        entry = fitting_partition(snapshot, manifest, self._identity, progress, numbered=self._numbered)
        with self._translating():
            self._installs = True
            try:
                state = yield from copy_in(snapshot, entry, generations, move=move)
            except BaseException:
                if not self._closed:
                    generations.clean()
                raise
            finally:
                self._installs = False
            generations.adopt(self._settle(state, progress))
        log.info(
            "installed snapshot %s: %d marks up to offset %d in %s",
            snapshot, entry.marks, entry.high, self._folder,
        )  # fmt: skip

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        generations = self._open_generations()
        with self._translating():
            state = State(next_number=generations.state.next_number)
            generations.adopt(self._settle(state, progress))

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        with self._translating():
            for page in self._open_generations().scan():
                yield page
                self._open_generations()

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`; ``details`` counts generations, and those with RocksDB's own Bloom filter."""
        return stats_of(self._folder, self._open_generations(), self._recent)

    def close(self) -> None:
        """See `PartitionStore.close`."""
        if self._closed:
            return
        merges = True
        with translating(self._folder):
            # Whatever fails on the way, RocksDB's lock must not stay: the store would be open elsewhere until the process ends.
            try:
                share, self._open_files = self._open_files, 0
                OPEN_FILES.give_back(share)
                if has_tables(self._folder):
                    # Before the families are let go of, which would write each of them out: a third of a handover. One that was
                    # never written out is, because a log alone could be torn back to nothing.
                    with suppress(DbClosedError):
                        # Closed by a call that was interrupted behind it.
                        self._database.cancel_all_background(False)
                merges = self._generations is not None and self._generations.close()
            finally:
                self._journal = self._generations = None
                close_database(self._database, merges=merges)
                # Not before: what interrupts this leaves a store that can be closed again.
                self._closed = True
            make_files_private(self._folder)

    def _translating(self) -> AbstractContextManager[None]:
        return translating(self._folder, self._report_damage)

    def _failure(self, error: Exception) -> Exception:
        better = translated(error, self._folder)
        if isinstance(better, StoreCorruptError):
            self._report_damage(better)
        return better

    def _settle(self, state: State, progress: Progress) -> State:
        """Make state and progress valid and drop the journal, in one write; return the state as it is then."""
        # A number is left out, so that no two journals begin with the same one.
        state = replace(state, first_step=self._next + 1)
        batch = WriteBatch(raw_mode=True)
        batch.put(STATE, state.encode())
        batch.put(PROGRESS, encode_step(progress, NO_MARKS))
        journal = self._database.get_column_family_handle(JOURNAL)
        batch.delete_range(sequence_key(self._first), sequence_key(self._next), journal)
        self._database.write(batch, self._write_options)
        self._first = self._next = self._next + 1
        self._recent = 0
        # Otherwise the log keeps every journal record until a buffer is full, twice as large as the marks themselves.
        for family in (self._open_journal(), self._database):
            family.flush(wait=False)
        return state

    def _open_journal(self) -> Rdict:
        if self._journal is None:
            message = f"store {self._folder} is closed; open it again"
            raise StoreError(message)
        return self._journal

    def _open_generations(self) -> RocksGenerations:
        if self._generations is None:
            message = f"store {self._folder} is closed; open it again"
            raise StoreError(message)
        return self._generations
