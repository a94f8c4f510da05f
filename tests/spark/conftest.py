"""A Spark session that reads Kafka and tries a failed task again, and the fixtures of the tests here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk.errors import KafkaHelperError
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import parse_columns
from tests.support.archives import spark_archive
from tests.support.naive_fold import Row
from tests.support.s3 import bucket as bucket  # noqa: PLC0414 (a fixture of the tests here)
from tests.support.s3 import server as server  # noqa: PLC0414

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_backfill.archive import Archive
    from spark_backfill.publish import Target


_ROWS = "partition int, offset long, timestamp_ms long, digest binary"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session for the whole run: two cores, three attempts a task, silent."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    from spark_backfill.launch import environment
    from spark_backfill.session import DEFAULTS, FIXED

    folder = tmp_path_factory.mktemp("spark")
    try:
        variables = environment(folder)
    except KafkaHelperError as error:
        pytest.skip(str(error))
    settings = {
        **DEFAULTS,
        **FIXED,
        "spark.log.level": "OFF",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "JAVA_HOME",
            "PYSPARK_PYTHON",
            "PYSPARK_DRIVER_PYTHON",
            "SPARK_LOCAL_IP",
            "SPARK_SUBMIT_OPTS",
        ):
            patch.setenv(name, variables[name])
        # Workers import the tests' own functions too.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
        # Spark makes a folder "artifacts" where its JVM is started.
        patch.chdir(folder)
        builder = pyspark_sql.SparkSession.builder.master("local[2,3]")
        session = builder.config(map=settings).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """Where tasks put the files of a run that goes on."""
    from spark_backfill.publish import Output

    with Output(str(tmp_path / "output")) as output:
        yield output.target


@pytest.fixture
def frame(spark: SparkSession) -> object:
    """Makes the DataFrame that the fold takes from rows written down as tuples."""

    def make(rows: Sequence[Row]) -> DataFrame:
        return spark.createDataFrame([tuple(row) for row in rows], _ROWS)

    return make


@pytest.fixture(name="archive")
def open_archive(spark: SparkSession, tmp_path: Path) -> Callable[..., Archive]:
    """Opens the archive in ``tmp_path``: ``archive("parquet", "offset=o", spec="key")``."""

    def opened(
        form: str, *columns: str, spec: str = "py:tests.spark.test_archive_ids:of_all@1", **given: Any
    ) -> Archive:
        options = ArchiveOptions(
            places=given.get("places", (str(tmp_path),)),
            format=form,
            columns=parse_columns(columns) if columns else {},
            isolation="read_committed",
            read_options=given.get("read_options", {}),
        )
        return spark_archive(spark, options, spec)

    return opened
