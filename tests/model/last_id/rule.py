"""The rule of `LastId`, as pure functions of plain values: the one oracle of it, in the model and in property tests.

Nothing here is taken from the code under test. An ID is an origin and a number; numbers of two origins have no order.
An ID without a number is malformed: it has no place in the order, so it is delivered, and leaves its source as it was.

A source is a sequence of records inside a partition whose IDs have an order, e.g. those of one producer. Of the
completed records of a source its newest IDs are kept: the newest is the mark, the others are the gap set below it.
They are the newest ``reorder_depth + 1`` IDs or, where the order is ``dense``, those that are at most
``reorder_depth`` below the mark.

Completed records are folded in the order of their offsets, as the watermark passes them. A record completed above the
watermark is known by its ID alone (``ahead``) until the watermark passes it. So the kept IDs follow from the completed
prefix of the log, in whatever order its records were completed.

The answers hold as long as the log keeps to the depth: a source's new IDs overtake at most
``reorder_depth`` others and are overtaken by at most as many, and one that comes again has at most as many newer ones
before it. Beyond that a record may be delivered again, and is lost only with ``below_floor="discard"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple


class Ident(NamedTuple):
    """A number that an origin gave; None: the ID is malformed."""

    origin: str
    number: int | None


class Sent(NamedTuple):
    """One record of a log: its source, and its ID; a timestamp below 0 is none."""

    offset: int
    source: str
    ident: Ident
    timestamp_ms: int = 0


class Order(Enum):
    """The order of one ID beside another."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"
    UNCOMPARABLE = "uncomparable"


def compare(one: Ident, other: Ident) -> Order:
    """Compare IDs of the same origin."""
    if one.origin != other.origin or one.number is None or other.number is None:
        return Order.UNCOMPARABLE
    if one.number == other.number:
        return Order.SAME
    return Order.NEWER if one.number > other.number else Order.OLDER


