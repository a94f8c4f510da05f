"""Opening a partition's database: always with all options, never as a silent empty one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from rocksdict import AccessType, Options, Rdict, ReadOptions

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.options import SharedMemory, database_options, generation_options, journal_options

DEFAULT: Final = "default"
JOURNAL: Final = "journal"
IDENTITY: Final = b"identity"
STATE: Final = b"state"
PROGRESS: Final = b"progress"

_TABLE_SECTION: Final = re.compile(r'\[TableOptions/BlockBasedTable "([^"]+)"\]([^\[]*)')


def sequence_key(sequence: int) -> bytes:
    """Return the journal key of a step."""
    return sequence.to_bytes(8, "big")


def open_database(folder: Path, memory: SharedMemory) -> Rdict:
    """Open the database in ``folder``, or make it where there is nothing of one.

    Raises RocksDB's exceptions, and `StoreCorruptError` when files of a database are there without their head.
    """
    exists = (folder / "CURRENT").exists()
    if not exists:
        left_over = next((path.name for pattern in ("*.sst", "*.log") for path in folder.glob(pattern)), None)
        if left_over is not None:
            message = f"store {folder} has {left_over} but no CURRENT; move it away and rebuild it from a snapshot or the topic"
            raise StoreCorruptError(message)
    names = Rdict.list_cf(str(folder)) if exists else [DEFAULT, JOURNAL]
    return Rdict(str(folder), database_options(memory), column_families=_families(names, memory))


def open_read_only(folder: Path) -> tuple[Rdict, list[str]]:
    """Open an existing database as it is now, without its lock; return it and its column families."""
    names = Rdict.list_cf(str(folder))
    options = database_options(None)
    options.create_if_missing(False)
    access = AccessType.read_only(error_if_log_file_exist=False)
    return Rdict(str(folder), options, column_families=_families(names, None), access_type=access), names


def close_database(database: Rdict) -> None:
    """Stop background work and close; what is in memory is in the log as well, so that nothing is written out."""
    database.cancel_all_background(True)
    try:
        database.close()
    except Exception as error:
        # Closing wants to write buffers out, which the line before forbids; it closes nevertheless.
        if "shutdown in progress" not in str(error).lower():
            raise


def get_values(family: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """Return the value of each key, None for those that are missing."""
    return cast("list[bytes | None]", family.get(cast("list[str | int | float | bytes | bool]", keys)))


def all_items(
    family: Rdict, options: ReadOptions | None = None, from_key: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Return an iterator over keys and values, ascending."""
    return cast("Iterator[tuple[bytes, bytes]]", family.items(from_key=from_key, read_opt=options))


def all_keys(family: Rdict, *, backwards: bool = False) -> Iterator[bytes]:
    """Return an iterator over the keys."""
    return cast("Iterator[bytes]", family.keys(backwards=backwards))


def families_with_bloom(folder: Path) -> set[str]:
    """Return the column families that have a Bloom filter, by what RocksDB itself noted down when it was opened last."""
    written = max(folder.glob("OPTIONS-*"), key=lambda path: path.name, default=None)
    if written is None:
        return set()
    sections = _TABLE_SECTION.findall(written.read_text(errors="replace"))
    return {name for name, body in sections if "filter_policy=bloomfilter" in body}


def _families(names: list[str], memory: SharedMemory | None) -> dict[str, Options]:
    makers = {DEFAULT: database_options, JOURNAL: journal_options}
    return {name: makers.get(name, generation_options)(memory) for name in names}
