"""Plain Parquet files that have Kafka's columns as they are.

Which archives are such, and how they are dealt out to tasks. Archives that need more than reading (catalogs, globs,
folders that are columns, encodings, files named by offsets) are Spark's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from spark_backfill.archive_options import ArchiveOptions, paths_are_elsewhere
from spark_backfill.column_map import (
    KAFKA_COLUMNS,
    NOWHERE,
    ColumnMap,
    check_columns,
    id_columns,
    needed_columns,
    place_of,
)
from spark_backfill.connect_layout import parse_file_name
from spark_backfill.options import Options
from spark_backfill.parquet_footers import Footer, Stamp, read_footers

PLACE: Final = ("topic", "partition", "offset", "timestamp")
MOST_FILES: Final = 10_000
LEAST_ROWS: Final = 250_000
"""A task of fewer costs more to begin than it saves."""
MOST_ROWS: Final = 4_000_000
_TASKS_A_CORE: Final = 2
_SUFFIX: Final = ".parquet"
_STREAM_LOG: Final = "_spark_metadata"
"""A folder that says which of the files Spark's streaming has finished; Spark itself reads no others."""
_SCHEME: Final = "file://"
_OF_A_GLOB: Final = frozenset("*?[]{}\\")
_OF_A_FIELD: Final = frozenset(".`")
"""Of a column's name in Spark: a dot leads into a struct, unless it is quoted."""
_UNITS: Final = ("s", "ms", "us", "ns")
_TEXT: Final = frozenset({pa.string(), pa.large_string()})
_BYTES: Final = frozenset({pa.binary(), pa.large_binary(), *_TEXT})


class Group(NamedTuple):
    """A row group: the smallest part to read of a file, and how many rows it has."""

    path: str
    number: int
    rows: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files are written.

    - ``names``: the files' names of Kafka's columns, of those that are read; without ``topic`` they have none.
    - ``unit``: of timestamps that are numbers; empty where their type says it. ``groups``: the row groups to read.
    - ``stamps``: of each file, to know it again.
    """

    names: Mapping[str, str]
    unit: str
    groups: tuple[Group, ...]
    stamps: Mapping[str, Stamp]


def layout_of(options: Options) -> Layout | None:
    """Return how the archive of a run is written that Arrow reads in any order; None where Spark has to read it.

    Raises:
        BackfillError: see `plain_layout`; also where Spark has to read it.
    """
    archive = options.archive
    if archive is None:
        return None
    names = id_columns(options.spec, with_keys=options.reshard is not None)
    layout = plain_layout(archive, names)
    in_order = options.report is not None
    return None if in_order or "record" in options.spec.needs else layout


def plain_layout(options: ArchiveOptions, id_columns: Sequence[str]) -> Layout | None:
    """Return how an archive is written that Arrow reads as Spark would; None for any other.

    ``id_columns``: which of key, value and headers are read, for IDs or to re-shard. Headers are read besides
    where the files have them.

    Raises:
        BackfillError: a file is empty, torn, or no Parquet file.
        ConfigurationError: columns are missing.
    """
    if options.format != "parquet" or options.read_options:
        return None
    footers: list[Footer] = []
    for place in options.places:
        files = _files(place)
        if files is None or len(footers) + len(files) > MOST_FILES or _are_named_by_offsets(files):
            return None
        found = read_footers(files)
        if found is None:
            return None
        footers += found
    # The columns of files without rows say nothing.
    filled = [footer for footer in footers if sum(footer.stamp.rows)] or footers
    _check_columns(options, id_columns, filled)
    if not set(options.columns).issubset(KAFKA_COLUMNS):
        return None
    optional = {"topic"}
    if "headers" not in id_columns and place_of(options.columns, "headers").column != NOWHERE:
        id_columns = (*id_columns, "headers")
        optional.add("headers")
    names = {_names(footer.schema, options.columns, id_columns, optional) for footer in filled}
    (agreed,) = names if len(names) == 1 else (None,)
    if agreed is None:
        return None
    groups = tuple(
        Group(footer.path, number, rows) for footer in filled for number, rows in enumerate(footer.stamp.rows)
    )
    stamps = {footer.path: footer.stamp for footer in filled}
    return Layout(dict(agreed), place_of(options.columns, "timestamp").form, groups, stamps)


def _check_columns(options: ArchiveOptions, id_columns: Sequence[str], footers: Sequence[Footer]) -> None:
    """Make sure that the files have the columns; of a field in a struct, only the struct is looked for."""
    columns = list(dict.fromkeys(name for footer in footers for name in footer.schema.names))
    folded = {name.casefold() for name in columns}

    def has(column: str) -> bool:
        name = column[1:].partition("`")[0] if column.startswith("`") else column.partition(".")[0]
        return name.casefold() in folded

    needed = needed_columns(options.columns, id_columns)
    check_columns(", ".join(options.places), columns, options.columns, needed, has)


def deal_out(groups: Sequence[Group], parallelism: int) -> list[tuple[Group, ...]]:
    """Return each task's row groups: of about as many rows each, a few for each of the tasks that run at a time."""
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
    return list(map(tuple, tasks))


def _files(place: str) -> list[str] | None:
    """The files of a place on this machine's file system; None where Spark's ways of listing could find others."""
    plain = place.removeprefix(_SCHEME)
    if ":" in plain or set(plain) & _OF_A_GLOB or (plain == place and paths_are_elsewhere()):
        return None
    path = Path(plain)
    if path.is_file():
        return [str(path.absolute())] if path.name.endswith(_SUFFIX) else None
    if not path.is_dir():
        return None
    found = []
    for entry in path.iterdir():
        if entry.name == _STREAM_LOG:
            return None
        if entry.name.startswith(("_", ".")):
            continue
        if not entry.is_file() or not entry.name.endswith(_SUFFIX):
            return None
        found.append(str(entry.absolute()))
    return sorted(found)


def _are_named_by_offsets(files: Sequence[str]) -> bool:
    return all(parse_file_name(Path(file).name) is not None for file in files)


def _names(
    schema: pa.Schema, places: ColumnMap, id_columns: Sequence[str], optional: Collection[str]
) -> tuple[tuple[str, str], ...] | None:
    """The files' names of Kafka's columns, as pairs; None where one of them is not as Kafka has it."""
    pairs = []
    for name in (*PLACE, *id_columns):
        place = place_of(places, name)
        if _is_in_other_case(place.column, schema.names) or set(place.column) & _OF_A_FIELD:
            return None
        at = schema.get_all_field_indices(place.column)
        if not at and name in optional and name not in places:
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
        return bool(pa.types.is_signed_integer(kind)) and not form
    if name == "timestamp":
        return bool(
            (pa.types.is_timestamp(kind) and not form)
            or (pa.types.is_signed_integer(kind) and form in _UNITS)
        )
    if form:
        return False
    if name == "headers":
        return _is_headers(kind)
    return kind in (_TEXT if name == "topic" else _BYTES)


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return fields.get("key") in _TEXT and fields.get("value") in _BYTES
