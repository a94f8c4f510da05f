"""Records that lie outside Kafka: read by Spark, with Kafka's columns, and looked over before anything is folded.

A first pass over coordinates and timestamps says where an archive begins and ends, so that the cut, the
gaps and the slots are known before the fold. Marks from before a gap stay, and coverage begins behind it. A
count window is not counted across a gap: ranks that are too small would keep IDs for too long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec
from spark_backfill.archive_checks import (
    SHOWN_TOPICS,
    checked_part,
    nothing_of_topic,
    only_open_files,
    unreadable,
    without_topic,
)
from spark_backfill.archive_options import TABLE, ArchiveOptions
from spark_backfill.archived import Archived
from spark_backfill.column_map import ColumnMap, id_columns, place_of
from spark_backfill.columns import KafkaColumns
from spark_backfill.connect_files import FileColumns, file_columns, rows_of_files, with_offsets
from spark_backfill.connect_layout import check_folders, check_rows, open_files
from spark_backfill.errors import BackfillError
from spark_backfill.fold import PackedRows, Packing, pack_rows
from spark_backfill.id_batches import Digester, read_columns
from spark_backfill.json_lines import read_json_lines
from spark_backfill.last_id_spec import Spec, text_of
from spark_backfill.merged_columns import MERGED, read_merged
from spark_backfill.offset_range import Bounds
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, ShuffledRows, SlotShuffle

_NO_OFFSET: Final = 2**63 - 1
_NO_TIME: Final = 2**63 - 1
_STRICT_CSV: Final = {"enforceSchema": "false", "mode": "FAILFAST"}
"""Else the columns of one file are taken for those of all by their place, whatever the others' first lines say."""


