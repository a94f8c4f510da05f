"""The promises for a walk through the consumer's calls, told from the log and from the application's acts.

Deliberately naive: it keeps everything, and knows nothing of states, marks or watermarks. It predicts no verdict, as
the naive log does, because a walk does not know the consumer's store: it bounds which records may be hidden,
and which must be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dedup_sdk import Window


class Entry(NamedTuple):
    """A record of the log: its ID (None: it bears none), and its timestamp in ms."""

    name: str | None
    timestamp_ms: int


@dataclass(slots=True)
class Given:
    """A message that the application has: whose it is, by which call it came, and whether it was handed back.

    ``doubtful``: since a fault the consumer may not know of it any more, and bring it again.
    """

    owner: int
    message: Any
    call: int
    released: bool = False
    doubtful: bool = False


@dataclass
class Oracle:
    """All that happened to the records of one topic.

    Attributes:
        log: each partition's records, by offset.
        ended: records the application completed, or may have (an interruption leaves that open).
        sure: those it completed since the last fault, so that it must not come again.
        skipped: records the application jumped over, by its own choice.
        given: records in the application's hands.
        rewound: partitions that the application set back, whose committed offset may fall.
    """

    window: Window
    log: dict[int, list[Entry]]
    ended: dict[int, set[int]] = field(default_factory=dict)
    sure: dict[int, set[int]] = field(default_factory=dict)
    skipped: dict[int, set[int]] = field(default_factory=dict)
    given: dict[int, dict[int, Given]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    rewound: set[int] = field(default_factory=set)
    by_user: bool = False
    """Whether only the application commits, so that the group may never hear of a jump."""

    forgetful: bool = False
    """Whether repetitions are explained for the rest of the walk: two stores of which neither knows all."""

    shaken: bool = False
    """Whether something failed that may have the consumer go back, until there is another one."""

    def __post_init__(self) -> None:
        for number in self.log:
            for each in (self.ended, self.sure, self.skipped):
                each[number] = set()
            self.given[number] = {}

    # --- events --------------------------------------------------------------------------------------------------

    def hand(self, owner: int, message: Any, call: int) -> None:
        """A message reached the application."""
        number, offset = message.partition(), message.offset()
        where, entry, given = f"{number}@{offset}", self.log[number][offset], self.given[number]
        if offset in self.sure[number] and not self.forgetful:
            raise BrokenPromiseError("doubled", f"{where} was completed, and is handed out again")
        before = given.get(offset)
        if before is not None and not (before.released or before.doubtful) and before.owner == owner:
            raise BrokenPromiseError("doubled", f"{where} is handed out while it is in flight")
        for other in range(offset):
            if entry.name is None or self.log[number][other].name != entry.name or self.forgetful:
                continue
            if other in given and given[other].owner == owner and not given[other].doubtful:
                raise BrokenPromiseError("doubled", f"{where} is handed out beside its twin @{other}")
            if other in self.sure[number] and self._surely_remembers(number, other, offset):
                raise BrokenPromiseError("doubled", f"{where} is handed out after its twin @{other}")
        given[offset] = Given(owner, message, call)

    def end(self, number: int, offset: int, *, surely: bool = True) -> None:
        """The application completed a record that it has, or may have done so."""
        self.ended[number].add(offset)
        self.given[number].pop(offset, None)
        if surely and not self.shaken:
            self.sure[number].add(offset)

    def end_given(
        self, owner: int, below: dict[int, int] | None, *, before_call: int | None = None, surely: bool = True
    ) -> None:
        """A call completed the application's messages, below these offsets, or all of it.

        ``before_call``: but for the last ones.
        """
        for number, held in self.given.items():
            end = len(self.log[number]) if below is None else below.get(number, 0)
            for offset in [o for o in held if o < end]:
                each = held[offset]
                if each.owner == owner and not each.released:
                    if before_call is not None and each.call >= before_call:
                        continue
                    self.end(number, offset, surely=surely and not each.doubtful)

    def give_back(self, number: int, offset: int) -> None:
        """The application handed a record back: it comes again."""
        self.sure[number].discard(offset)
        if offset in self.given[number]:
            self.given[number][offset].released = True

    def forget(self, owner: int, numbers: Iterable[int]) -> None:
        """Partitions went, or are read from elsewhere: their messages in hand come again."""
        for number in numbers:
            self.given[number] = {o: g for o, g in self.given[number].items() if g.owner != owner}
            if self.skipped[number] or (self.by_user and number in self.rewound):
                # A jump is no commit: who begins before it begins anew.
                self.sure[number].clear()
            if self.window.count is not None:
                # Windows by count are durable in offset order.
                whole = self.missing(number, len(self.log[number]))[:1]
                self.sure[number] = {o for o in self.sure[number] if not whole or o < whole[0]}

    def jump(self, number: int, target: int, *, surely: bool = True) -> None:
        """The application set a partition elsewhere: skipping uncompleted records before it is its own choice."""
        if self.missing(number, target) or self.skipped[number] & set(range(target)) or not surely:
            # Behind a gap in its history the store knows less, as it does where it goes back before that without a
            # commit.
            self.sure[number].clear()
        else:
            self.sure[number] = {o for o in self.sure[number] if o < target}
        self.skipped[number] |= set(range(target)) - self.ended[number]
        self.rewound.add(number)

    def doubt(self, owner: int) -> None:
        """Messages of an application may come again."""
        for given in self.given.values():
            for each in given.values():
                each.doubtful |= each.owner == owner

    def fault(self, numbers: Iterable[int] | None = None) -> None:
        """A kill, a lost disk, an interruption: messages completed before may come again."""
        self.shaken = True
        for number in self.log if numbers is None else numbers:
            self.sure[number].clear()
            for each in self.given[number].values():
                each.doubtful = True

    # --- promises ------------------------------------------------------------------------------------------------

    def check_committed(self, number: int, offset: int) -> None:
        """No committed offset passes a record that is not over; none goes back by itself."""
        if offset < 0:
            return
        missing = self.missing(number, offset)
        if missing:
            raise BrokenPromiseError("lost", f"{offset} is committed of {number}, past {missing}")
        if offset < self.committed.get(number, 0) and number not in self.rewound:
            raise BrokenPromiseError(
                "went back", f"{number} was committed up to {self.committed[number]}, then {offset}"
            )
        self.committed[number] = offset

    def missing(self, number: int, end: int) -> list[int]:
        """Return the records below an offset that nobody completed, and that nothing excuses."""
        excused = self.ended[number] | self.skipped[number]
        hidden = self._hidden(number, end)
        return [offset for offset in range(end) if offset not in excused and offset not in hidden]

    def _hidden(self, number: int, end: int) -> set[int]:
        """Return the records that may be hidden: an earlier one with their ID was completed, within the window.

        By time a duplicate is a sighting too, by count it is none: so each record is known with the accepted ones
        behind it.
        """
        log, sources = self.log[number], dict[int, set[int]]()
        for offset in range(end):
            entry, found = log[offset], set[int]()
            if offset in self.ended[number]:
                found.add(offset)
            for other in range(offset) if entry.name is not None else ():
                if log[other].name == entry.name and self._is_near(number, other, offset):
                    found |= {o for o in sources[other] if self._is_recent(number, o, offset)}
            sources[offset] = found
        return {offset for offset, found in sources.items() if found}

    def _is_near(self, number: int, first: int, second: int) -> bool:
        age_ms = self.log[number][second].timestamp_ms - self.log[number][first].timestamp_ms
        return self.window.time_ms is None or age_ms <= self.window.time_ms

    def _is_recent(self, number: int, first: int, second: int) -> bool:
        between = [
            o for o in range(first + 1, second) if o in self.ended[number] and self.log[number][o].name
        ]
        return self.window.count is None or len(between) < self.window.count

    def _surely_remembers(self, number: int, first: int, second: int) -> bool:
        return self._is_near(number, first, second) and (
            self.window.count is None or second - first - 1 < self.window.count
        )
