"""Source keys: which source a record belongs to, and its ID as it came."""

from __future__ import annotations

from dataclasses import replace

from dedup_sdk import Record, header
from dedup_sdk._core.source_keys import (
    MAX_COMPARED_BYTES,
    PARTITION_SOURCE,
    SourceKeys,
    lacked_fallback,
    source_spec_of,
)
from dedup_sdk.ids import RecordFields, digest_one, key


def fields(*headers: dict[str, bytes | None], key: bytes | None = None) -> RecordFields:
    """Return records with these headers."""
    return RecordFields(
        [Record("t", 0, at, key=key, headers=list(each.items())) for at, each in enumerate(headers)]
    )


def test_without_a_source_the_partition_is_one() -> None:
    """Its digest is the same for all, and nothing is hashed."""
    keys = SourceKeys(header("seq"), None, "integer")
    read = keys.digests(fields({"seq": b"7"}, {"seq": b""}, {"other": b"8"}, {"seq": None}))
    assert read.digests == [PARTITION_SOURCE + b"7", PARTITION_SOURCE, None, None]
    assert read.missing == {2: "absent", 3: "absent"}
    assert keys.split(PARTITION_SOURCE + b"7") == (PARTITION_SOURCE, b"7")
    assert keys.sources_of(read.digests) == [PARTITION_SOURCE, PARTITION_SOURCE, None, None]


def test_with_a_source_its_digest_stands_in_front() -> None:
    """A record without its source cannot be compared with anything."""
    keys = SourceKeys(header("seq"), header("producer"), "integer")
    read = keys.digests(fields({"seq": b"7", "producer": b"p"}, {"seq": b"7"}, {"producer": b"p"}))
    assert read.digests == [digest_one(b"p") + b"7", None, None]
    assert read.missing == {1: "source-absent", 2: "absent"}
    assert keys.split(digest_one(b"p") + b"7") == (digest_one(b"p"), b"7")
    assert keys.ids_of(read.digests) == [b"7", None, None]
    assert keys.sources_of(read.digests) == [digest_one(b"p"), None, None]
    assert keys.mark_of(digest_one(b"p") + b"7") == digest_one(b"p")


def test_the_parts_of_an_id_are_joined_by_a_colon() -> None:
    """So that an epoch and a sequence in two headers are read as one ID."""
    keys = SourceKeys(header("epoch") + header("seq"), None, "epoch_sequence")
    read = keys.digests(fields({"epoch": b"7", "seq": b"1042"}, {"epoch": b"7"}))
    assert read.digests == [PARTITION_SOURCE + b"7:1042", None]
    assert read.missing == {1: "absent"}


def test_what_is_too_large_is_not_compared() -> None:
    """A source keeps IDs as they came, so that they are bounded."""
    keys = SourceKeys(header("seq"), None, "integer")
    read = keys.digests(fields({"seq": b"1" * MAX_COMPARED_BYTES}, {"seq": b"1" * (MAX_COMPARED_BYTES + 1)}))
    assert read.digests[0] is not None
    assert read.missing == {1: "oversized"}


def test_what_a_store_keeps_names_everything_that_a_verdict_hangs_on() -> None:
    """Another ID, source or order is another store."""
    one = SourceKeys(header("seq"), None, "integer")
    others = [
        SourceKeys(header("other"), None, "integer"),
        SourceKeys(header("seq"), key(), "integer"),
        SourceKeys(header("seq"), None, "ulid"),
    ]
    assert len({str(each) for each in (one, *others)}) == 4


def test_a_second_opinion_has_its_digest_in_the_key() -> None:
    """Never that of a source, though both be made of one text; a record without it is asked about nothing."""
    keys = SourceKeys(header("seq"), header("producer"), "integer", header("producer"))
    read = keys.digests(fields({"seq": b"7", "producer": b"p"}))
    (source,), (other,) = keys.sources_of(read.digests), keys.others_of(read.digests)
    assert source == digest_one(b"p")
    assert other not in (None, source)
    assert keys.ids_of(read.digests) == [b"7"]
    alone = SourceKeys(header("seq"), None, "integer", header("other"))
    without = alone.digests(fields({"seq": b"7"}, {}))
    assert alone.others_of(without.digests) == [None, None]
    assert (alone.ids_of(without.digests), alone.sources_of(without.digests)) == (
        [b"7", None],
        [PARTITION_SOURCE, None],
    )
    assert str(keys) != str(SourceKeys(header("seq"), header("producer"), "integer"))


def test_which_second_opinion_is_lacked_is_read_from_what_a_store_keeps() -> None:
    """Where nothing else differs."""
    sources = SourceKeys(header("seq"), header("producer"), "integer")
    asking = replace(sources, other=header("a & b") + key())
    assert lacked_fallback(str(sources), str(asking)) == str(asking.other)
    assert lacked_fallback(str(asking), str(asking)) is None
    assert lacked_fallback(str(asking), str(sources)) is None
    assert lacked_fallback(str(sources), str(sources)) is None
    assert lacked_fallback(str(replace(sources, order="ulid")), str(asking)) is None
    assert lacked_fallback(str(replace(asking, other=key())), str(asking)) is None
    assert lacked_fallback("header:seq", str(asking)) is None


def test_how_sources_are_named_is_read_from_what_a_store_keeps() -> None:
    """Whatever characters a header's name has."""
    assert source_spec_of(str(header("dedup-id"))) is None
    assert source_spec_of(str(SourceKeys(header("seq"), None, "snowflake(epoch_ms=5)"))) == ""
    for source in (header("producer"), header("a & b=c?%"), header("tenant") + key()):
        assert source_spec_of(str(SourceKeys(header("s&q"), source, "integer"))) == str(source)
