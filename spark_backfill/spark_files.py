"""The files and tables of an archive that Spark opens, as frames with Kafka's columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk._kafka.error_text import masked_text
from dedup_sdk._store.snapshot_source import redacted_url
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import TABLE, ArchiveOptions
from spark_backfill.client_config import secrets_of
from spark_backfill.column_map import ColumnMap, id_columns
from spark_backfill.columns import KafkaColumns
from spark_backfill.connect_files import FileColumns, file_columns, rows_of_files, with_offsets
from spark_backfill.connect_layout import check_folders, check_rows, open_files
from spark_backfill.errors import BackfillError, one_line, unreadable
from spark_backfill.json_lines import read_json_lines
from spark_backfill.offset_range import Bounds
from spark_backfill.ordered_spec import Spec
from spark_backfill.survey import SHOWN_TOPICS, Batch, Input, nothing_of_topic, with_coordinates
from spark_backfill.tables import version_of

_NO_OFFSET: Final = 2**63 - 1
_SHOWN_FILES: Final = 5
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
        try:
            frame, places = self._read(place)
        except (PySparkException, Py4JError) as error:
            if "CANNOT_MERGE" in str(error):
                said = masked_text(one_line(error, secrets_of(self._options.read_options)))
                raise ConfigurationError(
                    f"archive {place!r}: a column has several types in its files: put the files of each kind into a "
                    f"folder of their own, and give each folder with --source ({said})"
                ) from error
            raise unreadable(place, self._options.read_options, error) from error
        found = KafkaColumns(frame, places, archive=place)
        files = None if place.startswith(TABLE) else file_columns(frame)
        self.units_are_said |= found.timestamp_is_number()
        named = files is not None and "offset" not in places
        if not named and not found.has("offset"):
            raise ConfigurationError(
                f"archive {place!r} has no offsets, without which nobody can say what was processed of it: name their "
                f"column with --columns offset=COLUMN; {found.listed()}"
            )
        columns: dict[str, Column] = {} if named else {"offset": found.coordinate("offset")}
        if files is not None:
            # Columns that happen to be called like Kafka's are those of the values in such files.
            columns |= {"topic": files.topic, "partition": files.partition}
        else:
            columns |= {"topic": self._topic_column(frame, found), "partition": found.coordinate("partition")}
        columns["timestamp_ms"] = found.timestamp_ms()
        columns |= {name: found.id_column(name) for name in self._names}
        if "headers" not in self._names:
            columns["headers"] = found.optional_headers()
        if files is not None and named:
            self._by_name.append((frame, files))
            return with_offsets(frame, columns, files, indexed=self._options.format == "parquet")
        return frame.select(*(column.alias(name) for name, column in columns.items()))

    def _topic_column(self, frame: DataFrame, found: KafkaColumns) -> Column:
        """The topic of each row: this one where the archive has none, or no line of it."""
        if not found.has("topic"):
            return F.lit(self._topic)
        topic = found.coordinate("topic")
        lacks = self._options.format == "json" and frame.where(topic.isNotNull()).isEmpty()
        return F.lit(self._topic) if lacks else topic

    def _read(self, place: str) -> tuple[DataFrame, ColumnMap]:
        options, places = self._at_version(place), self._options.columns
        if place.startswith(TABLE):
            return self._spark.read.options(**options).table(place.removeprefix(TABLE)), places
        form = self._options.format
        if form == "json":
            wanted = ("topic", "partition", "offset", "timestamp", *dict.fromkeys([*self._names, "headers"]))
            return read_json_lines(self._spark, place, places, wanted, options)
        # Names of options are the same in any case: of two that are, the last one counts.
        reader = self._spark.read.format(form).options(**_ALL_COLUMNS.get(form, {}))
        return reader.options(**options).load(place), places

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
        self.versions = {**self.versions, **{masked_text(place): value for value in version.values()}}
        return {**options, **version}

    def _is_certain(self) -> Column:
        """Whether a row is no one of a file that is left out, nor behind it, where a hole would be."""
        begins = [
            self._open[each][0] if each in self._open else _NO_OFFSET for each in range(max(self._open) + 1)
        ]
        begin = F.coalesce(F.get(F.lit(begins), F.col("partition").cast("int")), F.lit(_NO_OFFSET))
        offset = F.col("offset")
        return (F.col("topic") != self._topic) | offset.isNull() | (offset < begin)


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
