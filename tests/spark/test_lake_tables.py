"""Archives that are tables of Delta Lake and of Apache Iceberg, read with their own packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.errors import ConfigurationError
from spark_backfill import launch
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.spark_files import SparkFiles
from tests.support.archives import spark_archive, write_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

# Packages are looked up, and two JVMs started, for each.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]
DELTA = "io.delta:delta-spark_2.13:4.0.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
BASE_MS = 1_700_000_000_000
ARGUMENTS = [
    "--archive-isolation", "read_committed", "--cluster-id", "c", "--topic-id", "t", "--topic", "orders",
    "--whole-topic",
    "--id", "key", "--window", "1d",
]  # fmt: skip
FIELDS = {
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "key": "binary",
}
TO_ICEBERG = """
import sys
from pyspark.sql import SparkSession

source, warehouse = sys.argv[1:]
spark = (
    SparkSession.builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", warehouse)
    .getOrCreate()
)
rows = spark.read.parquet(source).select("topic", "partition", "offset", "timestamp", "key")
rows.where("offset < 2").writeTo("lake.db.orders").create()
rows.where("offset >= 2").writeTo("lake.db.orders").append()
"""


CHANGING = """
import json
import sys
from pyspark.sql import SparkSession
from dedup_sdk.ids import id_spec
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.spark_files import SparkFiles

