"""Files of an archive that do not have the same columns: their types have to agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import parse_columns
from spark_backfill.errors import one_line
from tests.support.archives import spark_archive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def keys(spark: SparkSession) -> Callable[..., dict[int, bytes | None]]:
    """Reads an archive: the keys of partition 0, by their offsets."""

    def read(form: str, columns: str, *places: Path, **options: str) -> dict[int, bytes | None]:
        described = ArchiveOptions(
            places=tuple(map(str, places)),
            format=form,
            columns=parse_columns([columns]),
            isolation="read_committed",
            read_options=options,
        )
        archive = spark_archive(spark, described)
        return {
            row["offset"]: row["key"] and bytes(row["key"])
            for row in archive.files.records({0: (0, 99)}).frame.collect()
        }

    return read


def write(path: Path, **columns: Any) -> Path:
    """Write one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_a_column_that_only_some_files_have_is_empty_in_the_others(
    keys: Callable[..., dict[int, bytes | None]], tmp_path: Path
) -> None:
    """Also where Spark would take the columns of the first file for those of all."""
    write(tmp_path / "y=1" / "a.parquet", partition=[0], offset=[1], other=[7])
    write(tmp_path / "y=2" / "b.parquet", partition=[0], offset=[2], key=["k"])
    assert keys("parquet", "timestamp=-", tmp_path) == {1: None, 2: b"k"}


@pytest.mark.parametrize(("column", "one", "other"), [("key", "k", b"k"), ("not_read", "x", 1)])
def test_a_type_that_changed_is_told(
    keys: Callable[..., dict[int, bytes | None]], tmp_path: Path, column: str, one: object, other: object
) -> None:
    """The line names the remedy: each kind in a folder of its own is read."""
    first = write(
        tmp_path / "y=1" / "a.parquet", **{"partition": [0], "offset": [1], "key": ["k"], column: [one]}
    )
    second = write(
        tmp_path / "y=2" / "b.parquet", **{"partition": [0], "offset": [2], "key": ["k"], column: [other]}
    )
    with pytest.raises(ConfigurationError, match="give each folder with --source") as caught:
        keys("parquet", "timestamp=-", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert keys("parquet", "timestamp=-", first.parent, second.parent) == {1: b"k", 2: b"k"}


def test_a_line_of_csv_without_all_its_columns_ends_the_run(
    keys: Callable[..., dict[int, bytes | None]], tmp_path: Path
) -> None:
    """Its record would be one without an ID.

    A file whose first line names other columns has such lines, or none of the right type.
    """
    path = tmp_path / "a.csv"
    given = {"header": "true", "inferSchema": "true"}
    path.write_text("partition,offset,key\n0,1,a\n", encoding="ascii")
    assert keys("csv", "timestamp=-", path, **given) == {1: b"a"}
    path.write_text("partition,offset,key\n0,1,a\n0,2\n", encoding="ascii")
    with pytest.raises(Exception, match=r"(?i)malformed") as caught:
        keys("csv", "timestamp=-", path, **given)
    assert "\n" not in one_line(caught.value)
    assert keys("csv", "timestamp=-", path, **given, mode="PERMISSIVE") == {1: b"a", 2: None}
