"""For how many tasks at a time a stage is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dedup_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_TASKS: Final = 1_000_000


def checked_parallelism(wanted: int | None) -> int | None:
    """Return the number of ``--parallelism``, None without one; raises `ConfigurationError` for an absurd one."""
    if wanted is not None and not 1 <= wanted <= MOST_TASKS:
        raise ConfigurationError(
            f"--parallelism {wanted}: give the number of tasks that run at a time, from 1 to {MOST_TASKS}"
        )
    return wanted


def tasks_at_a_time(spark: SparkSession, wanted: int | None) -> int:
    """Return the wanted number, without one the cores that the cluster has now.

    Asked when a stage is made: Spark counts the executors that are there at each call, and with dynamic allocation
    they come while the run goes on. ``spark.default.parallelism`` wins over their number.
    """
    return spark.sparkContext.defaultParallelism if wanted is None else wanted
