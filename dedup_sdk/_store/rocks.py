"""The key store in RocksDB: one database per partition.

Caches, write buffers and open files are bounded for the whole process (`dedup_sdk._store.database`). A
partition has a journal of recent steps, and generations of flushed marks (`dedup_sdk._store.generations`). A
damaged partition store is quarantined: its folder is renamed to ``<partition>.damaged-<n>``. The files of a
snapshot become one generation, which is valid only when complete.

Column families: ``default`` (keys ``identity``, ``state``, ``progress``), ``journal`` (key: 8-byte
big-endian sequence; value: `pages.encode_step`), and one per generation (`pages`). The same folder contains
``filters/g<number>.filter`` (filter words), ``filters/image`` (see `filter_set`) and ``incoming/`` (files
to be ingested, emptied on open).

Order of a flush; a crash is safe after each step:

1. write the sorted file, and its filter words;
2. write the state with the widened generation;
3. ingest the file;
4. write state and progress, and drop the journal up to where the flush began, in one atomic write.

A crash in between leaves marks both in the journal and in the generation. That is harmless: the highest
offset wins. While a flush is under way, its marks are looked up in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from shutil import disk_usage
from typing import Final

import numpy as np
from rocksdict import DbClosedError, Options, Rdict, WriteBatch, WriteOptions

from dedup_sdk._checks import flag, seconds, whole
from dedup_sdk._interruptions import is_interruption, release_frames
from dedup_sdk._marks import (
    DIGEST_BYTES,
    NO_MARKS,
    NONE_FOUND,
    Find,
    Found,
    Marks,
    Progress,
    join_marks,
    select_marks,
)
from dedup_sdk._store.database import (
    IDENTITY,
    JOURNAL,
    OPEN_FILES,
    PROGRESS,
    STATE,
    ReportDamage,
    SharedMemory,
    close_database,
    has_tables,
    last_key,
    open_database,
    raise_file_limit,
    read_journal,
    refuse_last_files,
    sequence_key,
    shared_memory,
    translated,
    translating,
    unexpected_damage,
)
from dedup_sdk._store.filter_words import FilterWords, decode_words, merge_words
from dedup_sdk._store.generations import Generation, RocksGenerations, StoreState
from dedup_sdk._store.identity import check_identity, check_numbered, decode_identity, encode_identity
from dedup_sdk._store.manifest import (
    Manifest,
    PartitionManifest,
    SortedFile,
    fitting_partition,
)
from dedup_sdk._store.pages import FoundMark, decode_step, digest_words, encode_step, newest_per_digest
from dedup_sdk._store.paths import (
    checked_store_path,
    make_files_private,
    make_private,
    partition_folder,
    try_folder,
)
from dedup_sdk._store.protocol import RECENT_MARKS, Identity, Loaded, StoreStats, checked_recent_marks
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX, reading_file
from dedup_sdk._window import Window
from dedup_sdk.errors import (
    ConfigurationError,
    SnapshotError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)

MAX_QUARANTINED: Final = 3
_DAMAGED: Final = re.compile(r"(\d+)\.damaged-(\d{1,18})")


def set_aside(folder: Path) -> Path:
    """Quarantine a partition's folder by renaming it, and return the new path.

    The newest `MAX_QUARANTINED` quarantined folders of a partition stay, older ones are deleted. Raises
    `StoreLockedError` while somebody has the store open, and `StoreError` when it cannot be renamed.
    """
    # An owner would go on writing into the renamed folder, and nobody would read that again.
    _refuse_locked(folder)
    kept = list_quarantined(folder)
    number = 1 + max((_number(path) for path in kept), default=0)
    target = folder.with_name(f"{folder.name}.damaged-{number}")
    try:
        folder.rename(target)
    except OSError as error:
        message = f"damaged store {folder} cannot be renamed to {target.name} ({error.strerror}); move it away yourself"
        raise StoreError(message) from error
    for old in kept[: len(kept) + 1 - MAX_QUARANTINED]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def list_quarantined(folder: Path) -> list[Path]:
    """Return the quarantined folders of a partition, oldest first."""
    names = [
        path
        for path in folder.parent.glob(f"{folder.name}.damaged-*")
        # A folder that somebody renamed by hand may end in anything.
        if (found := _DAMAGED.fullmatch(path.name)) and found[1] == folder.name
    ]
    return sorted(names, key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _refuse_locked(folder: Path) -> None:
    """Raise `StoreLockedError` when somebody has a store open; RocksDB checks that before it reads anything."""
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    try:
        # Only one of several families is given: where the lock is free, RocksDB then fails before it opens anything.
        Rdict(str(folder), options, column_families={"default": options}).close()
    except Exception as error:
        if isinstance(better := translated(error, folder), StoreLockedError):
            raise better from error


def load_state(
    database: Rdict,
    folder: Path,
    identity: Identity,
    window: Window,
    write_options: WriteOptions,
    *,
    is_new: bool,
) -> StoreState:
    """Return the state of the database in ``folder``; initialise one that ``is_new`` with the identity.

    Raises `ForeignStoreError` where it has another identity, or no acceptance numbers for a window by
    count, and `StoreCorruptError` where identity or state is missing.
    """
    where = f"store {folder}"
    identity_bytes, state_bytes = database.get(IDENTITY), database.get(STATE)
    own = encode_identity(identity, window)
    if identity_bytes is None and state_bytes is None and is_new:
        batch = WriteBatch(raw_mode=True)
        batch.put(IDENTITY, own)
        batch.put(STATE, StoreState().encode())
        database.write(batch, write_options)
        return StoreState()
    if identity_bytes is None or state_bytes is None:
        message = (
            f"{where} has lost its identity or its state; "
            "move it away and rebuild it from a snapshot or the topic"
        )
        raise StoreCorruptError(message)
    # Most often only the window has changed, which is kept here for tools that show a store.
    if identity_bytes != own:
        stored, numbered = decode_identity(identity_bytes, folder)
        check_identity(stored, identity, where)
        check_numbered(stored=numbered, window=window, where=where)
        current = encode_identity(identity, window, numbered=numbered)
        if current != identity_bytes:
            database.put(IDENTITY, current, write_options)
    return StoreState.decode(state_bytes, where)


_MIN_ROOM_BYTES: Final = 2**20
_PROBE: Final = "writable"
_PROBE_BYTES: Final = 4096


def is_writable(folder: Path) -> bool:
    """Whether the disk can be written, and has room to reopen the database, which turns its log into sorted files.

    Raises `FileNotFoundError` where the folder is gone.
    """
    probe = folder / _PROBE
    try:
        logged = sum(map(_size_if_there, folder.glob("*.log")))
        if disk_usage(folder).free < _MIN_ROOM_BYTES + 2 * logged:
            return False
        with probe.open("wb", buffering=0) as file:
            # A full disk, or a limit of the process, may accept only a part.
            whole = file.write(bytes(_PROBE_BYTES)) == _PROBE_BYTES
            os.fsync(file.fileno())
        probe.unlink()
    except FileNotFoundError:
        raise
    except OSError:
        with suppress(OSError):
            probe.unlink()
        return False
    return whole


def _size_if_there(path: Path) -> int:
    """The size in bytes; RocksDB deletes files in the background."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def stats_of(folder: Path, generations: RocksGenerations, recent: int) -> StoreStats:
    """Return the sizes of an open store; ``recent``: the number of marks in its journal."""
    sizes: list[tuple[str, int]] = []
    for path in folder.rglob("*"):
        # Compaction may just have removed it.
        with suppress(FileNotFoundError):
            sizes.append((path.suffix, path.lstat().st_size))
    return StoreStats(
        marks=generations.state.marks,
        recent=recent,
        disk_bytes=sum(size for _, size in sizes),
        filter_bytes=generations.filter_bytes,
        files=sum(suffix == SORTED_SUFFIX for suffix, _ in sizes),
        details={
            "generations": len(generations.state.generations),
            "bloom_generations": generations.count_with_bloom(),
        },
    )


