"""Sort keys worked out by hand from the documents that define them."""

from __future__ import annotations

import pytest

from dedup_sdk import orders
from dedup_sdk.orders import Comparison, Order

OLDER, SAME, NEWER, UNCOMPARABLE = Comparison

SERVER = b"3E11FA47-71CA-11E1-9E33-C80AA9429562"  # the MySQL manual's
OTHER_SERVER = b"2174B383-5441-11E8-B90A-C80AA9429562"
TWEET = 1541815603606036480  # time 367597485448 ms after Twitter's epoch, machine 378, sequence 0
# A real token; its event's clusterTime was Timestamp(t=1741186978, i=25).
TOKEN = b"8267C867A2000000192B042C0100296E5A1004D3284E04D8914467A2160201812E4C4C463C"


def test_the_uuids_of_the_rfc() -> None:
    """RFC 9562, appendices A.1, A.5 and A.6: one moment, clock sequence 0x33C8, node 9F:6B:DE:CE:D8:46."""
    ticks, clock, node = 0x1EC9414C232AB00, 0x33C8, 0x9F6BDECED846
    one, six = b"C232AB00-9414-11EC-B3C8-9F6BDECED846", b"1EC9414C-232A-6B00-B3C8-9F6BDECED846"
    assert orders.uuid1().sort_key(one) == (node, ticks << 14 | clock)
    assert orders.uuid1(by_node=False).sort_key(one) == (b"", (ticks << 14 | clock) << 48 | node)
    assert orders.uuid6().sort_key(six) == (b"", (ticks << 14 | clock) << 48 | node)
    assert orders.uuid6(by_node=True).sort_key(six) == (node, ticks << 14 | clock)
    seven = orders.uuid7().sort_key(b"017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
    assert seven is not None
    assert seven == (b"", 0x017F22E279B07CC398C4DC0C0C07398F)
    assert orders.uuid7().sort_key(bytes.fromhex("017F22E279B07CC398C4DC0C0C07398F")) == seven
    assert orders.uuid7().sort_key(b"017f22e279b07cc398c4dc0c0c07398f") == seven


def test_the_ulid_of_its_specification() -> None:
    """ulid/spec: base 32 of 128 bits; the largest is 7ZZZ…, and a larger one overflows."""
    assert orders.ulid().sort_key(b"00000000000000000000000010") == (b"", 32)
    assert orders.ulid().sort_key(b"7ZZZZZZZZZZZZZZZZZZZZZZZZZ") == (b"", 2**128 - 1)
    assert orders.ulid().sort_key(b"7zzzzzzzzzzzzzzzzzzzzzzzzz") == (b"", 2**128 - 1)
    assert orders.ulid().sort_key(b"80000000000000000000000000") is None
    # 10 letters of time, 0x01563E3AB5D3 = 1469922850259 ms.
    sort_key = orders.ulid().sort_key(b"01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert sort_key is not None
    assert isinstance(sort_key.rank, int)
    assert sort_key.rank >> 80 == 0x01563E3AB5D3


def test_a_snowflake_taken_apart() -> None:
    """The upper bits of a rank are Unix milliseconds; by machine, the machine is the origin."""
    text = b"%d" % TWEET
    assert orders.snowflake().sort_key(text) == (b"", (367597485448 + 1288834974657) << 22 | 378 << 12)
    assert orders.snowflake(by_machine=True).sort_key(text) == (378, 1656432460105 << 12)
    discord = orders.snowflake(epoch_ms=1420070400000).sort_key(b"175928847299117063")
    assert discord is not None
    assert isinstance(discord.rank, int)
    assert discord.rank >> 22 == 1462015105796  # Discord's reference: 2016-04-30 11:18:25.796 UTC


@pytest.mark.parametrize(
    ("order", "last", "new", "expected"),
    [
        # integers
        (orders.integer(), b"9", b"10", NEWER),
        (orders.integer(), b"10", b"9", OLDER),
        (orders.integer(), b"007", b"7", SAME),
        (orders.integer(), b"-0", b"0", SAME),
        (orders.integer(), b"-2", b"-1", NEWER),
        (orders.big_endian(), b"\0\0\0\0\0\0\0\xff", b"\0\0\0\0\0\0\1\0", NEWER),
        (orders.little_endian(), b"\xff\0\0\0\0\0\0\0", b"\0\1\0\0\0\0\0\0", NEWER),
        (orders.big_endian(width=1), b"\x7f", b"\x80", NEWER),
        (orders.big_endian(width=1, signed=True), b"\x7f", b"\x80", OLDER),
        (orders.big_endian(width=16), b"\xff" * 16, b"\0" * 16, OLDER),
        # a producer that restarts
        (orders.epoch_sequence(), b"7:1042", b"7:1043", NEWER),
        (orders.epoch_sequence(), b"7:1042", b"8:0", NEWER),
        (orders.epoch_sequence(), b"8:0", b"7:1043", OLDER),
        (orders.epoch_sequence(separator="-"), b"7-1042", b"07-1042", SAME),
        (orders.epoch_sequence(), b"0:18446744073709551615", b"1:0", NEWER),
        (orders.epoch_sequence_bytes(), b"\0\0\0\7" + b"\xff" * 8, b"\0\0\0\x08" + b"\0" * 8, NEWER),
        # UUIDs: two nodes are two clocks, but in version 6 the node is random
        (orders.uuid1(), b"C232AB00-9414-11EC-B3C8-9F6BDECED846", b"C232AB01-9414-11EC-B3C8-9F6BDECED847",
         UNCOMPARABLE),
        (orders.uuid1(by_node=False), b"C232AB00-9414-11EC-B3C8-9F6BDECED846",
         b"C232AB01-9414-11EC-B3C8-9F6BDECED847", NEWER),
        (orders.uuid1(), b"ffffffff-9414-11EC-B3C8-9F6BDECED846", b"00000000-9415-11EC-B3C8-9F6BDECED846", NEWER),
        (orders.uuid1(), b"C232AB00-9414-11EC-B3C8-9F6BDECED846", b"C232AB00-9414-11EC-B3C9-9F6BDECED846", NEWER),
        (orders.uuid6(), b"1EC9414C-232A-6B00-B3C8-9F6BDECED846", b"1EC9414C-232A-6B00-B3C8-9F6BDECED847", NEWER),
        (orders.uuid7(), b"017F22E2-79B0-7CC3-98C4-DC0C0C07398F", b"017F22E2-79B1-7000-8000-000000000000", NEWER),
        # RFC 3339, section 5.8
        (orders.rfc3339(), b"1996-12-19T16:39:57-08:00", b"1996-12-20T00:39:57Z", SAME),
        (orders.rfc3339(), b"1985-04-12T23:20:50.52Z", b"1985-04-12T23:20:50.520000001Z", NEWER),
        (orders.rfc3339(), b"1990-12-31T23:59:60Z", b"1990-12-31T15:59:60-08:00", SAME),
        (orders.rfc3339(), b"1990-12-31T23:59:59.999999999Z", b"1990-12-31T23:59:60Z", NEWER),
        (orders.rfc3339(), b"1990-12-31T23:59:60.999999999Z", b"1991-01-01T00:00:00Z", NEWER),
        (orders.rfc3339(), b"1937-01-01T12:00:27.87+00:20", b"1937-01-01T11:40:27.87z", SAME),
        (orders.rfc3339(), b"2024-02-29t12:00:00-00:00", b"2024-02-29 12:00:00Z", SAME),
        (orders.rfc3339(), b"0000-01-01T00:00:00+23:59", b"0000-01-01T00:00:00Z", NEWER),
        (orders.unix_time(unit="s"), b"1700000000.25", b"1700000000.3", NEWER),
        (orders.unix_time(unit="s"), b"1700000000", b"1700000000.000000000", SAME),
        (orders.unix_time(unit="s"), b"-1.5", b"-1.25", NEWER),
        (orders.unix_time(unit="s"), b"-0.5", b"0", NEWER),
        (orders.unix_time(unit="ms"), b"1700000000000.5", b"1700000000001", NEWER),
        # hybrid clocks: the fraction is a count, and ten digits long where CockroachDB writes it
        (orders.hybrid_clock(), b"1532379923319195777.0000000009", b"1532379923319195777.0000000010", NEWER),
        (orders.hybrid_clock(), b"1532379923319195777.4294967295", b"1532379923319195778.0000000000", NEWER),
        (orders.hybrid_clock(), b"2.4294967295", b"3.0", NEWER),
        # logs of databases
        (orders.postgresql_lsn(), b"16/B374D848", b"16/b374d848", SAME),
        (orders.postgresql_lsn(), b"16/FFFFFFFF", b"17/0", NEWER),
        (orders.postgresql_lsn(), b"9/0", b"10/0", NEWER),
        (orders.oracle_scn(), b"999", b"1000", NEWER),
        (orders.mysql_gtid(), SERVER + b":9", SERVER.lower() + b":10", NEWER),
        (orders.mysql_gtid(), SERVER + b":9", OTHER_SERVER + b":10", UNCOMPARABLE),
        (orders.mysql_gtid(), SERVER + b":9", SERVER + b":tag:10", UNCOMPARABLE),
        (orders.mysql_gtid(), SERVER + b":TAG:9", SERVER + b":tag:9", SAME),
        # sets, with the manual's examples of GTID_SUBSET()
        (orders.mysql_gtid_set(), SERVER + b":23", SERVER + b":21-57", NEWER),
        (orders.mysql_gtid_set(), SERVER + b":23-25", SERVER + b":23-57", NEWER),
        (orders.mysql_gtid_set(), SERVER + b":20-25", SERVER + b":23-57", UNCOMPARABLE),
        (orders.mysql_gtid_set(), SERVER + b":1-3:5-9:4", SERVER.lower() + b":1-9", SAME),
        (orders.mysql_gtid_set(), SERVER + b":1-9", SERVER + b":1-3:5-9", OLDER),
        (orders.mysql_gtid_set(), SERVER + b":1-5", SERVER + b":1-5 ,\n" + OTHER_SERVER + b":1", NEWER),
        (orders.mysql_gtid_set(), SERVER + b":1-5", OTHER_SERVER + b":1-5", UNCOMPARABLE),
        (orders.mysql_gtid_set(), SERVER + b":1-5," + OTHER_SERVER + b":1",
         OTHER_SERVER + b":1-2," + SERVER + b":1-4", UNCOMPARABLE),
        (orders.mysql_gtid_set(), SERVER + b":1:blue:1-2", SERVER + b":1,%s:blue:1-3" % SERVER, NEWER),
        (orders.mysql_gtid_set(), SERVER + b":blue:1-2", SERVER + b":1-2", UNCOMPARABLE),
        (orders.mysql_gtid_set(), SERVER + b":1-5," + OTHER_SERVER + b":1", SERVER + b":1-5", OLDER),
        # a set that is too long to be kept
        (orders.mysql_gtid_set(), SERVER + b"".join(b":%d" % n for n in range(1, 1500, 2)), SERVER + b":1-1500", NEWER),
        # change streams
        (orders.mongodb_resume_token(), TOKEN, b'{"_data": "%s"}' % TOKEN, SAME),
        (orders.mongodb_resume_token(), TOKEN, b' { "_id" : {"_data":"%s" } }\n' % TOKEN.lower(), SAME),
        (orders.mongodb_resume_token(), TOKEN, b"8267C867A3000000012B0429296E1404", NEWER),
        (orders.mongodb_resume_token(), TOKEN, TOKEN + b"00", NEWER),
        (orders.mongodb_resume_token(cluster_time_only=True), TOKEN, TOKEN + b"00", SAME),
        # Kafka's coordinates
        (orders.kafka_coordinates(), b"orders-eu-0-9", b"orders-eu-0-10", NEWER),
        (orders.kafka_coordinates(), b"orders-0-9", b"orders-1-10", UNCOMPARABLE),
        (orders.kafka_coordinates(), b"orders-0-9", b"other-0-10", UNCOMPARABLE),
        (orders.kafka_coordinates(separator="/"), b"a-1/0/9", b"a-1/0/8", OLDER),
        # versions
        (orders.dotted_version(), b"1.9", b"1.10", NEWER),
        (orders.dotted_version(), b"1.10", b"1.10.0", NEWER),
        (orders.dotted_version(), b"1.10.2", b"2", NEWER),
        (orders.dotted_version(), b"1.02", b"1.2", SAME),
    ],
)  # fmt: skip
def test_how_the_new_one_stands_to_the_last(
    order: Order, last: bytes, new: bytes, expected: Comparison
) -> None:
    """Each pair stands as its document says."""
    assert order.compare(last, new) is expected


def test_the_cluster_time_of_a_token() -> None:
    """The 8 bytes after 0x82: seconds, then increment."""
    assert orders.mongodb_resume_token(cluster_time_only=True).sort_key(TOKEN) == (b"", 1741186978 << 32 | 25)


def test_origins() -> None:
    """Whose count an ID belongs to."""
    assert orders.mysql_gtid().sort_key(SERVER + b":Blue:7") == (f"{SERVER.decode().lower()}:blue", 7)
    assert orders.kafka_coordinates().sort_key(b"a.b-c-01-007") == (("a.b-c", 1), 7)
    assert orders.postgresql_lsn().sort_key(b"16/B374D848") == (b"", 97500059720)


GOOD = {
    orders.integer(): b"42",
    orders.epoch_sequence(): b"7:1042",
    orders.ulid(): b"01ARZ3NDEKTSV4RRFFQ69G5FAV",
    orders.uuid1(): b"C232AB00-9414-11EC-B3C8-9F6BDECED846",
    orders.uuid7(): b"017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
    orders.snowflake(): b"1541815603606036480",
    orders.rfc3339(): b"1985-04-12T23:20:50.52Z",
    orders.unix_time(unit="ms"): b"1700000000000",
    orders.hybrid_clock(): b"1532379923319195777.0000000001",
    orders.postgresql_lsn(): b"16/B374D848",
    orders.oracle_scn(): b"1234567",
    orders.mysql_gtid(): SERVER + b":23",
    orders.mysql_gtid_set(): SERVER + b":1-5",
    orders.mongodb_resume_token(): TOKEN,
    orders.kafka_coordinates(): b"orders-0-42",
    orders.dotted_version(): b"1.10.2",
}
ALLOWS_BLANKS = {orders.mysql_gtid_set()}


def is_formed(order: Order, dedup_id: bytes) -> bool:
    """Whether an ID is the same as itself."""
    return order.compare(dedup_id, dedup_id) is SAME


@pytest.mark.parametrize(("order", "good"), GOOD.items(), ids=str)
def test_what_is_around_an_id_makes_it_another_thing(order: Order, good: bytes) -> None:
    """No blank, sign, quote or NUL goes unseen, nor a character that Python's own parsers overlook."""
    assert is_formed(order, good)
    around = [b"+" + good, b"\0" + good, good + b"\0", b'"' + good + b'"', good + b"_1", good + b"\xc2\xa0"]
    if order not in ALLOWS_BLANKS:
        around += [b" " + good, good + b" ", good + b"\n", b"\t" + good]
    assert [each for each in around if is_formed(order, each)] == []


@pytest.mark.parametrize(("order", "good"), GOOD.items(), ids=str)
def test_digits_of_other_scripts_are_no_digits(order: Order, good: bytes) -> None:
    """Arabic and full-width digits, a letter of Cyrillic, and bytes that are no UTF-8 are malformed."""
    for digit in (b"0", b"1", b"2", b"4"):
        for other in (
            "\N{ARABIC-INDIC DIGIT THREE}",
            "\N{FULLWIDTH DIGIT ONE}",
            "\N{CYRILLIC SMALL LETTER A}",
            "\N{SUPERSCRIPT TWO}",
        ):
            changed = good.replace(digit, other.encode())
            assert changed == good or not is_formed(order, changed), changed
    assert not is_formed(order, good[:1] + b"\xff\xfe" + good[1:])


@pytest.mark.parametrize(
    ("order", "malformed"),
    [
        (orders.integer(), [b"", b"-", b"--1", b"+1", b"1_000", b"0x10", b"1.0", b"1e3", b"9" * 101]),
        (orders.big_endian(), [b"", b"\0" * 7, b"\0" * 9]),
        (orders.epoch_sequence(), [b"7", b"7:", b":7", b"7:1:2", b"-1:2", b"1:-2", b"1:18446744073709551616"]),
        (orders.epoch_sequence_bytes(), [b"", b"\0" * 11, b"\0" * 13]),
        (orders.ulid(), [b"80000000000000000000000000", b"8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
                         b"0000000000000000000000000!", b"0" * 25, b"0" * 27, b"0" * 15,
                         b"01ARZ3NDEKTSV4RRFFQ69G5FAI", b"01ARZ3NDEKTSV4RRFFQ69G5FAU", b"01ARZ3ND-KTSV4RRFFQ69G5FAV"]),
        (orders.uuid1(), [b"017F22E2-79B0-7CC3-98C4-DC0C0C07398F", b"C232AB00-9414-11EC-73C8-9F6BDECED846"]),
        (orders.uuid6(), [b"C232AB00-9414-11EC-B3C8-9F6BDECED846"]),
        (orders.uuid7(), [b"017F22E2-79B0-7CC3-D8C4-DC0C0C07398F", b"017F22E2-79B0-7CC3-18C4-DC0C0C07398F",
                          b"017F22E2-79B0-8CC3-98C4-DC0C0C07398F", b"017F22E2779B0-7CC3-98C4-DC0C0C07398F",
                          b"017F22E2-79B0-7CC3-98C4_DC0C0C07398F", b"017F22E2-79B0-7CC3-98C4-DC0C0C07-98F",
                          b"C232AB00-9414-11EC-B3C8-9F6BDECED846", b"{017F22E2-79B0-7CC3-98C4-DC0C0C07398F}",
                          b"urn:uuid:017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
                          b"017F22E279B0-7CC3-98C4-DC0C0C07398F-", b"017F22E2-79B0-7CC3-98C4-DC0C0C07398-",
                          b"017F22E2-79B0-7CC3-98C4-DC0C0C07398G", b"0" * 16, b"\0" * 15, b"0" * 36, b"-" * 36]),
        (orders.snowflake(), [b"9999999999999999999", b"", b"-1", b"9223372036854775808", b"0" * 21]),
        (orders.rfc3339(), [b"2023-02-29T00:00:00Z", b"2024-13-01T00:00:00Z", b"2024-00-01T00:00:00Z",
                            b"2024-01-01T24:00:00Z", b"2024-01-01T00:60:00Z", b"2024-01-01T00:00:61Z",
                            b"2024-01-01T00:00:00", b"2024-01-01T00:00:00.Z", b"2024-01-01T00:00:00.1234567890Z",
                            b"2024-01-01T00:00:00+24:00", b"2024-01-01T00:00:00+00:60", b"2024-01-01",
                            b"1990-12-31T23:58:60Z", b"1990-12-30T23:59:60Z", b"1990-12-31T23:59:60-08:00",
                            b"20240101T000000Z", b"NaT"]),
        (orders.unix_time(unit="ns"), [b"", b"1.5", b"1e9", b"-"]),
        (orders.unix_time(unit="s"), [b"1.", b".5", b"1.1234567890", b"1.2.3", b"inf", b"nan", b"1,5"]),
        (orders.hybrid_clock(logical_digits=10), [b"1532379923319195777", b"1532379923319195777.000000001",
                                                  b"1532379923319195777.00000000010"]),
        (orders.hybrid_clock(), [b"1", b"1.", b".1", b"1.4294967296", b"18446744073709551616.0", b"1.0.0"]),
        (orders.postgresql_lsn(), [b"", b"/", b"16/", b"/0", b"123456789/0", b"0/123456789", b"0x16/0", b"16/0/0",
                                   b"16-0"]),
        (orders.oracle_scn(), [b"", b"-1", b"18446744073709551616", b"0x10", b"1.5"]),
        (orders.mysql_gtid(), [SERVER + b":0", SERVER + b":9223372036854775808", SERVER + b":1-2", SERVER + b":",
                               SERVER, b"3E11FA47:1", SERVER + b":1tag:5", SERVER + b":" + b"t" * 33 + b":5"]),
        (orders.mysql_gtid_set(), [b"", b",", SERVER, SERVER + b":", SERVER + b":5-3", SERVER + b":0-3",
                                   SERVER + b":1-2-3", SERVER + b":blue", SERVER + b":blue:red:1", SERVER + b":1,",
                                   SERVER + b":1:blue"]),
        (orders.mongodb_resume_token(), [b"", b"82", b"82" * 8, b"81" + TOKEN[2:], TOKEN[:-1], b"{}",
                                         b'{"_data": ""}', b'{"_data": 82}', b'{"_data": "%s", "x": 1}' % TOKEN,
                                         b'{"_data": "%s"' % TOKEN, b"[" * 5000]),
        (orders.kafka_coordinates(), [b"", b"--", b"-0-1", b"orders-0-", b"orders--1", b"orders-0-1-", b".-0-1",
                                      b"..-0-1", b"a b-0-1", b"t" * 250 + b"-0-1", b"orders-2147483648-1",
                                      b"orders-0-9223372036854775808"]),
        (orders.dotted_version(), [b"", b".", b"1.", b".1", b"1..2", b"v1.2", b"1.2-rc1", b"1.2rc1",
                                   b"1." * 32 + b"1", b"9" * 21]),
    ],
)  # fmt: skip
def test_what_is_malformed(order: Order, malformed: list[bytes]) -> None:
    """None of these has a sort key, alone or in a batch of its like, and none is the same as itself."""
    assert [each for each in malformed if is_formed(order, each) or order.sort_key(each) is not None] == []
    good = next((text for known, text in GOOD.items() if known == order), None)
    for each in malformed:
        assert order.sort_keys([each, each]) == [None, None], each
        assert order.sort_keys([good, each]) == [None if good is None else order.sort_key(good), None], each


HUGE = 8_000_000


@pytest.mark.parametrize(("order", "good"), GOOD.items(), ids=str)
@pytest.mark.parametrize("filling", [b"9", b"0", b"1.", b"-1", b":", b"a", b"{", b" ", b"\xff"])
def test_a_huge_id_is_refused_without_reading_it(order: Order, good: bytes, filling: bytes) -> None:
    """Eight million bytes have no sort key, alone, behind a good beginning and in a batch.

    A reader of them would not come back.
    """
    huge = filling * (HUGE // len(filling))
    assert not is_formed(order, huge)
    assert not is_formed(order, good + huge)
    assert order.sort_keys([good, huge, None]) == [order.sort_key(good), None, None]
