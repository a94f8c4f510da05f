"""The redrive header: its form, and its effect on an ID."""

from __future__ import annotations

from hashlib import sha256

import pytest

from dedup_sdk import LastId, Lookup, Record, Window, header, orders
from dedup_sdk._core.source_keys import PARTITION_SOURCE, SourceKeys
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.unit import Unit
from dedup_sdk.ids import IdSpec, RecordFields, digest_one, key
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix, redrive_value
from dedup_sdk.ids._spec import GroupKeys, redrive_headers, redriven_keys

VALUE = redrive_value("g", "orders", 3, 7, 42)
OTHER = redrive_value("g2", "orders", 3, 7, 42)


def record(*headers: tuple[str, bytes | None], record_key: bytes | None = None) -> Record:
    """A record with headers."""
    return Record("orders", 3, 9, 1_000, key=record_key, headers=headers)


def again(digest: bytes, value: bytes = VALUE) -> bytes:
    """An ID with its header, by the page on handlers."""
    return sha256(digest + value).digest()[:16]


def test_the_form_does_not_change() -> None:
    """Other versions, and the Spark job, read it."""
    assert REDRIVE_HEADER == "dedup-redrive"
    assert VALUE == b"group=g&topic=orders&partition=3&offset=7&timestamp=42"
    assert redrive_value("a b&c/ü", "t=1", 0, 0, -1) == (
        b"group=a%20b%26c%2F%C3%BC&topic=t%3D1&partition=0&offset=0&timestamp=-1"
    )


def test_a_header_names_one_group() -> None:
    """The whole name, and the last header counts; without a group any header that names one does."""
    records = [
        record(),
        record((REDRIVE_HEADER, VALUE)),
        record((REDRIVE_HEADER, OTHER)),
        record((REDRIVE_HEADER, OTHER), (REDRIVE_HEADER, VALUE)),
        record((REDRIVE_HEADER, VALUE), (REDRIVE_HEADER, None)),
        record((REDRIVE_HEADER, b"what else")),
    ]
    assert redrive_prefix("g") == b"group=g&"
    assert redrive_headers(RecordFields(records), "g") == {1: VALUE, 3: VALUE}
    assert redrive_headers(RecordFields(records), None) == {1: VALUE, 2: OTHER, 3: VALUE}
    assert redrive_headers(RecordFields([]), "g") == {}


@pytest.mark.parametrize("spec", [header("dedup-id"), key(), header("dedup-id") + key()])
def test_an_id_is_another_one_with_it_for_its_group_only(spec: IdSpec) -> None:
    """Also where the spec reads no headers; a record without an ID has none with the header."""
    plain = record(("dedup-id", b"a"), record_key=b"k")
    sent_again = record(("dedup-id", b"a"), (REDRIVE_HEADER, VALUE), record_key=b"k")
    without = record((REDRIVE_HEADER, VALUE))
    batch = RecordFields([plain, sent_again, without])
    [digest] = spec.digests(RecordFields([plain])).digests
    assert digest is not None
    ids = GroupKeys(spec, "g").digests(batch)
    assert ids.digests == [digest, again(digest), None]
    assert ids.missing == {2: "absent"}
    assert GroupKeys(spec, "g2").digests(batch) == ([digest, digest, None], {2: "absent"})
    assert redriven_keys(spec, spec.digests(batch), batch, None) == {1: again(digest)}


@pytest.mark.parametrize("spec", [None, header("source")])
@pytest.mark.parametrize("second", [False, True])
def test_where_ids_are_compared_it_belongs_to_the_source(spec: IdSpec | None, *, second: bool) -> None:
    """The ID that is compared stays; a second opinion knows it by another digest, too."""
    otherwise = Lookup(id=header("other"), window=Window(days=1)) if second else None
    keys = LastId(id=header("seq"), order=orders.integer(), source=spec, otherwise=otherwise).keys
    assert isinstance(keys, SourceKeys)
    bears = [("seq", b"12"), ("source", b"s"), ("other", b"o")]
    batch = RecordFields([record(*bears), record(*bears, (REDRIVE_HEADER, VALUE))])
    digests, missing = GroupKeys(keys, "g").digests(batch)
    assert not missing
    source = PARTITION_SOURCE if spec is None else digest_one(b"s")
    assert keys.sources_of(digests) == [source, again(source)]
    assert keys.ids_of(digests) == [b"12", b"12"]
    others = [digest_one(b"o"), again(digest_one(b"o"))]
    assert len(set(keys.others_of(digests))) == (2 if second else 1)
    if second:
        assert [keys.mark_of(each or b"") for each in digests] == [source, again(source)]
        assert [each[8:] + each[:8] for each in keys.others_of(digests) if each] == others


def test_a_record_of_a_unit_is_a_single_one_with_it() -> None:
    """The others of its unit are over."""
    keys = UnitKeys(header("dedup-id"), Unit(), "all-or-nothing")
    unit = [("dedup-unit", b"u"), ("dedup-unit-size", b"2"), (REDRIVE_HEADER, VALUE)]
    batch = RecordFields([record(("dedup-id", b"a"), *unit), record(*unit)])
    ids = GroupKeys(keys, "g").digests(batch)
    assert (ids.digests, ids.missing) == ([again(digest_one(b"a")), None], {1: "absent"})
    assert keys.members_of(ids.digests) == {}
    assert len(keys.members_of(GroupKeys(keys, "g2").digests(batch).digests)) == 2
