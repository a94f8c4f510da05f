"""Every shipped order, with well-formed IDs of it."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from dedup_sdk import orders
from dedup_sdk.orders import Order

SERVERS = ("3E11FA47-71CA-11E1-9E33-C80AA9429562", "2174b383-5441-11e8-b90a-c80aa9429562")
NUMBERS = st.one_of(st.integers(0, 12), st.integers(0, 2**63 - 1))
FEW = st.integers(0, 3)


class Kind(NamedTuple):
    """An order, and its IDs: few enough that the same place comes often, wide enough that all of it is used."""

    order: Order
    ids: st.SearchStrategy[bytes]


def _text(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(lambda found: "".join(found).encode())


def _numbers(least: int, most: int) -> st.SearchStrategy[str]:
    """Decimal numbers, some of them with zeros in front."""
    number = st.one_of(st.integers(least, min(most, least + 5)), st.integers(least, most)).map(str)
    return st.one_of(number, number.map(lambda text: text if text.startswith("-") else f"0{text}"))


def _uuids(version: int) -> st.SearchStrategy[bytes]:
    def spelled(bits: int, form: str) -> bytes:
        bits = bits & ~(15 << 76) & ~(3 << 62) | version << 76 | 0b10 << 62
        digits = f"{bits:032x}"
        if form == "raw":
            return bytes.fromhex(digits)
        hyphenated = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return {"hex": digits, "upper": hyphenated.upper()}.get(form, hyphenated).encode()

    # Few high and few low halves, so that times, clocks and nodes come again.
    bits = st.builds(lambda high, low: high << 96 | low << 48 | high % 2, FEW, FEW) | st.integers(
        0, 2**128 - 1
    )
    return st.builds(spelled, bits, st.sampled_from(["raw", "hex", "upper", "plain"]))


def _ulids() -> st.SearchStrategy[bytes]:
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    text = st.tuples(st.sampled_from("0137"), st.text(st.sampled_from(letters), min_size=25, max_size=25))
    few = st.sampled_from("012Zz").map(lambda last: f"01ARZ3NDEKTSV4RRFFQ69G5FA{last}")
    return st.one_of(
        text.map(lambda found: "".join(found).encode()),
        text.map(lambda found: "".join(found).lower().encode()),
        few.map(str.encode),
        st.integers(0, 2**128 - 1).map(lambda bits: bits.to_bytes(16, "big")),
    )


def _two(number: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return number.map(lambda value: f"{value:02}")


def _moments() -> st.SearchStrategy[bytes]:
    date = st.dates().map(str) | st.sampled_from(["1990-12-31", "2024-02-29"])
    clock = _text(
        _two(st.integers(0, 23)),
        st.just(":"),
        _two(st.integers(0, 59)),
        st.just(":"),
        _two(st.integers(0, 59)),
    ).map(bytes.decode) | st.sampled_from(["00:00:00", "23:59:59"])
    fraction = st.just("") | st.text("0123456789", min_size=1, max_size=9).map(".".__add__)
    zone = st.sampled_from(["Z", "z", "+00:00", "-00:00", "+05:30", "-08:00", "+23:59", "-23:59"])
    moments = _text(date, st.sampled_from("Tt "), clock, fraction, zone)
    leap = st.sampled_from([b"1990-12-31T23:59:60Z", b"1990-12-31T15:59:60-08:00", b"1990-12-31T23:59:60.5Z"])
    return moments | leap


def _gtid_sets() -> st.SearchStrategy[bytes]:
    interval = st.builds(
        lambda first, more: f"{first}-{first + more}" if more else str(first), st.integers(1, 9), FEW
    )
    intervals = st.lists(interval, min_size=1, max_size=3).map(":".join)
    server = st.sampled_from([*SERVERS, f"{SERVERS[0]}:blue"])
    one = st.tuples(server, intervals).map(":".join)
    return st.lists(one, min_size=1, max_size=3).map(", ".join).map(str.encode)


def _tokens() -> st.SearchStrategy[bytes]:
    token = st.builds(
        lambda time, rest: (b"\x82" + time.to_bytes(8, "big") + rest).hex().upper(),
        NUMBERS,
        st.binary(max_size=3),
    )
    return st.one_of(
        token.map(str.encode), token.map(lambda text: f'{{"_data": "{text}"}}'.encode()),
        token.map(lambda text: f'{{"_id": {{"_data": "{text.lower()}"}}}}'.encode()),
    )  # fmt: skip


_SNOWFLAKES = _text(_numbers(0, 2**63 - 1).filter(lambda text: len(text) < 20))
_TOPICS = st.sampled_from(["orders", "orders-eu", "a.b_c-1"])
_COORDINATES = _text(
    _TOPICS,
    st.just("-"),
    _numbers(0, 2),
    st.just("-"),
    _numbers(0, 2**63 - 1).filter(lambda text: len(text) < 20),
)
_PAIRS = _text(_numbers(0, 3), st.just(":"), _numbers(0, 2**32 - 1))
_TIMES = _text(
    _numbers(-(10**12), 10**12), st.just("") | st.text("0123456789", min_size=1, max_size=3).map(".".__add__)
)

KINDS = [
    Kind(orders.integer(), _text(_numbers(-(10**30), 10**30))),
    Kind(orders.big_endian(), st.binary(min_size=8, max_size=8)),
    Kind(orders.big_endian(width=2, signed=True), st.binary(min_size=2, max_size=2)),
    Kind(orders.big_endian(width=3, signed=True), st.binary(min_size=3, max_size=3)),
    Kind(orders.little_endian(width=4), st.binary(min_size=4, max_size=4)),
    Kind(orders.epoch_sequence(), _PAIRS),
    Kind(orders.epoch_sequence_bytes(epoch_bytes=1, sequence_bytes=2), st.binary(min_size=3, max_size=3)),
    Kind(orders.ulid(), _ulids()),
    Kind(orders.uuid1(), _uuids(1)),
    Kind(orders.uuid1(by_node=False), _uuids(1)),
    Kind(orders.uuid6(), _uuids(6)),
    Kind(orders.uuid6(by_node=True), _uuids(6)),
    Kind(orders.uuid7(), _uuids(7)),
    Kind(orders.snowflake(), _SNOWFLAKES),
    Kind(orders.snowflake(epoch_ms=1, machine_bits=3, sequence_bits=2, by_machine=True), _SNOWFLAKES),
    Kind(orders.rfc3339(), _moments()),
    Kind(orders.unix_time(unit="s"), _TIMES),
    Kind(orders.unix_time(unit="us"), _TIMES),
    Kind(orders.unix_time(unit="ns"), _text(_numbers(-(10**18), 10**18))),
    Kind(orders.hybrid_clock(separator=":"), _PAIRS),
    Kind(orders.hybrid_clock(logical_digits=10), st.builds(lambda time, count: b"%d.%010d" % (time, count), NUMBERS,
                                                           FEW | st.integers(0, 2**32 - 1))),
    Kind(orders.postgresql_lsn(), st.builds(lambda high, low: f"{high:X}/{low:x}".encode(), FEW,
                                            st.integers(0, 2**32 - 1))),
    Kind(orders.oracle_scn(), _SNOWFLAKES),
    Kind(orders.mysql_gtid(), _text(st.sampled_from([*SERVERS, f"{SERVERS[0]}:Blue"]), st.just(":"),
                                    _numbers(1, 2**63 - 1).filter(lambda text: len(text) < 20))),
    Kind(orders.mysql_gtid_set(), _gtid_sets()),
    Kind(orders.mongodb_resume_token(), _tokens()),
    Kind(orders.mongodb_resume_token(cluster_time_only=True), _tokens()),
    Kind(orders.kafka_coordinates(), _COORDINATES),
    Kind(orders.kafka_coordinates(separator="/"), _COORDINATES.map(lambda text: b"/".join(text.rsplit(b"-", 2)))),
    Kind(orders.dotted_version(), st.lists(_numbers(0, 12), min_size=1, max_size=4).map(".".join).map(str.encode)),
]  # fmt: skip