source, folder = sys.argv[1:]
builder = SparkSession.builder
for name, value in {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": f"{folder}/lake",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.parquet(source).select("topic", "partition", "offset", "timestamp", "key")


def grow():
    rows.write.format("delta").mode("append").save(f"{folder}/delta")
    rows.write.format("delta").mode("append").saveAsTable("orders")
    rows.writeTo("lake.db.orders").append()


rows.write.format("delta").save(f"{folder}/delta")
rows.write.format("delta").saveAsTable("orders")
rows.writeTo("lake.db.orders").create()
grow()
lake, found = f"{folder}/lake/db/orders", {}
for name, form, place, options in (
    ("delta", "delta", f"{folder}/delta", {}),
    ("delta table", "parquet", "table:orders", {}),
    ("iceberg", "iceberg", lake, {}),
    ("iceberg table", "parquet", "table:lake.db.orders", {}),
    ("chosen", "delta", f"{folder}/delta", {"versionAsOf": "0"}),
    ("plain", "parquet", source, {}),
):
    archive = ArchiveOptions(places=(place,), format=form, read_options=options, isolation="read_committed")
    files = SparkFiles(spark, archive, topic="orders", spec=id_spec("key"))
    before = files.coordinates().frame.count()
    grow()
    after = files.records({0: (0, 100)}).frame.count()
    ((version),) = files.versions.values() or [None]
    newest = spark.read.table("lake.db.orders.refs").collect()[0]["snapshot_id"]
    found[name] = [before, after, version, str(newest), files.doubts]
print(json.dumps(found))
"""


def keyed(*names: str) -> list[Record]:
    """One record a second, whose key is its ID."""
    return [Record("orders", 0, at, BASE_MS + at * 1000, key=name.encode()) for at, name in enumerate(names)]


def write_delta(folder: Path, kept: Sequence[Record], removed: Sequence[Record]) -> Path:
    """Write a table of Delta Lake, by its protocol.

    A folder of Parquet files and a log that says which of them count.
    """
    write_parquet(folder, [*kept, *removed], files=1)
    (folder / "part-0.parquet").unlink()
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
    actions: list[dict[str, object]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {
            "id": "5a0c2c1e-6a5e-4f0e-9c7b-2f3d1a6b7c8d", "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": [],
            "configuration": {}, "createdTime": BASE_MS,
        }},
    ]  # fmt: skip
    for name, records in (("kept", kept), ("removed", removed)):
        write_parquet(folder / name, records, files=1)
        (folder / name / "part-0.parquet").rename(folder / f"{name}.parquet")
        (folder / name).rmdir()
        size = (folder / f"{name}.parquet").stat().st_size
        actions.append({
            "add": {
                "path": f"{name}.parquet", "partitionValues": {}, "size": size, "modificationTime": BASE_MS,
                "dataChange": True,
            }
        })  # fmt: skip
    log = folder / "_delta_log"
    log.mkdir()
    write_log = "".join(f"{json.dumps(action)}\n" for action in actions)
    (log / f"{0:020d}.json").write_text(write_log, encoding="utf-8")
    remove = {"remove": {"path": "removed.parquet", "deletionTimestamp": BASE_MS, "dataChange": True}}
    (log / f"{1:020d}.json").write_text(json.dumps(remove) + "\n", encoding="utf-8")
    return folder


def write_iceberg(scratch: Path, records: Sequence[Record]) -> Path:
    """Write a table of Apache Iceberg with Spark, in two snapshots."""
    run_script(TO_ICEBERG, scratch, records, scratch / "lake", ICEBERG)
    return scratch / "lake" / "db" / "orders"


def run_script(text: str, scratch: Path, records: Sequence[Record], target: Path, *packages: str) -> str:
    """Run a script by spark-submit on records as Parquet and a folder; return the output."""
    script = scratch / "script.py"
    script.write_text(text, encoding="utf-8")
    source = write_parquet(scratch / "rows", records, files=1)
    command = launch.command(
        [str(source), str(target)],
        packages=packages,
        scratch=scratch,
        job=script,
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=scratch,
        env=launch.environment(scratch) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def backfilled(source: Path, output: Path, form: str, package: str) -> tuple[int, int, str]:
    """Run the command on an archive; give the cut and the marks of partition 0, and the version that was read."""
    report = launch.backfill(
        [
            *ARGUMENTS, "--source", str(source), "--format", form, "--packages", package, "--output", str(output),
        ]
    )  # fmt: skip
    (entry,) = verify_snapshot(output).partitions
    assert (report["sources"], report["records"]) == ([str(source)], entry.high)
    return entry.high, entry.marks, report["versions"][str(source)]


def test_a_delta_table_is_what_its_log_says(tmp_path: Path) -> None:
    """Files that the table's log has removed are not read, though they lie in its folder."""
    table = write_delta(
        tmp_path / "table", keyed("a", "b", "a"), [Record("orders", 0, 9, BASE_MS, key=b"gone")]
    )
    assert backfilled(table, tmp_path / "snapshot", "delta", DELTA) == (3, 2, "1")


@pytest.mark.parametrize(
    "place", ["table", "table/kept.parquet", "table/*.parquet", "table/partition=0", "hudi"]
)
def test_a_table_is_not_read_as_plain_files(place: str, spark: SparkSession, tmp_path: Path) -> None:
    """Records removed by its log would be history again: the line names the format, and nothing is written."""
    table = write_delta(tmp_path / "table", keyed("a"), [Record("orders", 0, 9, BASE_MS, key=b"gone")])
    for folder in (table / "partition=0", tmp_path / "hudi"):
        write_parquet(folder, keyed("a"))
    (tmp_path / "hudi" / ".hoodie").mkdir()
    given = [*ARGUMENTS, "--output", str(tmp_path / "snapshot"), "--source", str(tmp_path / place)]
    form = "hudi" if place == "hudi" else "delta"
    with pytest.raises(ConfigurationError, match=f"is a table of the format {form}, .*--format {form}"):
        backfill(parse_options(given, print), on_spark(lambda: spark))
    assert not (tmp_path / "snapshot").exists()


def test_an_iceberg_table_is_read_whole(tmp_path: Path) -> None:
    """All snapshots of the table up to its newest are read, by its path alone."""
    table = write_iceberg(tmp_path, keyed("a", "b", "a", "c"))
    *found, version = backfilled(table, tmp_path / "snapshot", "iceberg", ICEBERG)
    assert found == [4, 3]
    assert f'"current-snapshot-id":{version},' in (table / "metadata" / "v2.metadata.json").read_text(
        "utf-8"
    ).replace(" ", "")


def test_a_table_that_changes_is_read_as_one_version(tmp_path: Path) -> None:
    """Rows that come after the run has begun are in none of its queries; a version of the user's stays."""
    output = run_script(CHANGING, tmp_path, keyed("a", "b", "c"), tmp_path / "tables", DELTA, ICEBERG)
    found = json.loads(output.splitlines()[-1])
    newest = found["delta table"][3]
    assert [found[name][:3] for name in ("delta", "delta table")] == [[6, 6, "1"], [9, 9, "2"]]
    assert found["iceberg"] == [12, 12, newest, found["iceberg"][3], []]
    assert found["iceberg table"][:3] == [15, 15, found["iceberg"][3]]
    assert (found["chosen"][:3], found["plain"][:3]) == ([3, 3, None], [3, 3, None])
    assert [each[4] for each in found.values()] == [[]] * 6


def test_a_version_that_is_not_told_is_a_warning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is read as Spark reads it, and the line says what may happen."""

    def ask(*_: object) -> None:
        raise PySparkException("no right to see the history")

    monkeypatch.setattr("spark_backfill.spark_files.version_of", ask)
    archive = spark_archive(spark, ArchiveOptions(
        places=(str(write_parquet(tmp_path / "rows", keyed("a"))),), format="parquet", isolation="read_committed"
    ))  # fmt: skip
    assert isinstance(archive.files, SparkFiles)
    (line,) = archive.files.doubts
    assert line.startswith("warning: records that ")
    assert "its version is not known (no right to see the history)" in line
    assert archive.files.versions == {}
