"""The Spark session of a run.

Workers are not warmed up while Spark plans its first query. Having them import pandas early was tried by an
RDD, whose workers no query uses again (15 % slower), and by a query (5 % slower).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, bool | float | int | str | None]] = {
    # The job itself reports an error in one line.
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    # Fewer, larger batches: crossing to Python costs by the batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # One stage after the other, as it is written: there is nothing to be found out on the way.
    "spark.sql.adaptive.enabled": "false",
    # Where rows go is said with every shuffle; the rest are sums of a few rows.
    "spark.sql.shuffle.partitions": "4",
    # Rows of the shuffle are large; see `runs`.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.ui.showConsoleProgress": "false",
}


def make_session(more: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, with the settings of ``spark-submit``; they count before ``more``."""
    given = SparkConf()
    added = {name: value for name, value in (more or {}).items() if not given.contains(name)}
    return SparkSession.builder.appName("dedup backfill").config(map={**SETTINGS, **added}).getOrCreate()


class LazySession:
    """A session that is made when it is first needed; ``start_seconds`` is how long that took, 0 before."""

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._session: SparkSession | None = None
        self.start_seconds = 0.0

    def get(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            started = time.monotonic()
            self._session = self._make()
            self.start_seconds = time.monotonic() - started
        return self._session
