"""Files as sinks write them are read with the mappings of the page, or one line says what to give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dedup_sdk._record import Record
from spark_backfill.errors import one_line
from spark_backfill.spark_files import SparkFiles
from tests.support.archives import coded, lines, records, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spark_backfill.archive import Archive

pytestmark = pytest.mark.spark
MS = 1_767_323_045_006
ISO = "2026-01-02T03:04:05.006Z"
BY_NAME = r"partition=path:-([0-9]+)-[0-9]+[^/]*$"
"""The partition in the names of Aiven's files, whatever their ending is."""
ENVELOPE = (
    "offset=metadata.offset,partition=metadata.partition,topic=metadata.topic,timestamp=metadata.timestamp:ms"
)
KEYED = Record("orders", 3, 7, MS, b"k", b'{"a": 1}', (("id", b"x"), ("n", None)))
BARE = Record("orders", 3, 8, MS, None, None, ())
IN_BYTES = Record("orders", 3, 7, MS, b"k", b"v", (("id", b"x"),))


@pytest.mark.parametrize("ending", ["", ".gz", ".jsonl"])
def test_json_lines_of_aiven(archive: Callable[..., Archive], tmp_path: Path, ending: str) -> None:
    """Values are JSON, the time is a text, headers are pairs, and a field that is null may be left out."""
    pairs = [{"key": "id", "value": "x"}, {"key": "n", "value": None}]
    lines(
        tmp_path / f"orders-3-7{ending}",
        {"key": "k", "value": {"a": 1}, "offset": 7, "timestamp": ISO, "headers": pairs},
        {"offset": 8, "timestamp": ISO, "headers": []},
    )
    assert records(archive("json", f"timestamp=timestamp:iso,{BY_NAME}"), 3) == [KEYED, BARE]


