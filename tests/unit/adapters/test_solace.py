from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_adapters import solace
from dedup_adapters.solace import InvalidReplicationGroupMessageId, NotComparable, ReplicationGroupMessageId
from dedup_sdk import Deduplicator, Lookup, Record, Window
from dedup_sdk.orders import Comparison

# Three that brokers gave to messages, as they stand in public logs, and the first with the next number.
ONE = "rmid1:3b202-25d86a922c7-00000000-000001f2"
NEXT = "rmid1:3b202-25d86a922c7-00000000-000001f3"
OTHER_BROKER = "rmid1:24c78-197d007757c-00000000-00001ff0"
THIRD_BROKER = "rmid1:0ed98-83a990d24ba-00000000-0000502c"

ids = st.builds(
    ReplicationGroupMessageId, st.integers(0, 3) | st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)
)


def parse(text: str) -> ReplicationGroupMessageId:
    """The ID that a text is."""
    return ReplicationGroupMessageId.parse(text)


def test_the_parts_of_an_id() -> None:
    """16 digits of the origin, cut after the fifth, then 16 of the message, cut after the eighth."""
    assert parse(ONE) == ReplicationGroupMessageId(spooler_id=0x3B20225D86A922C7, message_id=0x1F2)
    assert parse("rmid1:00001-00000000002-00000003-00000004") == ReplicationGroupMessageId(
        0x0000100000000002, 0x0000000300000004
    )


@pytest.mark.parametrize("text", [ONE, NEXT, OTHER_BROKER, THIRD_BROKER])
def test_an_id_is_written_as_it_was_read(text: str) -> None:
    """`str` gives the text back, in lower case also when it was not."""
    assert str(parse(text)) == text
    assert str(parse("rmid1:" + text.removeprefix("rmid1:").upper())) == text


@given(ids)
def test_every_id_has_one_text(one: ReplicationGroupMessageId) -> None:
    """41 characters that read back to an equal ID."""
    assert len(str(one)) == 41
    assert parse(str(one)) == one
    assert hash(parse(str(one))) == hash(one)


def test_ids_of_one_origin_compare_as_numbers() -> None:
    """Unsigned: the upper bit is no sign."""
    assert parse(ONE).compare(parse(NEXT)) == -1
    assert parse(NEXT).compare(parse(ONE)) == 1
    assert parse(ONE).compare(parse(ONE.upper().replace("RMID1", "rmid1"))) == 0
    low, high = (f"rmid1:3b202-25d86a922c7-{half}-00000000" for half in ("7fffffff", "80000000"))
    assert parse(low).compare(parse(high)) == -1


def test_ids_of_two_origins_do_not_compare() -> None:
    """The error names both, and the remedy."""
    with pytest.raises(NotComparable, match=r"rmid1:3b202.*rmid1:24c78.*as new"):
        parse(ONE).compare(parse(OTHER_BROKER))


@pytest.mark.parametrize("other", [None, NEXT, ONE.encode(), 5])
def test_what_is_no_id_does_not_compare(other: Any) -> None:
    """A text has to be read first, and the error says so."""
    with pytest.raises(TypeError, match=rf"{type(other).__name__} is not .*parse\(text\)"):
        parse(ONE).compare(other)


@pytest.mark.parametrize(
    "text",
    [
        "", "rmid1:", ONE[:-1], ONE + "0", " " + ONE, ONE + " ", ONE + "\n", ONE[:-1] + "\n", ONE[:-1] + " ",
        ONE.upper(), "Rmid1" + ONE[5:], "rmid2" + ONE[5:], ONE[6:], ONE.replace("-", "_"), ONE.replace("-", ""),
        "rmid1:3b2022-5d86a922c7-00000000-000001f2", "rmid1:3b202-25d86a922c7-000000000-00001f2",
        ONE.replace("f2", "g2"), ONE.replace("f2", "0x"), ONE.replace("1f2", "+f2"), ONE.replace("1f2", "1_2"),
        ONE.replace("1f2", "-f2"), ONE.replace("2", "\N{ARABIC-INDIC DIGIT TWO}"),
        ONE.replace("2", "\N{FULLWIDTH DIGIT TWO}"), "rmid1:" + "-" * 35, "9" * 1_000_000,
    ],
    ids=lambda text: repr(text[:50]) + str(len(text)),
)  # fmt: skip
def test_what_is_no_id(text: str) -> None:
    """Anything but exactly that form is refused in one line, and has no sort key."""
    with pytest.raises(InvalidReplicationGroupMessageId) as caught:
        parse(text)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert solace.order().sort_key(text.encode()) is None
    assert solace.order().compare(text.encode(), text.encode()) is Comparison.UNCOMPARABLE


@pytest.mark.parametrize("value", [None, ONE.encode(), 5, [ONE]])
def test_what_is_no_text(value: Any) -> None:
    """Bytes are not text, and neither is anything else."""
    with pytest.raises(InvalidReplicationGroupMessageId):
        parse(value)


@pytest.mark.parametrize(
    ("spooler_id", "message_id"), [(-1, 0), (0, -1), (2**64, 0), (0, 2**64), (True, 0), (0, "1")]
)
def test_what_are_no_parts(spooler_id: Any, message_id: Any) -> None:
    """An ID that could not be written cannot be made."""
    with pytest.raises(InvalidReplicationGroupMessageId, match="64 bits"):
        ReplicationGroupMessageId(spooler_id, message_id)


@given(ids, ids)
def test_the_order_is_the_comparison(last: ReplicationGroupMessageId, new: ReplicationGroupMessageId) -> None:
    """`order` answers for texts as `compare` for IDs; an error there is uncomparable here."""
    told = solace.order().compare(str(last).encode(), str(new).upper().replace("RMID", "rmid").encode())
    try:
        sign = new.compare(last)
    except NotComparable:
        assert told is Comparison.UNCOMPARABLE
    else:
        assert told is {-1: Comparison.OLDER, 0: Comparison.SAME, 1: Comparison.NEWER}[sign]


@given(st.binary(max_size=60) | st.binary(min_size=41, max_size=41))
def test_no_bytes_raise(anything: bytes) -> None:
    """Whatever stands in the header, the order answers."""
    solace.order().compare(anything, ONE.encode())
    solace.order().sort_keys([anything, None, ONE.encode()])


def test_the_order_is_a_value() -> None:
    """It has one name, which a store keeps, and is equal to itself; message IDs of one queue are not dense."""
    assert solace.order() == solace.order()
    assert solace.order().name == str(solace.order()) == "solace-rgmid"
    assert not solace.order().dense
    assert solace.order().sort_key(ONE.encode()) == (0x3B20225D86A922C7, 0x1F2)


def test_the_presets_are_headers() -> None:
    """The names that Solace documents, as specs; a header of another name is none."""
    assert str(solace.replication_group_message_id()) == "header:solace_replicationGroupMessageId"
    assert str(solace.application_message_id()) == "header:solace_applicationMessageId"


def test_technique_one_looks_the_id_up() -> None:
    """A message that the queue delivered twice is a duplicate; the same number of another broker is not."""
    lookup = Lookup(id=solace.replication_group_message_id(), window=Window(days=7))
    texts = [ONE, ONE, NEXT, "rmid1:3b203" + ONE[11:]]
    records = [
        Record("t", 0, offset, headers=[(solace.REPLICATION_GROUP_MESSAGE_ID, text.encode())])
        for offset, text in enumerate(texts)
    ]
    with Deduplicator(lookup) as engine:
        kinds = [verdict.kind.value for verdict in engine.admit(records)]
    assert kinds == ["fresh", "parked", "fresh", "fresh"]
