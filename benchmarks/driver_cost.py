"""The driver's part of a backfill of a given size, and the cost of beginning a task: a job for spark-submit.

    spark-submit benchmarks/driver_cost.py '{"records": 60000000000, "partitions": 1000, "cores": 160, ...}'

The argument has the fields of `benchmarks.planned_size.Size`. The tasks that are started have the job's own functions
at that size, which each task unpickles, and get nothing to do. The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from pyspark.cloudpickle import dumps
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from benchmarks.measure import peak_rss_mib
from benchmarks.planned_size import SPEC, Planned, Size, nights, nights_a_round
from dedup_sdk._store.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    manifest_bytes,
    read_manifest,
    write_manifest,
)
from spark_backfill.base_reader import BaseReader
from spark_backfill.client_reader import ClientRows
from spark_backfill.errors import one_line
from spark_backfill.fold import PackedRows, Packing
from spark_backfill.publish import Target
from spark_backfill.session import make_session
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import placement_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_FEW: Final = 4
_MORE: Final = 28
_TIMES: Final = 2


@dataclass(frozen=True, slots=True)
class Idle:
    """A function for ``mapInArrow`` that is as large as another one, and does nothing."""

    carried: object

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the batches, give none."""
        for _ in batches:
            pass
        yield from ()


def task_seconds(spark: SparkSession, function: object) -> float:
    """Return the CPU seconds that a task takes which has this function, and no rows.

    The difference between many tasks and few, so that Spark's planning of a query does not count.
    """

    def seconds(tasks: int) -> float:
        began = cpu_seconds_of_spark()
        spark.range(0, tasks, 1, tasks).mapInArrow(Idle(function), "nothing long").collect()
        return cpu_seconds_of_spark() - began

    seconds(_FEW)
    few, more = (min(seconds(count) for _ in range(_TIMES)) for count in (_FEW, _MORE))
    return max(more - few, 0.0) / (_MORE - _FEW)


def cpu_seconds_of_spark() -> float:
    """Return user and system time so far of Spark's Java, which started this process, and of all that it started."""
    java = psutil.Process(os.getppid())
    total = 0.0
    for each in (java, *java.children(recursive=True)):
        # A worker that is over is counted by the process that started it.
        with suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def functions_of(planned: Planned) -> dict[str, object]:
    """Return the functions of the tasks that read the topic, read the base, and write."""
    packing = Packing(planned.slots, group="billing")
    rows = ClientRows(
        settings={"bootstrap.servers": "localhost:9092"},
        topic="orders",
        wanted=packing.wanted(SPEC),
        ranges=planned.ranges,
    )
    found: dict[str, object] = {
        "read": PackedRows(packing, rows),
        "write": SlotWriter(
            target=Target("/output", "0" * 16),
            slots=planned.slots.slots,
            keep_from_ms={each.partition: each.keep_from_ms for each in planned.offset_ranges},
        ),
    }
    if planned.base_tasks:
        floors = {each.partition: 0 for each in planned.offset_ranges}
        found["base"] = BaseReader(
            files=Path("/output"), tasks=planned.base_tasks, plan=planned.slots, floors=floors
        )
    return found


def tasks_of(spark: SparkSession, planned: Planned) -> dict[str, Any]:
    """Return the numbers of a run's tasks, what each costs to begin, and the bytes of its function."""
    functions = functions_of(planned)
    return {
        "read_tasks": len(planned.ranges),
        "base_tasks": len(planned.base_tasks),
        "write_tasks": len(planned.slots.slots),
        "rows": sum(each.rows for each in planned.offset_ranges),
        "records": sum(each.offsets for each in planned.offset_ranges),
        "slot_rows": planned.slot_rows,
        "task_seconds": {name: task_seconds(spark, each) for name, each in functions.items()},
        "function_bytes": {
            name: len(dumps(each))  # type: ignore[no-untyped-call]
            for name, each in functions.items()
        },
    }


def manifest_cost(manifest: Manifest) -> dict[str, Any]:
    """Return the size of a manifest, and how long it takes to write and to read it."""
    began = time.perf_counter()
    size = len(manifest_bytes(manifest))
    write_seconds = time.perf_counter() - began
    cost = {
        "files": sum(len(entry.files) for entry in manifest.partitions),
        "manifest_bytes": size,
        "most_manifest_bytes": MAX_MANIFEST_BYTES,
        "write_seconds": write_seconds,
    }
    if size > MAX_MANIFEST_BYTES:
        return cost
    with tempfile.TemporaryDirectory(prefix="dedup-plan-") as folder:
        write_manifest(folder, manifest)
        began = time.perf_counter()
        read_manifest(folder)
        return {**cost, "read_seconds": time.perf_counter() - began}


def main() -> int:
    """Plan, start the tasks, and print the result; return the exit status."""
    try:
        print(json.dumps(measure(Size(**json.loads(sys.argv[1])))))
    except Exception as error:  # noqa: BLE001 (whatever failed, Spark and the JVM included, is one line)
        print(f"driver_cost: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def measure(size: Size) -> dict[str, Any]:
    """Plan a run of this size, a night and the one that writes anew; return what they cost the driver."""
    spark = make_session()
    before_mib = peak_rss_mib()
    began = time.perf_counter()
    found = nights(size)
    # All nights behind one another: a run plans one of them.
    plan_seconds = (time.perf_counter() - began) / len(found)
    (full, first), (night, _), (anew, _) = found[0], found[1], found[-1]
    began = time.perf_counter()
    count = len(anew.slots.slots)
    spark.range(1).select(placement_column(F.lit(0), count)).collect()
    placement_seconds = time.perf_counter() - began
    result = {
        "size": asdict(size),
        "full": tasks_of(spark, full) | {"manifest": manifest_cost(first)},
        "night": tasks_of(spark, night) | {"manifest": manifest_cost(found[-2][1])},
        "anew": tasks_of(spark, anew) | {"manifest": manifest_cost(found[-1][1])},
        "nights_a_round": nights_a_round(size),
        "plan_seconds": plan_seconds,
        "placement_seconds": placement_seconds,
        "driver_python_mib": peak_rss_mib() - before_mib,
    }
    spark.stop()
    return result


if __name__ == "__main__":
    sys.exit(main())
