"""Many lanes judged at once, against the same records one after the other: what they are told, and what is saved, is the same."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from dedup_sdk import orders
from dedup_sdk.last.rule import BelowFloor, LastRule
from dedup_sdk.orders import Order
from dedup_sdk.window import Window
from tests.support.lane_pair import Pair

WINDOW_MS = 1_000
FAR = {
    "near": 0,
    "nearby": 50,
    "wide": 2**62,
    "epoch": 7 << 64,
    "edge": 2**63 - 20,
    "low edge": 2**64 - 20,
    "huge": 10**60,
    "below": -40,
}
"""Where lanes begin to count: within 64 bits, at their edges, beyond them, and beyond what has columns."""


def text_of(order: Order, number: int) -> bytes:
    """Return an ID of that rank, at times written another way."""
    if order.name == "integer":
        return b"%d" % number if number % 5 or number < 0 else b"00%d" % number
    return b"%d:%d" % divmod(number % 2**127, 2**64)


class Log:
    """What comes to both; every lane counts by itself."""

    def __init__(self, pair: Pair, order: Order, begin: int) -> None:
        self.pair = pair
        self.order = order
        self.last = dict.fromkeys(range(6), begin)
        self.records: list[tuple[int, bytes | None]] = []
        self.now_ms = 0

    def add(self, step: tuple[int, int | str, int]) -> None:
        """Let a record be written: its lane, how far it is from the last of that (or what is wrong with it), how much later it is."""
        lane, by, later = step
        self.now_ms += max(0, later)
        time_ms = {-1: -1, -2: self.now_ms - 300, -3: 2**40}.get(later, self.now_ms)
        if by == "none":
            self.records.append((time_ms, None))
            return
        number = self.last[lane] + (by if isinstance(by, int) else 0)
        self.last[lane] = max(self.last[lane], number)
        id_bytes = {"unreadable": b"?", "long": b"%040d" % number}.get(str(by), text_of(self.order, number))
        self.records.append((time_ms, self.pair.key(str(lane), id_bytes)))

    def come(self, start: int, *, fold: bool = False) -> None:
        """Let what was written from an offset on come."""
        times, keys = zip(*self.records[start:], strict=True)
        self.pair.latest_ms = self.now_ms
        self.pair.admit(list(range(start, len(self.records))), list(times), list(keys), fold=fold)


NEXT = st.one_of(
    st.just(1),
    st.just(1),
    st.just(1),
    st.integers(-3, 4),
    st.integers(-9, 70),
    st.sampled_from([0, 0, 200, -70, 2**40]),
)
STEPS = st.tuples(
    st.integers(0, 5),
    st.one_of(NEXT, NEXT, NEXT, NEXT, st.sampled_from(["unreadable", "none", "long", 2**70])),
    st.sampled_from([1, 1, 1, 1, 0, 5, -1, -2, -3, 300, 1_001]),
)
CALM = st.tuples(st.integers(0, 5), st.sampled_from([1, 1, 1, 1, 1, 1, 1, 2, 3, 0, -1, -2, 70]), st.just(1))
BATCHES = st.one_of(*(st.lists(steps, min_size=1, max_size=40) for steps in (CALM, CALM, STEPS)))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come", "come", "pass", "pass", "fold"]), BATCHES),
        st.tuples(
            st.sampled_from(["complete", "complete all", "complete all", "release"]),
            st.integers(0, 90),
        ),
        st.tuples(st.sampled_from(["write", "write", "flush", "crash", "doubt"]), st.just(0)),
    ),
    max_size=20,
)


class Life:
    """What happens to both."""

    def __init__(self, pair: Pair, log: Log) -> None:
        self.pair = pair
        self.log = log

    def do(self, action: str, given_: Any) -> None:
        """Do one of ``ACTIONS``."""
        pair, log = self.pair, self.log
        if action in ("come", "pass", "fold"):
            self.grow(action, given_)
        elif action == "crash":
            again = pair.crash()
            if again < len(log.records):
                log.come(again)
        elif action == "flush":
            pair.flush(log.now_ms)
        elif action == "doubt":
            for lane in pair.lanes:
                lane.pass_uncounted(1)
        elif action == "write":
            pair.write()
        elif offsets := pair.open():
            pair.end(action, offsets[given_ % len(offsets)])

    def grow(self, how: str, steps: list[tuple[int, int | str, int]]) -> None:
        """Let records be written, and come; ``pass``: all of them are completed, ``fold``: they were."""
        pair, log = self.pair, self.log
        start = len(log.records)
        if how == "fold" and start != pair.lanes[0].high:
            return
        for step in steps:
            log.add(step)
        log.come(start, fold=how == "fold")
        while how == "pass" and any(offset >= start for offset in pair.open()):
            last = pair.open()[-1]
            pair.end("complete all" if pair.plainly(last) else "complete", last)


@settings(max_examples=500, deadline=None)
@given(
    order=st.sampled_from([orders.integer(), orders.integer(), orders.epoch_sequence()]),
    begin=st.sampled_from(sorted(FAR)),
    actions=ACTIONS,
    depth=st.sampled_from([0, 1, 2, 8, 63, 64, 130]),
    below_floor=st.sampled_from(["deliver", "discard"]),
    since_ms=st.sampled_from([None, None, None, -995]),
    reveals=st.sampled_from([False, False, True]),
)
def test_many_lanes_at_once_say_and_save_what_records_one_by_one_do(
    order: Order,
    begin: str,
    actions: list[tuple[str, Any]],
    depth: int,
    below_floor: BelowFloor,
    *,
    since_ms: int | None,
    reveals: bool,
) -> None:
    """Whatever comes, in whatever order it ends, through flushes, crashes and doubt."""
    rule = LastRule(order, depth, below_floor, Window(milliseconds=WINDOW_MS))
    pair = Pair(rule, since_ms=since_ms, by_lane=True, reveals=reveals)
    life = Life(pair, Log(pair, order, FAR[begin]))
    for action, given_ in actions:
        life.do(action, given_)
    while offsets := pair.open():
        pair.end("complete all", offsets[0])
        for offset in pair.open()[:1]:
            pair.end("complete", offset)
    pair.flush(life.log.now_ms)
    assert pair.stored[0] == pair.stored[1]
    assert pair.lanes[0].high == len(life.log.records)