def ingest_snapshot(
    snapshot: str, entry: PartitionManifest, generations: RocksGenerations, *, move: bool
) -> Generator[None, None, StoreState]:
    """Copy and check the snapshot's files, ingest each layer into a new generation; return a state with only these.

    ``move``: files that were fetched from a URL were checked on the way, and are moved. Files in a folder
    belong to somebody else, and are copied.

    Each step copies one megabyte; then the filter words take one step per file, and another one for all of
    a layer together. Raises `SnapshotError` naming the file or folder; the caller then removes partial results
    with ``generations.clean()``.
    """
    folder = Path(snapshot) / str(entry.partition)
    for file in entry.files:
        if move:
            _move(folder, file, generations.incoming)
        else:
            yield from reading_file(folder, file, generations.incoming)
    made: list[Generation] = []
    for files in entry.layers:
        made.append((yield from _ingest_layer(folder, files, generations, len(made))))
    return StoreState(
        generations=tuple(made),
        next_number=generations.state.next_number + len(made),
        # Too high costs a few look-ups; too low would let an older mark in over a newer one.
        top_offset=entry.high - 1 if made else -1,
    )


def _ingest_layer(
    folder: Path, files: tuple[SortedFile, ...], generations: RocksGenerations, made: int
) -> Generator[None, None, Generation]:
    """Ingest files in `incoming` into a new generation; ``made``: how many were made before it."""
    blocks: list[FilterWords] = []
    for file in files:
        blocks.append(_read_words(folder, generations.incoming, file))
        yield
    words = merge_words(blocks)
    yield
    empty = generations.create(made)
    try:
        generations.ingest(empty, [generations.incoming / f"{file.name}{SORTED_SUFFIX}" for file in files])
    except Exception as error:
        if is_interruption(error):
            raise
        message = f"{folder}: RocksDB refuses its sorted files ({error}); make the snapshot again"
        raise SnapshotError(message) from error
    pages = generations.pages(empty)
    # A page that the words do not name is never read: its IDs would come as fresh.
    if pages != len(words.pages):
        message = (
            f"{folder}: its sorted files have {pages} pages, its filter words say {len(words.pages)}; "
            "make the snapshot again"
        )
        raise SnapshotError(message)
    yield
    newest_ms = max(file.newest_ms for file in files)
    newest_number = max(file.newest_number or 0 for file in files)
    return Generation(
        number=empty.number,
        marks=sum(file.marks for file in files),
        oldest_ms=min(file.oldest_ms for file in files),
        newest_ms=newest_ms,
        newest_number=newest_number,
        began_ms=newest_ms,
        began_number=newest_number,
        extents=(generations.write_words(empty, words),),
        sealed=True,
    )


