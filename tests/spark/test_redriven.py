"""A whole topic into which dead letters were sent back.

Nobody in particular remembers it, so that each reader must find its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Record, id_spec
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.ids import RecordFields
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value, redriven_digest
from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.archives import write_json_lines, write_parquet
from tests.support.known_marks import read_sorted_file
from tests.support.lived_topics import ARCHIVE, BASE_MS, JSON, LINES, PARQUET, TWICE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk._decision import Mark

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    ("spec", "form"),
    [("key", PARQUET), ("json:/id", TWICE), ("header:dedup-id", LINES), ("json:/id", LINES)],
)
def test_a_whole_topic_marks_both(spec: str, form: str, spark: SparkSession, tmp_path: Path) -> None:
    """The group that a header names knows the record by ID and header, all others by its ID.

    As Arrow reads it, and as Spark does.
    """
    records = [
        Record(
            "orders",
            0,
            offset,
            BASE_MS + offset,
            ident,
            b'{"id": "%s"}' % ident,
            [("dedup-id", ident), *([(REDRIVE_HEADER, back)] if back else [])],
        )
        for offset, (ident, back) in enumerate(
            [
                (b"a", None),
                (b"b", None),
                (b"a", redrive_value("g", "orders", 0, 0, 1)),
                (b"a", redrive_value("g", "orders", 0, 0, 1)),
                (b"c", b"no redrive"),
            ]
        )
    ]
    if form == LINES:
        source = [str(write_json_lines(tmp_path / "lines.jsonl", records)), *JSON]
    else:
        rows = [*records, *records[1:4]] if form == TWICE else records
        source = [str(write_parquet(tmp_path / "archive", rows, files=1 if form == TWICE else 2))]
    plain = id_spec(spec)
    ids = {text: plain.digests(_fields(text.encode())).digests[0] or b"" for text in "abc"}
    redriven = redriven_digest(ids["a"], redrive_value("g", "orders", 0, 0, 1))
    folder = tmp_path / "snapshot"
    given = [
        "--topic",
        "orders",
        "--whole-topic",
        "--cluster-id",
        "c",
        "--topic-id",
        "t",
        "--id",
        spec,
        "--window",
        "1h",
    ]
    given += [*ARCHIVE, "--output", str(folder), "--source", *source]
    report = backfill(parse_options(given, print), on_spark(lambda: spark))
    manifest = verify_snapshot(folder)
    found: dict[bytes, Mark] = {}
    for file in manifest.partitions[0].files:
        found |= read_sorted_file(folder / "0" / f"{file.name}.sst")
    assert {digest: mark.offset for digest, mark in found.items()} == {
        ids["a"]: 3,
        ids["b"]: 1,
        ids["c"]: 4,
        redriven: 3,
    }
    assert (report.marks, manifest.partitions[0].low, manifest.partitions[0].high) == (4, 0, 5)
    # Some records left two marks, so that the difference of the numbers is none of duplicates.
    assert report.duplicates_or_expired is None


def _fields(ident: bytes) -> Any:
    return RecordFields([Record("orders", 0, 0, 0, ident, b'{"id": "%s"}' % ident, [("dedup-id", ident)])])
