"""Records judged as columns, against the same records judged one after the other.

Their verdicts, and the saved state, are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dedup_sdk import orders
from dedup_sdk._core.last_rule import LastRule
from dedup_sdk._decision import BelowFloor
from dedup_sdk._window import Window
from tests.support.memory_pair import Pair

if TYPE_CHECKING:
    from dedup_sdk.orders import Order

WINDOW_MS = 1_000


@dataclass(frozen=True)
class Ids:
    """An order, and the text of its n-th ID, of one of two origins where there are several."""

    order: Order
    text: str
    origins: tuple[str, str] = ("", "")

    def nth(self, number: int | None, origin: int) -> bytes:
        """Return an ID; of no number one that cannot be read."""
        if number is None:
            return b"?"
        return self.text.format(number, origin=self.origins[origin]).encode()


KINDS = (
    Ids(orders.integer(), "{0}"),
    Ids(orders.integer(), "{0}00000000000000000000"),
    Ids(orders.ulid(), "{0:026d}"),
    Ids(orders.dotted_version(), "1.{0}"),
    Ids(orders.kafka_coordinates(), "{origin}-0-{0}", ("left", "right")),
)


class Log:
    """The batches that both memories get; ``calm``: of one origin, readable, and inside the window."""

    def __init__(self, pair: Pair, kind: Ids, *, calm: bool) -> None:
        self.pair = pair
        self.kind = kind
        self.calm = calm
        self.end = self.now_ms = 0
        self.last = {"a": 50, "b": 50}

    def grow(self, how: str, steps: list[tuple[str, int | None, int, int]]) -> None:
        """Let a batch of ``STEPS`` come."""
        if how == "fold" and self.end != self.pair.states[0].flight.high:
            return
        rows = [self._next(*step) for step in steps]
        offsets = list(range(self.end, self.end + len(rows)))
        self.end += len(rows)
        self.pair.admit(
            offsets, [time_ms for time_ms, _ in rows], [key for _, key in rows], fold=how == "fold"
        )
        if how == "pass" and offsets[-1] in self.pair.open():
            self.pair.end("complete all", offsets[-1])

    def _next(self, source: str, step: int | None, origin: int, later: int) -> tuple[int, bytes]:
        number = self.last[source] + (step or 0)
        # A late record is one alone; the source goes on where it was.
        self.last[source] = max(self.last[source], number)
        self.now_ms += 1 if self.calm else later
        id_bytes = self.kind.nth(
            None if step is None and not self.calm else number, 0 if self.calm else origin
        )
        return self.now_ms, self.pair.key(source, id_bytes)


STEPS = st.tuples(
    st.sampled_from("aaab"),
    st.one_of(st.just(1), st.just(1), st.integers(-9, 3), st.sampled_from([40, None])),
    st.sampled_from([0, 0, 0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, 1, 1, -1, 300, -300, 1_001]),
)
"""Of each record its source, how far it is from the last of that, its origin, and how much later it is."""
BATCHES = st.lists(STEPS, min_size=1, max_size=25)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["admit", "pass", "pass", "fold"]), BATCHES),
        st.tuples(st.sampled_from(["complete", "complete all", "release"]), st.integers(0, 60)),
        st.tuples(st.just("write"), st.just(0)),
    ),
    max_size=12,
)
"""``pass``: records come, and all of them are completed at once."""


@pytest.mark.slow
@settings(max_examples=800, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    actions=ACTIONS,
    depth=st.sampled_from([0, 1, 2, 3, 5, 8, 64]),
    below_floor=st.sampled_from(["deliver", "discard"]),
    since_ms=st.sampled_from([None, None, -995, 0]),
    by_source=st.sampled_from([False, False, True]),
    calm=st.sampled_from([True, True, False]),
    shows_duplicates=st.sampled_from([False, False, True]),
)
def test_columns_say_and_save_what_records_one_by_one_do(
    kind: Ids,
    actions: list[tuple[str, Any]],
    depth: int,
    below_floor: BelowFloor,
    *,
    since_ms: int | None,
    by_source: bool,
    calm: bool,
    shows_duplicates: bool,
) -> None:
    """Whatever comes, in whatever order it ends; ``calm``: of one origin, readable, and inside the window."""
    pair = Pair(
        LastRule(kind.order, depth, below_floor, Window(milliseconds=WINDOW_MS)),
        since_ms=since_ms,
        by_source=by_source,
        shows_duplicates=shows_duplicates,
    )
    log = Log(pair, kind, calm=calm)
    for action, given_ in actions:
        if action in ("admit", "pass", "fold"):
            log.grow(action, given_)
        elif action == "write":
            pair.write()
        elif offsets := pair.open():
            pair.end(action, offsets[given_ % len(offsets)])
    while offsets := pair.open():
        pair.end("complete all", offsets[0])
        for offset in pair.open()[:1]:
            pair.end("complete", offset)
    pair.write()
    assert pair.states[0].flight.high == log.end
