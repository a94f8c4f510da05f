"""A partition's RocksDB database: options, opening, error translation, and complete reads.

- An existing database whose head is missing is never opened as a silent empty one.
- RocksDB raises plain exceptions with a text; only this module translates them (`translating`).
- Every open passes all options: RocksDB silently loses those that are not passed.
- Open files are bounded for the whole process, whatever the number of partitions (`OpenFiles`). Half of the
  process's limit (``ulimit -n``) is shared out: an opening database gets a quarter of the rest,
  between `MIN_OPEN_FILES` and `MAX_OPEN_FILES`, and returns it when it closes. RocksDB's limit covers
  sorted files only. Its log, manifest, lock and the like (some seven files) come on top, and its folder
  once per generation created since it was opened.
- The soft limit of a shell, 1,024, is for programs that call ``select()``: `raise_file_limit` sets it to the hard one.
  A database is not opened with the last files of the process (`refuse_last_files`): connections need some, too.
- One thread merges files for all databases of the process; while a database closes there are more
  (`MergeThreads`). A database that is told to stop gives up a running merge at once, but a queued merge
  must first get a thread. With one thread that would wait for the merges of other databases, for seconds.
"""

from __future__ import annotations

import errno
import functools
import logging
import re
import resource
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Final, NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    DbClosedError,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    Rdict,
    ReadOptions,
    WriteBufferManager,
)

from dedup_sdk._interruptions import is_interruption, release_frames
from dedup_sdk._marks import NO_MARKS, Marks, Progress, cut_marks, join_marks, latest, select_marks
from dedup_sdk._masking import error_shown
from dedup_sdk._store.filter_words import FilterWords, filter_words
from dedup_sdk._store.pages import (
    MAX_EXTENT,
    FoundMark,
    decode_items,
    decode_step,
    digest_ranks,
    find_in_page,
    newest_per_digest,
    page_key,
    rank_of,
)
from dedup_sdk.errors import (
    DedupError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)

MIN_OPEN_FILES: Final = 24
MAX_OPEN_FILES: Final = 256
_LIMIT_DIVISOR: Final = 2
_REST_DIVISOR: Final = 4
_MOST_FILES: Final = 2**20
"""A higher limit helps nobody, and old programs close every possible file one by one when they start another one."""
_MOST_FILES_MACOS: Final = 10_240
"""macOS refuses a higher soft limit, and tells no hard one."""
_OPENING_FILES: Final = 16
"""Files of a database that opens: some seven, and a few for a moment."""
_SPARE_DIVISOR: Final = 8

log = logging.getLogger(__name__)


class OpenFiles:
    """A budget of open sorted files: at most ``total``, and `MIN_OPEN_FILES` per database. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._given = 0
        self._lock = Lock()

    def resize(self, total: int) -> None:
        """Set the total."""
        self._total = total

    def take(self) -> int:
        """Return the number of files for a database that opens now; return it with `give_back`."""
        with self._lock:
            share = min(MAX_OPEN_FILES, max(MIN_OPEN_FILES, (self._total - self._given) // _REST_DIVISOR))
            self._given += share
            return share

    def give_back(self, share: int) -> None:
        """Return the ``share`` of a database that is closed."""
        with self._lock:
            self._given -= share


def process_limit() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Raise the number of files that this process may open to what the system allows it, and log that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES_MACOS if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        # A sandbox may forbid it; then the limit stays.
        return
    OPEN_FILES.resize(most // _LIMIT_DIVISOR)
    log.info(
        "this process may open %s files now, before %s: the soft limit was raised to the hard one (ulimit -Hn)",
        f"{most:,}", f"{soft:,}",
        extra={"event": "file-limit-raised"},
    )  # fmt: skip


def refuse_last_files(folder: Path) -> None:
    """Raise `StoreUnavailableError` if the database in ``folder`` would take the last files of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        count = len(list(Path("/dev/fd").iterdir()))
    except OSError as error:
        if error.errno != errno.EMFILE:
            # Not every container has /dev/fd; then RocksDB finds out.
            return
        # Not even the folder could be opened: no file is left.
        count = limit
    if count + _OPENING_FILES > limit - limit // _SPARE_DIVISOR:
        raise StoreUnavailableError(
            f"store {folder} cannot be opened: this process has {count:,} files open, and may open {limit:,}, of which "
            f"an eighth is kept for connections and the like; {_MORE_FILES}"
        )