def test_json_lines_of_aiven_with_bytes(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """The converter of bytes makes base64 of keys, values and headers."""
    pairs = [{"key": "id", "value": coded("x")}]
    line = {"key": coded("k"), "value": coded("v"), "offset": 7, "timestamp": ISO, "headers": pairs}
    lines(tmp_path / "orders-3-7.gz", line)
    forms = "key=key:base64,value=value:base64,headers=headers:base64"
    assert records(archive("json", f"timestamp=timestamp:iso,{forms},{BY_NAME}"), 3) == [IN_BYTES]


def test_json_lists_of_aiven(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Its format ``json`` is one list a file, which the error says how to read."""
    lines(tmp_path / "orders-3-7", "[", f'{{"offset":7,"timestamp":"{ISO}"}},', '{"offset":8}', "]")
    map_ = f"timestamp=timestamp:iso,{BY_NAME}"
    with pytest.raises(Exception, match=r".") as caught:
        archive("json", map_).survey({}, {})
    assert one_line(caught.value).startswith(
        "the archive has a JSON list of records, not one record a line: give --read-option multiLine=true (in file:/"
    )
    opened = archive("json", map_, read_options={"multiLine": "true"})
    assert opened.survey({}, {})[3][1:4] == (7, 9, 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_parquet_of_aiven(archive: Callable[..., Archive], tmp_path: Path, kind: pa.DataType) -> None:
    """Headers are a map, which a file lacks whose first record has none; the names may end with .gz."""
    headers = pa.array([[("id", b"x" if kind == pa.binary() else "x")]], pa.map_(pa.string(), kind))
    columns = {name: pa.array([name[0].encode()]).cast(kind) for name in ("key", "value")}
    table(tmp_path / "orders-3-7.gz", **columns, offset=[7], timestamp=[MS], headers=headers)
    table(tmp_path / "orders-3-8.gz", **columns, offset=[8], timestamp=[MS])
    found = records(archive("parquet", f"timestamp=timestamp:ms,{BY_NAME}"), 3)
    assert found == [IN_BYTES, replace(IN_BYTES, offset=8, headers=())]


def test_csv_of_aiven(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """There are no titles; the time is a number, and headers are pairs in base64, each of which ends with ``;``."""
    lines(
        tmp_path / "orders-3-7.gz",
        f"{coded('k')},{coded('v')},7,{MS},{coded('id')}:{coded('x')};",
        f",,8,{MS},",
    )
    map_ = f"key=_c0:base64,value=_c1:base64,offset=_c2,timestamp=_c3:ms,headers=_c4,{BY_NAME}"
    assert records(archive("csv", map_), 3) == [IN_BYTES, BARE]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("orders-3-7.gz", b"no gzip", "EOFException: Unexpected end of input stream (in file:/"),
        (
            "orders-3-7.zst",
            b"x",
            "the archive is compressed as zstandard, which this Spark cannot read: unpack",
        ),
        # As Aiven's sinks write it: a magic number, two versions, then blocks with their lengths.
        (
            "orders-3-7.snappy",
            b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + b"\0\0\0\4\2\4{}",
            "Java has too little memory",
        ),
    ],
    ids=["broken", "zstd", "snappy"],
)
def test_files_that_cannot_be_unpacked(
    archive: Callable[..., Archive], tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    """One line says what to do, or which file it was."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Exception, match=r".") as caught:
        archive("json", f"timestamp=timestamp:iso,{BY_NAME}").survey({}, {})
    assert one_line(caught.value).startswith(says)


@pytest.mark.parametrize("name", ["orders(3_8).json", "orders/3/000000000008_1_2.gz"])
def test_json_lines_of_lenses(archive: Callable[..., Archive], tmp_path: Path, name: str) -> None:
    """An envelope has the coordinates; folders below the one that is given are named."""
    place = {"topic": "orders", "partition": 3, "timestamp": MS}
    headers = {"id": "x", "n": None}
    lines(
        tmp_path / name,
        {"key": "k", "value": {"a": 1}, "headers": headers, "metadata": place | {"offset": 7}},
        {"key": None, "value": None, "headers": {}, "metadata": place | {"offset": 8}},
    )
    opened = archive("json", ENVELOPE, read_options={"recursiveFileLookup": "true"})
    assert records(opened, 3) == [KEYED, BARE]
    if "/" in name:
        files = archive("json", ENVELOPE).files
        assert isinstance(files, SparkFiles)
        assert ["recursiveFileLookup=true" in line for line in files.doubts] == [True]


def test_json_lines_of_lenses_with_bytes(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Bytes are base64, and the record says so beside them."""
    line = {
        "key": coded("k"), "keyIsArray": True, "value": coded("v"), "valueIsArray": True,
        "headers": {"id": coded("x")},
        "metadata": {"topic": "orders", "partition": 3, "offset": 7, "timestamp": MS},
    }  # fmt: skip
    lines(tmp_path / "orders(3_7).json", line)
    forms = "key=key:base64,value=value:base64,headers=headers:base64"
    assert records(archive("json", f"{ENVELOPE},{forms}"), 3) == [IN_BYTES]


def test_parquet_of_lenses(archive: Callable[..., Archive], tmp_path: Path) -> None:
    """Headers are a struct whose fields differ by file, and which a file may lack."""
    columns: dict[str, Any] = {"key": ["k"], "value": ["v"]}
    for offset, headers in ((7, {"id": "x"}), (8, {"id": "y", "n": "1"}), (9, None)):
        place = {"topic": "orders", "partition": 3, "offset": offset, "timestamp": MS}
        given = {} if headers is None else {"headers": [headers]}
        table(tmp_path / f"orders(3_{offset}).parquet", **columns, **given, metadata=[place])
    found = records(archive("parquet", ENVELOPE), 3)
    assert [each.headers for each in found] == [(("id", b"x"),), (("id", b"y"), ("n", b"1")), ()]
    assert found[0] == IN_BYTES


@pytest.mark.parametrize("ending", [".json.gz", ".bin"])
def test_keys_beside_values_of_kafka_connect(
    archive: Callable[..., Archive], tmp_path: Path, ending: str
) -> None:
    """Keys are JSON where the values are, else the lines themselves; both may be compressed."""
    for first, names in ((0, "ab"), (2, "c")):
        stem = f"orders/partition=3/orders+3+000000000{first}"
        lines(tmp_path / f"{stem}{ending}", *(f'{{"at":"{name}"}}' for name in names))
        keys = (f'"{name}"' if "json" in ending else name for name in names)
        lines(tmp_path / f"{stem}.keys{ending}", *keys)
    found = records(archive("text", "timestamp=-,headers=-"), 3)
    assert [(each.offset, each.key, each.value) for each in found] == [
        (0, b"a", b'{"at":"a"}'), (1, b"b", b'{"at":"b"}'),
    ]  # fmt: skip
