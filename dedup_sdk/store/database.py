"""Opening a partition's database: always with all options, never as a silent empty one."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final, cast

from rocksdict import AccessType, DbClosedError, Options, Rdict, ReadOptions

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.merge_threads import MERGE_THREADS
from dedup_sdk.store.open_files import LEAST
from dedup_sdk.store.options import SharedMemory, database_options, generation_options, journal_options

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
    database = Rdict(str(folder), options, column_families=_families(names, memory))
    MERGE_THREADS.opened()
    return database, names


def _refuse_reused_logs(folder: Path) -> None:
    """Raise `StoreCorruptError` for a log with a record of a kind that only reused log files have, and these are never reused.

    One flipped bit makes such a record of another one, and RocksDB would read it again and again, for ever.
    """
    for path in (*folder.glob("*.log"), *folder.glob("MANIFEST-*")):
        data, at = path.read_bytes(), 0
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
    return Rdict(str(folder), options, column_families=_families(names, None), access_type=access), names


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


def _families(names: list[str], memory: SharedMemory | None) -> dict[str, Options]:
    options = {name: generation_options(memory) for name in names}
    return {**options, DEFAULT: database_options(memory), JOURNAL: journal_options(memory)}
