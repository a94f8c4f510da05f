"""The rows of an archive, however they are called and written there, as records of Kafka."""

from __future__ import annotations

import csv
import json
import re
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dedup_sdk._record import Record
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive import Archive
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.parquet_files import plain_layout
from spark_backfill.range_plan import Archived
from spark_backfill.rows import Wanted
from spark_backfill.spark_files import SparkFiles
from tests.support.archives import coded, lines, records, table, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.spark
BASE_MS = 1_700_000_000_000


@pytest.mark.slow
def test_rows_of_the_kafka_source_need_no_mapping(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Parquet with the columns of Spark's Kafka source gives the records that were written.

    Other topics are left out.
    """
    kept = [
        Record("orders", 0, 0, BASE_MS, b"k", b"v", (("a", b"1"), ("a", None))),
        Record("orders", 1, 5, BASE_MS + 7, None, None, ()),
    ]
    write_parquet(tmp_path, [*kept, Record("flights", 0, 0, BASE_MS, b"x")])
    opened = archive("parquet")
    assert records(opened, 0, 1) == kept
    assert opened.survey({}, {}) == {
        0: Archived(0, 0, 1, 1, BASE_MS, BASE_MS, None, BASE_MS, BASE_MS),
        1: Archived(1, 5, 6, 1, BASE_MS + 7, BASE_MS + 7, None, BASE_MS + 7, BASE_MS + 7),
    }  # fmt: skip


def test_columns_of_any_name_and_type(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Nested offsets, microseconds, texts for bytes, and a map of headers are read as mapped."""
    table(
        tmp_path / "a.parquet",
        meta=[{"part": 0, "at": 3}, {"part": 0, "at": 4}],
        us=[BASE_MS * 1000 + 999, BASE_MS * 1000 + 1000],
        k=["größe", None],
        v=["00ff", ""],
        h=pa.array([[("id", "x")], None], pa.map_(pa.string(), pa.string())),
    )
    opened = archive(
        "parquet", "partition=meta.part,offset=meta.at", "timestamp=us:us,key=k,value=v:hex,headers=h"
    )
    assert records(opened) == [
        Record("orders", 0, 3, BASE_MS, "größe".encode(), b"\x00\xff", (("id", b"x"),)),
        Record("orders", 0, 4, BASE_MS + 1, None, b"", ()),
    ]


@pytest.mark.parametrize(
    ("event_id", "form", "plain"),
    [
        (["x", None], "", (b"x", None)),
        ([b"x", None], "", (b"x", None)),
        ([2**40, None], "", (b"1099511627776", None)),
        (["78", None], ":hex", (b"x", None)),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_header_may_be_a_column(
    archive: Callable[..., Archive],
    tmp_path: Path,
    event_id: list[Any],
    form: str,
    plain: tuple[bytes | None, ...],
    *,
    listed: bool,
) -> None:
    """A plain column is a header, behind those of the record; null is none."""
    columns = {"headers": [[{"key": "a", "value": b"1"}], None]} if listed else {}
    table(tmp_path / "a.parquet", partition=[0, 0], offset=[0, 1], event_id=event_id, **columns)
    found = records(
        archive("parquet", f"timestamp=-,header.dedup-id=event_id{form}", spec="header:dedup-id"), key=False
    )
    own = [(("dedup-id", value),) if value is not None else () for value in plain]
    before = [(("a", b"1"),), ()] if listed else [(), ()]
    assert [each.headers for each in found] == [one + other for one, other in zip(before, own, strict=True)]


@pytest.mark.parametrize(
    ("columns", "map_"),
    [
        ({"names": [["id", "n"], []], "values": [["x", None], []]}, "headers.key=names,headers.value=values"),
        ({"names": [[b"id"], []], "values": [[b"x"], []]}, "headers.key=names,headers.value=values"),
        ({"headers": [{"id": "x", "n": None}, None]}, ""),
        ({"h.n": [["id"], []], "values": [["eA=="], []]}, "headers.key=`h.n`,headers.value=values:base64"),
        ({"headers": pa.array([[("id", "x")], None], pa.map_(pa.string(), pa.string()))}, ""),
    ],
    ids=["lists of texts", "lists of bytes", "struct", "list of a dotted name", "map"],
)
def test_forms_of_headers(
    archive: Callable[..., Archive], tmp_path: Path, columns: dict[str, Any], map_: str
) -> None:
    """Two lists and structs are headers like a list of pairs."""
    table(tmp_path / "a.parquet", partition=[0, 0], offset=[0, 1], **columns)
    opened = archive("parquet", f"timestamp=-{map_ and ','}{map_}", spec="header:id")
    found = [{name: value for name, value in each.headers if value} for each in records(opened, key=False)]
    assert found == [{"id": b"x"}, {}]


@pytest.mark.parametrize("map_", ["header.id=event", "headers.key=n,headers.value=v", "headers=h"])
def test_forms_of_headers_in_json_lines(archive: Callable[..., Archive], tmp_path: Path, map_: str) -> None:
    """A number keeps its digits."""
    line = '{"partition":0,"offset":0,"event":1e2,"n":["id"],"v":[1e2],"h":{"id":"1e2"}}'
    lines(tmp_path / "a.jsonl", line)
    (found,) = records(archive("json", f"timestamp=-,{map_}", spec="header:id"), key=False)
    assert found.headers == (("id", b"1e2"),)


METADATA = (
    "offset=RECORD_METADATA.offset,partition=RECORD_METADATA.partition,topic=RECORD_METADATA.topic,"
    "timestamp=RECORD_METADATA.CreateTime:ms,key=RECORD_METADATA.key,value=RECORD_CONTENT,"
    "headers=RECORD_METADATA.headers"
)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_columns_of_json_text_have_fields(archive: Callable[..., Archive], tmp_path: Path, form: str) -> None:
    """The same mapping reads objects and their JSON text, as Snowflake unloads its tables."""
    metadata = (
        f'{{"CreateTime":{BASE_MS},"headers":{{"id":"5"}},"key":"k","offset":0,"partition":0,"topic":"orders"}}',
        f'{{"CreateTime":{BASE_MS},"key":12345678901234567890,"offset":1,"partition":0,"topic":"orders"}}',
    )
    content = '{"id": 1e2, "name":"a,b"}'
    if form == "json":
        lines(
            tmp_path / "a.json", *(f'{{"RECORD_METADATA":{m},"RECORD_CONTENT":{content}}}' for m in metadata)
        )
    elif form == "parquet":
        table(tmp_path / "a.parquet", RECORD_METADATA=metadata, RECORD_CONTENT=[content] * 2)
    else:
        with (tmp_path / "a.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("RECORD_METADATA", "RECORD_CONTENT"), *((m, content) for m in metadata)])
    options = {"header": "true", "escape": '"'} if form == "csv" else {}
    assert records(archive(form, METADATA, read_options=options)) == [
        Record("orders", 0, 0, BASE_MS, b"k", content.encode(), (("id", b"5"),)),
        Record("orders", 0, 1, BASE_MS, b"12345678901234567890", content.encode(), ()),
    ]


def test_lines_of_a_sink_without_a_header_line(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Numbers, times and headers are texts there, the headers as pairs in base64, as Aiven's sinks write them."""
    rows = (
        f"{coded('k')},{coded('v,w')},7,1767323045006,{coded('id')}:{coded('x')};{coded('n')}:;",
        f",{coded('v')},8,1767323045006,",
    )
    lines(tmp_path / "orders-3-7", *rows)
    columns = "key=_c0:base64,value=_c1:base64,offset=_c2,timestamp=_c3:ms,headers=_c4"
    found = records(archive("csv", f"{columns},partition=path:-([0-9]+)-[0-9]+$"), 3)
    assert found == [
        Record("orders", 3, 7, 1_767_323_045_006, b"k", b"v,w", (("id", b"x"), ("n", b""))),
        Record("orders", 3, 8, 1_767_323_045_006, None, b"v", ()),
    ]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_rows_of_clickhouse(archive: Callable[..., Archive], tmp_path: Path, form: str) -> None:
    """In its JSON large integers are texts; in its Parquet texts may be bytes; both have names with a dot."""
    columns = (
        "offset=_offset,partition=_partition,topic=_topic,key=_key,value=-,headers.key=`_headers.name`,"
        "headers.value=`_headers.value`,timestamp=_timestamp_ms"
    )
    row = {
        "_topic": "orders",
        "_partition": "0",
        "_offset": "3",
        "_key": "k",
        "_timestamp_ms": "2026-01-02 03:04:05.006",
    }
    lists = {"_headers.name": ["id"], "_headers.value": ["x"]}
    if form == "json":
        lines(tmp_path / "a.json", row | lists)
        columns += ":iso"
    elif form == "csv":
        titles = ",".join(f'"{name}"' for name in (*row, *lists))
        texts = ",".join(f'"{each}"' for each in (*row.values(), *lists.values()))
        lines(tmp_path / "a.csv", titles, texts)
        columns += ":iso"
    else:
        table(
            tmp_path / "a.parquet",
            _topic=[b"orders"],
            _key=[b"k"],
            _partition=pa.array([0], pa.uint64()),
            _offset=pa.array([3], pa.uint64()),
            _timestamp_ms=pa.array([1_767_323_045_006], pa.timestamp("ms", tz="UTC")),
            **{name: [[each.encode() for each in of]] for name, of in lists.items()},
        )
    expected = Record("orders", 0, 3, 1_767_323_045_006, b"k", None, (("id", b"x"),))
    assert records(archive(form, columns, read_options={"header": "true"})) == [expected]


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        ("ms", str(BASE_MS), BASE_MS),
        ("s", "1700000000.5", BASE_MS + 500),
        ("ns", f"{BASE_MS}000001", BASE_MS),
    ],
)
def test_times_that_are_digits(
    archive: Callable[..., Archive], tmp_path: Path, form: str, text: str, *, found: int
) -> None:
    """A text of digits is a number, in the unit of the option."""
    table(tmp_path / "a.parquet", partition=["0"], offset=["0"], key=["k"], timestamp=[text])
    assert archive("parquet", f"timestamp=timestamp:{form}", spec="key").survey({}, {})[0].end_ms == found
    with pytest.raises(ConfigurationError, match=r"say --columns timestamp=timestamp:ms .* also :iso"):
        archive("parquet", spec="key")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "x",
            "the archive has a text that is not the JSON which is read there (Unrecognized token 'x': was exp",
        ),
        ("5", "the archive has a text that is not the JSON which is read there: check --columns"),
        ('{"at":"x"}', "the archive has the value 'x', which cannot be read as BIGINT: check --columns"),
        ('{"of":1}', "the archive has 1 row without offset"),
    ],
)
def test_text_that_is_no_json_of_a_record(
    archive: Callable[..., Archive], tmp_path: Path, text: str, says: str
) -> None:
    """One line says which text it is."""
    table(tmp_path / "a.parquet", partition=[0], meta=[text], key=["k"])
    with pytest.raises(Exception, match=r".") as caught:
        archive("parquet", "timestamp=-,offset=meta.at", spec="key").survey({}, {})
    assert one_line(caught.value).startswith(says)


