from __future__ import annotations

import pytest

from dedup_sdk._record import Record, type_headers
from dedup_sdk.ids import RecordFields, digest_one, digest_parts, id_spec

A = digest_one(b"a")
B = digest_one(b"b")

STRUCTURED = ("content-type", b"application/cloudevents+json")


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
        ([("content-type", b"application/json"), ("ce_id", b"1"), ("ce_source", b"/shop")], None),
        ([("content-type", b"application/cloudevents-batch+json"), ("ce_id", b"1")], "absent"),
        ([("content-type", b"application/cloudevents+avro"), ("ce_id", b"1"), ("ce_source", b"/shop")], None),
        ([("content-type", None), ("ce_id", b"1"), ("ce_source", b"/shop")], None),
        ([STRUCTURED], "absent"),
    ],
)
def test_cloudevents(headers: type_headers, reason: str | None) -> None:
    """A CloudEvent is named by its id and its source, header names case aside; neither may be missing or empty."""
    ids = id_spec("cloudevents").digests(_fields(headers))
    if reason is None:
        assert ids == ([digest_parts([b"1", b"/shop"])], {})
    else:
        assert ids == ([None], {0: reason})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"specversion": "1.0", "id": "1", "source": "/shop", "data": {"id": "2"}}', None),
        (b'{"source": "/shop", "id": "\\u0031"}', None),
        (b'{"id": "0", "id": "1", "source": "/shop"}', None),
        (b'{"source": "/shop"}', "absent"),
        (b'{"id": "1"}', "absent"),
        (b'{"ID": "1", "source": "/shop"}', "absent"),
        (b'{"id": null, "source": "/shop"}', "absent"),
        (b'{"id": "", "source": "/shop"}', "empty"),
        (b'{"id": "1", "source": ""}', "empty"),
        (b'{"id": ["1"], "source": "/shop"}', "not-scalar"),
        (b'{"id": "\\ud800", "source": "/shop"}', "malformed"),
        (b'[{"id": "1", "source": "/shop"}]', "absent"),
        (b'"id"', "absent"),
        (b'{"id": "1", "source": "/shop"', "malformed"),
        (b"", "malformed"),
        (None, "absent"),
    ],
)
@pytest.mark.parametrize(
    "content_type",
    [
        ("content-type", b"application/cloudevents+json"),
        ("Content-Type", b"Application/CloudEvents+JSON; charset=UTF-8"),
        ("CONTENT-TYPE", b" application/cloudevents+json ;x"),
    ],
)
def test_structured_cloudevents(
    value: bytes | None, reason: str | None, content_type: tuple[str, bytes]
) -> None:
    """The attributes are members of the value then, whatever copies stand in headers.

    An event has one ID in both modes.
    """
    copies = [("ce_id", b"copy"), content_type, ("ce_source", b"copy")]
    binary = Record("t", 0, 1, value=value, headers=[("ce_id", b"1"), ("ce_source", b"/shop")])
    ids = id_spec("cloudevents").digests(
        RecordFields([Record("t", 0, 0, value=value, headers=copies), binary])
    )
    digest = digest_parts([b"1", b"/shop"])
    assert ids == (([digest, digest], {}) if reason is None else ([None, digest], {0: reason}))


def test_values_are_not_read_for_binary_cloudevents() -> None:
    """They may be large, and the headers say all."""

    class Unread(RecordFields):
        def values(self) -> list[bytes | None]:
            raise AssertionError

    headers = [("ce_id", b"1"), ("ce_source", b"/shop"), ("content-type", b"application/json")]
    assert id_spec("cloudevents").digests(Unread([Record("t", 0, 0, headers=headers)])).missing == {}


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

    records = [
        Record("t", 0, 0, key=b"text", value=b'{"a": "1"}', headers=[("a", b"x"), ("b", b"y"), STRUCTURED])
    ]
    for text in [
        "header:a+header:b+cloudevents",
        "key",
        "key+key",
        "value+json:/a+json:/b",
        "py:tests.unit.ids.callables:answer@1+key+header:a",
    ]:
        calls.clear()
        spec = id_spec(text)
        spec.digests(Counting(records))
        assert sorted(calls) == sorted(spec.needs)
