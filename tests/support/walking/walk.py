"""Walks through the consumer's calls, invented from a seed.

They are written down so that any part of one can be walked again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dedup_sdk import Window
from tests.support.walking.oracle import Entry

Placing = Literal["by hand", "eager", "cooperative"]

WINDOWS = (
    Window(days=7), Window(days=7), Window(minutes=6), Window(count=1000), Window(count=4), Window(minutes=6, count=6),
)  # fmt: skip
SETTINGS: dict[str, dict[str, object]] = {
    "next": {},
    "by commit": {"enable.auto.commit": False},
    "stored": {"enable.auto.offset.store": False},
    "both": {"enable.auto.commit": False, "enable.auto.offset.store": False},
}
"""Who completes, in the words of docs/completion.md: asking for more, `commit`, `store_offsets`, the last two."""

TICK_MS = 60_000
LOG_BEGINS_MS = 1_700_000_000_000
MOST = 1_000


class Step(NamedTuple):
    """One step: its act, and two numbers that choose its objects. Both have a meaning after any other steps."""

    name: str
    a: int = 0
    b: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A topic, a consumer's settings, and its steps."""

    log: tuple[tuple[Entry, ...], ...]
    window: Window
    placing: Placing
    who_completes: str
    explicit: bool
    durability: Literal["record", "batch", "commit"]
    rocks: bool
    slow_commits: bool
    on_revoke: Literal["nothing", "commit", "commit later", "complete", "raise"]
    on_assign: Literal["nothing", "assign", "jump", "raise"]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """A walk as one reads it."""
        settings = {
            name: str(getattr(self, name))
            for name in self.__dataclass_fields__
            if name not in ("log", "steps")
        }
        lines = [
            " ".join(f"{name}={value}" for name, value in settings.items()),
            *(f"{number}: {' '.join(e.name or '-' for e in log)}" for number, log in enumerate(self.log)),
            *(f"    Step({each.name!r}, {each.a}, {each.b})," for each in self.steps),
        ]
        return "\n".join(lines)


_ALWAYS = {"poll": 10, "consume": 5}
_OFTEN = {
    "glance": 3, "iterate": 2, "complete": 4, "complete all": 3, "complete twice": 1, "complete foreign": 1,
    "release": 3, "release twice": 1,
    "once": 3, "once fails": 2, "commit": 3, "commit message": 2, "commit offsets": 2, "store message": 2,
    "store offsets": 2, "pause": 3, "resume": 3, "ask": 2, "produce": 2, "run": 3, "commit refused": 1,
}  # fmt: skip
_MOVES = {"seek back": 2, "seek near": 2, "seek away": 1, "seek edge": 1}
_FAULTS = {"interrupt": 4, "kill": 1, "lose store": 1}
_ENDS = {"reopen": 2, "leave block": 1, "call closed": 1}
_BY_HAND = {"assign": 2, "assign at": 1, "unassign": 1, "take one": 2, "leave one": 2, "subscribe": 1}
_BY_GROUP = {
    "join": 2,
    "leave": 2,
    "other polls": 4,
    "unsubscribe": 1,
    "lost": 1,
    "assign": 1,
    "kill other": 1,
}


def invent(seed: int) -> Walk:
    """Return the walk of a seed: mostly few kinds of steps, so that they meet often."""
    rng = random.Random(seed)
    placing: Placing = rng.choices(("by hand", "eager", "cooperative"), (8, 1, 1))[0]
    chosen = dict(_ALWAYS)
    kinds = {**_OFTEN, **(_BY_HAND if placing == "by hand" else _BY_GROUP)}
    for some, share in (
        (kinds, 0.4),
        (_MOVES, rng.choice((0.0, 0.6))),
        (_FAULTS, rng.choice((0.0, 0.6))),
        (_ENDS, 0.5),
    ):
        chosen.update({name: weight for name, weight in some.items() if rng.random() < share})
    if placing != "by hand" and rng.random() < 0.7:
        chosen.update({"join": 2, "other polls": 4, "leave": 1})
    names = rng.choices(list(chosen), list(chosen.values()), k=rng.randint(10, 40))
    return Walk(
        log=tuple(tuple(_log(rng, rng.randint(3, 16))) for _ in range(rng.randint(1, 3))),
        window=rng.choice(WINDOWS),
        placing=placing,
        who_completes=rng.choices(list(SETTINGS), (5, 2, 2, 1))[0],
        explicit=rng.random() < 0.4,
        durability=rng.choice(("record", "batch", "commit")),
        rocks=rng.random() < 0.25,
        slow_commits=rng.random() < 0.5,
        on_revoke=rng.choice(("nothing", "commit", "commit later", "complete", "raise")),
        on_assign=rng.choice(("nothing", "nothing", "nothing", "assign", "jump", "raise")),
        steps=tuple(Step(name, rng.randrange(MOST), rng.randrange(MOST)) for name in names),
    )


def _log(rng: random.Random, length: int) -> list[Entry]:
    names = [f"{rng.choice('abcdefgh')}{rng.choice(('', '', '2'))}" for _ in range(length)]
    return [
        Entry(None if rng.random() < 0.08 else name, LOG_BEGINS_MS + offset * TICK_MS)
        for offset, name in enumerate(names)
    ]


def more(walk: Walk, number: int, offset: int, choice: int) -> Entry:
    """Return the record that is sent to a partition at this offset while the walk goes on."""
    before = [each.name for each in walk.log[number]]
    name = before[choice % len(before)] if choice % 2 else f"n{choice % 7}"
    return Entry(name, LOG_BEGINS_MS + offset * TICK_MS)
