"""Plain Parquet files that have Kafka's columns as they are: which archives are such, and how they are dealt out to tasks.

What needs more than to be read (catalogs, globs, folders that are columns, encodings, files named by offsets) is Spark's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import NOWHERE, ColumnMap, id_columns, place_of
from spark_backfill.connect_layout import parse_file_name
from spark_backfill.options import Options

PLACE: Final = ("topic", "partition", "offset", "timestamp")
MOST_FILES: Final = 10_000
LEAST_ROWS: Final = 250_000
"""A task of fewer costs more to begin than it saves."""
MOST_ROWS: Final = 4_000_000
_TASKS_A_CORE: Final = 2
_THREADS: Final = 8
_SUFFIX: Final = ".parquet"
_SCHEME: Final = "file://"
_OF_A_GLOB: Final = frozenset("*?[]{}\\")
_UNITS: Final = ("s", "ms", "us", "ns")


class Group(NamedTuple):
    """A row group: what a file can be read by, and how many rows it has."""

    path: str
    number: int
    rows: int


class Unit(NamedTuple):
    """Row groups of a file: part of what one task reads."""

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files are written.

    - ``names``: the files' names of Kafka's columns, of those that are read; without ``topic`` they have none.
    - ``unit``: of timestamps that are numbers; empty where their type says it. ``groups``: what there is to read.
    """

    names: Mapping[str, str]
    unit: str
    groups: tuple[Group, ...]


def layout_of(options: Options) -> Layout | None:
    """Return how the archive of a run is written that Arrow reads in any order; None where Spark has to read it."""
    archive = options.sources.archive
    in_order = options.window.count is not None or options.report is not None
    if archive is None or in_order or "record" in options.id.needs:
        return None
    names = id_columns(options.id)
    if options.reshard is not None and "key" not in names:
        names = (*names, "key")
    return plain_layout(archive, names)


def plain_layout(options: ArchiveOptions, id_columns: Sequence[str]) -> Layout | None:
    """Return how an archive is written that Arrow reads as Spark would; None for any other.

    ``id_columns``: which of key, value and headers are read, for IDs or to re-shard.
    """
    if options.format != "parquet" or options.read_options:
        return None
    files: list[str] = []
    for place in options.places:
        found = _files(place)
        if found is None or len(files) + len(found) > MOST_FILES:
            return None
        files += found
    if not files or all(parse_file_name(Path(file).name) is not None for file in files):
        return None
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            opened = list(pool.map(_opened, files))
    except (OSError, pa.ArrowException):
        # Spark says what is wrong with it.
        return None
    names = {
        _names(schema, options.columns, id_columns, said="topic" in options.columns) for schema, _ in opened
    }
    (agreed,) = names if len(names) == 1 else (None,)
    if agreed is None:
        return None
    groups = tuple(
        Group(file, number, rows)
        for file, (_, counts) in zip(files, opened, strict=True)
        for number, rows in enumerate(counts)
    )
    return Layout(dict(agreed), place_of(options.columns, "timestamp").form, groups)


def deal_out(groups: Sequence[Group], parallelism: int) -> list[tuple[Unit, ...]]:
    """Return what each task reads: of about as many rows each, a few for each of the tasks that run at a time."""
    total = sum(group.rows for group in groups)
    size = min(max(-(-total // (parallelism * _TASKS_A_CORE)), LEAST_ROWS), MOST_ROWS)
    tasks: list[list[Group]] = []
    room = 0
    for group in groups:
        if not tasks or group.rows > room:
            tasks.append([])
            room = size
        tasks[-1].append(group)
        room -= group.rows
    return [tuple(_units(task)) for task in tasks]


def _units(groups: Sequence[Group]) -> Iterator[Unit]:
    for path, of_file in groupby(groups, itemgetter(0)):
        yield Unit(path, tuple(group.number for group in of_file))


def _files(place: str) -> list[str] | None:
    """The files of a place on this machine's file system; None where Spark's ways of listing could find others."""
    plain = place.removeprefix(_SCHEME)
    if ":" in plain or set(plain) & _OF_A_GLOB or (plain == place and _paths_are_elsewhere()):
        return None
    path = Path(plain)
    if path.is_file():
        return [str(path.absolute())] if path.name.endswith(_SUFFIX) else None
    if not path.is_dir():
        return None
    found = []
    for entry in path.iterdir():
        if entry.name.startswith(("_", ".")):
            continue
        if not entry.is_file() or not entry.name.endswith(_SUFFIX):
            return None
        found.append(str(entry.absolute()))
    return sorted(found)


def _paths_are_elsewhere() -> bool:
    """Whether a bare path may be one of another file system than this machine's."""
    settings = os.environ.get("DEDUP_SPARK_ARGS", "")
    return "fs.default" in settings or any(
        name in os.environ for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    )


def _opened(file: str) -> tuple[pa.Schema, list[int]]:
    with pq.ParquetFile(file) as opened:
        metadata = opened.metadata
        return opened.schema_arrow, [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


def _names(
    schema: pa.Schema, places: ColumnMap, id_columns: Sequence[str], *, said: bool
) -> tuple[tuple[str, str], ...] | None:
    """The files' names of Kafka's columns, as pairs; None where one of them is not as Kafka has it."""
    pairs = []
    for name in (*PLACE, *id_columns):
        place = place_of(places, name)
        if _is_in_other_case(place.column, schema.names):
            return None
        at = schema.get_all_field_indices(place.column)
        if name == "topic" and not at and not said:
            continue
        if place.column == NOWHERE or len(at) != 1 or not _fits(name, schema.field(at[0]).type, place.form):
            return None
        pairs.append((name, place.column))
    return tuple(pairs)


def _is_in_other_case(column: str, names: Sequence[str]) -> bool:
    """Whether a file has a column that only Spark, to which case is nothing, would take for this one."""
    return any(name != column and name.casefold() == column.casefold() for name in names)


def _fits(name: str, kind: pa.DataType, form: str) -> bool:
    if name in ("partition", "offset"):
        return bool(pa.types.is_signed_integer(kind))
    if name == "timestamp":
        return bool(
            (pa.types.is_timestamp(kind) and not form)
            or (pa.types.is_signed_integer(kind) and form in _UNITS)
        )
    if form:
        return False
    if name == "topic":
        return _is_text(kind)
    if name == "headers":
        return _is_headers(kind)
    return _is_text(kind) or _is_bytes(kind)


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    key, value = fields.get("key"), fields.get("value")
    return key is not None and value is not None and _is_text(key) and (_is_text(value) or _is_bytes(value))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