def _move(folder: Path, file: SortedFile, target: Path) -> None:
    for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
        path = folder / f"{file.name}{suffix}"
        try:
            shutil.move(path, target / path.name)
        except OSError as error:
            raise SnapshotError(
                f"{path} cannot be moved to {target}: {error.strerror}; free space there"
            ) from error


def _read_words(folder: Path, incoming: Path, file: SortedFile) -> FilterWords:
    path = folder / f"{file.name}{FILTER_SUFFIX}"
    try:
        words = merge_words(decode_words((incoming / path.name).read_bytes()))
    except StoreCorruptError as error:
        message = f"{path}: {error}; make the snapshot again"
        raise SnapshotError(message) from error
    if words.count != file.marks:
        message = (
            f"{path} has {words.count} words, the manifest says {file.marks} marks; make the snapshot again"
        )
        raise SnapshotError(message)
    return words


log = logging.getLogger(__name__)


class PendingMarks:
    """An index of marks of a flush that is under way."""

    def __init__(self, marks: Marks) -> None:
        self._marks = newest_per_digest(marks)
        self._high, self._low = digest_words(self._marks.digests)

    def find(self, digests: bytes, count: int) -> Found:
        """Look up ``count`` joined digests among the marks."""
        del count
        high, low = digest_words(digests)
        places, ends = self._high.searchsorted(high), self._high.searchsorted(high, "right")
        found = [
            (position, place)
            for position in (places < ends).nonzero()[0].tolist()
            for place in range(places[position], ends[position])
            if self._low[place] == low[position]
        ]
        marks = select_marks(self._marks, np.array([place for _, place in found], np.intp))
        return Found(
            [position for position, _ in found],
            marks.offsets.tolist(),
            marks.timestamps.tolist(),
            None if marks.numbers is None else marks.numbers.tolist(),
            marks.payloads,
        )