_MORE_FILES: Final = (
    "raise the hard limit (ulimit -Hn; LimitNOFILE= of systemd; docker run --ulimit nofile=65536), or give the process "
    "fewer partitions: each takes 8 files and more"
)

OPEN_FILES: Final = OpenFiles(process_limit() // _LIMIT_DIVISOR)
"""The budget of this process."""


class MergeThreads:
    """The number of merge threads; ``usual`` of them while no database closes. Thread-safe."""

    def __init__(self, usual: int = 1) -> None:
        self._usual = usual
        self._open = 0
        self._closing = 0
        self._lock = Lock()

    def opened(self) -> None:
        """Count an opened database."""
        with self._lock:
            self._open += 1

    def closed(self) -> None:
        """Count a closed database."""
        with self._lock:
            self._open -= 1

    @contextmanager
    def one_each(self) -> Iterator[None]:
        """Allow one thread per open database in this block: each has at most one merge, queued or running."""
        with self._lock:
            self._closing += 1
            self._limit(max(self._usual, self._open))
        try:
            yield
        finally:
            with self._lock:
                self._closing -= 1
                if not self._closing:
                    self._limit(self._usual)

    def _limit(self, threads: int) -> None:
        # Every Env object stands for the one of the process. Threads above the limit end after their merge.
        Env().set_low_priority_background_threads(threads)


MERGE_THREADS: Final = MergeThreads()
"""The merge threads of this process."""


BLOOM_BITS: Final = 10
BLOCK_BYTES: Final = 1024
"""Smaller than a page of marks without payloads: each page is its own block, and a read returns only that page."""
WAL_BYTES: Final = 32 * 2**20
WRITE_BUFFERS_BYTES: Final = 64 * 2**20
JOURNAL_BUFFER_BYTES: Final = 8 * 2**20
SMALL_BUFFER_BYTES: Final = 2**20
GROWING_RUNS: Final = 8
_TABLE_FORMAT: Final = 5


def table_options() -> BlockBasedOptions:
    """Return the layout of sorted files. RocksDB's block cache is off; `PageCache` caches pages instead."""
    table = BlockBasedOptions()
    table.disable_cache()
    table.set_bloom_filter(BLOOM_BITS, block_based=False)
    table.set_block_size(BLOCK_BYTES)
    table.set_format_version(_TABLE_FORMAT)
    return table


def sorted_file_options(*, compressed: bool) -> Options:
    """Return the options of a sorted file written outside a database."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table_options())
    if compressed:
        options.set_compression_type(DBCompressionType.zstd())
        options.set_compression_options(-14, 1, 0, 0)
    else:
        options.set_compression_type(DBCompressionType.none())
    return options


_ENTRY_BYTES: Final = 224
"""Overhead of a page: the Python objects of its key and value, and its entry in the dictionary."""


class PageCache:
    """A cache of up to ``max_bytes`` of pages of sorted files, first in, first out. Thread-safe.

    It takes the place of RocksDB's block cache, which takes some 2 µs to find a page and copies it three times: more
    than searching the page takes.

    Reading a page again does not move it to the end.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pages: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        # Reentrant: a signal handler may read, too.
        self._lock = RLock()

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._bytes

    def read(
        self, owner: bytes, keys: list[bytes], read: Callable[[list[bytes]], list[bytes | None]]
    ) -> list[bytes | None]:
        """Return the page at each key, None where there is none; ``read`` returns pages that are not cached.

        ``owner`` identifies the generation of the keys. It is unique for the life of the process, and
        always of the same length. Pages of an owner never change. Exceptions of ``read`` pass through.
        """
        names = [owner + key for key in keys]
        # Without the lock: each `get` is atomic, and a page that is dropped meanwhile is still the right one.
        pages = list(map(self._pages.get, names))
        missing = [at for at, page in enumerate(pages) if page is None]
        if missing:
            new = read([keys[at] for at in missing])
            with self._lock:
                for at, page in zip(missing, new, strict=True):
                    pages[at] = page
                    # A key that is given twice was read twice.
                    if page is not None and names[at] not in self._pages:
                        self._pages[names[at]] = page
                        self._bytes += len(page) + _ENTRY_BYTES
                while self._pages and self._bytes > self._max_bytes:
                    _, page = self._pages.popitem(last=False)
                    self._bytes -= len(page) + _ENTRY_BYTES
                if not self._pages:
                    # A signal handler that reads in the middle of the update above leaves a wrong sum.
                    self._bytes = 0
        return pages


class SharedMemory:
    """A page cache, and the write buffers of the whole process; see `shared_memory`."""

    def __init__(self, block_cache_bytes: int, buffers: WriteBufferManager) -> None:
        self.pages = PageCache(block_cache_bytes)
        self.table = table_options()
        self.buffers = buffers
        self.journal = journal_options(self)


_LOCK: Final = Lock()
_CACHES: Final[WeakValueDictionary[int, SharedMemory]] = WeakValueDictionary()


@functools.cache
def _buffers() -> WriteBufferManager:
    # A stall stops a write, and `write()` holds the interpreter's lock: the whole process would stop.
    return WriteBufferManager(WRITE_BUFFERS_BYTES, allow_stall=False)


def shared_memory(block_cache_bytes: int) -> SharedMemory:
    """Return the memory shared by all databases of this process whose stores ask for a cache of this size."""
    with _LOCK:
        memory = _CACHES.get(block_cache_bytes)
        if memory is None:
            memory = _CACHES[block_cache_bytes] = SharedMemory(block_cache_bytes, _buffers())
        return memory


def database_options(memory: SharedMemory | None, open_files: int = MIN_OPEN_FILES) -> Options:
    """Return the options of a partition's database and of its default column family."""
    options = _base(memory)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_open_files(open_files)
    # With 64 shards, the default, each would keep a file open.
    options.set_table_cache_num_shard_bits(0)
    # There are few files: opening them needs no threads.
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    # A dropped generation has files of hundreds of megabytes: a background thread deletes them.
    options.set_avoid_unnecessary_blocking_io(True)
    # Each open reads the whole log, and each snapshot of a running store copies the log.
    options.set_max_total_wal_size(WAL_BYTES)
    # An incomplete record at the end of the log loses that whole step: never a part of it, never an earlier one.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    # RocksDB would keep a thousand files of its own messages in each partition.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    # Each partition would wake up every ten minutes to write figures that nobody reads.
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # The default reserves 4 MiB of disk for each partition.
    options.set_manifest_preallocation_size(2**16)
    options.set_max_manifest_file_size(2**22)
    # Else each open reads properties of the files, which only help to choose merges.
    options.set_skip_stats_update_on_db_open(True)
    if memory is not None:
        options.set_write_buffer_manager(memory.buffers)
    return options


def journal_options(memory: SharedMemory | None) -> Options:
    """Return the options of the journal: written in order, read once, dropped as a whole."""
    options = _base(memory)
    options.set_write_buffer_size(JOURNAL_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.none())
    return options


def generation_options(memory: SharedMemory | None) -> Options:
    """Return the options of a generation: whole files are ingested, and merged rarely, so that few are open."""
    options = _base(memory)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_compression_options(-14, 1, 0, 0)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(GROWING_RUNS)
    # Each flush adds a file here. At RocksDB's own limits, 20 and 36, a merge that is late would slow down
    # all writes of the database, to the journal as well.
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    return options


def _base(memory: SharedMemory | None) -> Options:
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table_options() if memory is None else memory.table)
    options.set_write_buffer_size(SMALL_BUFFER_BYTES)
    return options


