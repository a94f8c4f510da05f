"""Folders of tables that keep a log of which of their files count.

Read as plain files, removed records would be history again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from dedup_sdk._store.snapshot_source import redacted_url
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_checks import unreadable
from spark_backfill.archive_options import TABLE, ArchiveOptions

_LOGS: Final = {"_delta_log": "delta", ".hoodie": "hudi"}
_OF_A_GLOB: Final = frozenset("*?[]{}")
_FILES: Final = ("parquet", "orc")
_NOT_THERE: Final = "[PATH_NOT_FOUND]"
_ENDINGS: Final = tuple(f".{form}" for form in _FILES)


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
                f"{redacted_url(place)!r} is a table of the format {form}, and its files alone have what "
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
