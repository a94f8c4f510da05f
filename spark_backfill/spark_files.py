"""The files and tables of an archive that Spark opens, as frames with Kafka's columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from dedup_sdk._masking import counted, masked_text, masked_urls, redacted_url, shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import TABLE, ArchiveOptions
from spark_backfill.client_config import secrets_of
from spark_backfill.column_map import (
    ColumnPlace,
    id_columns,
    maps_headers,
    needed_columns,
    place_of,
)
from spark_backfill.columns import KafkaColumns
from spark_backfill.connect_files import FileColumns, file_columns, rows_of_files, with_joined, with_places
from spark_backfill.connect_layout import beside_of, check_folders, check_rows, open_files, split_beside
from spark_backfill.errors import BackfillError, one_line, unreadable
from spark_backfill.json_lines import read_json_lines, read_lines
from spark_backfill.offset_range import Bounds
from spark_backfill.ordered_spec import Spec
from spark_backfill.survey import SHOWN_TOPICS, Batch, Input, nothing_of_topic, with_coordinates
from spark_backfill.tables import version_of

_NO_OFFSET: Final = 2**63 - 1
_SHOWN_FILES: Final = 5
_OF_FILES: Final = frozenset({"parquet", "orc", "json", "text", "csv", "avro"})
_CANNOT_MERGE: Final = "CANNOT_MERGE"
_COORDINATES: Final = ("topic", "partition", "offset", "timestamp_ms")
_ALL_COLUMNS: Final = {
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
    "csv": {"enforceSchema": "false", "mode": "FAILFAST"},
}
"""Options without which the columns of one file are taken for those of all, whatever the others say."""


class SparkFiles:
    """The records of one topic (`spark_backfill.archive.Files`), with the columns of `spark_backfill.columns`.

    ``reads_keys``: the keys are wanted also where the spec does not read them. Headers are read wherever the
    archive has them, for redrive headers. ``doubts``: lines for the user, on tables whose version
    cannot be asked for, and on files that are left out.

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
        self._names = id_columns(spec, with_keys=reads_keys)
        self.units_are_said = False
        self.versions: Mapping[str, str] = {}
        self.doubts: list[str] = []
        # Frames whose offsets come from the names of their files, which has to be checked before they are believed.
        self._by_name: list[tuple[DataFrame, FileColumns]] = []
        self._rows = reduce(DataFrame.unionByName, [self._normal(place) for place in options.places])
        paths = [path for _, files in self._by_name for path in files.paths]
        check_folders(paths)
        self._open = open_files(map(os.path.basename, paths), topic)
        if self._open:
            last = [name for _, name in self._open.values()]
            more = ", ..." if len(last) > _SHOWN_FILES else ""
            self.doubts.append(
                f"left out: {', '.join(last[:_SHOWN_FILES])}{more}, the last of a partition; where records may be "
                "missing in it the offsets of its rows are not known, and no next file tells. Name the offset's "
                "column with --columns offset=COLUMN if the records bear it"
            )
            self._rows = self._rows.where(self._is_certain())

    def coordinates(self) -> Input:
        """See `spark_backfill.archive.Files`."""
        rows: Counter[str] = Counter()
        while self._by_name:
            rows.update(rows_of_files(*self._by_name.pop(), self._topic))
        check_rows(rows)
        return self._input(self._rows.select(*_COORDINATES))

    def records(self, bounds: Bounds) -> Input:
        """See `spark_backfill.archive.Files`."""
        offset = F.col("offset")
        # These bounds reach the statistics that files keep of their columns.
        begin = min((begin for begin, _ in bounds.values()), default=0)
        end = max((end for _, end in bounds.values()), default=0)
        return self._input(self._rows.where((offset >= begin) & (offset < end)))

    def beside(self) -> list[str]:
        """See `spark_backfill.archive.Files`."""
        read = sorted(self._rows.inputFiles())
        names = {_name_of(path) for path in read}
        found: dict[str, None] = {}
        with suppress(PySparkException, Py4JError):
            for path in read[:_SHOWN_FILES]:
                folder, name = unquote(path).rpartition("/")[::2]
                beside = self._spark.read.format("binaryFile").load(f"{folder}/{name.partition('.')[0]}.*")
                found |= dict.fromkeys(map(_name_of, beside.inputFiles()))
        return [name for name in found if name not in names][:_SHOWN_FILES]

    def nothing_of_topic(self, others: frozenset[str]) -> BackfillError:
        """See `spark_backfill.archive.Files`; others are asked for, of which none was read."""
        for _, name in self._open.values():
            return BackfillError(
                f"the archive has one file of each partition ({name}), and no next one says whether records are "
                "missing in it, without which the offsets of its rows are not known: name their column with "
                "--columns offset=COLUMN"
            )
        found = self._rows.select("topic").distinct().limit(SHOWN_TOPICS).collect()
        return nothing_of_topic(self._topic, {*others, *(str(row["topic"]) for row in found)})

    def _input(self, rows: DataFrame) -> Input:
        """Return rows of the topic, and those without one, which are counted."""
        return Input(rows.where((F.col("topic") == self._topic) | F.col("topic").isNull()), frame_batches)

    def _normal(self, place: str) -> DataFrame:
        values, beside = split_beside(self._listed(place))
        places = self._options.columns
        try:
            frame = self._read(place, values, all_of_it=not beside)
        except (PySparkException, Py4JError) as error:
            if _CANNOT_MERGE in str(error):
                said = masked_text(one_line(error, secrets_of(self._options.read_options)))
                raise ConfigurationError(
                    f"archive {shown(place)}: a column has several types in its files: put the files of each kind "
                    f"into a folder of their own, and give each folder with --source ({said})"
                ) from error
            raise unreadable(place, self._options.read_options, error) from error
        found = KafkaColumns(frame, places, archive=place)
        files = None if place.startswith(TABLE) else file_columns(frame)
        self.units_are_said |= found.timestamp_is_number()
        named = files is not None and "offset" not in places
        wanted = {} if files is None else beside_of(files.paths, beside, (*self._names, "headers"))
        if maps_headers(places):
            wanted.pop("headers", None)
        # Columns that happen to be called like Kafka's are those of the values in such files.
        in_names = {"topic": files is not None, "partition": files is not None, "offset": named}
        needed = needed_columns(places, self._names)
        found.check(name for name in needed if not in_names.get(name) and name not in wanted)
        columns: dict[str, Column] = {} if named else {"offset": found.coordinate("offset")}
        if files is not None:
            columns |= {"topic": files.topic, "partition": files.partition}
        else:
            columns |= {"topic": self._topic_column(frame, found), "partition": found.coordinate("partition")}
        columns["timestamp_ms"] = found.timestamp_ms()
        columns |= {name: found.id_column(name) for name in self._names if name not in ("headers", *wanted)}
        if "headers" not in wanted:
            columns["headers"] = found.headers(required="headers" in self._names)
        if not named and not wanted:
            return frame.select(*(column.alias(name) for name, column in columns.items()))
        if files is not None and named:
            self._by_name.append((frame, files))
            columns["first"] = files.first
        rows = with_places(frame, columns, indexed=self._options.format == "parquet")
        if named:
            rows = rows.withColumn("offset", F.col("first") + F.col("place")).drop("first")
        for name, paths in wanted.items():
            rows = with_joined(rows, self._beside(name, paths), name)
        return rows.drop("file", "place")

    def _listed(self, place: str) -> list[str]:
        """The files that Spark reads of a place; says which folders it does not. None of a table."""
        if place.startswith(TABLE) or self._options.format not in _OF_FILES:
            return []
        with suppress(PySparkException, Py4JError):
            reader = self._spark.read.format("binaryFile").options(**self._options.read_options)
            files = reader.options(pathGlobFilter="*").load(place).inputFiles()
            below = reader.options(pathGlobFilter="*", recursiveFileLookup="true").load(place).inputFiles()
            folders = {path.rpartition("/")[0] for path in below} - {
                path.rpartition("/")[0] for path in files
            }
            if folders:
                self.doubts.append(
                    f"warning: Spark does not read {counted(len(folders), 'folder')} below {redacted_url(place)}, e.g. "
                    f"{masked_text(unquote(min(folders)))}: give --read-option recursiveFileLookup=true, or each of "
                    "them with --source"
                )
            return sorted(map(unquote, files))
        # Whoever reads them says what is wrong.
        return []

    def _beside(self, name: str, paths: list[str]) -> DataFrame:
        """The rows of files beside those of the values."""
        form = next((form for form in ("parquet", "avro") if f".{form}" in paths[0]), "json")
        reader = self._spark.read.format(form)
        frame = read_lines(self._spark, paths, name) if form == "json" else reader.load(paths)
        place = ColumnPlace(name, place_of(self._options.columns, name).form)
        found = KafkaColumns(frame, {name: place}, archive=f"{paths[0]}, ...")
        found.check([name])
        column = found.headers(required=True) if name == "headers" else found.id_column(name)
        return with_places(frame, {name: column}, indexed=form == "parquet")

    def _topic_column(self, frame: DataFrame, found: KafkaColumns) -> Column:
        """The topic of each row: this one where the archive has none, or no line of it."""
        if not found.has("topic"):
            return F.lit(self._topic)
        topic = found.coordinate("topic")
        lacks = self._options.format == "json" and frame.where(topic.isNotNull()).isEmpty()
        return F.lit(self._topic) if lacks else topic

    def _read(self, place: str, files: list[str], *, all_of_it: bool) -> DataFrame:
        """Read a place, which has these files of values; ``all_of_it``: it has no others."""
        paths: str | list[str] = place if all_of_it else files
        options = self._at_version(place)
        if place.startswith(TABLE):
            return self._spark.read.options(**options).table(place.removeprefix(TABLE))
        form = self._options.format
        if form == "json":
            wanted = ("topic", "partition", "offset", "timestamp", *dict.fromkeys([*self._names, "headers"]))
            return read_json_lines(self._spark, paths, self._options.columns, wanted, options)
        # Names of options are the same in any case: of two that are, the last one counts.
        reader = self._spark.read.format(form).options(**_ALL_COLUMNS.get(form, {})).options(**options)
        try:
            return reader.load(paths)
        except (PySparkException, Py4JError) as error:
            if form != "parquet" or _CANNOT_MERGE not in str(error):
                raise
        return reader.schema(_merged(reader, files)).load(paths)

    def _at_version(self, place: str) -> Mapping[str, str]:
        """Return the reader's options, with the version that all queries of the run read of a table."""
        options = self._options.read_options
        try:
            version = version_of(self._spark, place, self._options.format, options)
        except (PySparkException, Py4JError) as error:
            self.doubts.append(
                f"warning: records that {redacted_url(place)} gets or loses during the run may be read in part: its "
                f"version is not known ({masked_text(one_line(error, secrets_of(self._options.read_options)))})"
            )
            return options
        self.versions = {**self.versions, **{masked_urls(place): value for value in version.values()}}
        return {**options, **version}

    def _is_certain(self) -> Column:
        """Whether a row is no one of a file that is left out, nor behind it, where a hole would be."""
        begins = [
            self._open[each][0] if each in self._open else _NO_OFFSET for each in range(max(self._open) + 1)
        ]
        begin = F.coalesce(F.get(F.lit(begins), F.col("partition").cast("int")), F.lit(_NO_OFFSET))
        offset = F.col("offset")
        return (F.col("topic") != self._topic) | offset.isNull() | (offset < begin)


def _merged(reader: DataFrameReader, files: Sequence[str]) -> T.StructType:
    """The columns of all of these files, where integers may have become longs: of a file alone Spark knows them."""
    try:
        return reader.load([*files]).schema
    except (PySparkException, Py4JError) as error:
        half = len(files) // 2
        if not half or _CANNOT_MERGE not in str(error):
            raise
        one, other = _merged(reader, files[:half]), _merged(reader, files[half:])
        both = {field.name: field for field in one.fields}
        for field in other.fields:
            known = both.setdefault(field.name, field)
            if known.dataType != field.dataType:
                if not all(isinstance(each.dataType, T.IntegralType) for each in (known, field)):
                    raise
                both[field.name] = T.StructField(field.name, T.LongType())
        return T.StructType([*both.values()])


def _name_of(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def frame_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Batch]:
    """Make batches of rows that Spark has read."""
    for batch in batches:
        rows, lacking = with_coordinates(batch)
        yield Batch(
            rows.column("partition").to_numpy().astype(np.int64),
            rows.column("offset").to_numpy(),
            rows.column("timestamp_ms").to_numpy(),
            rows,
            lacking,
        )
