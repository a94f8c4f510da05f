"""File names of Kafka Connect's sinks, and when they say where a row stands."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from spark_backfill.connect_files import count_places
from spark_backfill.connect_layout import ConnectFile, check_folders, check_rows, open_files, parse_file_name
from spark_backfill.errors import BackfillError


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("orders+3+0000012000.json", ConnectFile("orders", 3, 12_000, None)),
        ("or.de-rs_1+0+0000000000.snappy.parquet", ConnectFile("or.de-rs_1", 0, 0, None)),
        ("orders+3+0000012000+0000012999.avro", ConnectFile("orders", 3, 12_000, 12_999)),
        ("orders+3+12", ConnectFile("orders", 3, 12, None)),
        ("part-00000-7c.c000.snappy.parquet", None),
        ("orders+x+12.json", None),
        ("orders+3.json", None),
    ],
)
def test_names_of_sinks(name: str, file: ConnectFile | None) -> None:
    """Names of the object stores' sinks and of HDFS are read, any other is none of them."""
    assert parse_file_name(name) == file


def test_whole_files_say_where_their_rows_stand() -> None:
    """Files that follow on each other have one row for each offset.

    Of the last one nothing more can be asked, so that it is left out.
    """
    rows = {"t+0+2.json": 3, "t+0+0.json": 2, "t+0+5.json": 9, "t+1+4.json": 1, "t+2+0+7.avro": 8}
    check_rows(rows)
    assert open_files([*rows, "other+3+9.json"], "t") == {
        0: (5, "t+0+5.json"),
        1: (4, "t+1+4.json"),
    }


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"t+0+0.json": 2, "t+0+3.json": 1}, "'t+0+0.json' has 2 rows for offsets 0 to 2"),
        ({"t+0+0.json": 4, "t+0+3.json": 1}, "'t+0+0.json' has 4 rows for offsets 0 to 2"),
        ({"t+0+0+9.avro": 9}, "'t+0+0+9.avro' has 9 rows for offsets 0 to 9"),
        ({"t+0+0.json": 1, "t+0+0.keys.json": 1}, "both have offset 0 of partition 0"),
        ({"t+0+0+9.avro": 10, "t+0+5+14.avro": 10}, "both have offset 5 of partition 0"),
        ({"t+0+0.avro": 10, "t+0+0+9.avro": 10}, "both have offset 0 of partition 0"),
        ({"part-0.json": 1}, "'part-0.json' does not say which offsets it has"),
    ],
)
def test_files_that_do_not_say_it_are_refused(rows: dict[str, int], says: str) -> None:
    """Holes, overlaps and other names end in one line with the file's name."""
    with pytest.raises(BackfillError, match=re.escape(says)):
        check_rows(rows)


@pytest.mark.parametrize(
    "paths",
    [
        ["file:/a/hour=1/t+0+0.json", "file:/a/hour=2/t+0+2.json"],
        ["s3a://b/year=2026/month=05/t+0+0.json", "s3a://b/year%3D2026/month%3D06/t+0+2.json"],
        ["/a/country=NZ/t+0+0.parquet", "/a/partition=0/t+0+2.parquet", "/a/country=AU/t+0+4.parquet"],
        ["/a/hour=1/partition=0/t+0+0.json", "/a/hour=2/partition=0/t+0+2.json"],
    ],
)
def test_sinks_that_write_several_files_at_once_are_refused(paths: list[str]) -> None:
    """A hole in one file and a late row there would make up for each other.

    A row would pass for one of a lower offset.
    """
    with pytest.raises(BackfillError, match=r"^files of partition 0 lie in the folders .*=COLUMN$"):
        check_folders(paths)


@pytest.mark.parametrize(
    "paths",
    [
        ["/a/partition=0/t+0+0.json", "/b/partition=0/t+0+2.json", "/a/partition=1/t+1+0.json"],
        ["/a/may/t+0+0.json", "/a/june/t+0+2.json"],
        ["/a/hour=1/t+0+0.json", "/a/hour=1/t+0+2.json", "/a/hour=2/t+1+0.json"],
        ["/a/hour=1/t+0+0+1.avro", "/a/hour=2/t+0+2+3.avro"],
        ["/a/hour=1/t+0+0.json", "/a/hour=2/u+0+2.json"],
    ],
)
def test_sinks_that_write_one_file_after_the_other_are_taken(paths: list[str]) -> None:
    """Folders of partitions, those that somebody moved, one folder a partition, and files that say where they end."""
    check_folders(paths)


def test_places_are_counted_through_batches() -> None:
    """The place of a row goes on from batch to batch, and begins anew with each file."""

    def batch(*files: str) -> pa.RecordBatch:
        count = len(files)
        return pa.RecordBatch.from_pydict(
            {"value": [b"v"] * count, "file": files, "block_start": [0] * count}
        )

    counted = count_places([batch("a", "a", "b"), batch(), batch("b", "c")])
    assert [each.column("place").to_pylist() for each in counted] == [[0, 1, 0], [1, 0]]
    split = pa.RecordBatch.from_pydict({"file": ["a"], "block_start": [5]})
    with pytest.raises(ValueError, match="a GiB or more"):
        list(count_places([split]))
