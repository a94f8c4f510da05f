"""RocksDB options, all of them passed on every open: what is not passed is silently lost when a database is reopened.

*Open files* are bounded for the whole process, whatever the number of partitions. RocksDB counts a database's sorted files only: its log, its manifest, its lock and the like, some seven files, come on top, and its folder once
for each generation that was made since it was opened. Half of what
the process may open (``ulimit -n``, when this is imported) is given out: a database gets a quarter of what is left when it opens,
between `LEAST` and `MOST`, and gives it back when it is closed.

RocksDB merges files in *one thread* for all databases of this process, in more only while one of them closes. A database that is told to stop gives up the merge it is in at once, but one that still waits for a thread has to be taken up
before it can be given up. With one thread that is after the merges of other databases ahead of it, which go on for seconds.
"""

from __future__ import annotations

import functools
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from rocksdict import (
    BlockBasedOptions,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    WriteBufferManager,
)

from dedup_sdk.store.page_cache import PageCache

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