class Archive:
    """The records of one topic in an archive, as frames with the columns of `spark_backfill.columns`.

    ``reads_keys``: the keys are wanted also where the spec does not read them. Headers are read wherever the
    archive has them, for redrive headers.

    Raises:
        ConfigurationError: the archive has no offsets, or columns that cannot be Kafka's.
        BackfillError: Spark cannot read it, or its files do not say which offsets they have.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        *,
        topic: str,
        spec: Spec,
        reads_keys: bool = False,
    ) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._spec = spec
        names = id_columns(spec)
        self._names = names if "key" in names or not reads_keys else (*names, "key")
        self._needs_headers = "headers" in names
        self._units_are_said = False
        self._has_duplicates = False
        # Frames whose offsets come from the names of their files, which has to be checked before they are believed.
        self._by_name: list[tuple[DataFrame, FileColumns]] = []
        self._rows = reduce(DataFrame.unionByName, [self._normal(place) for place in options.places])
        paths = [path for _, files in self._by_name for path in files.paths]
        check_folders(paths)
        self._open = open_files(map(os.path.basename, paths), topic)
        if self._open:
            self._rows = self._rows.where(self._is_certain())

    @property
    def left_out(self) -> tuple[str, ...]:
        """The last file of each partition where nothing says which offsets its rows have.

        See `spark_backfill.connect_layout`.
        """
        return tuple(name for _, name in self._open.values())

    def survey(self, cuts: Mapping[int, int], horizons_ms: Mapping[int, int]) -> dict[int, Archived]:
        """Look at every row once, without the columns of the ID, and return the facts of each partition.

        ``cuts`` are the offsets (exclusive) that ``last_ms`` and ``first_kept`` go up to, ``horizons_ms`` the
        timestamps (ms) that ``first_kept`` goes by; a partition that is not there has no cut, and no horizon that
        anything is behind.

        Raises:
            BackfillError: rows without a topic, an offset or a partition, negative ones, none of this topic, or
                absurd timestamps.
        """
        rows: Counter[str] = Counter()
        while self._by_name:
            rows.update(rows_of_files(*self._by_name.pop(), self._topic))
        check_rows(rows)
        offset, timestamp = F.col("offset"), F.col("timestamp_ms")
        below = offset < _by_partition(cuts, _NO_OFFSET)
        kept = below & (timestamp >= _by_partition(horizons_ms, _NO_OFFSET))
        nameless = F.col("topic").isNull()
        # Of an offset that comes twice the earlier timestamp counts, any before none.
        known_ms = F.when(timestamp < 0, _NO_TIME).otherwise(timestamp)
        by_offset, from_the_end = F.struct(offset, known_ms), F.struct(-offset, known_ms)
        found = (
            self._rows.where((F.col("topic") == self._topic) | nameless)
            .groupBy("partition", nameless.alias("nameless"))
            .agg(
                F.count(F.lit(1)).alias("rows"),
                F.count_if(offset.isNull()).alias("nulls"),
                F.min("offset").alias("begin"),
                (F.max("offset") + 1).alias("end"),
                F.max("timestamp_ms").alias("newest_ms"),
                F.min_by(timestamp, by_offset).alias("first_ms"),
                F.min_by(F.when(below, timestamp), F.when(below, from_the_end)).alias("last_ms"),
                F.min(F.when(kept, offset)).alias("first_kept"),
                F.min_by(timestamp, from_the_end).alias("end_ms"),
                F.min("timestamp_ms").alias("oldest_ms"),
            )
            .collect()
        )
        lost = sum(row["rows"] for row in found if row["nameless"])
        # Where no line has one all are of this topic.
        if lost and not (self._lines and self._rows.where(~nameless).limit(1).isEmpty()):
            raise without_topic(lost)
        if not found:
            raise self._nothing_of_topic()
        parts = [checked_part(row.asDict(), units_are_said=self._units_are_said) for row in found]
        self._has_duplicates |= any(part.has_duplicates for part in parts)
        return {part.partition: part for part in parts}

    def records(self, bounds: Bounds) -> DataFrame:
        """Return the rows inside these bounds."""
        begins = {partition: begin for partition, (begin, _) in bounds.items()}
        ends = {partition: end for partition, (_, end) in bounds.items()}
        offset = F.col("offset")
        # The plain bounds reach the statistics that files keep of their columns.
        coarse = (offset >= min(begins.values(), default=0)) & (offset < max(ends.values(), default=0))
        exact = (offset >= _by_partition(begins, _NO_OFFSET)) & (offset < _by_partition(ends, 0))
        topic = F.coalesce("topic", F.lit(self._topic)) if self._lines else F.col("topic")
        rows = self._rows.withColumn("topic", topic).where((topic == self._topic) & coarse & exact)
        return rows.withColumn("partition", F.col("partition").cast("int"))

    def blocks(self, bounds: Bounds, packing: Packing) -> DataFrame:
        """Return those rows packed (`spark_backfill.runs`)."""
        if not isinstance(self._spec, IdSpec):
            raise TypeError(f"{self._spec} reads more than IDs: its rows are shuffled one by one")
        packing = packing.of_archive(bounds, has_duplicates=self._has_duplicates)
        read = Digester(
            spec=text_of(self._spec),
            group=packing.group,
            producer_header=packing.producer_header,
            with_keys=packing.reshard is not None,
            with_redriven=packing.marks_redriven,
        )
        records = read_columns(self.records(bounds), self._spec, with_keys=read.with_keys)
        if packing.by_offset:
            return pack_rows(records.mapInArrow(read, read.schema), packing)
        return records.mapInArrow(PackedRows(packing, read), BLOCK_SCHEMA)

    def shuffled_rows(self, bounds: Bounds, shuffle: SlotShuffle) -> DataFrame:
        """Return those rows with their slots (`spark_backfill.slot_shuffle`)."""
        shuffle = shuffle.of_archive(bounds, has_duplicates=self._has_duplicates)
        read = Digester(spec=text_of(self._spec), group=shuffle.group)
        rows = read_columns(self.records(bounds), self._spec)
        return rows.mapInArrow(ShuffledRows(read, shuffle), SHUFFLED_SCHEMA)

    def _normal(self, place: str) -> DataFrame:
        try:
            frame, places = self._read(place)
        except (PySparkException, Py4JError) as error:
            raise unreadable(place, self._options.read_options, error) from error
        found = KafkaColumns(frame, places, archive=place)
        files = None if place.startswith(TABLE) else file_columns(frame)
        self._units_are_said |= found.timestamp_is_number()
        named = files is not None and "offset" not in places
        if not named and not found.has("offset"):
            raise ConfigurationError(
                f"archive {place!r} has no offsets, without which nobody can say what was processed of it: name their "
                f"column with --columns offset=COLUMN; {found.listed()}"
            )
        columns: dict[str, Column] = {} if named else {"offset": found.integer("offset")}
        if files is not None:
            # Columns that happen to be called like Kafka's are those of the values in such files.
            columns |= {"topic": files.topic, "partition": files.partition}
        else:
            columns |= {"topic": self._topic_column(found), "partition": found.integer("partition")}
        columns["timestamp_ms"] = found.timestamp_ms()
        columns |= {name: found.id_column(name) for name in self._names}
        if not self._needs_headers:
            columns["headers"] = found.optional_headers()
        if files is not None and named:
            self._by_name.append((frame, files))
            return with_offsets(frame, columns, files, indexed=self._options.format == "parquet")
        return frame.select(*(column.alias(name) for name, column in columns.items()))

    def _topic_column(self, found: KafkaColumns) -> Column:
        return found.topic() if found.has("topic") else F.lit(self._topic)

    @property
    def _lines(self) -> bool:
        return self._options.format == "json"

    def _read(self, place: str) -> tuple[DataFrame, ColumnMap]:
        options, places = self._options.read_options, self._options.columns
        if place.startswith(TABLE):
            return self._spark.read.options(**options).table(place.removeprefix(TABLE)), places
        wanted = ("topic", "partition", "offset", "timestamp", *dict.fromkeys([*self._names, "headers"]))
        if self._lines:
            return read_json_lines(self._spark, place, places, wanted, options)
        form = self._options.format
        merges = {name.casefold(): value.casefold() for name, value in options.items()}.get(MERGED.casefold())
        if form in ("parquet", "orc") and merges != "false":
            # Else the columns of one file are taken for those of all.
            found = [place_of(places, name) for name in wanted]
            return read_merged(self._spark, form, options, place, found), places
        if form == "csv":
            options = {**_STRICT_CSV, **options}
        return self._spark.read.format(form).options(**options).load(place), places

    def _is_certain(self) -> Column:
        """Whether a row is no one of a file that is left out, nor behind it, where a hole would be."""
        ends = {partition: first for partition, (first, _) in self._open.items()}
        offset = F.col("offset")
        return (F.col("topic") != self._topic) | offset.isNull() | (offset < _by_partition(ends, _NO_OFFSET))

    def _nothing_of_topic(self) -> BackfillError:
        if self._open:
            return only_open_files(self.left_out)
        others = self._rows.select("topic").distinct().limit(SHOWN_TOPICS).collect()
        return nothing_of_topic(self._topic, (str(row["topic"]) for row in others))


def _by_partition(values: Mapping[int, int], default: int) -> Column:
    """The value of a row's partition."""
    if not values:
        return F.lit(default).cast("long")
    numbers = F.lit([values.get(number, default) for number in range(max(values) + 1)])
    at = F.get(numbers, F.col("partition").cast("int"))
    return F.coalesce(at, F.lit(default)).cast("long")
