from __future__ import annotations

import time

import pytest

from dedup_sdk._record import Record
from dedup_sdk.ids import RecordFields, digest_one, id_spec

RFC_DOCUMENT = b"""{
  "foo": ["bar", "baz"], "": "0", "a/b": "1", "c%d": "2", "e^f": "3", "g|h": "4",
  "i\\\\j": "5", "k\\"l": "6", " ": "7", "m~n": "8"
}"""


def _one(value: bytes | None, text: str = "json:/id") -> tuple[bytes | None, str | None]:
    digests, missing = id_spec(text).digests(RecordFields([Record("t", 0, 0, value=value)]))
    assert list(missing) == [index for index, digest in enumerate(digests) if digest is None]
    return digests[0], missing.get(0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("json:/foo/0", b"bar"),
        ("json:/foo/1", b"baz"),
        ("json:/", b"0"),
        ("json:/a~1b", b"1"),
        ("json:/c%25d", b"2"),
        ("json:/e^f", b"3"),
        ("json:/g|h", b"4"),
        ("json:/i\\j", b"5"),
        ('json:/k"l', b"6"),
        ("json:/%20", b"7"),
        ("json:/m~0n", b"8"),
    ],
)
def test_examples_of_the_rfc(text: str, found: bytes) -> None:
    """The examples of RFC 6901, section 5, lead where the RFC says."""
    assert _one(RFC_DOCUMENT, text) == (digest_one(found), None)


@pytest.mark.parametrize(
    "pointer",
    [
        "/foo/2",
        "/foo/-",
        "/foo/00",
        "/foo/01",
        "/foo/-1",
        "/foo/+1",
        "/foo/x",
        "/foo/0/0",
        "/no/such",
        "/foo/\u0660",
    ],
)
def test_pointer_to_nowhere(pointer: str) -> None:
    """A pointer that leads nowhere finds no ID, it does not fail."""
    assert _one(RFC_DOCUMENT, f"json:{pointer.replace('+', '%2B')}") == (None, "absent")
    assert _one(RFC_DOCUMENT, "json:/foo/" + "9" * 5000) == (None, "absent")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b'"order-1"', b"order-1"),
        (b'""', b""),
        (b'"\\u00e9"', "é".encode()),
        ('"é"'.encode(), "é".encode()),
        (b'"\\ud83d\\ude00"', "😀".encode()),
        (b'"\\u0000"', b"\0"),
        (b"5", b"\xff5"),
        (b"-5", b"\xff-5"),
        (b"-0", b"\xff0"),
        (b"9223372036854775807", b"\xff9223372036854775807"),
        (b"-9223372036854775808", b"\xff-9223372036854775808"),
    ],
)
def test_scalars(value: bytes, data: bytes) -> None:
    """A string is its UTF-8, a 64-bit integer its digits after a byte that no UTF-8 has: "5" and 5 are two IDs."""
    assert _one(b'{"id": %b}' % value) == (digest_one(data), None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"null", "absent"),
        (b"true", "not-scalar"),
        (b"5.0", "not-scalar"),
        (b"5e0", "not-scalar"),
        (b"1e999", "not-scalar"),
        (b"[]", "not-scalar"),
        (b'{"id": "x"}', "not-scalar"),
        (b"9223372036854775808", "out-of-range"),
        (b"-9223372036854775809", "out-of-range"),
        (b"1" * 10_000, "out-of-range"),
        (b"-" + b"1" * 10_000, "out-of-range"),
        (b'"%b"' % (b"x" * 65_537), "oversized"),
        (b'"\\ud800"', "malformed"),
        (b'"\xed\xa0\x80"', "malformed"),
        (b"NaN", "malformed"),
        (b"-Infinity", "malformed"),
        (b"05", "malformed"),
        (b"'x'", "malformed"),
        (b'"a\nb"', "malformed"),
        (b'"\xff"', "malformed"),
        ("\u0665".encode(), "malformed"),
    ],
)
def test_what_is_no_id(value: bytes, reason: str) -> None:
    """A value that is neither a string nor a 64-bit integer in strict JSON is no ID, and the reason says which."""
    assert _one(b'{"id": %b}' % value) == (None, reason)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "absent"),
        (b"5", "absent"),
        (b"[]", "absent"),
        (b"{}", "absent"),
        (b"", "malformed"),
        (b'{"id": "x"', "malformed"),
        (b'{"id": "x"} {}', "malformed"),
        (b'{"id": "x",}', "malformed"),
        (b'{"id": "x", "other": NaN}', "malformed"),
        (b'\xef\xbb\xbf{"id": "x"}', "malformed"),
        ('{"id": "x"}'.encode("utf-16"), "malformed"),
        ('{"id": "x"}'.encode("utf-32-le"), "malformed"),
        (b"\x00\x00\x00\x00\x05hello", "malformed"),
        (b"[" * 1_000_000, "malformed"),
        (b'{"id":' * 100_000, "malformed"),
        (b"]" * 1000 + b"[" * 1000, "malformed"),
    ],
)
def test_hostile_values(value: bytes | None, reason: str) -> None:
    """A value that is no JSON object with the member is a record without an ID, never an exception."""
    assert _one(value) == (None, reason)