_LOCKED = re.compile(
    r"while lock file.*resource temporarily unavailable|lock hold by current process", re.DOTALL
)
"""Other failures to lock the file, as on some network disks, do not mean that there is another owner."""
_CORRUPT = (
    "corruption",
    "checksum mismatch",
    "no such file or directory",
    "does not match the expected size",
)
_FAILED = ("io error", "(os error ")
"""How RocksDB and its binding report an error of the operating system."""
_FULL = ("no space left on device", "disk quota exceeded", "file too large")


ReportDamage = Callable[[StoreCorruptError], None]


def translated(error: Exception, folder: Path) -> Exception:
    """Return the error to raise instead of RocksDB's or the system's; any other error is returned unchanged.

    Clears the frames of ``error``: a database handle in one of them keeps the lock for as long as somebody
    holds the error, and the next open would find the store locked.
    """
    release_frames(error)
    # RocksDB raises plain Exception; a subclass comes from somebody else. A signal's handler may raise any.
    is_theirs = type(error) is Exception or isinstance(error, DbClosedError | OSError)
    if not is_theirs or is_interruption(error):
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
        return "free space on its disk"
    if "too many open files" in text:
        return _MORE_FILES
    return "check the folder, its permissions and its disk"


def unexpected_damage(error: BaseException, folder: Path) -> StoreCorruptError | None:
    """Return the error for files that contradict each other in an unforeseen way, None for any other error.

    A damaged store can be quarantined and rebuilt from its topic. An error of another kind, raised at every
    open, would stop the partition for good.
    """
    if isinstance(error, DedupError) or not isinstance(error, ArithmeticError | LookupError | ValueError):
        return None
    if is_interruption(error):
        return None
    release_frames(error)
    return StoreCorruptError(
        f"store {folder} is inconsistent ({error_shown(error)}); move it away and rebuild it from a snapshot or the "
        f"topic"
    )