def test_keys_of_integers(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """The bytes are those of Java's serializers, or the digits."""
    table(tmp_path / "a.parquet", partition=[0, 0], offset=[0, 1], key=[5, -2])
    keys = {}
    for form in ("int32", "int64", "utf8"):
        opened = archive("parquet", f"timestamp=-,key=key:{form}", spec="key")
        rows = opened.files.records({0: (0, 9)}).frame.orderBy("offset").collect()
        keys[form] = [bytes(row["key"]) for row in rows]
    assert keys == {
        "int32": [struct.pack(">i", each) for each in (5, -2)],
        "int64": [struct.pack(">q", each) for each in (5, -2)],
        "utf8": [b"5", b"-2"],
    }


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.decimal128(38), pa.float64(), pa.decimal128(22, 2)], ids=str
)
def test_integers_in_other_types(archive: Callable[..., Archive], tmp_path: Path, kind: pa.DataType) -> None:
    """Whole numbers are offsets, whatever their type; one that is not whole, or may not be, is none."""
    values = pa.array([3, 7]).cast(kind, safe=False)
    table(tmp_path / "a.parquet", partition=values, offset=values, key=["k", "k"])
    survey = archive("parquet", "timestamp=-", spec="key").survey({}, {})
    assert {number: part[1:4] for number, part in survey.items()} == {3: (3, 4, 1), 7: (7, 8, 1)}
    if pa.types.is_floating(kind):
        table(tmp_path / "a.parquet", partition=[0.0, 0.0, 0.0], offset=[1.5, 2.0**53, 1.0], key=["k"] * 3)
        with pytest.raises(BackfillError, match="the archive has 2 rows without offset"):
            archive("parquet", "timestamp=-", spec="key").survey({}, {})


