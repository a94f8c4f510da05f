"""Files of Kafka Connect's sinks in Spark.

Topic, partition and offset of a row, from its file's name and its place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from spark_backfill.connect_layout import NAME_PATTERN, STEM_PATTERN, parse_file_name

_WHOLE_FILE: Final = str(2**30)
"""Bytes: a file below is read by one task, from its first row on."""


class FileColumns(NamedTuple):
    """The facts in the name of a row's file, as columns; ``name`` is the file's, without its folder.

    ``paths``: of all files, with theirs.
    """

    paths: tuple[str, ...]
    name: Column
    topic: Column
    partition: Column
    first: Column


def file_columns(frame: DataFrame) -> FileColumns | None:
    """Return the columns of a frame whose files all have Kafka Connect's names; None of any other."""
    paths = tuple(frame.inputFiles())
    if not paths or any(parse_file_name(PurePosixPath(path).name) is None for path in paths):
        return None
    name = F.col("_metadata.file_name")

    def said(group: int) -> Column:
        return F.regexp_extract(name, NAME_PATTERN, group)

    return FileColumns(paths, name, said(1), said(2).cast("long"), said(3).cast("long"))


def rows_of_files(frame: DataFrame, files: FileColumns, topic: str) -> dict[str, int]:
    """Return how many rows each file of a topic has, by the file's name."""
    counted = frame.where(files.topic == topic).groupBy(files.name.alias("name")).count().collect()
    return {row["name"]: row["count"] for row in counted}


def with_places(frame: DataFrame, columns: Mapping[str, Column], *, indexed: bool) -> DataFrame:
    """Return ``columns`` of a frame, and ``file`` and ``place``: the path of each row's file, and its place there.

    ``indexed``: Spark itself knows the place (Parquet). Else every file below a GiB is read by one task, which
    counts; a larger one ends the job.
    """
    selected = [
        *(column.alias(name) for name, column in columns.items()),
        F.col("_metadata.file_path").alias("file"),
    ]
    if indexed:
        return frame.select(*selected, F.col("_metadata.row_index").alias("place"))
    for name in ("maxPartitionBytes", "openCostInBytes"):
        frame.sparkSession.conf.set(f"spark.sql.files.{name}", _WHOLE_FILE)
    placed = frame.select(*selected, F.col("_metadata.file_block_start").alias("block_start"))
    kept = [field for field in placed.schema.fields if field.name != "block_start"]
    return placed.mapInArrow(count_places, T.StructType([*kept, T.StructField("place", T.LongType())]))


def count_places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn the column ``block_start`` of rows in the order of their files into ``place``."""
    passed: dict[str, int] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        if pc.max(batch.column("block_start")).as_py():
            raise ValueError(
                "a file of a GiB or more cannot be counted through: write smaller files, or offsets into the records"
            )
        places = np.empty(batch.num_rows, np.int64)
        begin = 0
        runs = pc.run_end_encode(batch.column("file"))
        for file, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            before = passed.get(file, 0)
            places[begin:end] = np.arange(before, before + end - begin)
            passed[file], begin = before + end - begin, end
        yield batch.drop_columns(["block_start"]).append_column("place", pa.array(places))


def with_joined(rows: DataFrame, other: DataFrame, name: str) -> DataFrame:
    """Return rows with the column ``name`` of the files beside theirs, row by row; both as `with_places` has them.

    Where a file has other rows than the one beside it the job ends: a row would get what is another one's.
    """
    beside = other.select(_stem().alias("stem"), F.col("place").alias("at"), F.col(name).alias("joined"))
    kept = [column for column in rows.columns if column not in (name, "offset")]
    both = rows.withColumn("own_stem", _stem()).join(
        beside, (F.col("own_stem") == F.col("stem")) & (F.col("place") == F.col("at")), "full"
    )
    differ = F.raise_error(
        F.concat(
            F.lit(f"a file of {name} has other rows than its file of values: "),
            F.coalesce("own_stem", "stem"),
        )
    )
    alone = F.col("own_stem").isNull() | F.col("stem").isNull()
    return both.select(
        *kept, F.when(alone, differ).otherwise(F.col("offset")).alias("offset"), F.col("joined").alias(name)
    )


def _stem() -> Column:
    """The path of a row's file up to its first offset, which those beside it have in common."""
    return F.regexp_extract("file", STEM_PATTERN, 1)
