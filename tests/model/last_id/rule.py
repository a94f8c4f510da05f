"""The rule of compare-with-the-last-one, as pure functions of plain values: what a strategy of that kind is held against.

A source is a sequence of records inside a partition whose IDs have an order, e.g. those of one producer. Of the completed records of a source its newest
``reorder_depth + 1`` IDs are kept: the newest is the mark, the others are the gap set below it.

Completed records are folded in the order of their offsets, as the watermark passes them; one that was given up is not
folded. What is completed above the watermark is known by its ID alone (``ahead``) until the watermark passes it. So what
is kept follows from the completed prefix of the log, in whatever order its records were completed.

Between two IDs the order says `Order`. One that is not the same as itself is malformed: it has no place in the order, so
that it is delivered, and leaves its source as it was.

What may be said of a record holds as long as the log keeps to the depth: a source's new IDs overtake at most
``reorder_depth`` others and are overtaken by at most as many, and one that comes again has at most as many newer ones
before it. Beyond that a record may be delivered again, and is lost only with ``below_floor="discard"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Literal, TypeVar

Ident = TypeVar("Ident")


class Order(Enum):
    """What the order says of one ID beside another."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"
    UNCOMPARABLE = "uncomparable"


class Answer(Enum):
    """What is said of a record that this group did not complete before; `UNCOMPARABLE` to `UNCOVERED` are doubts."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    UNCOMPARABLE = "its ID has no order with those of its source"
    BELOW_FLOOR = "its ID lies below all that are kept"
    UNCOVERED = "too little is known of its source"


@dataclass(frozen=True, slots=True)
class SourceState(Generic[Ident]):
    """What is kept of a source that has completed records.

    ``kept``: its newest IDs, the mark last. ``known``: None where they are the newest of all that the group completed;
    else how many were taken in since less was known, by a late beginning or a restart.
    """

    kept: tuple[Ident, ...]
    known: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIdRule(Generic[Ident]):
    """``compare(one, other)`` says how the first stands to the second; it may be called with anything that came as an ID."""

    compare: Callable[[Ident, Ident], Order]
    reorder_depth: int
    below_floor: Literal["deliver", "discard"] = "deliver"

    @property
    def enough(self) -> int:
        """How many IDs a source has to take in until nothing that it does not know can matter.

        What was completed before has overtaken at most as many new IDs as the depth says, and as many that came again: with so
        many known it lies below the ``reorder_depth + 1`` that are kept.
        """
        return 3 * self.reorder_depth + 1

    def judge(
        self, state: SourceState[Ident] | None, ident: Ident, ahead: Iterable[Ident] = (), *, whole: bool
    ) -> Answer:
        """Return what to say of a record.

        ``state`` is what the watermark has passed (None: nothing of that source), ``ahead`` the IDs that were completed above it at
        smaller offsets; ``whole`` says that the store knows the group's history from its beginning.
        """
        if not self.is_well_formed(ident):
            return Answer.UNCOMPARABLE
        kept = state.kept if state is not None else ()
        orders = [self.compare(ident, known) for known in kept]
        if Order.SAME in orders or any(self.compare(ident, known) is Order.SAME for known in ahead):
            return Answer.DUPLICATE
        if Order.UNCOMPARABLE in orders:
            return Answer.UNCOMPARABLE
        if Order.NEWER not in orders and len(kept) > self.reorder_depth:
            return Answer.BELOW_FLOOR
        covered = whole if state is None else state.known is None
        return Answer.FRESH if covered else Answer.UNCOVERED

    def delivers(self, answer: Answer) -> bool:
        """Whether the application sees a record of which that is said."""
        return answer is not Answer.DUPLICATE and not (
            answer is Answer.BELOW_FLOOR and self.below_floor == "discard"
        )

    def fold(
        self, state: SourceState[Ident] | None, ident: Ident, *, whole: bool
    ) -> SourceState[Ident] | None:
        """Return what is kept once the watermark passes a completed record; see `judge`."""
        if not self.is_well_formed(ident):
            return state
        if state is None:
            return self._counted(SourceState((ident,), None if whole else 1))
        orders = [self.compare(ident, known) for known in state.kept]
        if Order.UNCOMPARABLE in orders:
            return self.restart(ident)
        if Order.SAME in orders:
            return state
        place = orders.count(Order.NEWER)
        newest = (*state.kept[:place], ident, *state.kept[place:])[-self.reorder_depth - 1 :]
        if newest == state.kept:
            return state
        return self._counted(SourceState(newest, None if state.known is None else state.known + 1))

    def restart(self, ident: Ident) -> SourceState[Ident]:
        """Begin a source anew with an ID that its order does not know.

        What is kept of the order before says nothing of this one, and this one may have been here before: nothing is known.
        """
        return self._counted(SourceState((ident,), 1))

    def doubt(self, state: SourceState[Ident]) -> SourceState[Ident]:
        """Return what is kept where some of what was completed is missing: the IDs are right, but not all of them."""
        return replace(state, known=0)

    def is_well_formed(self, ident: Ident) -> bool:
        """Whether an ID has a place in the order."""
        return self.compare(ident, ident) is Order.SAME

    def _counted(self, state: SourceState[Ident]) -> SourceState[Ident]:
        return state if state.known is None or state.known < self.enough else replace(state, known=None)
