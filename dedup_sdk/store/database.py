"""A partition's database: opened with all options, never as a silent empty one, and read from end to end.

RocksDB's exceptions, which are texts, become this package's errors here and nowhere else (`translating`).

All options are passed on every open: what is not passed is silently lost when a database is reopened.

*Open files* are bounded for the whole process, whatever the number of partitions. RocksDB counts a database's sorted files only: its log, its manifest, its lock and the like, some seven files, come on top, and its folder once
for each generation that was made since it was opened. Half of what
the process may open (``ulimit -n``, when this is imported) is given out: a database gets a quarter of what is left when it opens,
between `LEAST` and `MOST`, and gives it back when it is closed.

RocksDB merges files in *one thread* for all databases of this process, in more only while one of them closes. A database that is told to stop gives up the merge it is in at once, but one that still waits for a thread has to be taken up
before it can be given up. With one thread that is after the merges of other databases ahead of it, which go on for seconds.
"""

from __future__ import annotations

import functools
import re
import resource
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from traceback import clear_frames
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

from dedup_sdk.errors import (
    DedupError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from dedup_sdk.marks import NO_MARKS, Marks, Progress, cut_marks, join_marks, latest, select_marks
from dedup_sdk.store.filter_words import FilterWords, filter_words
from dedup_sdk.store.page_cache import PageCache
from dedup_sdk.store.pages import (
    FoundMark,
    decode_items,
    decode_step,
    digest_ranks,
    find_in_page,
    newest_per_digest,
    page_key,
    rank_of,
)

LEAST: Final = 24
MOST: Final = 256
_SHARE_OF_LIMIT: Final = 2
_SHARE_OF_REST: Final = 4
_UNLIMITED: Final = 2**20


class OpenFiles:
    """Sorted files that may be open at once; together at most ``total`` and `LEAST` a database. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._given = 0
        self._lock = Lock()

    def take(self) -> int:
        """Return how many a database that opens now may hold; give it back when it is closed."""
        with self._lock:
            share = min(MOST, max(LEAST, (self._total - self._given) // _SHARE_OF_REST))
            self._given += share
            return share

    def give_back(self, share: int) -> None:
        """Note that a database is closed which had been given ``share``."""
        with self._lock:
            self._given -= share


def process_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


OPEN_FILES: Final = OpenFiles(process_limit() // _SHARE_OF_LIMIT)
"""Of this process."""


class MergeThreads:
    """How many threads merge; ``usual`` of them while nothing closes. Thread-safe."""

    def __init__(self, usual: int = 1) -> None:
        self._usual = usual
        self._open = 0
        self._closing = 0
        self._lock = Lock()

    def opened(self) -> None:
        """Note that a database has opened."""
        with self._lock:
            self._open += 1

    def closed(self) -> None:
        """Note that a database is closed."""
        with self._lock:
            self._open -= 1

    @contextmanager
    def one_each(self) -> Iterator[None]:
        """Have a thread for each open database meanwhile, since each has one merge at most that waits or goes on."""
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
        # Every environment object stands for the one of the process. Threads beyond the limit end when their merge does.
        Env().set_low_priority_background_threads(threads)


MERGE_THREADS: Final = MergeThreads()
"""Of this process."""


BLOOM_BITS: Final = 10
BLOCK_BYTES: Final = 1024
"""Less than a page of marks without payloads has, so that each is a block of its own: what is read is what is asked for."""
WAL_BYTES: Final = 32 * 2**20
WRITE_BUFFERS_BYTES: Final = 64 * 2**20
JOURNAL_BUFFER_BYTES: Final = 8 * 2**20
SMALL_BUFFER_BYTES: Final = 2**20
GROWING_RUNS: Final = 8
_TABLE_FORMAT: Final = 5


def table_options() -> BlockBasedOptions:
    """Return how sorted files are laid out, and that their blocks are not cached: pages are, see `PageCache`."""
    table = BlockBasedOptions()
    table.disable_cache()
    table.set_bloom_filter(BLOOM_BITS, block_based=False)
    table.set_block_size(BLOCK_BYTES)
    table.set_format_version(_TABLE_FORMAT)
    return table


def sorted_file_options(*, compressed: bool) -> Options:
    """Return the options of a sorted file written by RocksDB outside a database."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table_options())
    if compressed:
        options.set_compression_type(DBCompressionType.zstd())
        options.set_compression_options(-14, 1, 0, 0)
    else:
        options.set_compression_type(DBCompressionType.none())
    return options


class SharedMemory:
    """A cache of pages, and the write buffers, which are the same for the whole process; see `shared_memory`."""

    def __init__(self, block_cache_bytes: int, buffers: WriteBufferManager) -> None:
        self.pages = PageCache(block_cache_bytes)
        self.table = table_options()
        self.buffers = buffers
        self.journal = journal_options(self)


_LOCK: Final = Lock()
_CACHES: Final[WeakValueDictionary[int, SharedMemory]] = WeakValueDictionary()


@functools.cache
def _buffers() -> WriteBufferManager:
    return WriteBufferManager(WRITE_BUFFERS_BYTES, allow_stall=False)


def shared_memory(block_cache_bytes: int) -> SharedMemory:
    """Return the memory that all databases of this process share whose stores ask for a cache of this size."""
    with _LOCK:
        memory = _CACHES.get(block_cache_bytes)
        if memory is None:
            memory = _CACHES[block_cache_bytes] = SharedMemory(block_cache_bytes, _buffers())
        return memory


def database_options(memory: SharedMemory | None, open_files: int = LEAST) -> Options:
    """Return the options of a partition's database, which are also those of its default column family."""
    options = _base(memory)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_open_files(open_files)
    # Of 64 parts, the default, each would keep a file open.
    options.set_table_cache_num_shard_bits(0)
    # Its files are few: opening them takes no threads.
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(WAL_BYTES)
    # A whole step is lost to a torn tail of the log, never a part of it, and never an earlier one.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(2**16)
    options.set_max_manifest_file_size(2**22)
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
    """Return the options of a generation of marks: files come in whole, and are joined rarely, so that few are open."""
    options = _base(memory)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_compression_options(-14, 1, 0, 0)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(GROWING_RUNS)
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


DEFAULT: Final = "default"
JOURNAL: Final = "journal"
IDENTITY: Final = b"identity"
STATE: Final = b"state"
PROGRESS: Final = b"progress"

_RECORD: Final = struct.Struct("<IHB")
"""Of RocksDB's logs: CRC, length, kind."""
_LOG_BLOCK_BYTES: Final = 2**15
_REUSED_KINDS: Final = frozenset({5, 6, 7, 8, 11})
_VALUE_BYTES: Final = re.compile(r"raw value size=(\d+)")
_TABLE_SECTION: Final = re.compile(r'\[TableOptions/BlockBasedTable "([^"]+)"\]([^\[]*)')


def sequence_key(sequence: int) -> bytes:
    """Return the journal key of a step."""
    return sequence.to_bytes(8, "big")


def open_database(folder: Path, memory: SharedMemory, open_files: int = LEAST) -> tuple[Rdict, list[str]]:
    """Open the database in ``folder``, or make it where there is nothing of one; return it and its column families.

    Raises RocksDB's exceptions, and `StoreCorruptError` when files of a database are there without their head.
    """
    exists = (folder / "CURRENT").exists()
    if not exists:
        left_over = next((path.name for pattern in ("*.sst", "*.log") for path in folder.glob(pattern)), None)
        if left_over is not None:
            message = f"store {folder} has {left_over} but no CURRENT; move it away and rebuild it from a snapshot or the topic"
            raise StoreCorruptError(message)
    names = Rdict.list_cf(str(folder)) if exists else [DEFAULT, JOURNAL]
    if JOURNAL not in names and has_tables(folder):
        # A list of files that was cut off: RocksDB would take what it does not name for rubbish, and remove it.
        message = f"store {folder} has sorted files but no journal: its MANIFEST is cut off; move it away and rebuild it"
        raise StoreCorruptError(message)
    _refuse_reused_logs(folder)
    options = database_options(memory, open_files)
    database = Rdict(str(folder), options, column_families=_families(names, memory, options))
    MERGE_THREADS.opened()
    return database, names


def _refuse_reused_logs(folder: Path) -> None:
    """Raise `StoreCorruptError` for a log with a record of a kind that only reused log files have, and these are never reused.

    One flipped bit makes such a record of another one, and RocksDB would read it again and again, for ever.
    """
    for path in (*folder.glob("*.log"), *folder.glob("MANIFEST-*")):
        try:
            data, at = path.read_bytes(), 0
        except FileNotFoundError:
            # Nobody has locked the store yet: its owner deletes logs that it needs no more.
            continue
        while at + _RECORD.size <= len(data):
            left = _LOG_BLOCK_BYTES - at % _LOG_BLOCK_BYTES
            if left < _RECORD.size:
                at += left
                continue
            _, length, kind = _RECORD.unpack_from(data, at)
            if kind in _REUSED_KINDS:
                message = f"store {folder} is damaged: {path.name} has a record of kind {kind} at byte {at}; move it away and rebuild it"
                raise StoreCorruptError(message)
            if not length and not kind:
                break
            at += _RECORD.size + length


def has_tables(folder: Path) -> bool:
    """Whether sorted files lie in a database's folder."""
    return next(folder.glob("*.sst"), None) is not None


def open_read_only(folder: Path) -> tuple[Rdict, list[str]]:
    """Open an existing database as it is now, without its lock; return it and its column families."""
    names = Rdict.list_cf(str(folder))
    options = database_options(None)
    options.create_if_missing(False)
    access = AccessType.read_only(error_if_log_file_exist=False)
    families = _families(names, None, options)
    return Rdict(str(folder), options, column_families=families, access_type=access), names


def close_database(database: Rdict, *, merges: bool = True) -> None:
    """Stop background work and close; what is in memory is in the log as well, so that nothing is written out.

    ``merges``: whether a merge of its files may go on or wait for a thread; see `wants_merges`. Does nothing to one that is closed.
    """
    # Not waiting for what ends: that would hold the interpreter's lock, and closing waits for it as well.
    try:
        database.cancel_all_background(False)
    except DbClosedError:
        return
    try:
        with MERGE_THREADS.one_each() if merges else nullcontext():
            database.close()
    except Exception as error:
        # Closing wants to write buffers out, which the line before forbids; it closes nevertheless.
        if "shutdown in progress" not in str(error).lower():
            raise
    finally:
        MERGE_THREADS.closed()


def wants_merges(families: Iterable[Rdict]) -> bool:
    """Whether files of one of these families are to be merged."""
    return any(family.property_int_value("rocksdb.compaction-pending") for family in families)


def get_values(family: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """Return the value of each key, None for those that are missing."""
    return cast("list[bytes | None]", family.get(cast("list[str | int | float | bytes | bool]", keys)))


def read_items(family: Rdict, lower: bytes = b"", upper: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """Return keys and values from ``lower`` to below ``upper``, ascending.

    Raises RocksDB's exception when it cannot read one of them.
    """
    options = ReadOptions()
    if upper is not None:
        options.set_iterate_upper_bound(upper)
    items = cast("list[tuple[bytes, bytes]]", list(family.items(from_key=lower, read_opt=options)))
    # Such an iteration ends at an error as it does at the end. One that can be asked goes the last step again.
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
    """Return how many bytes the values in its sorted files have, uncompressed."""
    found = _VALUE_BYTES.search(family.property_value("rocksdb.aggregated-table-properties") or "")
    return int(found.group(1)) if found else 0


def last_key(family: Rdict) -> bytes | None:
    """Return the highest key, None when there is none; raises RocksDB's exception when it cannot be read."""
    cursor = family.iter()
    cursor.seek_to_last()
    cursor.status()
    return cast("bytes", cursor.key()) if cursor.valid() else None


def families_with_bloom(folder: Path) -> set[str]:
    """Return the column families that have a Bloom filter, by what RocksDB itself noted down when it was opened last."""
    written = max(folder.glob("OPTIONS-*"), key=lambda path: path.name, default=None)
    if written is None:
        return set()
    sections = _TABLE_SECTION.findall(written.read_text(errors="replace"))
    return {name for name, body in sections if "filter_policy=bloomfilter" in body}


def _families(names: list[str], memory: SharedMemory | None, own: Options) -> dict[str, Options]:
    """Return the options of each column family; ``own``: those of the database."""
    options = {DEFAULT: own, JOURNAL: journal_options(None) if memory is None else memory.journal}
    for name in names:
        if name not in options:
            options[name] = generation_options(memory)
    return options


PART_MARKS: Final = 50_000
PART_BYTES: Final = 2**24
"""Of pages; those without payloads take a tenth of it at most."""


def read_journal(
    journal: Rdict, first: int, before: Progress | None
) -> tuple[Progress | None, list[Marks], int]:
    """Return the whole progress after the last step, the marks of each, and the sequence after the last.

    ``before`` is the progress before the first step. ``first`` is the sequence where the journal begins by what the store knows. Raises `StoreCorruptError` when a record does not
    check, or one is missing.
    """
    steps = [] if before is None else [before]
    marks: list[Marks] = []
    following = first
    for key, record in read_items(journal):
        sequence = int.from_bytes(key, "big")
        if sequence != following:
            message = f"the journal lacks step {following} before step {sequence}; move the store away and rebuild it"
            raise StoreCorruptError(message)
        progress, step = decode_step(record)
        steps.append(progress)
        if step is not NO_MARKS:
            marks.append(step)
        following = sequence + 1
    return latest(steps), marks, following


class Extents(NamedTuple):
    """A generation to be read: its column family, and how many ``extents`` it has."""

    family: Rdict
    extents: int


class _Reading:
    """The marks of one extent, read in the order of their ranks."""

    def __init__(self, family: Rdict, number: int) -> None:
        self._family = family
        self._number = number
        self._next = page_key(number, 0)
        self._held = NO_MARKS

    def below(self, rank: int | None) -> Marks:
        """Return the marks up to a rank that were not returned before, all of them where it is None; no cursor is left open."""
        end = page_key(self._number + 1, 0) if rank is None else page_key(self._number, rank)
        found = decode_items(read_items(self._family, self._next, end))
        self._next = end
        held = join_marks([self._held, found]) if self._held.count else found
        cut = held.count
        if rank is not None:
            # A page that begins below the rank may reach beyond it.
            cut = int(np.searchsorted(digest_ranks(held.digests), rank))
        self._held = cut_marks(held, cut, held.count)
        return cut_marks(held, 0, cut)


def scan_generations(
    generations: Sequence[Extents], marks: int, more: Marks = NO_MARKS, *, below: int | None = None
) -> Iterator[Marks]:
    """Yield the marks of all generations and ``more``, ascending, each ID once, in parts of about `PART_MARKS`; ``marks`` is their number.

    Where payloads make them large, a part has about `PART_BYTES`. None divides what has one rank. ``below``: marks of this offset or a higher
    one do not count.
    """
    size = sum(value_bytes(family) for family, _ in generations)
    slices = min(max(1, (marks + more.count) // PART_MARKS, size // PART_BYTES), 2**16)
    bounds = [*(index * 2**32 // slices for index in range(1, slices)), None]
    later = newest_per_digest(_below(more, below))
    ranks = digest_ranks(later.digests)
    readings = [_Reading(family, number) for family, count in generations for number in range(count)]
    start = 0
    for bound in bounds:
        end = later.count if bound is None else int(np.searchsorted(ranks, bound))
        parts = [_below(reading.below(bound), below) for reading in readings]
        found = [part for part in (*parts, cut_marks(later, start, end)) if part.count]
        start = end
        if found:
            yield newest_per_digest(join_marks(found))


def _below(marks: Marks, offset: int | None) -> Marks:
    return marks if offset is None else select_marks(marks, np.flatnonzero(marks.offsets < offset))


def find_in_generation(generation: Extents, digest: bytes) -> list[FoundMark]:
    """Return every mark that a generation has of a digest, without its filters."""
    found = []
    for number in range(generation.extents):
        cursor = generation.family.iter()
        cursor.seek_for_prev(page_key(number, rank_of(digest)))
        cursor.status()
        if cursor.valid() and cast("bytes", cursor.key()) >= page_key(number, 0):
            mark = find_in_page(cast("bytes", cursor.value()), digest)
            found += [] if mark is None else [mark]
    return found


def read_words(family: Rdict, number: int) -> Iterator[FilterWords]:
    """Yield the filter words of an extent's pages, one after the other."""
    for item in read_items(family, page_key(number, 0), page_key(number + 1, 0)):
        marks = decode_items([item])
        yield filter_words(marks.digests, [rank_of(marks.digests)])
