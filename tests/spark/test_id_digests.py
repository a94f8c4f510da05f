"""One ID language: the SDK and Spark give the same record the same digest, hostile records included."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._record import Record
from dedup_sdk.ids import MAX_ID_BYTES, RecordFields, id_spec
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.ids._spec import GroupKeys, redriven_keys
from spark_backfill.archive import RowsTask
from spark_backfill.column_map import id_columns
from spark_backfill.rows import Wanted
from spark_backfill.spark_files import frame_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = (
    "topic string, partition int, offset long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
GROUP = "billing & co"
_LIMIT = b"x" * MAX_ID_BYTES
_NAMES = [
    "dedup-id",
    "Dedup-Id",
    "ce_id",
    "CE_ID",
    "ce_source",
    "Ce_Source",
    "trace",
    "",
    "ce_İd",
    "ce_\u017fource",
    "größe",
    "content-type",
    "Content-Type",
]
_EVENT = b"application/cloudevents+json"
_BYTES = [
    None, b"", b"a", b"ab", b"\x00", b"\0\0\0\0\7a", b"\0\0\0\1\7bc",
    b"\0\0\0\0\7" + b"d" * 60, b"\xff\xfe", b"b" * 55, b"c" * 56, "größe".encode(), _LIMIT, _LIMIT + b"x",
    b"y" * 40_000, _EVENT, _EVENT + b"; charset=UTF-8", b" Application/CloudEvents+JSON ", _EVENT + b"x",
]  # fmt: skip
_SHORT = [*_BYTES[:9], *_BYTES[-4:]]
_VALUES = [
    *_BYTES, b"{}", b'{"order":{"id":"5"}}', b'{"order":{"id":5}}', b'{"order":{"id":5.0}}', b'{"order":{"id":null}}',
    b'{"order":{"id":true}}', b'{"order":{"id":"1"},"order":{"id":"2"}}', b'{"order":{"id":9223372036854775808}}',
    b'{"order":{"id":-9223372036854775808}}', b'\xef\xbb\xbf{"order":{"id":"5"}}', b'{"order":{"id":"\\ud800"}}',
    b'{"order":{"id":NaN}}', b"[" * 300, b'{"order":{"id":""}}', b'{"order":[1]}', b'{"order":{"id":1e400}}',
    b'{"id":"a","source":"ab"}', b'{"id":"a","source":""}', b'{"id":"","source":"ab"}', b'{"id":1,"source":"ab"}',
    b'{"id":null,"source":"ab"}',
    b'["id","source"]', b'{"id":"\\ud800","source":"ab"}',
    b'{"order":{"id":' + b"9" * 5_000 + b"}}",
]  # fmt: skip


def by_offset(record: Record) -> str | int | None:
    """An ID of the user's own: sometimes a text, sometimes a number, sometimes none, sometimes an exception."""
    if record.offset % 5 == 0:
        raise LookupError(record.offset)
    if record.offset % 5 == 1:
        return None
    if record.offset % 5 == 2:
        return record.offset
    return f"{record.topic}/{record.partition}/{record.timestamp_ms}/{len(record.headers)}/{record.key!r}"


def _hostile_records(count: int) -> list[Record]:
    source = random.Random(7)
    records = []
    for offset in range(count):
        headers = [
            (source.choice(_NAMES), source.choice(_SHORT if source.random() < 0.95 else _BYTES))
            for _ in range(source.choice([0, 1, 1, 2, 3, 6]))
        ]
        records.append(
            Record(
                "orders",
                offset % 3,
                offset,
                source.choice([-1, 0, 1_700_000_000_000]),
                source.choice(_BYTES),
                source.choice(_VALUES),
                headers,
            )
        )
    return records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Records as a careless or hostile producer might send them."""
    return _hostile_records(600)


@pytest.fixture(scope="module")
def kafka_rows(spark: SparkSession, records: list[Record]) -> DataFrame:
    """The same records with Kafka's columns, without empty lists of headers."""
    rows = [
        (
            each.topic,
            each.partition,
            each.offset,
            each.timestamp_ms,
            each.key,
            each.value,
            list(each.headers) or None,
        )
        for each in records
    ]
    return spark.createDataFrame(rows, _SCHEMA).repartition(3).cache()