@pytest.mark.parametrize(
    ("times", "form", "found"),
    [
        (pa.array([BASE_MS], pa.timestamp("ms", tz="UTC")), "s", BASE_MS),
        (pa.array([BASE_MS / 1_000 + 0.5]), "s", BASE_MS + 500),
        (pa.array([BASE_MS]).cast(pa.decimal128(38)), "ms", BASE_MS),
        (pa.array([float(BASE_MS)]), "ms", BASE_MS),
    ],
    ids=["timestamp", "seconds with a part", "decimal", "double"],
)
def test_times_in_other_types(
    archive: Callable[..., Archive], tmp_path: Path, times: pa.Array, form: str, *, found: int
) -> None:
    """A timestamp has its unit already, whatever the option says; numbers of any type have that of the option."""
    table(tmp_path / "a.parquet", partition=[0], offset=[0], key=["k"], timestamp=times)
    survey = archive("parquet", f"timestamp=timestamp:{form}", spec="key").survey({}, {})
    assert survey[0].end_ms == found


def test_the_partition_stands_in_the_path(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """In a folder that is no column, or in the name of the file; where it is not found no row counts."""
    lines(tmp_path / "orders" / "7" / "a.json", '{"offset":3}')
    options = "timestamp=-,key=-,partition=path:/([0-9]+)/a.json$"
    opened = archive("json", options, spec="key", places=(str(tmp_path / "orders" / "*"),))
    assert [(number, part.begin) for number, part in opened.survey({}, {}).items()] == [(7, 3)]
    lines(tmp_path / "named" / "orders-7-3.json", '{"offset":3}')
    lines(tmp_path / "named" / "others-7-3.json", '{"offset":4}')
    options = "timestamp=-,key=-,topic=path:([a-z]+)-[0-9]+-,partition=path:[a-z]-([0-9]+)-"
    opened = archive("json", options, spec="key", places=(str(tmp_path / "named"),))
    assert [(number, part.begin) for number, part in opened.survey({}, {}).items()] == [(7, 3)]
    with pytest.raises(BackfillError, match="the archive has 1 row without partition"):
        archive(
            "json",
            "timestamp=-,key=-,partition=path:x([0-9]+)",
            spec="key",
            places=(str(tmp_path / "orders" / "*"),),
        ).survey({}, {})


def test_integers_that_became_longs(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """A sink that writes longs since some day has one archive; other types that changed are an error."""
    for at, kind in enumerate((pa.int32(), pa.int32(), pa.int64(), pa.int64())):
        table(
            tmp_path / f"{at}.parquet", partition=pa.array([0], kind), offset=pa.array([at], kind), key=["k"]
        )
    assert archive("parquet", "timestamp=-", spec="key").survey({}, {})[0][1:4] == (0, 4, 4)
    table(tmp_path / "4.parquet", partition=[0], offset=["x"], key=["k"])
    with pytest.raises(ConfigurationError, match="a column has several types in its files"):
        archive("parquet", "timestamp=-", spec="key")


def test_integers_may_be_narrow(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Rows have Kafka's types, whatever the archive's are."""
    table(
        tmp_path / "a.parquet",
        partition=pa.array([3], pa.int8()),
        offset=pa.array([7], pa.int16()),
        key=["k"],
    )
    frame, task = archive("parquet", "timestamp=-", spec="key").rows({3: (0, 9)}, Wanted(spec="key"))
    (row,) = frame.mapInArrow(task, task.wanted.schema).collect()
    assert (row["partition"], row["offset"]) == (3, 7)


def test_json_lines_keep_the_text_of_values(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """A value that is an object keeps its very characters, one that is a text its content.

    All forms of headers are read.
    """
    lines(
        tmp_path / "a.jsonl",
        '{"partition":0,"offset":0,"ts":"2026-01-02T03:04:05.006Z","key":"k","headers":{"id":"5"},'
        '"value":{"id": 1e2, "big":123456789012345678901234567890}}',
        '{"partition":0,"offset":1,"ts":"2026-01-02T04:04:05.006+01:00",'
        '"headers":[{"key":"id","value":"a"},{"key":"id"}],"value":"{\\"id\\": \\"5\\"}"}',
        '{"partition":0,"offset":2,"ts":"2026-01-02T03:04:05.006Z","headers":["id","b","id",null]}',
    )
    found = records(archive("json", "timestamp=ts:iso"))
    assert [each.value for each in found] == [
        b'{"id": 1e2, "big":123456789012345678901234567890}', b'{"id": "5"}', None,
    ]  # fmt: skip
    assert [each.headers for each in found] == [
        (("id", b"5"),), (("id", b"a"), ("id", None)), (("id", b"b"), ("id", None)),
    ]  # fmt: skip
    assert [(each.topic, each.timestamp_ms, each.key) for each in found[:2]] == [
        ("orders", 1_767_323_045_006, b"k"), ("orders", 1_767_323_045_006, None),
    ]  # fmt: skip


@pytest.mark.slow
def test_connect_files_say_where_their_rows_stand(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Lines of Kafka Connect's files have the offsets that their names and places say.

    Those of a partition's last file do not. Other topics' files do not count.
    """
    lines(tmp_path / "partition=0" / "orders+0+0000000010.json", '{"id":1}', '{"id":2}')
    lines(tmp_path / "partition=0" / "orders+0+0000000012.json", '{"id":3}')
    # An offset may be missing in here.
    lines(tmp_path / "partition=0" / "orders+0+0000000013.json", '{"id":4}', '{"id":6}')
    lines(tmp_path / "partition=1" / "orders+1+0000000000.json", '{"offset":7}')
    lines(tmp_path / "partition=1" / "orders+1+0000000001.json", '{"offset":8}')
    lines(tmp_path / "partition=2" / "orders+2+0000000000.json", '{"id":1}')
    lines(tmp_path / "partition=1" / "flights+1+0000000000.json", "x", "y")
    opened = archive("text", "timestamp=-,key=-,headers=-")
    assert {part.partition: part[1:4] for part in opened.survey({}, {}).values()} == {
        0: (10, 13, 3),
        1: (0, 1, 1),
    }
    assert isinstance(opened.files, SparkFiles)
    (line,) = opened.files.doubts
    files = "orders+0+0000000013.json, orders+1+0000000001.json, orders+2+0000000000.json"
    assert line.startswith(f"left out: {files}, the last of a partition")
    found = [(each.partition, each.offset, each.value) for each in records(opened, 0, 1, 2)]
    assert found == [
        (0, 10, b'{"id":1}'), (0, 11, b'{"id":2}'), (0, 12, b'{"id":3}'), (1, 0, b'{"offset":7}'),
    ]  # fmt: skip


def test_connect_parquet_is_indexed_and_made_json(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Parquet of Kafka Connect has its offsets by row, and its columns make a JSON value that IDs are read from."""
    for first in (100, 102):
        table(
            tmp_path / "partition=3" / f"orders+3+0000000{first}.snappy.parquet",
            id=["a", "b"],
            offset=[1, 1],
            partition=[9, 9],
        )
    opened = archive("parquet", "timestamp=-,value=*:json", spec="json:/id")
    rows = opened.files.records({3: (0, 200)}).frame.collect()
    assert [(row["offset"], json.loads(row["value"])["id"]) for row in rows] == [(100, "a"), (101, "b")]


def test_connect_files_with_holes_are_refused(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """A file with fewer rows than offsets does not say which are missing, and ends the job with its name."""
    lines(tmp_path / "orders+0+0000000000.json", "a", "b")
    lines(tmp_path / "orders+0+0000000003.json", "c")
    opened = archive("text", "timestamp=-,key=-,headers=-")
    with pytest.raises(
        BackfillError, match=re.escape("'orders+0+0000000000.json' has 2 rows for offsets 0 to 2")
    ):
        opened.survey({}, {})


def test_files_of_a_sink_by_time_do_not_say_their_offsets(
    archive: Callable[..., Archive], tmp_path: Path
) -> None:
    """Offset 1 is a hole and 3 came late.

    The first file has two rows for two offsets, and 3 would pass for 1, which was handled.
    """
    lines(tmp_path / "hour=1" / "orders+0+0000000000.json", '{"at":0}', '{"at":3}')
    lines(tmp_path / "hour=2" / "orders+0+0000000002.json", '{"at":2}', '{"at":4}')
    with pytest.raises(BackfillError, match="lie in the folders 'hour=1' and 'hour=2'"):
        archive("text", "timestamp=-,key=-,headers=-")


@pytest.mark.slow
def test_folders_of_a_sink_are_one_sequence_of_files(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """The last file of one folder is followed by the first one of the next, and one behind a hole ends the job."""
    lines(tmp_path / "may" / "orders+0+0000000000.json", "a", "b")
    lines(tmp_path / "june" / "orders+0+0000000002.json", "c")
    lines(tmp_path / "june" / "orders+0+0000000003.json", "d")
    places = (str(tmp_path / "may"), str(tmp_path / "june"))
    opened = archive("text", "timestamp=-,key=-,headers=-", places=places)
    assert opened.survey({}, {})[0][1:4] == (0, 3, 3)
    lines(tmp_path / "may" / "orders+0+0000000000.json", "a")
    with pytest.raises(
        BackfillError, match=re.escape("'orders+0+0000000000.json' has 1 rows for offsets 0 to 1")
    ):
        archive("text", "timestamp=-,key=-,headers=-", places=places).survey({}, {})


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("offset", ["", ",offset=at"], ids=["by name", "in records"])
def test_keys_and_headers_in_files_of_their_own(
    archive: Callable[..., Archive], tmp_path: Path, *, form: str, offset: str
) -> None:
    """Kafka Connect writes them beside the values, row by row, and what lies there is no value."""
    ids = {0: ["a", "b"], 2: ["c"], 3: ["d"]}
    for first, names in ids.items():
        stem = tmp_path / "partition=0" / f"orders+0+000000000{first}"
        pairs = [[{"key": "id", "value": name}] for name in names]
        keys = [f"k{name}" for name in names]
        at = [first + place for place in range(len(names))]
        if form == "json":
            lines(stem.with_suffix(".json"), *({"at": each} for each in at))
            lines(stem.with_suffix(".headers.json"), *({"headers": each} for each in pairs))
            lines(stem.with_suffix(".keys.json"), *map(json.dumps, keys))
        else:
            table(stem.with_suffix(".snappy.parquet"), at=at)
            table(stem.with_suffix(".headers.snappy.parquet"), headers=pairs)
            table(stem.with_suffix(".keys.snappy.parquet"), key=keys)
    opened = archive(form, f"timestamp=-,value=-{offset}", spec="header:id+key")
    (survey,) = opened.survey({}, {}).values()
    rows = opened.files.records({0: (0, 9)}).frame.orderBy("offset").collect()
    found = [(row["offset"], bytes(row["key"]), bytes(row["headers"][0]["value"])) for row in rows]
    # Of the last file the offsets are not known, unless they are in the records.
    expected = [
        (at, f"k{name}".encode(), name.encode()) for at, name in enumerate("abcd" if offset else "abc")
    ]
    assert (survey.begin, survey.end) == (0, len(expected))
    assert found == expected


def test_headers_that_are_mapped_are_not_looked_for_elsewhere(
    archive: Callable[..., Archive], tmp_path: Path
) -> None:
    """A column of the values counts, and ``headers=-`` says that there are none."""
    lines(tmp_path / "orders+0+0.json", {"offset": 0, "id": "x"})
    lines(tmp_path / "orders+0+0.headers.json", {"headers": [{"key": "id", "value": "y"}]})
    for map_, headers in (("header.id=id", (("id", b"x"),)), ("headers=-", ()), ("value=-", (("id", b"y"),))):
        opened = archive("json", f"timestamp=-,offset=offset,{map_}", spec="header:id")
        (found,) = records(opened, key=False)
        assert found.headers == headers


def test_a_file_of_headers_that_is_shorter_than_its_values(
    archive: Callable[..., Archive], tmp_path: Path
) -> None:
    """A row would get the headers of another one."""
    lines(tmp_path / "orders+0+0.json", {"offset": 0}, {"offset": 1})
    lines(tmp_path / "orders+0+0.headers.json", {"headers": [{"key": "id", "value": "a"}]})
    opened = archive("json", "timestamp=-,offset=offset", spec="header:id")
    with pytest.raises(Exception, match=r".") as caught:
        opened.files.records({0: (0, 9)}).frame.collect()
    assert one_line(caught.value).startswith("a file of headers has other rows than its file of values")


def test_folders_that_are_not_read_are_named(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Spark reads a folder's own files, and folders that are columns."""
    for folder in ("archive", "archive/more", "parted/partition=0"):
        lines(tmp_path / folder / "a.json", {"partition": 0, "offset": 0})
    given = {"places": (str(tmp_path / "archive"), str(tmp_path / "parted"))}
    opened = archive("json", "timestamp=-,key=-", spec="key", **given)
    assert isinstance(opened.files, SparkFiles)
    (line,) = opened.files.doubts
    assert "archive/more" in line
    assert "--read-option recursiveFileLookup=true" in line


def test_files_of_a_stream_are_those_in_its_log(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Others are of batches that failed, and come again in another file."""
    place = tmp_path / "archive"
    write_parquet(place, [Record("orders", 0, at, BASE_MS, key=b"k") for at in range(2)], files=2)
    options = ArchiveOptions(places=(str(place),), format="parquet", isolation="read_committed")
    assert plain_layout(options, ["key"]) is not None
    size = (place / "part-0.parquet").stat().st_size
    entry = {
        "path": (place / "part-0.parquet").as_uri(), "size": size, "isDir": False, "modificationTime": 1,
        "blockReplication": 1, "blockSize": size, "action": "add",
    }  # fmt: skip
    (place / "_spark_metadata").mkdir()
    (place / "_spark_metadata" / "0").write_text(f"v1\n{json.dumps(entry)}\n")
    assert plain_layout(options, ["key"]) is None
    assert archive("parquet", spec="key", places=(str(place),)).survey({}, {})[0].rows == 1


def test_one_file_alone_says_no_offsets(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Where each partition has one file nothing is left, and the line names the option to give."""
    lines(tmp_path / "orders+0+0000000000.json", "a", "b")
    opened = archive("text", "timestamp=-,key=-,headers=-")
    with pytest.raises(
        BackfillError, match=r"one file of each partition \(orders\+0\+0000000000.json\).*--columns offset="
    ):
        opened.survey({}, {})


def test_a_survey_goes_up_to_the_cut(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """The last timestamp and the first offset inside the horizon are those below the cut; the end is the archive's."""
    write_parquet(tmp_path, [Record("orders", 0, at, BASE_MS + at) for at in (0, 1, 2, 3, 9)])
    survey = archive("parquet", spec="key").survey({0: 3}, {0: BASE_MS + 1})
    assert survey == {0: Archived(0, 0, 10, 5, BASE_MS, BASE_MS + 2, 1, BASE_MS + 9, BASE_MS)}


@pytest.mark.parametrize(
    ("columns", "map_", "says"),
    [
        ({"partition": [0], "timestamp": [1]}, "", "has no offsets, without which"),
        ({"offset": [0], "timestamp": [1]}, "", "no column 'partition': say where it stands"),
        ({"a": [0]}, "", "partition=COLUMN; no column 'timestamp': say where it stands"),
        (
            {"offset": [b"0"], "partition": [0]},
            "timestamp=-,key=-",
            "column 'offset' is binary, and offset has to be an integer",
        ),
        ({"offset": [0], "partition": [0], "key": [b"k"]}, "", "--columns timestamp=COLUMN:ms"),
        (
            {"offset": [0], "partition": [0], "timestamp": [1]},
            "key=-",
            "say --columns timestamp=timestamp:ms",
        ),
        ({"offset": [0], "partition": [0]}, "timestamp=-", "no column 'key': say where it stands"),
        (
            {"offset": [0], "partition": [0], "key": [1]},
            "timestamp=-",
            "column 'key' is bigint, and key has to be binary",
        ),
        (
            {"offset": [0], "partition": [0], "key": [b"k"]},
            "timestamp=-,key=key:base64",
            "or with :json a struct, map or array, and --columns says :base64 of it",
        ),
        (
            {"offset": [0], "partition": [0]},
            "timestamp=-,key=current_user",
            "has no column 'current_user', where --columns says that key",
        ),
        (
            {"offset": [0], "partition": [0]},
            "timestamp=-,key=a..b",
            "has no column 'a..b', where --columns says that key",
        ),
        (
            {"offset": [0], "partition": [0]},
            "timestamp=-,key=nope",
            "has no column 'nope', where --columns says that key",
        ),
        (
            {"offset": [0], "partition": [0], "key": [b""], "topic": [1]},
            "timestamp=-",
            "column 'topic' is bigint",
        ),
    ],
)
def test_columns_that_cannot_be_kafkas_are_named(
    archive: Callable[..., Archive], tmp_path: Path, columns: dict[str, Any], map_: str, *, says: str
) -> None:
    """Before anything is read, one line says which column is missing or wrong, and the text to write."""
    table(tmp_path / "a.parquet", **columns)
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        archive("parquet", *([map_] if map_ else []), spec="key")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "unit", "says"),
    [
        ({"offset": [0, None], "partition": [0, 0]}, "-", "the archive has 1 row without offset"),
        ({"offset": [0, 1], "partition": [0, None]}, "-", "the archive has 1 row without partition"),
        ({"offset": [0, -5], "partition": [0, 0]}, "-", "partition 0, offset -5"),
        ({"offset": [0, 2**63 - 1], "partition": [0, 0]}, "-", "partition 0, offset 9223372036854775807"),
        (
            {"offset": [0], "partition": [0], "topic": ["flights"]},
            "-",
            "nothing of topic 'orders': it has 'flights'",
        ),
        (
            {"offset": [0], "partition": [0], "ts": [1_700_000_000]},
            "ts:ms",
            "would be 1970-01-20T16:13:20.000+00:00: is its unit",
        ),
    ],
)
def test_rows_that_are_no_records_are_named(
    archive: Callable[..., Archive], tmp_path: Path, columns: dict[str, Any], unit: str, *, says: str
) -> None:
    """Null and negative coordinates, other topics only and absurd times end the survey in one line."""
    table(tmp_path / "a.parquet", **columns)
    opened = archive("parquet", f"timestamp={unit},key=-", spec="key")
    with pytest.raises(BackfillError, match=re.escape(says)):
        opened.survey({}, {})


def test_a_line_that_is_no_record_ends_the_job(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """JSON that is torn, or an offset that is no number, is never taken for a record without an offset."""
    lines(tmp_path / "a.jsonl", '{"partition":0,"offset":0}', '{"partition":0,"offset":"x"}')
    opened = archive("json", "timestamp=-,key=-", spec="key")
    with pytest.raises(Exception, match=r".") as caught:
        opened.survey({}, {})
    said = "the archive has the value 'x', which cannot be read as BIGINT: check --columns"
    assert one_line(caught.value).startswith(said)


def test_several_places_are_one_archive(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Two folders give the rows of both; a record that is in both has one survey and the same coordinates twice."""
    write_parquet(tmp_path / "a", [Record("orders", 0, at, BASE_MS) for at in range(3)])
    write_parquet(tmp_path / "b", [Record("orders", 0, at, BASE_MS) for at in range(2, 5)])
    opened = archive("parquet", spec="key", places=(str(tmp_path / "a"), str(tmp_path / "b")))
    assert opened.survey({}, {})[0][1:4] == (0, 5, 6)
