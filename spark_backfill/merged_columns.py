"""The columns of an archive whose files do not all have the same: only those that are read have to agree.

Spark merges all columns or none, and gives up where any of them has changed its type over time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import ALL_OTHERS, NOWHERE, ColumnPlace
from spark_backfill.columns import steps_of, type_at

MERGED: Final = "mergeSchema"
_CONFLICT: Final = "CANNOT_MERGE"
_MOST_READS: Final = 200
"""So often schemas are read to find out which files have which types."""


class _Part(NamedTuple):
    files: Sequence[str]
    schema: T.StructType


class _Reads:
    def __init__(self, spark: SparkSession, form: str, options: Mapping[str, str]) -> None:
        self._reader = spark.read.format(form).options(**{**options, MERGED: "true"})
        self._left = _MOST_READS

    def parts(self, files: Sequence[str]) -> Iterator[_Part]:
        """Yield files that agree in all columns, with these."""
        self._left -= 1
        if self._left < 0:
            raise ConfigurationError(
                f"the archive's files change the types of their columns more often than {_MOST_READS} "
                "times: put those of each kind into a folder of their own, and give each folder with "
                "--source"
            )
        try:
            schema = self._reader.load(list(files)).schema
        except Exception as error:
            if len(files) == 1 or not is_conflict(error):
                raise
            half = len(files) // 2
            yield from self.parts(files[:half])
            yield from self.parts(files[half:])
        else:
            yield _Part(files, schema)


def is_conflict(error: Exception) -> bool:
    """Whether Spark could not merge the columns of several files."""
    return _CONFLICT in str(error)


def read_merged(
    spark: SparkSession, form: str, options: Mapping[str, str], place: str, wanted: Iterable[ColumnPlace]
) -> DataFrame:
    """Return the frame of a place with the columns of all files together.

    Where Spark cannot merge them it has those that are ``wanted``, and those of folder names.

    Raises:
        ConfigurationError: a wanted column has several types; it names two files.
    """
    reader = spark.read.format(form)
    try:
        return reader.options(**{**options, MERGED: "true"}).load(place)
    except Exception as error:
        if not is_conflict(error):
            raise
    columns = [each.column for each in wanted if each.column != NOWHERE]
    if ALL_OTHERS in columns:
        raise ConfigurationError(
            f"archive {place!r}: a column has several types in its files, and value=*:json takes all "
            "columns: put the files of each kind into a folder of their own, and give each folder with "
            "--source"
        )
    files = sorted(map(unquote, reader.options(**{**options, MERGED: "false"}).load(place).inputFiles()))
    parts = list(_Reads(spark, form, options).parts(files))
    tree: dict[str, object] = {}
    for column in columns:
        kind = _agreed(column, parts, place)
        if kind is not None:
            _put(tree, steps_of(column), kind)
    return spark.read.schema(_struct(tree)).format(form).options(**options).load(place)


def _agreed(column: str, parts: Sequence[_Part], place: str) -> T.DataType | None:
    """The one type of a column; None: no file has it."""
    found: dict[str, tuple[str, T.DataType]] = {}
    for part in parts:
        kind = type_at(part.schema, column)
        if kind is not None:
            found.setdefault(kind.simpleString(), (part.files[0], kind))
    if len(found) > 1:
        (one, (first, _)), (other, (second, _)), *_ = found.items()
        raise ConfigurationError(
            f"archive {place!r}: column {column!r} is {one[:100]} in {first!r} and {other[:100]} in "
            f"{second!r}: put the files of each kind into a folder of their own, and give each folder with "
            "--source"
        )
    return next((kind for _, kind in found.values()), None)


def _put(tree: dict[str, object], path: Sequence[str], kind: T.DataType) -> None:
    *folders, last = path
    for folder in folders:
        below = tree.setdefault(folder, {})
        if not isinstance(below, dict):
            return  # the whole struct is wanted
        tree = below
    tree[last] = kind


def _struct(tree: Mapping[str, object]) -> T.StructType:
    return T.StructType(
        [
            # A value that is no dict is a type.
            T.StructField(name, _struct(below) if isinstance(below, dict) else below)  # type: ignore[arg-type]
            for name, below in tree.items()
        ]
    )