def test_escapes_are_read_in_order() -> None:
    """``~01`` is the name ``~1``, not ``/`` (RFC 6901, section 4)."""
    assert _one(b'{"~1": "x", "/": "y"}', "json:/~01") == (digest_one(b"x"), None)


def test_indexes_are_ascii() -> None:
    """An index has ASCII digits and may have several."""
    value = b'["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]'
    assert _one(value, "json:/10") == (digest_one(b"k"), None)
    assert _one(value, "json:/1\u0660") == (None, "absent")


def test_last_member_counts() -> None:
    """Of members with the same name the last counts."""
    assert _one(b'{"id": "a", "id": "b"}') == (digest_one(b"b"), None)
    assert _one(b'{"id": "a", "id": null}') == (None, "absent")


def test_unusable_neighbours_do_not_matter() -> None:
    """An ID is found beside a number that Python would not convert, and beside a lone surrogate."""
    assert _one(b'{"n": %b, "m": 5, "s": "\\ud800", "id": "x"}' % (b"7" * 10_000)) == (digest_one(b"x"), None)


def _nested(depth: int, inside: bytes = b"") -> bytes:
    """Return a document of which one member nests, so that its depth is one more."""
    return b'{"deep": %b, "id": "x"}' % (b"[" * (depth - 1) + inside + b"]" * (depth - 1))


def test_depth_is_bounded_by_us() -> None:
    """256 levels are read and one more is not: the answer hangs neither on the stack nor on brackets in strings."""
    assert _one(_nested(256)) == (digest_one(b"x"), None)
    assert _one(_nested(257)) == (None, "malformed")
    assert _one(_nested(3, b'"%b"' % (rb"[{\"" * 1000))) == (digest_one(b"x"), None)
    assert _one(_nested(3, b",".join([b"[{}]"] * 1000))) == (digest_one(b"x"), None)

    def deeper(frames: int) -> tuple[bytes | None, str | None]:
        return deeper(frames - 1) if frames else _one(_nested(256))

    assert deeper(300) == (digest_one(b"x"), None)


@pytest.mark.parametrize("pattern", [b'"', b'\\"', b'["', b'[\\"', b'["\\', b'{"a', b"[]\\"])
def test_depth_of_garbage_is_linear(pattern: bytes) -> None:
    """Garbage of a million bytes that looks like strings without end is refused in far less than a second a kind."""
    value = b"[" * 300 + b'"' + pattern * (1_000_000 // len(pattern))
    started = time.process_time()
    assert _one(value) == (None, "malformed")
    assert time.process_time() - started < 5


def test_strings_and_integers_of_a_callable() -> None:
    """The result of a callable is an ID by the same rules; whatever it raises is a record without one."""
    expected: dict[bytes, tuple[bytes | None, str | None]] = {
        b"text": (digest_one(b"order-1"), None),
        b"blank": (digest_one(b""), None),
        b"int": (digest_one(b"\xff5"), None),
        b"none": (None, "absent"),
        b"bool": (None, "not-scalar"),
        b"float": (None, "not-scalar"),
        b"bytes": (None, "not-scalar"),
        b"huge": (None, "out-of-range"),
        b"surrogate": (None, "malformed"),
        b"raises": (None, "failed"),
    }
    records = [Record("t", 0, offset, key=key) for offset, key in enumerate(expected)]
    digests, missing = id_spec("py:tests.unit.ids.callables:answer@1").digests(RecordFields(records))
    assert [(digest, missing.get(index)) for index, digest in enumerate(digests)] == list(expected.values())