def digested(frame: DataFrame, text: str, group: str | None = None) -> DataFrame:
    """The rows of records, as a group knows them."""
    wanted = Wanted(spec=text, group=group, with_redriven=group is None)
    task = RowsTask(frame_batches, wanted, dict.fromkeys(range(3), (0, 10**6)))
    places = ["topic", "partition", "offset", "timestamp_ms"]
    read = frame.select(*dict.fromkeys([*places, *id_columns(id_spec(text)), "headers"]))
    return read.mapInArrow(task, wanted.schema)


@pytest.mark.parametrize(
    "text",
    [
        "header:dedup-id",
        "header:ce_id",
        "header:gr%C3%B6%C3%9Fe",
        "key",
        "value",
        "cloudevents",
        "unframed-key",
        "header:dedup-id+key",
        "key+header:dedup-id",
        "key+value+header:trace",
        "cloudevents+key",
        "json:/order/id",
        "header:trace+json:/order/id",
        "json:/order/id+key",
        "py:tests.spark.test_id_digests:by_offset@1",
        "py:tests.spark.test_id_digests:by_offset@1+key",
    ],
)
def test_spark_and_sdk_agree(text: str, records: list[Record], kafka_rows: DataFrame) -> None:
    """For every kind of spec and record, both give the same 16 bytes, or both give none."""
    spec = id_spec(text)
    expected = spec.digests(RecordFields(records)).digests
    rows = digested(kafka_rows, text).collect()
    found = {row["offset"]: row["digest"] and bytes(row["digest"]) for row in rows}
    assert [found[record.offset] for record in records] == expected
    assert len(rows) == len(records)
    assert None in expected
    assert len(set(expected)) > 3


@pytest.fixture(scope="module")
def redriven() -> list[Record]:
    """Records with redrive headers: that of the group, of others, several, and others."""
    source = random.Random(11)
    values = [
        redrive_value(GROUP, "orders", 0, 7, 1),
        redrive_value(GROUP, "orders", 0, 8, -1),
        redrive_value("billing", "orders", 0, 7, 1),
        redrive_value(GROUP + " ", "orders", 0, 7, 1),
        b"group=",
        b"",
        b"\xff",
        None,
    ]
    return [
        replace(
            each,
            headers=[*each.headers, *((REDRIVE_HEADER, source.choice(values)) for _ in range(source.choice([0, 1, 1,
                                                                                                            2])))],
        )
        for each in _hostile_records(400)
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["header:dedup-id", "key", "value+header:trace", "json:/order/id"])
@pytest.mark.parametrize("group", [None, GROUP])
def test_redriven_ids_are_those_of_the_group(
    text: str, group: str | None, redriven: list[Record], spark: SparkSession
) -> None:
    """As the consumers of that group read them; without a group both, as every group reads them."""
    spec = id_spec(text)
    rows = [
        (each.topic, each.partition, each.offset, each.timestamp_ms, each.key, each.value, list(each.headers) or None)
        for each in redriven
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, _SCHEMA)
    fields = RecordFields(redriven)
    found = {row["offset"]: row for row in digested(frame, text, group).collect()}
    ids = [found[each.offset]["digest"] for each in redriven]
    plain = spec.digests(fields)
    if group is not None:
        assert ids == GroupKeys(spec, group).digests(fields).digests
        assert sum(one != other for one, other in zip(ids, plain.digests, strict=True)) > 5
        return
    assert ids == plain.digests
    besides = redriven_keys(spec, plain, fields, None)
    assert {row: found[row]["redriven"] for row in found if found[row]["redriven"]} == besides
    assert len(besides) > 5


def test_only_needed_columns_travel_to_python(kafka_rows: DataFrame) -> None:
    """A JSON pointer does not carry keys through Arrow; headers may have been redriven."""
    frame = digested(kafka_rows, "json:/order/id")
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    (project,) = [line for line in plan.splitlines() if "Project" in line][:1]
    assert "value#" in project
    assert "headers#" in project
    assert " key#" not in project
