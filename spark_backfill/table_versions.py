"""The version that a run reads of a table of Delta Lake or Apache Iceberg.

Spark plans each query on the newest version: without it a table that changes during a run would be looked at in one
version, and read in another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from spark_backfill.archive_options import TABLE

_OPTIONS: Final = {"delta": "versionAsOf", "iceberg": "snapshot-id"}
_CHOSEN: Final = frozenset({
    "versionasof", "timestampasof", "readchangefeed", "readchangedata", "snapshot-id", "as-of-timestamp", "branch",
    "tag", "start-snapshot-id", "end-snapshot-id",
})  # fmt: skip
"""Options by which users choose a version themselves."""
_IN_THE_PATH: Final = re.compile(r"@(?:v\d+|\d{17})/?")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table: the reader's option for it, and its value."""

    option: str
    value: str


def version_of(spark: SparkSession, place: str, form: str, options: Mapping[str, str]) -> Version | None:
    """Return the version of a table that is the newest now; ``place`` is a path in a format, or a table's name.

    None: it is no such table, it is empty, or the user has chosen a version. Raises Spark's errors.
    """
    if _CHOSEN & {name.casefold() for name in options} or _IN_THE_PATH.search(place):
        return None
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
        return None
    return next((Version(_OPTIONS[form], str(row[0])) for row in found.collect()), None)


def _provider(spark: SparkSession, name: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Provider'").select("data_type")
    return next((str(row[0]).casefold() for row in rows.collect()), "")
