from __future__ import annotations

import pytest

from dedup_sdk.ids import RecordFields, digest_one, digest_parts, id_spec
from dedup_sdk.record import Record, type_headers

A = digest_one(b"a")
B = digest_one(b"b")


def _fields(*headers: type_headers) -> RecordFields:
    return RecordFields([Record("t", 0, offset, headers=pairs) for offset, pairs in enumerate(headers)])


@pytest.mark.parametrize(
    ("headers", "digest"),
    [
        ([("id", b"a")], A),
        ([("id", b"a"), ("id", b"b")], B),
        ([("id", b"a"), ("other", b"b")], A),
        ([("id", b"")], digest_one(b"")),
        ([("id", b"a"), ("id", b"")], digest_one(b"")),
        ([("id", b"a"), ("id", None)], None),
        ([("id", None), ("id", b"a")], A),
        ([("ID", b"a")], None),
        ([(" id", b"a")], None),
        ([("id", None)], None),
        ([("", b"a")], None),
        ([], None),
        ((), None),
    ],
)
def test_one_header(headers: type_headers, digest: bytes | None) -> None:
    """The last header of exactly the name is the ID, empty too; null or absent is none: alone and among others."""
    spec = id_spec("header:id")
    missing = {0: "absent"} if digest is None else {}
    assert spec.digests(_fields(headers)) == ([digest], missing)
    assert spec.digests(_fields(headers, [("id", b"b")])) == ([digest, B], missing)
    assert spec.digests(_fields(headers, [("x", b""), ("id", b"b")])) == ([digest, B], missing)


def test_headers_that_are_none() -> None:
    """A source may say None for a record without headers, as confluent-kafka does."""

    class NoHeaders(RecordFields):
        def headers(self) -> list[type_headers | None]:
            return [None, [("id", b"a")]]

    fields = NoHeaders([Record("t", 0, 0), Record("t", 0, 1)])
    assert id_spec("header:id").digests(fields) == ([None, A], {0: "absent"})
    assert id_spec("cloudevents").digests(fields).missing == {0: "absent", 1: "absent"}


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("ce_id", b"1"), ("ce_source", b"/shop")], None),
        ([("ce_source", b"/shop"), ("x", b"y"), ("ce_id", b"1")], None),
        ([("CE_Id", b"1"), ("Ce_SOURCE", b"/shop")], None),
        ([("ce_id", b"0"), ("CE_ID", b"1"), ("ce_source", b"/shop")], None),
        ([("ce_id", b"1")], "absent"),
        ([("ce_source", b"/shop")], "absent"),
        ([("ce_id", None), ("ce_source", b"/shop")], "absent"),
        ([("ce_id", b""), ("ce_source", b"/shop")], "empty"),
        ([("ce_id", b"1"), ("ce_source", b"")], "empty"),
        ([("ce-id", b"1"), ("ce-source", b"/shop")], "absent"),
        ([("content-type", b"application/cloudevents+json")], "absent"),
    ],
)
def test_cloudevents(headers: type_headers, reason: str | None) -> None:
    """A CloudEvent is named by its id and its source, header names case aside; neither may be missing or empty."""
    ids = id_spec("cloudevents").digests(_fields(headers))
    if reason is None:
        assert ids == ([digest_parts([b"1", b"/shop"])], {})
    else:
        assert ids == ([None], {0: reason})


def test_columns_are_read_once() -> None:
    """Each column is read at most once a batch, however many parts share it, and none that no part needs."""
    calls: list[str] = []

    class Counting(RecordFields):
        def headers(self) -> list[type_headers | None]:
            calls.append("headers")
            return super().headers()

        def keys(self) -> list[bytes | None]:
            calls.append("key")
            return super().keys()

        def values(self) -> list[bytes | None]:
            calls.append("value")
            return super().values()

        def records(self) -> list[Record]:
            calls.append("record")
            return super().records()

    records = [Record("t", 0, 0, key=b"text", value=b'{"a": "1"}', headers=[("a", b"x"), ("b", b"y")])]
    for text in [
        "header:a+header:b+cloudevents",
        "key",
        "key+key",
        "value+json:/a+json:/b",
        "py:tests.unit.ids.callables:answer+key+header:a",
    ]:
        calls.clear()
        spec = id_spec(text)
        spec.digests(Counting(records))
        assert sorted(calls) == sorted(spec.needs)
