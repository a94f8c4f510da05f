"""Runs in which no record has an ID that can be read.

The snapshot is there, and a line says which option may be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Record
from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.archives import write_parquet
from tests.support.lived_topics import ARCHIVE, BASE_MS, GTIDS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
UNREADABLE = (
    "warning: of 2 records none has an ID by header:gtid that mysql-gtid can read: are --id and --order "
    "right?"
)
NOT_LOOKED_UP = "warning: of 2 records none has an ID by header:other to be looked up: is --otherwise right?"
READABLE = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1"


@pytest.mark.parametrize(
    ("options", "idents", "warning"),
    [
        (GTIDS.options, ("1", "2"), UNREADABLE),
        (GTIDS.options[:4], ("1", None), UNREADABLE),
        (GTIDS.options, ("1", READABLE), None),
        (SECOND.options, (READABLE, READABLE), NOT_LOOKED_UP),
    ],
    ids=["sources", "partition", "one is enough", "second opinion"],
)
def test_where_no_id_can_be_read_it_is_said(
    options: tuple[str, ...],
    idents: tuple[str, str | None],
    warning: str | None,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """One ID that can be read is enough for silence."""
    records = [
        Record(
            "orders", 0, at, BASE_MS + at,
            headers=[("producer", b"p"), ("another", b"x"), *([("gtid", text.encode())] if text else [])],
        )
        for at, text in enumerate(idents)
    ]  # fmt: skip
    source = write_parquet(tmp_path / "archive", records, files=1)
    said: list[str] = []
    given = ["--topic", "orders", "--whole-topic", "--cluster-id", "c", "--topic-id", "t", *ARCHIVE]
    given += [*options, "--source", str(source), "--output", str(tmp_path / "s")]
    report = backfill(parse_options(given, print), on_spark(lambda: spark), say=said.append)
    readable = sum(text is not None and ":" in text for text in idents)
    assert (report.records, report.unkeyed, report.marks) == (2, idents.count(None), min(readable, 1))
    assert report.malformed == 2 - report.unkeyed - readable
    assert [line for line in said if line.startswith("warning: ")] == ([warning] if warning else [])
