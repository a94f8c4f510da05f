"""One ID language on every source: the records of an archive have the IDs that they had in Kafka."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk._record import Record
from dedup_sdk.ids import RecordFields, id_spec
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import parse_columns
from spark_backfill.rows import Wanted
from tests.support.archives import spark_archive, write_json_lines, write_parquet

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Content = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

pytestmark = pytest.mark.spark
SPECS = (
    "header:id", "key", "unframed-key", "value", "cloudevents", "json:/id", "json:/id+key", "header:id+json:/id",
    "py:tests.spark.test_archive_ids:of_all@1",
)  # fmt: skip
BASE64 = "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64"


def of_all(record: Record) -> str:
    """An ID of the user's own, of everything that a record has."""
    return repr((record.topic, record.partition, record.key, record.value, tuple(record.headers)))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["1.0", "1e2", "5", "-0", "0.1", "1E400", "9223372036854775807", "9223372036854775808"]),
)
scalars = st.one_of(
    numbers,
    texts.map(json.dumps),
    texts.map(lambda each: json.dumps(each, ensure_ascii=False)),
    st.sampled_from(["null", "true", "{}", '"5"']),
)
bodies = st.one_of(
    scalars.map(lambda each: f'{{"id": {each}}}'.encode()),
    st.tuples(scalars, scalars).map(lambda two: f'{{"id": {two[0]}, "id": {two[1]}}}'.encode()),
    st.sampled_from([None, b"", b"no json", b"\xff\xfe", b'\xef\xbb\xbf{"id":"5"}', b'{"id":"\\ud800"}']),
)
some_bytes = st.one_of(st.none(), st.sampled_from([b"", b"a", b"\xff", b"\x00"]), st.binary(max_size=20))
names = st.one_of(st.sampled_from(["id", "ID", "ce_id", "CE_ID", "ce_source", ""]), texts)
headers = st.lists(st.tuples(names, some_bytes), max_size=4)
contents = st.lists(st.tuples(some_bytes, bodies, headers), min_size=40, max_size=120)


def made(found: list[Content]) -> list[Record]:
    """Records of these contents, in three partitions."""
    return [
        Record("orders", offset % 3, offset, 1_700_000_000_000 + offset, key, value, tuple(pairs))
        for offset, (key, value, pairs) in enumerate(found)
    ]


def digests(
    spark: SparkSession, count: int, place: Path, *, form: str, columns: str = ""
) -> dict[str, list[bytes | None]]:
    """By spec, the digests of all records of an archive in the order of their offsets."""
    options = ArchiveOptions(
        places=(str(place),),
        format=form,
        columns=parse_columns([columns]) if columns else {},
        isolation="read_committed",
    )
    frames = []
    for text in SPECS:
        bounds = dict.fromkeys(range(3), (0, count))
        frame, task = spark_archive(spark, options, text).rows(bounds, Wanted(spec=text))
        frames.append(frame.mapInArrow(task, task.wanted.schema).withColumn("spec", F.lit(text)))
    found = {
        (row["spec"], row["offset"]): row["digest"] and bytes(row["digest"])
        for row in reduce(DataFrame.union, frames).collect()
    }
    return {text: [found[text, offset] for offset in range(count)] for text in SPECS}


@pytest.mark.slow
def test_archives_have_the_ids_of_the_sdk(spark: SparkSession, tmp_path: Path, fresh_seed: int) -> None:
    """For every kind of spec the digest of a record is the same from the SDK, from Parquet and from JSON lines."""

    # Other contents in each run.
    @seed(fresh_seed)
    @settings(
        max_examples=1, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
    )
    @given(content=contents)
    def are_the_same(content: list[Content]) -> None:
        # The first content that is made is the simplest one: the same record forty times.
        assume(any(each != content[0] for each in content))
        records = made(content)
        expected = {text: id_spec(text).digests(RecordFields(records)).digests for text in SPECS}
        number = len(list(tmp_path.iterdir()))
        parquet = write_parquet(tmp_path / f"{number}", records, files=1)
        lines = write_json_lines(tmp_path / f"{number}.jsonl", records)
        assert digests(spark, len(records), parquet, form="parquet") == expected
        assert digests(spark, len(records), lines, form="json", columns=BASE64) == expected

    are_the_same()
