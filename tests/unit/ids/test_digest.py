from __future__ import annotations

import hashlib

import pytest

from dedup_sdk._record import Record
from dedup_sdk.ids import MAX_ID_BYTES, RecordFields, digest_one, digest_parts, id_spec
from dedup_sdk.ids import _columns as digest_module


def _records(*keys: bytes | None) -> RecordFields:
    return RecordFields([Record("t", 0, offset, key=key) for offset, key in enumerate(keys)])


def test_one_part() -> None:
    """An ID of one part is hashed as it is: any tool that knows SHA-256 gives the same 16 bytes."""
    assert digest_one(b"order-1").hex() == "0bafe22156d2698c143b86040446d366"
    assert digest_parts([b"order-1"]) == digest_one(b"order-1")


def test_layout_of_two_parts() -> None:
    """The first of two parts is preceded by its length in four bytes, big-endian; the last stands bare."""
    assert digest_parts([b"a", b"bc"]).hex() == "f9c4a2ab4de81ade0bbf55389f4a5002"
    assert digest_parts([b"a", b"bc"]) != digest_parts([b"ab", b"c"])


def test_order_of_three_parts() -> None:
    """However many parts there are, they are hashed in the order of the spec, with and without gaps in the batch."""
    full = Record("t", 0, 0, key=b"1", value=b"333", headers=[("h", b"22")])
    bare = Record("t", 0, 1)
    expected = digest_parts([b"1", b"22", b"333"])
    assert id_spec("key+header:h+value").digests(RecordFields([full])).digests == [expected]
    assert id_spec("key+header:h+value").digests(RecordFields([full, bare])).digests == [expected, None]
    assert expected == digest_one(b"\0\0\0\x011\0\0\0\x0222333")


def test_no_part() -> None:
    """An ID of no parts is refused."""
    with pytest.raises(ValueError, match="at least one part"):
        digest_parts([])


@pytest.mark.parametrize("length", [0, 1, 36, 54, 55, 56, 63, 64, 65, 1000, MAX_ID_BYTES])
def test_quick_implementation_is_sha256(length: int) -> None:
    """Whichever implementation of SHA-256 is the quickest for a length, the digest is hashlib's."""
    data = bytes(range(256)) * (length // 256 + 1)
    expected = hashlib.sha256(data[:length]).digest()[:16]
    assert digest_module.builtin_sha256()(data[:length]).digest()[:16] == expected
    assert id_spec("key").digests(_records(data[:length])).digests == [expected]
    assert id_spec("key").digests(_records(data[:length], None)).digests == [expected, None]


def test_quick_implementation_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter built without its own SHA-256 uses hashlib's."""

    def nowhere(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(digest_module, "import_module", nowhere)
    assert digest_module.builtin_sha256() is hashlib.sha256


def test_bound_of_one_part() -> None:
    """An ID of 65,536 bytes is one, a byte more is none, and its neighbours do not suffer."""
    ids = id_spec("key").digests(_records(b"a" * 65_536, b"a" * 65_537, b"b", None))
    assert ids.digests == [digest_one(b"a" * 65_536), None, digest_one(b"b"), None]
    assert ids.missing == {1: "oversized", 3: "absent"}


def test_bound_of_joined_parts() -> None:
    """The bound holds for the parts together, their lengths not counted, with and without gaps in the batch."""
    full = Record("t", 0, 0, key=b"k" * 65_000, value=b"v" * 536)
    over = Record("t", 0, 1, key=b"k" * 65_000, value=b"v" * 537)
    gap = Record("t", 0, 2, key=None, value=b"v" * 70_000)
    spec = id_spec("key+value")
    expected = digest_parts([b"k" * 65_000, b"v" * 536])
    assert spec.digests(RecordFields([full, over])) == ([expected, None], {1: "oversized"})
    assert spec.digests(RecordFields([full, over, gap])) == (
        [expected, None, None],
        {1: "oversized", 2: "absent"},
    )


def test_reason_of_a_join_is_its_first_gap() -> None:
    """A record that misses several parts of a join says why the first of them is missing."""
    record = Record("t", 0, 0, value=b"{", headers=[("ce_id", b"")])
    assert id_spec("cloudevents+json:/id").digests(RecordFields([record])).missing == {0: "empty"}
    assert id_spec("json:/id+cloudevents").digests(RecordFields([record])).missing == {0: "malformed"}
    assert id_spec("key+json:/id").digests(RecordFields([record])).missing == {0: "absent"}


@pytest.mark.parametrize(
    "spec", ["header:id", "key", "unframed-key", "value", "json:/id", "cloudevents", "key+value"]
)
def test_no_records(spec: str) -> None:
    """An empty batch has no IDs and nothing missing."""
    assert id_spec(spec).digests(RecordFields([])) == ([], {})
