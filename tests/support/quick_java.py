"""Options of Java for a Spark that lives half a minute: its classes from an archive, and no thorough compilation.

A Spark that is started for one test spends most of its time on loading and verifying some 15,000 classes. Java can keep
them as they are in memory ("class data sharing"). The archive is made once for each Java and PySpark, by a Spark that
does a little of everything; it is in the cache. ``python -m tests.support.quick_java`` makes it, and brings the jars
of the broker, before tests wait for them.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from dedup_sdk.errors import DedupError
from dedup_sdk.testing._cache import cache_folder, filled_once
from dedup_sdk.testing._java_home import spark_environment
from dedup_sdk.testing._kafka_jars import kafka_jars
from spark_backfill import launch

_START_S: Final = 300.0
_C1: Final = "-XX:TieredStopAtLevel=1"
"""To compile the code of a short run thoroughly costs more than the code does."""
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""Of classes that are not in an archive, or of another class path, Java would tell on stdout."""
_JOB: Final = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def same(batches):
    yield from batches
columns = [
    "cast(id % 2 as int) as partition", "id as offset", "cast(id as string) as text",
    "array(named_struct('key', 'a', 'value', cast('x' as binary))) as headers",
]
rows, folder = spark.range(100).selectExpr(*columns), sys.argv[1]
rows.write.parquet(folder + "/parquet")
rows.drop("headers").write.json(folder + "/json")
read = spark.read.parquet(folder + "/parquet").repartition(2, "partition").sortWithinPartitions("offset")
assert read.mapInArrow(same, read.schema).groupBy("partition").count().count() == 2
assert spark.read.json(folder + "/json").count() == 100
spark.stop()
"""


@functools.cache
def quick_java() -> str:
    """Return the options, separated by spaces; without the archive where this Java cannot make one.

    Raises:
        DedupError: there is no Java that Spark runs on, or no PySpark.
    """
    java = Path(spark_environment()["JAVA_HOME"])
    built = java / "release"
    jars = launch.spark_home() / "jars"
    # Java takes classes from the archive of the very same files alone.
    about = (java, built.read_text() if built.is_file() else "", jars, jars.stat().st_mtime_ns)
    key = hashlib.sha256(f"{about}\n{_JOB}".encode()).hexdigest()[:12]
    archive = filled_once(cache_folder() / f"spark-classes-{key}", _make) / "classes.jsa"
    return f"{_C1} -XX:SharedArchiveFile={archive} {_SILENT}" if archive.is_file() else _C1


def use_quick_java() -> dict[str, str]:
    """Return the variable that gives the options to every spark-submit; nothing where Java or PySpark lacks."""
    try:
        return {"SPARK_SUBMIT_OPTS": quick_java()}
    except DedupError:
        return {}


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="spark-classes-") as name:
        scratch = Path(name)
        job = scratch / "job.py"
        job.write_text(_JOB, encoding="utf-8")
        archive = folder / "classes.jsa"
        options = [_C1, f"-XX:ArchiveClassesAtExit={archive}", *_SILENT.split()]
        # Whatever goes wrong: tests that need Spark say so, and the others need no archive.
        try:
            subprocess.run(
                launch.command([name], scratch=scratch, job=job), env=launch.environment(scratch, options),
                cwd=scratch, capture_output=True, timeout=_START_S, check=True,
            )  # fmt: skip
        except subprocess.SubprocessError:
            archive.unlink(missing_ok=True)


if __name__ == "__main__":
    kafka_jars()
    quick_java()