@contextmanager
def translating(folder: Path, report_damage: ReportDamage = lambda _: None) -> Iterator[None]:
    """Translate errors of RocksDB and the system in this block (`translated`); pass damage to ``report_damage``."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            # An interruption; its frames hold handles as well.
            release_frames(error)
            raise
        better = translated(error, folder)
        if isinstance(better, StoreCorruptError):
            report_damage(better)
        if better is error:
            raise
        raise better from error


DEFAULT: Final = "default"
JOURNAL: Final = "journal"
IDENTITY: Final = b"identity"
STATE: Final = b"state"
PROGRESS: Final = b"progress"

_RECORD: Final = struct.Struct("<IHB")
"""The header of a record in RocksDB's logs: CRC, length, kind."""
_LOG_BLOCK_BYTES: Final = 2**15
_REUSED_KINDS: Final = frozenset({5, 6, 7, 8, 11})
_VALUE_BYTES: Final = re.compile(r"raw value size=(\d+)")
_TABLE_SECTION: Final = re.compile(r'\[TableOptions/BlockBasedTable "([^"]+)"\]([^\[]*)')


def sequence_key(sequence: int) -> bytes:
    """Return the journal key of a step."""
    return sequence.to_bytes(8, "big")


def _is_there(path: Path) -> bool:
    """Whether a file exists. Not `Path.exists`, which takes a signal's `ValueError` for its own, and answers no."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def open_database(
    folder: Path, memory: SharedMemory, open_files: int = MIN_OPEN_FILES
) -> tuple[Rdict, list[str]]:
    """Open the database in ``folder``, or create it where no file of one exists; return it and its column families.

    Raises RocksDB's exceptions, and `StoreCorruptError` when files of a database exist without its head.
    """
    exists = _is_there(folder / "CURRENT")
    if not exists:
        left_over = next((path.name for pattern in ("*.sst", "*.log") for path in folder.glob(pattern)), None)
        if left_over is not None:
            message = (
                f"store {folder} has {left_over} but no CURRENT; "
                "move it away and rebuild it from a snapshot or the topic"
            )
            raise StoreCorruptError(message)
    names = Rdict.list_cf(str(folder)) if exists else [DEFAULT, JOURNAL]
    if JOURNAL not in names and has_tables(folder):
        # Truncated MANIFEST: RocksDB would delete the sorted files that it no longer lists.
        message = (
            f"store {folder} has sorted files but no journal: its MANIFEST is truncated; "
            "move it away and rebuild it"
        )
        raise StoreCorruptError(message)
    _refuse_reused_logs(folder)
    options = database_options(memory, open_files)
    database = Rdict(str(folder), options, column_families=_families(names, memory, options))
    MERGE_THREADS.opened()
    return database, names


def _refuse_reused_logs(folder: Path) -> None:
    """Raise `StoreCorruptError` for a log record of a kind that only reused log files have; none is reused here.

    One flipped bit turns another record into such a one, and RocksDB would read it in an endless loop.
    """
    for path in (*folder.glob("*.log"), *folder.glob("MANIFEST-*")):
        try:
            data, at = path.read_bytes(), 0
        except FileNotFoundError:
            # The store is not locked yet: another owner may delete logs that it no longer needs.
            continue
        while at + _RECORD.size <= len(data):
            # A header never crosses a block: zeros fill the rest.
            left = _LOG_BLOCK_BYTES - at % _LOG_BLOCK_BYTES
            if left < _RECORD.size:
                at += left
                continue
            _, length, kind = _RECORD.unpack_from(data, at)
            if kind in _REUSED_KINDS:
                message = (
                    f"store {folder} is damaged: {path.name} has a record of kind {kind} at byte {at}; "
                    "move it away and rebuild it"
                )
                raise StoreCorruptError(message)
            # Zeros: space that was reserved, and never written.
            if not length and not kind:
                break
            at += _RECORD.size + length


def has_tables(folder: Path) -> bool:
    """Whether a database's folder has sorted files."""
    # Not `Path.glob`, which takes a signal's `ValueError` for its own, and finds nothing.
    return _is_there(folder) and ".sst" in {path.suffix for path in folder.iterdir()}