class RocksPartition:
    """A `PartitionStore` in the RocksDB database at ``folder``, which exists and is private.

    ``generation_marks``: minimum number of marks in a generation before the next one begins. ``fsync``:
    flush each step to the disk, so that it survives a power cut. ``report_damage``: called with every error
    that says that the open store is damaged. ``begun``: called before anything is opened.

    A signal handler may raise at any line. Therefore the store counts as open as soon as RocksDB has opened
    the database, and any later failure closes it. It counts as closed only with the last line of `close`,
    so that an interrupted `close` can be called again. ``tests/support/interrupting.py`` interrupts at
    chosen places.
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
        begun: Callable[[RocksPartition], None] = lambda _: None,
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
        # A store that is empty when it is reopened was emptied from outside: it must not pass for a new one.
        self._was_open = False
        self._is_installing = False
        self._pending: Find | None = None
        self._left_at: tuple[int, int] | None = None
        """The first and the next step of the journal, while the store waits to be opened again."""
        self.disk_bytes = 0
        self._closed = True
        begun(self)
        try:
            self._open()
        except BaseException:
            # An interruption between opening and returning: nobody else could close it.
            self.close()
            raise

    def _open(self) -> None:
        # If opening fails, there is nothing to close.
        self._closed = True
        self._journal: Rdict | None = None
        self._generations: RocksGenerations | None = None
        folder, memory = self._folder, self._memory
        with translating(folder):
            refuse_last_files(folder)
            # Before RocksDB opens the folder: its recovery may write a sorted file into an empty store.
            had_tables = has_tables(folder)
            self._open_files = OPEN_FILES.take()
            try:
                self._database, names = open_database(folder, memory, self._open_files)
            except BaseException as error:
                OPEN_FILES.give_back(self._open_files)
                release_frames(error)
                raise
            self._closed = False
            try:
                self._journal = self._database.get_column_family(JOURNAL)
                last = last_key(self._journal)
                is_new = last is None and not (had_tables or self._was_open)
                state = load_state(
                    self._database, folder, self._identity, self._window, self._write_options, is_new=is_new
                )
                self._first = state.first_step
                self._next = self._first if last is None else int.from_bytes(last, "big") + 1
                self._generations = RocksGenerations(self._database, folder, state, memory, names)
                self._update_disk_bytes()
                make_files_private(folder)
                self._was_open = True
            except BaseException as error:
                release_frames(error)
                self.close()
                if (damage := unexpected_damage(error, folder)) is not None:
                    raise damage from None
                raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed and self._left_at is None

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`."""
        with translating(self._folder, self._report_damage):
            stored = self._database.get(PROGRESS)
            progress, marks, self._next = read_journal(
                self._journal or self._open_journal(),
                (self._generations or self._open_generations()).state.first_step,
                None if stored is None else decode_step(stored)[0],
            )
        if progress is None:
            return None
        recent = join_marks(marks)
        self._recent = len(recent.offsets)
        return Loaded(progress=progress, recent=recent)

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        record = encode_step(progress, marks)
        journal = self._journal or self._open_journal()
        try:
            journal.put(sequence_key(self._next), record, self._write_options)
        except BaseException as error:
            # Whoever keeps the error keeps this frame; a handle in it would keep RocksDB's lock.
            del journal
            if not isinstance(error, Exception):
                raise
            better = self._failure(error)
            # An error that is its own cause lives until a collection, with the handles in its frames.
            if better is error:
                raise
            raise better from error
        self._next += 1
        self._recent += len(marks.offsets)

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        generations = self._generations or self._open_generations()
        if len(digests) != DIGEST_BYTES * count:
            message = (
                f"{len(digests)} bytes are not {count} digests of {DIGEST_BYTES} bytes; give whole digests"
            )
            raise StoreError(message)
        found: dict[int, FoundMark] = {}
        if generations.state.generations:
            try:
                asked = generations.filters.by_generation(digests)
                if asked:
                    found = generations.find(asked)
            except Exception as error:
                better = self._failure(error)
                if better is error:
                    raise
                raise better from error
        if self._pending is not None:
            more = self._pending(digests, count)
            numbers, payloads = more.numbers or repeat(0), more.payloads or repeat(b"")
            # Not strict: `repeat` has no end.
            columns = zip(more.offsets, more.timestamps, numbers, payloads, strict=False)
            for index, mark in zip(more.indexes, columns, strict=True):
                if index not in found or found[index][0] <= mark[0]:
                    found[index] = mark
        if not found:
            return NONE_FOUND
        indexes = sorted(found)
        marks = [found[index] for index in indexes]
        offsets, timestamps, numbers, payloads = map(list, zip(*marks, strict=True))
        return Found(
            indexes,
            offsets,
            timestamps,
            numbers if self._numbered else None,
            payloads if any(payloads) else None,
        )

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        for _ in self.flush_steps(progress, marks):
            pass

    def flush_steps(self, progress: Progress, marks: Marks, find: Find | None = None) -> Iterator[None]:
        """See `PartitionStore.flush_steps`."""
        # As of now: steps that come during the flush stay in the journal, for the flush lacks their marks.
        generations, end, recent = self._open_generations(), self._next, self._recent
        with self._translating():
            if marks.count:
                self._pending = find or PendingMarks(marks).find
                try:
                    for _ in generations.add_steps(marks, self._window, self._generation_marks):
                        yield
                        # `reopen` has read the journal again, with the marks of this flush.
                        if self._open_generations() is not generations:
                            message = (
                                f"store {self._folder} was opened again during a flush; begin another one"
                            )
                            raise StoreError(message)
                finally:
                    self._pending = None
            generations.use_state(self._commit_state(generations.state, progress, end))
            self._recent -= recent
            make_files_private(self._folder)
            self._update_disk_bytes()

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """See `PartitionStore.expire`.

        Generations are dropped one by one. Where timestamps ran backwards, that may uncover an older mark
        of an ID whose timestamp is still inside the window.
        """
        return self._drop(self._expired(before_ms, up_to_number))

    def expires_to_ms(self, before_ms: int) -> int | None:
        """See `PartitionStore.expires_to_ms`."""
        expired = [] if self._is_installing else self._expired(before_ms, None)
        return max((entry.newest_ms for entry in expired), default=None)

    def _expired(self, before_ms: int | None, up_to_number: int | None) -> list[Generation]:
        generations = self._open_generations().state.generations
        return [entry for entry in generations if entry.is_expired(before_ms, up_to_number)]

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`."""
        oldest = self._oldest()
        return None if oldest is None else oldest.began_ms

    @property
    def evicts_to_ms(self) -> int | None:
        """See `PartitionStore.evicts_to_ms`."""
        oldest = None if self._is_installing else self._oldest()
        return None if oldest is None else oldest.newest_ms

    def evict(self) -> int | None:
        """See `PartitionStore.evict`: drops the oldest generation, even if it is the only one."""
        oldest = self._oldest()
        return None if oldest is None else self._drop([oldest])

    def _oldest(self) -> Generation | None:
        return min(self._open_generations().state.generations, key=lambda entry: entry.began_ms, default=None)

    def _drop(self, dropped: list[Generation]) -> int | None:
        # A generation that is being installed is in no valid state yet, and would be removed too.
        if not dropped or self._is_installing:
            return None
        generations = self._open_generations()
        with self._translating():
            kept = tuple(entry for entry in generations.state.generations if entry not in dropped)
            remaining = replace(generations.state, generations=kept)
            # The state first: a crash now leaves families without a state, which the next open removes.
            self._database.put(STATE, remaining.encode(), self._write_options)
            generations.activate_state(remaining)
            self._update_disk_bytes()
        return max(entry.newest_ms for entry in dropped)

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`.

        After the first failed write RocksDB refuses every other one until the database is reopened. Another owner that
        may have written while this one waited is an error.
        """
        left_at = self._left_at
        if left_at is None:
            self._open_journal()
        with self._translating():
            if not is_writable(self._folder):
                return False
        steps = left_at or (self._first, self._next)
        self.close()
        try:
            self._open_again(left_at)
        except StoreCorruptError as error:
            self._report_damage(error)
            raise
        except StoreUnavailableError as error:
            self.close()
            self._left_at = steps
            if left_at is None:
                log.warning(
                    "a store does not open again, although its disk can be written; it waits for another try: %s",
                    error,
                    extra={"event": "store-not-reopened"},
                )
            return False
        except StoreError as error:
            self.close()
            message = f"store {self._folder} could not be reopened although its disk is writable: {error}"
            raise StoreUnavailableError(message) from error
        return True

    def _open_again(self, left_at: tuple[int, int] | None) -> None:
        """Open and load; raises `StoreError` if the store waited, with a journal ``left_at``, and was written since."""
        self._open()
        if left_at not in (None, (self._first, self._next)):
            raise StoreError(f"store {self._folder} was written meanwhile")
        self.load()

    def _update_disk_bytes(self) -> None:
        """Update ``disk_bytes``; only live sorted files count, because RocksDB deletes dropped ones a little later."""
        size = sum([int(file["size"]) for file in self._database.live_files()])
        for pattern in ("*.log", "filters/*"):
            for path in self._folder.glob(pattern):
                with suppress(FileNotFoundError):
                    size += path.stat().st_size
        self.disk_bytes = size

    def install_steps(
        self, snapshot: str, progress: Progress, *, manifest: Manifest, move: bool = False
    ) -> Iterator[None]:
        """See `PartitionStore.install_steps`."""
        generations = self._open_generations()
        entry = fitting_partition(snapshot, manifest, self._identity, progress, numbered=self._numbered)
        with self._translating():
            self._is_installing = True
            try:
                state = yield from ingest_snapshot(snapshot, entry, generations, move=move)
            except BaseException:
                # Who stops the iteration may have closed the store: then the next open cleans up.
                if not self._closed:
                    generations.clean()
                raise
            finally:
                self._is_installing = False
            generations.activate_state(self._commit_state(state, progress))
            self._recent = 0
        log.info(
            "installed snapshot %s: %d marks up to offset %d in %s",
            snapshot, entry.marks, entry.high, self._folder,
            extra={"event": "snapshot-installed"},
        )  # fmt: skip

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        generations = self._open_generations()
        with self._translating():
            # Numbers go on: the page cache may still have pages of one that was used.
            state = StoreState(next_number=generations.state.next_number)
            generations.activate_state(self._commit_state(state, progress))
            self._recent = 0

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        with self._translating():
            for page in self._open_generations().scan():
                yield page
                self._open_generations()

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`; ``details``: generations, and those with RocksDB's own Bloom filter."""
        return stats_of(self._folder, self._open_generations(), self._recent)

    def close(self) -> None:
        """See `PartitionStore.close`."""
        self._left_at = None
        if self._closed:
            return
        merges = True
        with translating(self._folder):
            # RocksDB's lock must be released whatever fails: otherwise the store counts as open until the
            # process ends.
            try:
                # Given back once, also where an interrupted `close` is called again.
                share, self._open_files = self._open_files, 0
                OPEN_FILES.give_back(share)
                if has_tables(self._folder):
                    # Before the families are released: each would be flushed first, a third of the time of
                    # a handover. A database without sorted files is flushed, because a damaged log alone
                    # could lose all of it.
                    with suppress(DbClosedError):
                        # An interrupted earlier call has closed the database already.
                        self._database.cancel_all_background(False)
                merges = self._generations is not None and self._generations.close()
            finally:
                self._journal = self._generations = None
                close_database(self._database, merges=merges)
                # Only now: after an interruption `close` can be called again.
                self._closed = True
            make_files_private(self._folder)

    def _translating(self) -> AbstractContextManager[None]:
        return translating(self._folder, self._report_damage)

    def _failure(self, error: Exception) -> Exception:
        better = translated(error, self._folder)
        if isinstance(better, StoreCorruptError):
            self._report_damage(better)
        return better

    def _commit_state(self, state: StoreState, progress: Progress, end: int | None = None) -> StoreState:
        """Write state and progress and drop the journal before step ``end``, in one write; return the state as written.

        ``end`` None: the whole journal.
        """
        end = self._next if end is None else end
        # An empty journal skips a number, so that no two of them begin with the same one. If steps came to an empty one
        # meanwhile, it stays: the flush had no marks of it.
        skipped = int(end == self._next)
        state = replace(state, first_step=end + skipped)
        batch = WriteBatch(raw_mode=True)
        batch.put(STATE, state.encode())
        batch.put(PROGRESS, encode_step(progress, NO_MARKS))
        journal = self._database.get_column_family_handle(JOURNAL)
        batch.delete_range(sequence_key(self._first), sequence_key(end), journal)
        self._database.write(batch, self._write_options)
        self._first, self._next = end + skipped, self._next + skipped
        # Otherwise the log keeps every journal record until a buffer is full, twice the size of the marks.
        for family in (self._open_journal(), self._database):
            family.flush(wait=False)
        return state

    def _open_journal(self) -> Rdict:
        if self._journal is None:
            raise self._not_open()
        return self._journal

    def _open_generations(self) -> RocksGenerations:
        if self._generations is None:
            raise self._not_open()
        return self._generations

    def _not_open(self) -> StoreError:
        if self._left_at is not None:
            return StoreUnavailableError(f"store {self._folder} waits to be opened again")
        return StoreError(f"store {self._folder} is closed; open it again")


