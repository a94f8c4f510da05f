"""The Spark job, as ``dedup backfill`` runs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Rebuilt(NamedTuple):
    """How many records the job read, and how long it took (seconds, the start of Spark included)."""

    records: int
    seconds: float


def rebuild(options: dict[str, str], say: Callable[[str], None]) -> Rebuilt:
    """Run spark-submit with these options of `spark_backfill.job` (without the dashes).

    ``say`` gets what the job says while it runs. Raises `spark_backfill.errors.BackfillError` with the job's own line.
    """
    from spark_backfill.launch import backfill

    began_s = time.monotonic()
    report = backfill([f"--{name}={value}" for name, value in options.items()], say=say)
    return Rebuilt(records=int(report["records"]), seconds=time.monotonic() - began_s)