def open_read_only(folder: Path) -> tuple[Rdict, list[str]]:
    """Open an existing database read-only, without its lock; return it and its column families."""
    names = Rdict.list_cf(str(folder))
    options = database_options(None)
    options.create_if_missing(False)
    access = AccessType.read_only(error_if_log_file_exist=False)
    families = _families(names, None, options)
    return Rdict(str(folder), options, column_families=families, access_type=access), names


def close_database(database: Rdict, *, merges: bool = True) -> None:
    """Stop background work and close, without flushing: the log has everything that is in memory.

    ``merges``: whether a merge may be running or queued; see `wants_merges`. Does nothing if the database
    is closed already.
    """
    # Do not wait: that would hold the interpreter's lock, and closing waits for running work anyway.
    try:
        database.cancel_all_background(False)
    except DbClosedError:
        return
    try:
        with MERGE_THREADS.one_each() if merges else nullcontext():
            database.close()
    except Exception as error:
        # Closing tries to flush buffers, which the call above forbids; the database is closed nevertheless.
        if "shutdown in progress" not in str(error).lower():
            raise
    finally:
        MERGE_THREADS.closed()


def wants_merges(families: Iterable[Rdict]) -> bool:
    """Whether RocksDB wants to merge files of one of these families."""
    return any(family.property_int_value("rocksdb.compaction-pending") for family in families)


