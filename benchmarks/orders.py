"""How fast IDs get their sort keys, beside Python's own parsing of them.

    python benchmarks/orders.py
    python benchmarks/orders.py --ids 1000000 --rounds 7 --json

Each order is asked for the sort keys of the same IDs in batches of 1000, as a partition does; the parser beside it
reads them one by one into Python's own types, without a sort key. The fastest round counts, and the values
are checked. The result goes to stdout.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import ulid

from benchmarks.arguments import at_least
from dedup_adapters import solace
from dedup_sdk import orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk.orders import Order

BATCH = 1000
_SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_START = datetime(2026, 1, 1, tzinfo=UTC)


class Contest(NamedTuple):
    """An order, the text of its ``n``-th ID, and Python's own reader of it."""

    order: Order
    nth: Callable[[int], bytes]
    parse: Callable[[bytes], object]


def _random_bits(number: int) -> int:
    return random.Random(number).getrandbits(128)


def _uuid(number: int, version: int) -> bytes:
    bits = _random_bits(number) & ~(15 << 76) & ~(3 << 62) | version << 76 | 0b10 << 62
    return str(uuid.UUID(int=bits)).encode()


def _moment(number: int) -> bytes:
    return (_START + timedelta(milliseconds=number * 37)).isoformat(timespec="milliseconds").encode()


def _ints(separator: str) -> Callable[[bytes], object]:
    return lambda text: tuple(map(int, text.decode().split(separator)))


CONTESTS = [
    Contest(orders.integer(), lambda n: b"%d" % (10**12 + n), int),
    Contest(orders.big_endian(), lambda n: n.to_bytes(8, "big"), lambda text: int.from_bytes(text, "big")),
    Contest(orders.epoch_sequence(), lambda n: b"7:%d" % n, _ints(":")),
    Contest(orders.ulid(), lambda n: str(ulid.ULID(_random_bits(n).to_bytes(16, "big"))).encode(),
            lambda text: ulid.ULID.from_str(text.decode())),
    Contest(orders.uuid1(), lambda n: _uuid(n, 1), lambda text: uuid.UUID(text.decode()).time),
    Contest(orders.uuid7(), lambda n: _uuid(n, 7), lambda text: uuid.UUID(text.decode()).int),
    Contest(orders.snowflake(), lambda n: b"%d" % (1541815603606036480 + (n << 22)), int),
    Contest(orders.rfc3339(), _moment, lambda text: datetime.fromisoformat(text.decode())),
    Contest(orders.unix_time(unit="ms"), lambda n: b"%d" % (1_700_000_000_000 + n), int),
    Contest(orders.hybrid_clock(), lambda n: b"%d.%010d" % (1532379923319195777 + n, n % 7), _ints(".")),
    Contest(orders.postgresql_lsn(), lambda n: b"16/%X" % (0x1000 + n),
            lambda text: [int(half, 16) for half in text.split(b"/")]),
    Contest(orders.mysql_gtid(), lambda n: f"{_SERVER}:{n + 1}".encode(), lambda text: int(text.rpartition(b":")[2])),
    Contest(orders.mongodb_resume_token(), lambda n: b"82%016X2B022C0100296E5A1004" % n,
            lambda text: bytes.fromhex(text.decode())),
    Contest(orders.kafka_coordinates(), lambda n: b"orders-eu-3-%d" % n, lambda text: int(text.rpartition(b"-")[2])),
    Contest(orders.dotted_version(), lambda n: b"1.%d.%d" % (n >> 8, n & 255), _ints(".")),
    Contest(solace.order(), lambda n: str(solace.ReplicationGroupMessageId(1, n)).encode(),
            lambda text: solace.ReplicationGroupMessageId.parse(text.decode())),
]  # fmt: skip


def _sort_keys(order: Order, batches: list[list[bytes]]) -> float:
    """Return the seconds that the sort keys of all batches take."""
    begun = time.perf_counter()
    for batch in batches:
        assert None not in order.sort_keys(batch), batch[0]
    return time.perf_counter() - begun


def _parsed(parse: Callable[[bytes], object], batches: list[list[bytes]]) -> float:
    """Return the seconds that a parser takes for all of them."""
    begun = time.perf_counter()
    for batch in batches:
        for each in batch:
            parse(each)
    return time.perf_counter() - begun


def measure(contest: Contest, ids: int, rounds: int) -> dict[str, float]:
    """Return how many a second get a sort key, how many Python reads, and the ratio of the two."""
    texts = [contest.nth(number) for number in range(ids)]
    batches = [texts[begin : begin + BATCH] for begin in range(0, ids, BATCH)]
    # As inside a batch of the consumer, which pauses it: a sort key is one more object than a number.
    gc.disable()
    # In turns, so that a slow stretch of the machine meets both.
    pairs = [(_sort_keys(contest.order, batches), _parsed(contest.parse, batches)) for _ in range(rounds)]
    gc.enable()
    ours, theirs = (min(each) for each in zip(*pairs, strict=True))
    return {
        "sort_keys_per_second": round(ids / ours),
        "parsed_per_second": round(ids / theirs),
        "ratio": round(theirs / ours, 2),
    }


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="How fast IDs get their sort keys.")
    parser.add_argument("--ids", type=at_least(1), default=200_000, help="IDs of each order")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="the fastest counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    found = {contest.order.name: measure(contest, options.ids, options.rounds) for contest in CONTESTS}
    if options.json:
        print(json.dumps(found))
        return 0
    width = max(map(len, found))
    print(f"{'order'.ljust(width)}  {'sort keys/s':>12}  {'Python/s':>12}  ratio")
    for name, figures in found.items():
        ours, theirs, ratio = figures.values()
        print(f"{name.ljust(width)}  {ours:>12,.0f}  {theirs:>12,.0f}  {ratio:5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
