"""Parquet files that are not as they should be.

A run ends with the file's name, and never reads on as if nothing were.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedup_sdk._record import Record
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import id_spec
from spark_backfill.archive import Archive
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import parse_columns
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.parquet_files import deal_out, plain_layout
from spark_backfill.parquet_reader import ParquetFiles, ParquetReader
from tests.support.archives import kafka_table, spark_archive, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

BASE_MS = 1_700_000_000_000


def records(*offsets: int, topic: str = "orders") -> list[Record]:
    """Records of one partition."""
    return [Record(topic, 0, offset, BASE_MS + offset, b"%d" % offset) for offset in offsets]


def record(offset: int, timestamp_ms: int) -> Record:
    """A record of the same ID at a time; -1 is none."""
    return Record("orders", 0, offset, timestamp_ms, b"a")


def options(*places: Path, columns: str = "", **read_options: str) -> ArchiveOptions:
    """An archive of Parquet files."""
    return ArchiveOptions(
        places=tuple(map(str, places)),
        format="parquet",
        columns=parse_columns([columns]) if columns else {},
        isolation="read_committed",
        read_options=read_options,
    )


def write(path: Path, *offsets: int, without: str = "", **given: Any) -> Path:
    """Write some records as one file, without one of its columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = kafka_table(records(*offsets))
    pq.write_table(table.drop_columns([without]) if without else table, path, **given)
    return path


def reader_of(folder: Path) -> ParquetReader:
    """A reader of a folder's files, as a worker gets it."""
    layout = plain_layout(options(folder), ("key",))
    assert layout is not None
    reader = ParquetReader(
        topic="orders", layout=layout, tasks=tuple(deal_out(layout.groups, 1)), names=("key",)
    )
    copied: ParquetReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 (just pickled)
    return copied


@pytest.mark.parametrize("column", ["topic", "key", "headers"])
@pytest.mark.parametrize("first_lacks", [True, False])
def test_files_that_have_not_the_same_columns_are_left_to_spark(
    tmp_path: Path, column: str, *, first_lacks: bool
) -> None:
    """Whose columns are those of all? Spark merges them, and a row without a topic ends the run."""
    write(tmp_path / "a.parquet", 0, 1, without=column if first_lacks else "")
    write(tmp_path / "b.parquet", 2, 3, without="" if first_lacks else column)
    assert plain_layout(options(tmp_path), ("key",)) is None


def test_other_columns_other_folders_and_empty_files_may_differ(tmp_path: Path) -> None:
    """Columns not part of the ID may be anywhere, each folder is for itself, and a file without rows says nothing."""
    write(tmp_path / "a" / "1.parquet", 0, without="value")
    write(tmp_path / "a" / "2.parquet", 1)
    write(tmp_path / "a" / "3.parquet", without="topic")
    layout = plain_layout(options(tmp_path / "a"), ("key",))
    assert layout is not None
    assert "topic" in layout.names
    assert sum(group.rows for group in layout.groups) == 2
    write(tmp_path / "b" / "1.parquet", 2, without="topic")
    assert plain_layout(options(tmp_path / "a", tmp_path / "b"), ("key",)) is None


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1xxxxPAR1", b"no Parquet at all"])
def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    """Spark would take an empty one for no rows, and not name a torn one."""
    write(tmp_path / "a.parquet", 0)
    torn = tmp_path / "b.parquet"
    torn.write_bytes(content)
    with pytest.raises(BackfillError, match=re.escape(f"{str(torn)!r} cannot be read as Parquet")) as caught:
        plain_layout(options(tmp_path), ("key",))
    assert "\n" not in str(caught.value)


def _replace(path: Path) -> None:
    other = write(path.with_name("other"), 0, 1, 2, 4)
    other.replace(path)


def _rewrite(path: Path) -> None:
    told = path.stat()
    write(path, 0, 1, 2, 3, row_group_size=1)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


def _write_over(path: Path) -> None:
    """Other rows of the same size, in the same row groups, at the same time."""
    told = path.stat()
    table = kafka_table(
        [Record("orders", 0, offset, BASE_MS + offset, b"%d" % offset) for offset in (5, 6, 7, 8)]
    )
    pq.write_table(table, path)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


