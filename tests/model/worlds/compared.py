"""Records whose IDs are compared, in a world: their IDs, and the facts that the log has of them.

An ident of such a world is ``source|id|other``: the source, the ID that is compared (``A/17``: an origin and a
number, ``?``: nothing that the order reads), and the ID that a second opinion looks up.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from dedup_sdk._strategy import LastId, Lookup
from dedup_sdk._window import Window
from dedup_sdk.ids import header
from tests.model.last_id.rule import Answer, Ident, LastIdRule, SourceState
from tests.support.naive_log import Sighting, in_window
from tests.support.slashed import DenseSlashed, Slashed

if TYPE_CHECKING:
    from dedup_sdk._decision import BelowFloor

_ORDERS = {"dense": DenseSlashed(), "sparse": Slashed()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How IDs are compared.

    ``sources`` in a partition, ``origins`` of a source, ``reorder_depth``, ``below_floor`` as in `LastId`.
    ``second`` is the window of a second opinion. ``malformed`` and ``restamped`` are chances of a record: that
    nobody can read its ID, or that it comes again under a new one. ``reach``: how far back resends
    lie, in records.
    """

    kind: Literal["dense", "sparse"] = "dense"
    sources: str = "xyz"
    origins: str = "A"
    reorder_depth: int = 3
    below_floor: BelowFloor = "deliver"
    second: Window | None = None
    malformed: float = 0.0
    restamped: float = 0.0
    reach: int = 12

    def strategy(self, window: Window) -> LastId:
        """The strategy of a consumer."""
        return LastId(
            id=header("id"), source=header("source"), order=_ORDERS[self.kind], reorder_depth=self.reorder_depth,
            below_floor=self.below_floor, window=window,
            otherwise=None if self.second is None else Lookup(id=header("other"), window=self.second),
        )  # fmt: skip


def headers_of(ident: str) -> list[tuple[str, str | bytes | None]]:
    """The headers of a record; none where IDs are looked up."""
    if "|" not in ident:
        return []
    return [
        (name, part.encode()) for name, part in zip(("source", "id", "other"), ident.split("|"), strict=True)
    ]


class Source:
    """Draws idents.

    Each source counts up with some disorder, repeats earlier IDs, and changes its origin now and then.
    """

    def __init__(self, compared: Compared, chooser: random.Random) -> None:
        self._compared, self._random = compared, chooser
        self._next: dict[tuple[str, str], int] = defaultdict(lambda: 10)
        self._origin = dict.fromkeys(compared.sources, compared.origins[0])
        self._drawn: set[tuple[str, str, int]] = set()
        self._sent: list[str] = []

    def draw(self, *, repeats: bool) -> str:
        """Draw one; ``repeats``: it was sent before."""
        chooser, compared = self._random, self._compared
        if repeats and self._sent:
            again = chooser.choice(self._sent[-compared.reach :])
            if chooser.random() >= compared.restamped:
                return again
            other = again.split("|")[2]
        else:
            other = f"other-{len(self._sent)}"
        source = chooser.choice(compared.sources)
        if chooser.random() < 0.15:
            self._origin[source] = chooser.choice(compared.origins)
        origin = self._origin[source]
        number = self._next[source, origin] + chooser.choice([0, 0, 0, 1, 2, 9, -1, -2, -7])
        while (source, origin, number) in self._drawn:
            number += 1
        self._drawn.add((source, origin, number))
        self._next[source, origin] = max(self._next[source, origin], number) + 1
        read = "?" if chooser.random() < compared.malformed else f"{origin}/{number}"
        self._sent.append(f"{source}|{read}|{other}")
        return self._sent[-1]


class Fact(NamedTuple):
    """The log's facts on a record; ``looked_up``: by the second opinion, None without one."""

    compared: Answer
    looked_up: Answer | None

    @property
    def expected(self) -> Answer:
        """The verdict once a second opinion was asked."""
        in_doubt = self.compared not in (Answer.FRESH, Answer.DUPLICATE)
        return self.looked_up if in_doubt and self.looked_up is not None else self.compared


class LogRow(NamedTuple):
    """One record of a log."""

    offset: int
    ident: str
    timestamp_ms: int


def read_compared(
    log: Iterable[LogRow], compared: Compared, window: Window, now_ms: int
) -> Iterator[tuple[int, Fact]]:
    """Yield the log's facts on each record, by offset, read from its beginning in offset order.

    After ``now_ms`` is the future.
    """
    sources: dict[str, SourceState | None] = {}
    others: dict[str, Sighting] = {}
    rule = LastIdRule(
        reorder_depth=compared.reorder_depth, dense=compared.kind == "dense", window_ms=window.time_ms or 0
    )
    for row in sorted(log):
        # A time from the future is none: neither source nor second opinion keeps it.
        known_ms = row.timestamp_ms if row.timestamp_ms <= now_ms else -1
        source, text, other = row.ident.split("|")
        origin, _, number = text.partition("/")
        ident = Ident(origin, int(number) if number else None)
        looked_up = None
        if compared.second is not None:
            seen = others.get(other)
            known = seen and in_window(row.timestamp_ms, seen, 0, time_ms=compared.second.time_ms, count=None)
            looked_up = Answer.DUPLICATE if known else Answer.FRESH
        state = sources.get(source)
        yield row.offset, Fact(rule.judge(state, ident, timestamp_ms=known_ms), looked_up)
        sources[source] = rule.fold(state, ident, timestamp_ms=known_ms)
        others[other] = Sighting(row.offset, known_ms, 0)
