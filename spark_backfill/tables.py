"""Tables of Delta Lake, Hudi and Apache Iceberg among the places of an archive.

A folder with a log of which of its files count is not read as plain files: removed records would be history again.
And a run reads one version of a table: Spark plans each query on the newest, so one that changes during a run would
be looked at in one version, and read in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import TABLE, ArchiveOptions
from spark_backfill.errors import unreadable

_LOGS: Final = {"_delta_log": "delta", ".hoodie": "hudi"}
_OF_A_GLOB: Final = frozenset("*?[]{}")
_FILES: Final = ("parquet", "orc")
_NOT_THERE: Final = "[PATH_NOT_FOUND]"
_ENDINGS: Final = tuple(f".{form}" for form in _FILES)
_VERSION_OPTIONS: Final = {"delta": "versionAsOf", "iceberg": "snapshot-id"}
_CHOSEN: Final = frozenset({
    "versionasof", "timestampasof", "readchangefeed", "readchangedata", "snapshot-id", "as-of-timestamp", "branch",
    "tag", "start-snapshot-id", "end-snapshot-id",
})  # fmt: skip
"""Options by which users choose a version themselves."""
_IN_THE_PATH: Final = re.compile(r"@(?:v\d+|\d{17})/?")


def check_no_table(spark: SparkSession, archive: ArchiveOptions) -> None:
    """Refuse to read such a table by its files alone; patterns and folders of its partitions are looked at, too.

    Raises:
        ConfigurationError: naming the format to give.
        BackfillError: Spark cannot look there, e.g. without a driver for such a URL.
    """
    if archive.format not in _FILES:
        return
    for place in archive.places:
        try:
            form = None if place.startswith(TABLE) else _table_format(spark, place)
        except (PySparkException, Py4JError) as error:
            raise unreadable(place, archive.read_options, error) from error
        if form is not None:
            raise ConfigurationError(
                f"{shown(place)} is a table of the format {form}, and its files alone have what "
                f"the table has not any more: give --format {form} and, with --packages, what reads it"
            )


def _table_format(spark: SparkSession, place: str) -> str | None:
    for folder in _folders(place):
        for name, form in _LOGS.items():
            try:
                # Nothing is read: Spark looks whether it is there, as it does for patterns and at URLs.
                spark.read.text(f"{folder}/{name}")
            except AnalysisException as error:
                if _NOT_THERE not in str(error):
                    raise
            else:
                return form
    return None


def _folders(place: str) -> Iterator[str]:
    """A path, and those it is a part of: the folder of a file, a pattern, or of a value of a column."""
    yield place
    above, slash, name = place.rstrip("/").rpartition("/")
    if slash and (name.endswith(_ENDINGS) or "=" in name or set(name) & _OF_A_GLOB):
        yield from _folders(above)


def version_of(spark: SparkSession, place: str, form: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the reader's option for the version of a table that is the newest now.

    ``place`` is a path in a format, or a table's name. Empty: it is no such table, it has nothing, or the user has
    chosen a version. Raises Spark's errors.
    """
    if _CHOSEN & {name.casefold() for name in options} or _IN_THE_PATH.search(place):
        return {}
    name = place.removeprefix(TABLE) if place.startswith(TABLE) else None
    form = form.casefold() if name is None else _provider(spark, name)
    if form == "delta":
        quoted = place.replace("`", "``")
        table = f"delta.`{quoted}`" if name is None else name
        found = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").select("version")
    elif form == "iceberg":
        reader = spark.read.options(**options)
        refs = reader.format(form).load(f"{place}#refs") if name is None else reader.table(f"{name}.refs")
        found = refs.where("name = 'main'").select("snapshot_id")
    else:
        return {}
    rows = found.collect()
    return {_VERSION_OPTIONS[form]: str(rows[0][0])} if rows else {}


def _provider(spark: SparkSession, name: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Provider'").select("data_type")
    return next((str(row[0]).casefold() for row in rows.collect()), "")