class Answer(Enum):
    """The answer for a record that this group did not complete before; `UNCOMPARABLE` to `UNCOVERED` are doubts."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    UNCOMPARABLE = "its ID has no order with those of its source"
    BELOW_FLOOR = "its ID lies below all that are kept"
    UNCOVERED = "too little is known of its source"


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source that has completed records.

    ``kept``: its newest IDs, of one origin, the mark last. ``forgot``: it may have had older ones. ``known``: None
    where ``kept`` are the newest of all that the group completed; else how many were taken in since less was known, by
    a late beginning or a restart. ``timestamp_ms``: of its newest record.
    """

    kept: tuple[Ident, ...]
    forgot: bool = False
    known: int | None = None
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIdRule:
    """``window_ms``: a source that was silent for longer begins anew; None: none does."""

    reorder_depth: int
    below_floor: Literal["deliver", "discard"] = "deliver"
    dense: bool = False
    window_ms: int | None = None

    @property
    def enough(self) -> int:
        """How many IDs a source has to take in until nothing that it does not know can matter.

        A record completed before has overtaken at most as many new IDs as the depth says, and as many that came
        again: with so many known it lies below the ``reorder_depth + 1`` that are kept.
        """
        return 3 * self.reorder_depth + 1

    def judge(
        self,
        state: SourceState | None,
        ident: Ident,
        ahead: Iterable[Ident] = (),
        *,
        whole: bool = True,
        timestamp_ms: int = 0,
    ) -> Answer:
        """Return the answer for a record.

        ``state`` is of records below the watermark (None: nothing of that source), ``ahead`` the IDs that were
        completed above it at smaller offsets; ``whole`` says that the store knows the group's history from its
        beginning.
        """
        if not self.is_well_formed(ident):
            return Answer.UNCOMPARABLE
        if state is not None and self.is_over(state, timestamp_ms):
            state = None
        kept = state.kept if state is not None else ()
        orders = [compare(ident, known) for known in kept]
        if Order.SAME in orders or any(compare(ident, known) is Order.SAME for known in ahead):
            return Answer.DUPLICATE
        if Order.UNCOMPARABLE in orders:
            return Answer.UNCOMPARABLE
        if state is not None and self.is_below_floor(state, ident):
            return Answer.BELOW_FLOOR
        covered = whole if state is None else state.known is None
        return Answer.FRESH if covered else Answer.UNCOVERED

    def delivers(self, answer: Answer) -> bool:
        """Whether the application sees a record of which that is said."""
        return answer is not Answer.DUPLICATE and not (
            answer is Answer.BELOW_FLOOR and self.below_floor == "discard"
        )

    def fold(
        self, state: SourceState | None, ident: Ident, *, whole: bool = True, timestamp_ms: int = 0
    ) -> SourceState | None:
        """Return the state once the watermark passes a completed record; see `judge`."""
        if not self.is_well_formed(ident):
            return state
        if state is None or self.is_over(state, timestamp_ms):
            return self._begin(ident, timestamp_ms, whole=whole)
        if compare(ident, state.kept[-1]) is Order.UNCOMPARABLE:
            return self.restart(ident, timestamp_ms)
        timestamp_ms = max(timestamp_ms, state.timestamp_ms)
        if self.is_below_floor(state, ident):
            return replace(state, timestamp_ms=timestamp_ms)
        numbers = sorted({each.number or 0 for each in (*state.kept, ident)})
        newest = [n for n in numbers if not self.dense or n >= numbers[-1] - self.reorder_depth]
        kept = tuple(
            Ident(ident.origin, n) for n in (newest if self.dense else numbers[-self.reorder_depth - 1 :])
        )
        known = state.known
        if known is not None and kept != state.kept:
            known += 1
        return self._counted(SourceState(kept, state.forgot or len(kept) < len(numbers), known, timestamp_ms))

    def restart(self, ident: Ident, timestamp_ms: int) -> SourceState:
        """Begin a source anew with an ID that its order does not know.

        The IDs of the order before say nothing of this one, and this one may have been here before: nothing
        is known.
        """
        return self._begin(ident, timestamp_ms, whole=False)

    def doubt(self, state: SourceState) -> SourceState:
        """Return the state where some completed records are missing: the IDs are right, but not all of them."""
        return replace(state, known=0)

    def is_well_formed(self, ident: Ident) -> bool:
        """Whether an ID has a place in the order."""
        return ident.number is not None

    def is_over(self, state: SourceState, timestamp_ms: int) -> bool:
        """Whether a source was silent for longer than its window when a record of that time comes."""
        known_ms = state.timestamp_ms
        return (
            self.window_ms is not None
            and min(timestamp_ms, known_ms) >= 0
            and timestamp_ms - known_ms > self.window_ms
        )

    def is_below_floor(self, state: SourceState, ident: Ident) -> bool:
        """Whether an ID is older than all that are kept, and may be one of those that are not kept any more."""
        if not state.forgot or compare(ident, state.kept[0]) is not Order.OLDER:
            return False
        # A dense order also remembers of a number below the lowest kept one that it did not come.
        return not self.dense or (ident.number or 0) < (state.kept[-1].number or 0) - self.reorder_depth

    def _begin(self, ident: Ident, timestamp_ms: int, *, whole: bool) -> SourceState:
        if whole:
            return SourceState((ident,), timestamp_ms=timestamp_ms)
        # Without a gap set one ID is enough to be known, and all below it may have come before.
        return self._counted(SourceState((ident,), self.reorder_depth == 0, 1, timestamp_ms))

    def _counted(self, state: SourceState) -> SourceState:
        return state if state.known is None or state.known < self.enough else replace(state, known=None)


def fold_all(rule: LastIdRule, completed: Iterable[Sent]) -> SourceState | None:
    """Return the state that the completed records of one source, in offset order, leave behind."""
    state: SourceState | None = None
    for sent in completed:
        state = rule.fold(state, sent.ident, timestamp_ms=sent.timestamp_ms)
    return state