def get_values(family: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """Return the value of each key, None for missing ones."""
    return cast("list[bytes | None]", family.get(cast("list[str | int | float | bytes | bool]", keys)))


def read_items(family: Rdict, lower: bytes = b"", upper: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """Return keys and values from ``lower`` (inclusive) to ``upper`` (exclusive), ascending.

    Raises RocksDB's exception when it cannot read one of them.
    """
    options = ReadOptions()
    if upper is not None:
        options.set_iterate_upper_bound(upper)
    items = cast("list[tuple[bytes, bytes]]", list(family.items(from_key=lower, read_opt=options)))
    # This iterator ends silently on an error. A cursor reports it: repeat the last step with one.
    cursor = family.iter(options)
    cursor.seek(items[-1][0] if items else lower)
    if items and cursor.valid():
        cursor.next()
    cursor.status()
    if cursor.valid():
        message = f"reading stopped before key {cast('bytes', cursor.key()).hex()}; move the store away and rebuild it"
        raise StoreCorruptError(message)
    return items


def value_bytes(family: Rdict) -> int:
    """Return the total size of the values in a family's sorted files, in bytes, uncompressed."""
    found = _VALUE_BYTES.search(family.property_value("rocksdb.aggregated-table-properties") or "")
    return int(found.group(1)) if found else 0


def last_key(family: Rdict) -> bytes | None:
    """Return the highest key, None when there is none; raises RocksDB's exception when it cannot be read."""
    cursor = family.iter()
    cursor.seek_to_last()
    cursor.status()
    return cast("bytes", cursor.key()) if cursor.valid() else None


def drop_extents_from(family: Rdict, number: int) -> None:
    """Delete the pages of all extents from this number on, if there are any."""
    cursor = family.iter()
    cursor.seek(page_key(number, 0))
    cursor.status()
    if cursor.valid():
        family.delete_range(page_key(number, 0), page_key(MAX_EXTENT, 0))


def families_with_bloom(folder: Path) -> set[str]:
    """Return the column families with a Bloom filter, by the options file of the last open."""
    # The last open wrote the highest number; files of earlier opens may be left.
    for written in sorted(folder.glob("OPTIONS-*"), reverse=True):
        # RocksDB deletes older ones in the background.
        with suppress(FileNotFoundError):
            sections = _TABLE_SECTION.findall(written.read_text(errors="replace"))
            return {name for name, body in sections if "filter_policy=bloomfilter" in body}
    return set()


def _families(names: list[str], memory: SharedMemory | None, own: Options) -> dict[str, Options]:
    """Return the options of each column family; ``own``: those of the database."""
    options = {DEFAULT: own, JOURNAL: journal_options(None) if memory is None else memory.journal}
    for name in names:
        if name not in options:
            options[name] = generation_options(memory)
    return options


PART_MARKS: Final = 50_000
PART_BYTES: Final = 2**24
"""Size of pages in a part; those without payloads take at most a tenth of it."""


def read_journal(
    journal: Rdict, first: int, before: Progress | None
) -> tuple[Progress | None, list[Marks], int]:
    """Return the whole progress after the last step, the marks of each step, and the sequence after the last one.

    ``before`` is the progress before the first step, ``first`` the sequence where the journal must begin.
    Raises `StoreCorruptError` when a record fails its check, or is missing.
    """
    steps = [] if before is None else [before]
    marks: list[Marks] = []
    following = first
    for key, record in read_items(journal):
        sequence = int.from_bytes(key, "big")
        if sequence != following:
            message = f"journal step {following} is missing before step {sequence}; move the store away and rebuild it"
            raise StoreCorruptError(message)
        progress, step = decode_step(record)
        steps.append(progress)
        if step is not NO_MARKS:
            marks.append(step)
        following = sequence + 1
    return latest(steps), marks, following


class StoredGeneration(NamedTuple):
    """A generation to read: its column family, and its number of ``extents``."""

    family: Rdict
    extents: int


class _ExtentReader:
    """A sequential reader of one extent, in the order of ranks."""

    def __init__(self, family: Rdict, number: int) -> None:
        self._family = family
        self._number = number
        self._next = page_key(number, 0)
        self._pending = NO_MARKS

    def below(self, rank: int | None) -> Marks:
        """Return the unread marks below ``rank`` (None: all the rest); leaves no cursor open."""
        end = page_key(self._number + 1, 0) if rank is None else page_key(self._number, rank)
        found = decode_items(read_items(self._family, self._next, end))
        self._next = end
        held = join_marks([self._pending, found]) if self._pending.count else found
        cut = held.count
        if rank is not None:
            # A page that begins below the rank may extend above it.
            cut = int(np.searchsorted(digest_ranks(held.digests), rank))
        self._pending = cut_marks(held, cut, held.count)
        return cut_marks(held, 0, cut)


def scan_generations(
    generations: Sequence[StoredGeneration], marks: int, more: Marks = NO_MARKS, *, below: int | None = None
) -> Iterator[Marks]:
    """Yield the marks of all generations and ``more``, ascending, each ID once, in parts.

    A part has about `PART_MARKS` marks, or about `PART_BYTES` where payloads make it large; marks of one
    rank are never split. ``marks`` is the number of marks in the generations. ``below``: ignore marks at
    this offset or above.
    """
    size = sum(value_bytes(family) for family, _ in generations)
    slices = min(max(1, (marks + more.count) // PART_MARKS, size // PART_BYTES), 2**16)
    # Digests are uniform, so that equal ranges of ranks have about equally many marks.
    bounds = [*(index * 2**32 // slices for index in range(1, slices)), None]
    # Cut first, then the newest: of an ID with a mark above the cut, the older mark below counts.
    later = newest_per_digest(_below(more, below))
    ranks = digest_ranks(later.digests)
    readers = [_ExtentReader(family, number) for family, count in generations for number in range(count)]
    start = 0
    for bound in bounds:
        end = later.count if bound is None else int(np.searchsorted(ranks, bound))
        parts = [_below(reader.below(bound), below) for reader in readers]
        found = [part for part in (*parts, cut_marks(later, start, end)) if part.count]
        start = end
        if found:
            yield newest_per_digest(join_marks(found))


def _below(marks: Marks, offset: int | None) -> Marks:
    return marks if offset is None else select_marks(marks, np.flatnonzero(marks.offsets < offset))


def find_in_generation(generation: StoredGeneration, digest: bytes) -> list[FoundMark]:
    """Return every mark of a digest in a generation, without using its filters."""
    found = []
    for number in range(generation.extents):
        cursor = generation.family.iter()
        cursor.seek_for_prev(page_key(number, rank_of(digest)))
        cursor.status()
        # Below all pages of this extent, the one before is of another extent.
        if cursor.valid() and cast("bytes", cursor.key()) >= page_key(number, 0):
            mark = find_in_page(cast("bytes", cursor.value()), digest)
            found += [] if mark is None else [mark]
    return found


def read_words(family: Rdict, number: int) -> Iterator[FilterWords]:
    """Yield the filter words of each page of an extent."""
    for item in read_items(family, page_key(number, 0), page_key(number + 1, 0)):
        marks = decode_items([item])
        yield filter_words(marks.digests, [rank_of(marks.digests)])
