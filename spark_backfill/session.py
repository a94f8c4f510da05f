"""The Spark session of a run.

Workers are not warmed up while Spark plans its first query. Having them import pandas early was tried by an
RDD, whose workers no query uses again (15 % slower), and by a query (5 % slower).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf
from pyspark.sql import SparkSession

from dedup_sdk.errors import ConfigurationError

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "dedup backfill",
    # Fewer, larger batches: crossing to Python costs by the batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # One stage after the other, as it is written: there is nothing to be found out on the way.
    "spark.sql.adaptive.enabled": "false",
    # Where rows go is said with every shuffle; the rest are sums of a few rows.
    "spark.sql.shuffle.partitions": "4",
    # Rows of the shuffle are large; see `runs`.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
}
"""Settings where the user has made none: they cost or save time and memory."""
FIXED: Final[Mapping[str, str]] = {
    # A time without a zone is one of UTC.
    "spark.sql.session.timeZone": "UTC",
    # A value that cannot be read ends the run; without it, the default before Spark 4, it would be null.
    "spark.sql.ansi.enabled": "true",
    # JSON that is read as a text stays the text that it was.
    "spark.sql.json.enableExactStringParsing": "true",
}
"""Settings on which results depend."""


def make_session(
    more: Mapping[str, str] | None = None, say: Callable[[str], None] = lambda _line: None
) -> SparkSession:
    """Return the session of this process: the settings of ``spark-submit`` count before `DEFAULTS` and ``more``.

    ``say`` gets a line for each of them that `FIXED` overrules.

    Raises:
        ConfigurationError: it is one of Spark Connect.
    """
    settings, told = chosen(dict(SparkConf().getAll()), more or {}, program=sys.argv[0])
    for line in told:
        say(line)
    connects = "SPARK_REMOTE" in os.environ
    session: object = None if connects else SparkSession.builder.config(map={**settings}).getOrCreate()
    if not isinstance(session, SparkSession):
        raise ConfigurationError(
            "this Spark is reached by Spark Connect, which has no SparkContext: submit the job with --master"
        )
    return session


def chosen(
    given: Mapping[str, str], more: Mapping[str, str], *, program: str
) -> tuple[dict[str, str], list[str]]:
    """Return the settings of the session beside the given ones, and a line for each of those that is not used."""
    # Without --name, spark-submit takes the program's.
    unnamed = given.get("spark.app.name") == Path(program).name
    settings = {
        name: value
        for name, value in {**DEFAULTS, **more}.items()
        if name not in given or (unnamed and name == "spark.app.name")
    }
    told = [
        f"{name}={given[name]} is not used: the job needs {value}"
        for name, value in FIXED.items()
        if given.get(name, value).lower() != value.lower()
    ]
    return {**settings, **FIXED}, told


def describe_jobs(spark: SparkSession, topic: str, description: str) -> None:
    """Let Spark's UI and event log say of this thread's next jobs what runs; the jobs of a topic are a group.

    A job has one description for all its stages: PySpark has no public way to name stages or accumulators.
    """
    spark.sparkContext.setJobGroup(job_group(topic), description)


def job_group(topic: str) -> str:
    """Return the group of the jobs of a topic, by which they can be found and cancelled."""
    return f"dedup backfill {topic}"
