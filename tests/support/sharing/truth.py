"""The work of handlers, and its consequences: which records may be hidden, and which may be handled again.

It knows the promises of `docs/shared-store.md` and nothing of how they are kept. It predicts no verdict, as the naive
log does: which of two consumers handles a message depends on their order in time.

credit
    one more handling of a message that a fault excuses. A fault gives one for each handling that others could not
    hear of, or that was forgotten; each handling that is not the first within a window takes one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from dedup_sdk import VerdictKind
from tests.support.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from dedup_sdk import VerdictEvent

LONG_AGO = float("-inf")


class Coordinates(NamedTuple):
    """A partition as one group reads it."""

    group: str
    topic: str
    partition: int


class Entry(NamedTuple):
    """A record of the log."""

    offset: int
    name: str | None
    timestamp_ms: int


class Ident(NamedTuple):
    """The name of one message: an ID, and the scope in which it does."""

    scope: tuple[str, ...]
    name: str


class End(Enum):
    """How a record ended for its group."""

    HANDLED = "handled"
    HIDDEN = "hidden"


@dataclass
class Known:
    """The history of the records of one message."""

    timestamps_ms: set[int] = field(default_factory=set)
    """When it was sent, of all its records."""
    completed_ms: list[int] = field(default_factory=list)
    """Of those that were handled, or hidden for one that was."""
    handled: list[tuple[Coordinates, Entry]] = field(default_factory=list)
    touched_at: float = LONG_AGO
    """When somebody was told of it, or asked for it and found it completed, in the world's seconds."""


class Truth:
    """The oracle. ``calm``: no fault excuses anything."""

    def __init__(self, window_ms: int, *, calm: bool) -> None:
        self.window_ms = window_ms
        self.calm = calm
        self.known: dict[Ident, Known] = {}
        self.credits: Counter[Ident] = Counter()
        self.ends: dict[Coordinates, dict[int, End]] = {}
        self._hidden: list[tuple[Coordinates, Entry, Ident | None, VerdictEvent]] = []

    def send(self, ident: Ident | None, timestamp_ms: int) -> None:
        """Note that a record came into the log."""
        if ident is not None:
            self.known.setdefault(ident, Known()).timestamps_ms.add(timestamp_ms)

    def fault(self, ident: Ident | None, why: str) -> None:
        """Note that a message may be handled elsewhere too, while somebody has it in hand."""
        if self.calm:
            raise BrokenPromiseError("fault", f"{ident} may be handled twice though nothing failed: {why}")

    def excuse(self, ident: Ident | None, why: str) -> None:
        """Let a message be handled once more, that was handled."""
        self.fault(ident, why)
        if ident is not None:
            self.credits[ident] += 1

    # --- events --------------------------------------------------------------------------------------------------

    def handle(self, where: Coordinates, entry: Entry, ident: Ident | None, now_s: float) -> None:
        """Note that a handler did its work, or that its dead letter arrived: one end is like the other."""
        self.ends.setdefault(where, {})[entry.offset] = End.HANDLED
        if ident is None:
            return
        known = self.known[ident]
        near = [(w, e) for w, e in known.handled if self._is_near(e.timestamp_ms, entry.timestamp_ms)]
        expired = now_s - known.touched_at > self.window_ms / 1000
        if near and not expired and not self._is_used_again(known):
            if not self.credits[ident]:
                raise BrokenPromiseError("doubled", f"{ident} by {where} {entry} after {near}")
            self.credits[ident] -= 1
        known.handled.append((where, entry))
        known.completed_ms.append(entry.timestamp_ms)
        known.touched_at = now_s

    def hide(self, where: Coordinates, entry: Entry, ident: Ident | None, event: VerdictEvent) -> None:
        """Note a verdict that hides a record; `look` says whether it may."""
        self._hidden.append((where, entry, ident, event))

    def touch(self, ident: Ident, at_s: float) -> None:
        """Note that the server was told of a message, or asked."""
        known = self.known[ident]
        known.touched_at = max(known.touched_at, at_s)

    # --- promises ------------------------------------------------------------------------------------------------

    def look(self, log: dict[tuple[str, int], list[Entry]]) -> None:
        """See that all that was hidden may be: each by one that is completed, none by each other."""
        left, self._hidden = self._hidden, []
        while left:
            still = [each for each in left if not self._accept(log, *each)]
            if len(still) == len(left):
                raise BrokenPromiseError("lost", "; ".join(f"{w} {e}: {v.verdict}" for w, e, _, v in left))
            left = still

    def _accept(
        self,
        log: dict[tuple[str, int], list[Entry]],
        where: Coordinates,
        entry: Entry,
        ident: Ident | None,
        event: VerdictEvent,
    ) -> bool:
        ends = self.ends.setdefault(where, {})
        if event.verdict.kind is VerdictKind.REDELIVERED:
            return entry.offset in ends
        if ident is None:
            return False
        known = self.known[ident]
        if event.verdict.reason == "shared":
            may = any(self._is_near(seen_ms, entry.timestamp_ms) for seen_ms in known.completed_ms)
        else:
            may = any(
                ends.get(before.offset) in (End.HANDLED, End.HIDDEN)
                and before.name == entry.name
                and entry.timestamp_ms - before.timestamp_ms <= self.window_ms
                for before in log[where.topic, where.partition][: entry.offset]
            )
        if may:
            if ends.get(entry.offset) is not End.HANDLED:
                ends[entry.offset] = End.HIDDEN
            known.completed_ms.append(entry.timestamp_ms)
        return may

    def see_commit(self, where: Coordinates, offset: int) -> None:
        """See that all below a committed offset is over."""
        missing = [at for at in range(offset) if at not in self.ends.get(where, {})]
        if missing:
            raise BrokenPromiseError(
                "lost", f"{where} is committed up to {offset}, and {missing} are not over"
            )

    def _is_near(self, one_ms: int, other_ms: int) -> bool:
        return abs(one_ms - other_ms) <= self.window_ms

    def _is_used_again(self, known: Known) -> bool:
        """Whether an ID names several messages, one after the other: only the last of them is remembered."""
        return max(known.timestamps_ms) - min(known.timestamps_ms) > self.window_ms