@pytest.mark.parametrize("change", [_replace, _rewrite, _write_over])
def test_a_file_that_changes_before_it_is_read_is_named(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Row groups are numbers of the file that was looked at: in another they would be other rows."""
    path = write(tmp_path / "a.parquet", 0, 1, 2, 3)
    reader = reader_of(tmp_path)
    assert sum(len(batch.offsets) for batch in reader.read(0)) == 4
    change(path)
    with pytest.raises(BackfillError, match=re.escape(f"{str(path)!r} is another since")):
        list(reader.read(0))


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    """Bytes written over an open file may be read as something else."""
    path = write(tmp_path / "a.parquet", 0, 1, 2, 3, row_group_size=2)
    found = reader_of(tmp_path).read(0)
    assert len(next(found).offsets) == 2
    told, content = path.stat(), bytearray(path.read_bytes())
    # Where it says who wrote it.
    at = content.rindex(b"parquet-cpp-arrow")
    content[at : at + 4] = b"PARQ"
    path.write_bytes(content)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    with pytest.raises(BackfillError, match=re.escape(f"{str(path)!r} is another since")):
        list(found)


def test_when_a_file_was_changed_says_nothing(tmp_path: Path) -> None:
    """The clocks of two machines, or of their mounts, differ: a file is known by its content."""
    path = write(tmp_path / "a.parquet", 0, 1, 2, 3)
    reader = reader_of(tmp_path)
    os.utime(path, ns=(0, 0))
    assert sum(len(batch.offsets) for batch in reader.read(0)) == 4


def test_a_file_that_is_gone_or_damaged_inside_is_named(tmp_path: Path) -> None:
    """Also where only its pages are torn, which nobody sees before they are read."""
    path = write(tmp_path / "a.parquet", *range(1_000))
    reader = reader_of(tmp_path)
    told, content = path.stat(), bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    with pytest.raises(
        BackfillError, match=re.escape(f"{str(path)!r} cannot be read as Parquet (")
    ) as caught:
        list(reader.read(0))
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(BackfillError, match=re.escape(f"{str(path)!r} is gone since")):
        list(reader.read(0))


def with_null_topic(path: Path) -> None:
    """Write three rows, one of them without a topic."""
    table = kafka_table(records(0, 1, 2))
    topics = pa.array(["orders", None, "orders"])
    pq.write_table(table.set_column(0, "topic", topics), path)


@pytest.mark.spark
def test_rows_without_a_topic_end_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """Left out without a word they might be lost, taken for the asked topic's invented.

    By Arrow and by Spark they are counted.
    """
    with_null_topic(tmp_path / "a.parquet")
    layout = plain_layout(options(tmp_path), ("key",))
    assert layout is not None
    for archive in (
        Archive(ParquetFiles(spark, "orders", layout), id_spec("key")),
        spark_archive(spark, options(tmp_path)),
    ):
        with pytest.raises(BackfillError, match="the archive has 1 row without topic"):
            archive.survey({}, {})


@pytest.mark.spark
def test_lines_without_a_topic_end_the_run_beside_such_that_have_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They may be of any topic; where no line has one they are of the topic that is asked for."""

    def survey(*topics: str | None) -> Any:
        lines = [
            {"partition": 0, "offset": number, "timestamp": BASE_MS, "key": "a"}
            | ({} if topic is None else {"topic": topic})
            for number, topic in enumerate(topics)
        ]
        path = tmp_path / "a.json"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        columns = parse_columns(("timestamp=timestamp:ms",))
        described = ArchiveOptions(
            places=(str(path),), format="json", columns=columns, isolation="read_committed"
        )
        return spark_archive(spark, described).survey({}, {})

    assert survey(None, None)[0].rows == 2
    with pytest.raises(BackfillError, match="the archive has 1 row without topic"):
        survey(None, "orders")
    with pytest.raises(BackfillError, match="the archive has 1 row without topic"):
        survey(None, "payments")


@pytest.mark.spark
@pytest.mark.parametrize("turned", [False, True])
def test_of_an_offset_that_comes_twice_the_earlier_time_counts(
    spark: SparkSession, tmp_path: Path, *, turned: bool
) -> None:
    """For horizons as for marks, whatever the order of rows and files, by both readers; any time before none."""
    duplicates = [record(2, 50), record(2, 5), record(2, -1), record(0, 7), record(0, 3)]
    write_parquet(tmp_path, duplicates[::-1] if turned else duplicates, files=2)
    layout = plain_layout(options(tmp_path), ("key",))
    assert layout is not None
    for archive in (
        Archive(ParquetFiles(spark, "orders", layout), id_spec("key")),
        spark_archive(spark, options(tmp_path)),
    ):
        [found] = archive.survey({}, {}).values()
        assert (found.first_ms, found.last_ms, found.end_ms) == (3, 5, 5)


@pytest.mark.spark
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_spark_sees_the_columns_of_all_files(spark: SparkSession, tmp_path: Path, order: str) -> None:
    """Where Spark has to read, a topic that some files have is one that the others lack.

    It does not matter at which one Spark looks first.
    """
    write_parquet(tmp_path / order[0], records(0, 1), files=1)
    write(tmp_path / order[1] / "c.parquet", 2, 3, without="topic")
    archive = spark_archive(spark, options(tmp_path, recursiveFileLookup="true"))
    with pytest.raises(BackfillError, match="the archive has 2 rows without topic"):
        archive.survey({}, {})


def test_another_topic_may_have_any_name(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are shown as such, and the rows of the asked topic are read.

    Also where statistics have them.
    """
    names = pa.array([b"orders", b"\xff\xfe", b"\xff\xfe"])
    table = kafka_table(records(0, 1, 2)).set_column(0, "topic", names.view(pa.string()))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    batches = list(reader_of(tmp_path).read(0))
    assert [len(batch.offsets) for batch in batches] == [1, 0, 0]
    assert frozenset().union(*(batch.others for batch in batches)) == {"\ufffd\ufffd"}


@pytest.mark.spark
def test_a_dot_in_a_columns_name_is_quoted(spark: SparkSession, tmp_path: Path) -> None:
    """A dot leads into a struct, by Arrow as by Spark; the line says how the other is written."""
    table = kafka_table(records(0, 1))
    pq.write_table(
        table.rename_columns(["meta.offset" if name == "offset" else name for name in table.column_names]),
        tmp_path / "a.parquet",
    )
    unquoted = options(tmp_path, columns="offset=meta.offset")
    for opened in (lambda: plain_layout(unquoted, ("key",)), lambda: spark_archive(spark, unquoted)):
        with pytest.raises(
            ConfigurationError, match=re.escape("has a dot write offset=`meta.offset`; it has")
        ):
            opened()
    quoted = options(tmp_path, columns="offset=`meta.offset`")
    assert plain_layout(quoted, ("key",)) is None
    assert spark_archive(spark, quoted).survey({}, {})[0].end == 2


@pytest.mark.spark
def test_nanoseconds_are_numbers_for_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Arrow reads them as timestamps; where Spark reads, the line names the option to give, and that is enough."""
    table = kafka_table(records(0, 1))
    nanoseconds = table.column("timestamp").cast(pa.timestamp("ns", "UTC"))
    pq.write_table(table.set_column(3, "timestamp", nanoseconds), tmp_path / "a.parquet")
    columns = "timestamp=timestamp:ns"
    with pytest.raises(Exception, match="nanoseconds as such") as caught:
        spark_archive(spark, options(tmp_path)).survey({}, {})
    assert "--columns timestamp=COLUMN:ns" in one_line(caught.value)
    (setting,) = re.findall(r"--conf (\S+)=true", one_line(caught.value))
    spark.conf.set(setting, "true")
    try:
        found = spark_archive(spark, options(tmp_path, columns=columns))
        assert found.survey({}, {})[0].end_ms == BASE_MS + 1
    finally:
        spark.conf.unset(setting)


@pytest.mark.spark
@pytest.mark.parametrize(("unit", "a_ms"), [("us", 1_000), ("ns", 1_000_000)])
def test_times_before_1970_are_rounded_down(
    spark: SparkSession, tmp_path: Path, unit: str, a_ms: int
) -> None:
    """Numbers become the same milliseconds by Arrow as by Spark, those of a timestamp column, too."""
    numbers = [-a_ms - 1, -a_ms, -a_ms + 1, -1, 0, 1, a_ms - 1, a_ms, -(2**63), 2**63 - 1]
    table = kafka_table(records(*range(len(numbers))))
    pq.write_table(table.set_column(3, "timestamp", pa.array(numbers)), tmp_path / "a.parquet")
    described = options(tmp_path, columns=f"timestamp=timestamp:{unit}")
    layout = plain_layout(described, ("key",))
    assert layout is not None
    reader = ParquetReader(topic="orders", layout=layout, tasks=tuple(deal_out(layout.groups, 1)))
    (batch,) = reader.read(0)
    by_spark = spark_archive(spark, described).files.records({0: (0, 99)}).frame.orderBy("offset").collect()
    expected = [number // a_ms for number in numbers]
    assert batch.timestamps.tolist() == expected
    assert [row["timestamp_ms"] for row in by_spark] == expected