MAX_CACHE_BYTES: Final = 2**40
"""More than any machine has: a larger value is a typing error, and would exhaust the memory."""


class RocksStore:
    """A `KeyStore` in the folder ``path``, which is created if missing; several processes may share it.

    Args:
        path: the folder of the store.
        recent_marks: IDs that each consumer keeps in memory and in journals, over all its partitions, before those of
            the fullest partition go to a sorted file (default 500,000); about 120 bytes each. Fewer need less memory,
            and more writes. A source of `LastId` that remembers many IDs counts as several.
        block_cache_bytes: memory for pages of sorted files (default 32 MiB), shared by all stores of this process with
            the same value; more helps when many duplicates arrive. Write buffers (64 MiB) are shared by all stores.
        fsync: flush every step to the disk. Without it, completed records survive the death of the process, but a power
            cut costs a replay of the topic's tail.
        generation_marks: minimum number of marks that are dropped together (default 100,000).
        max_disk: limit in bytes for all partitions open here together (default None: no limit). Above it their oldest
            marks are dropped, ``generation_marks`` or more at a time, which shortens the window. Journals count. A
            merge of files may briefly need the size of a generation in addition.
        lock_wait: seconds to wait for another process on this host that has a partition's store open, before a
            warning is logged; the consumer goes on waiting.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        recent_marks: int = RECENT_MARKS,
        block_cache_bytes: int = 32 * 2**20,
        fsync: bool = False,
        generation_marks: int = 100_000,
        max_disk: int | None = None,
        lock_wait: float = 30.0,
    ) -> None:
        for name, value in (
            ("block_cache_bytes", block_cache_bytes), ("generation_marks", generation_marks), ("max_disk", max_disk),
        ):  # fmt: skip
            if value is not None:
                whole(name, value, advice="give a number above 0; leave it out for the default")
        if block_cache_bytes > MAX_CACHE_BYTES:
            message = (
                f"block_cache_bytes={block_cache_bytes:,}: give at most {MAX_CACHE_BYTES:,} (1 TiB), "
                "and less than the machine's memory"
            )
            raise ConfigurationError(message)
        flag("fsync", fsync)
        self.lock_wait_s = seconds("lock_wait", lock_wait)
        self.recent_marks = checked_recent_marks(recent_marks)
        self._root = checked_store_path(path)
        self._max_disk_bytes = max_disk
        self._fsync = fsync
        self._generation_marks = generation_marks
        self._memory = shared_memory(block_cache_bytes)
        raise_file_limit()
        self._open: list[RocksPartition] = []
        self._damaged: dict[Path, tuple[int, str]] = {}

    @property
    def path(self) -> Path:
        """The folder of this store."""
        return self._root

    def try_folder(self, group: str) -> None:
        """Create the folder, if it is missing, and try to use it; see `dedup_sdk._store.paths.try_folder`."""
        try_folder(self._root, group)

    def open(self, identity: Identity, window: Window) -> RocksPartition:
        """See `KeyStore.open`."""
        folder = partition_folder(self._root, identity)
        if folder in self._damaged:
            self._refuse_damaged(folder)
        make_private(self._root, folder)
        self._open = [each for each in self._open if not each.closed]
        begun: list[RocksPartition] = []
        try:
            partition = RocksPartition(
                folder,
                identity,
                window,
                self._memory,
                report_damage=lambda error: self._note_damage(folder, error),
                begun=begun.append,
                fsync=self._fsync,
                generation_marks=self._generation_marks,
            )
        except BaseException:
            # Interrupted on its way here: nobody else could close it.
            for each in begun:
                each.close()
            raise
        self._open += [partition]
        return partition

    def excess_bytes(self) -> int:
        """See `KeyStore.excess_bytes`; as of each partition's last flush."""
        if self._max_disk_bytes is None:
            return 0
        taken = sum(partition.disk_bytes for partition in self._open if not partition.closed)
        return max(0, taken - self._max_disk_bytes)

    def set_aside(self, identity: Identity) -> str:
        """See `KeyStore.set_aside`: the folder is renamed, e.g. to ``0.damaged-1``; the newest three stay."""
        folder = partition_folder(self._root, identity)
        kept = set_aside(folder)
        self._damaged.pop(folder, None)
        return str(kept)

    def _note_damage(self, folder: Path, error: StoreCorruptError) -> None:
        with contextlib.suppress(OSError):
            # The inode: a new store may come to the same path when the damaged one was moved away by hand.
            self._damaged[folder] = (folder.stat().st_ino, str(error))

    def _refuse_damaged(self, folder: Path) -> None:
        """Raise the damage found while the store was open.

        RocksDB would open it again, and find the damage only when it reads that place.
        """
        inode, text = self._damaged[folder]
        if folder.exists() and folder.stat().st_ino == inode:
            raise StoreCorruptError(text)
        del self._damaged[folder]

    def close(self) -> None:
        """See `KeyStore.close`."""
        for partition in self._open:
            partition.close()
        self._open.clear()
