"""The keys read of records that may belong to units."""

from __future__ import annotations

import pytest

from dedup_sdk import ConfigurationError, Record, Unit, header, id_spec
from dedup_sdk._cli.stores import candidate_digests
from dedup_sdk._units.keys import MOST_NAME_BYTES, Member, UnitKeys, spec_in_units
from dedup_sdk.ids import RecordFields, digest_one

KEYS = UnitKeys(header("dedup-id"), Unit(), "all-or-nothing")


def read(**headers: bytes | None) -> Member | bytes | None:
    """The keys read of a record with these headers (``_`` for ``-``): its member, its digest, or None."""
    record = Record("t", 0, 0, headers=[(name.replace("_", "-"), value) for name, value in headers.items()])
    [key] = KEYS.digests(RecordFields([record])).digests
    return KEYS.members_of([key]).get(0, key)


def test_a_record_without_a_unit_has_its_digest() -> None:
    """An empty name is none; so is a size or an end mark without a unit."""
    for unit in (
        {},
        {"dedup_unit": b""},
        {"dedup_unit": None},
        {"dedup_unit_size": b"2", "dedup_unit_end": b""},
    ):
        assert read(dedup_id=b"a", **unit) == digest_one(b"a")
    assert read(dedup_unit=b"") is None


@pytest.mark.parametrize(("text", "size"), [(b"1", 1), (b"007", 7), (b"999999999999999999", 10**18 - 1)])
def test_sizes(text: bytes, size: int) -> None:
    """Decimal digits."""
    assert read(dedup_unit=b"u", dedup_unit_size=text) == Member(None, b"u", size, False, False)


@pytest.mark.parametrize(
    "text", [b"", b"0", b"-1", b"+1", b" 1", b"1 ", b"1.0", b"\xd9\xa1", b"1" * 19, b"\xff"]
)
def test_sizes_that_are_none(text: bytes) -> None:
    """Are malformed, and nothing raises."""
    assert read(dedup_unit=b"u", dedup_unit_size=text) == Member(None, b"u", None, False, True)


def test_a_member_bears_all_that_it_says() -> None:
    """A null end mark is none; a long name is told by its digest."""
    assert read(dedup_id=b"a", dedup_unit=b"\0u", dedup_unit_end=b"no") == Member(
        digest_one(b"a"), b"\0u", None, True, False
    )
    assert read(dedup_unit=b"u", dedup_unit_end=None) == Member(None, b"u", None, False, False)
    long = read(dedup_unit=b"u" * (MOST_NAME_BYTES + 1))
    assert isinstance(long, Member)
    assert long.name == digest_one(b"u" * (MOST_NAME_BYTES + 1)).hex().encode()


def test_with_fail_every_member_needs_an_id() -> None:
    """Else one is enough."""
    record = Record("t", 0, 0, headers=[("dedup-unit", b"u")])
    strict = UnitKeys(header("dedup-id"), Unit(), "all-or-nothing", wants_ids=True)
    assert strict.digests(RecordFields([record])).missing == {0: "absent"}
    assert KEYS.digests(RecordFields([record])).missing == {}


def test_the_identity_tells_the_unit() -> None:
    """And the ID can be read out of it, for people who look one up."""
    keys = UnitKeys(id_spec("header:a b+key"), Unit(id=id_spec("header:u+key")), "members")
    assert str(keys) == (
        "unit?id=header:a%2520b%2Bkey&unit=header:u%2Bkey"
        "&size=dedup-unit-size&end=dedup-unit-end&mode=members&repeats=drop"
    )
    assert spec_in_units(str(keys)) == str(keys.id)
    assert spec_in_units("header:unit?id=x") is None
    assert candidate_digests(str(KEYS), ["a"]) == [digest_one(b"a")]


def test_settings_that_are_none() -> None:
    """Each is refused in one line."""
    with pytest.raises(ConfigurationError, match="records=0: give a whole number from 1"):
        Unit(records=0)
    with pytest.raises(ConfigurationError, match="megabytes=0: give a whole number from 1"):
        Unit(megabytes=0)
    with pytest.raises(ConfigurationError, match="timeout=0: give seconds above 0"):
        Unit(timeout=0)
    with pytest.raises(ConfigurationError, match="is the end_header, too"):
        Unit(size_header="x", end_header="x")
    with pytest.raises(ConfigurationError, match="repeats='both'"):
        Unit(repeats="both")  # type: ignore[arg-type]
