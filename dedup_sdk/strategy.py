"""Strategies: how a duplicate is recognised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from dedup_sdk.checks import choice, flag, whole
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.last.keys import LaneKeys
from dedup_sdk.last.rule import BelowFloor, LastRule
from dedup_sdk.orders import Order, order_of
from dedup_sdk.orders.partial_order import Compare
from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.units.unit import Unit, UnitMode, unit_of
from dedup_sdk.window import Window, window_of
from dedup_sdk.windows import Windows

MissingIdPolicy = Literal["process", "discard", "fail"]

REORDER_DEPTH: Final = 128
"""How much below the last ID a lane remembers, where nobody says."""
MOST_REORDER_DEPTH: Final = 1_000_000
IDLE_DAYS: Final = 30
"""How long a silent lane is remembered, where nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Look the ID up among those completed inside the window.

    ``id`` is an ID spec or its text (``"header:dedup-id"``). ``on_missing_id`` says what happens to a record without an ID:
    ``process`` (deliver and count, the default), ``discard`` (count, do not deliver), ``fail`` (raise `MissingIdError`).
    ``window`` may be `Windows`, one for each topic; in a topic whose window is off everything is delivered, with or without an ID. ``persist``
    false: IDs are remembered in memory only, and a partition begins without any whenever it is opened; which offsets are
    completed is stored all the same. Any order of IDs; memory and disk grow with the window.

    ``unit`` names records that stand or fall together, an ID spec (``header("dedup-unit")``) or a `Unit`: they are delivered when all of
    them have come, and remembered when all of them are completed. With ``unit_mode="all-or-nothing"`` one duplicate among them hides them
    all; with ``"members"`` each has its own verdict.
    """

    id: IdSpec
    window: Window | Windows
    on_missing_id: MissingIdPolicy = field(default="process")
    persist: bool = True
    unit: Unit | IdSpec | None = None
    unit_mode: UnitMode = "all-or-nothing"

    def __post_init__(self) -> None:
        """Accept texts for ``id``, ``window`` and ``unit``; refuse anything else in one line."""
        object.__setattr__(self, "id", id_spec(self.id))
        if not isinstance(self.window, Windows):
            object.__setattr__(self, "window", window_of("window", self.window))
        choice("on_missing_id", self.on_missing_id, ("process", "discard", "fail"))
        flag("persist", self.persist)
        if self.unit is not None:
            object.__setattr__(self, "unit", unit_of(self.unit))
        choice("unit_mode", self.unit_mode, ("all-or-nothing", "members"))

    def window_of(self, topic: str) -> Window:
        """Return the window of a topic."""
        return self.window.of(topic) if isinstance(self.window, Windows) else self.window

    def forgets(self, topic: str) -> bool:
        """Whether a partition of the topic begins without marks whenever it is opened, and is not to have any."""
        return not self.persist or self.window_of(topic).is_off

    @property
    def keys(self) -> IdSpec | UnitKeys:
        """What is read of a record."""
        if self.unit is None:
            return self.id
        return UnitKeys(self.id, unit_of(self.unit), self.unit_mode, wants_ids=self.on_missing_id == "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastId:
    """Compare the ID with the last one of its lane: what is not newer is a duplicate.

    For IDs that have an order: a lane costs some bytes, however many IDs it has seen. What cannot be compared is delivered,
    counted, and begins its lane anew.

    Args:
        id: an ID spec or its text; the values of several parts are joined by a colon (``header:epoch+header:sequence``
            gives ``7:1042``). An ID may have 4,096 bytes.
        order: how two IDs compare, one of `dedup_sdk.orders` or a function ``(last, new)`` that returns 1 (newer), 0, -1 or None.
        lane: an ID spec that names the source inside the partition, e.g. ``header:producer``; None: the partition is the lane.
        reorder_depth: how much below the last ID is remembered, so that a late record which was never seen is processed: so many
            IDs, or so many numbers where the order is dense (integers).
        below_floor: what becomes of a record below that: ``deliver`` (and count it as unverified) or ``discard``. With ``discard``, what
            comes too late is lost; with ``reorder_depth=0`` it is the plain high-water mark of the literature.
        otherwise: whom to ask where comparing tells nothing (uncomparable, malformed, below the floor, uncovered): the ID that
            this `Lookup` reads is looked up among those completed within its window, by time alone. Every record leaves a mark for it then.
        window: how long a lane is remembered after its last record, by time alone.
        on_missing_id: what becomes of a record without an ID, or without a lane; as in `Lookup`.
    """

    id: IdSpec
    order: Order | Compare
    lane: IdSpec | None = None
    reorder_depth: int = REORDER_DEPTH
    below_floor: BelowFloor = "deliver"
    otherwise: Lookup | None = None
    window: Window = field(default_factory=lambda: Window(days=IDLE_DAYS))
    on_missing_id: MissingIdPolicy = field(default="process")

    def __post_init__(self) -> None:
        """Accept texts for specs and window and functions for the order; refuse anything else in one line."""
        object.__setattr__(self, "id", id_spec(self.id))
        object.__setattr__(self, "order", order_of(self.order))
        if self.lane is not None:
            object.__setattr__(self, "lane", id_spec(self.lane))
        object.__setattr__(self, "window", window_of("window", self.window))
        if self.window.count is not None:
            message = f"window={str(self.window)!r}: a lane is remembered for a time, not for a count; give e.g. Window(days=30)"
            raise ConfigurationError(message)
        other: object = self.otherwise
        if other is not None and (self.second_window is None or self.second_window.count is not None):
            message = (
                f"otherwise={other!r}: give a Lookup with one window by time, that persists and has no units, e.g. Lookup(id=header('order-id'), "
                "window=Window(days=7))"
            )
            raise ConfigurationError(message)
        advice = f"give a whole number from 0 to {MOST_REORDER_DEPTH:,}"
        whole("reorder_depth", self.reorder_depth, advice=advice, least=0, most=MOST_REORDER_DEPTH)
        choice("below_floor", self.below_floor, ("deliver", "discard"))
        choice("on_missing_id", self.on_missing_id, ("process", "discard", "fail"))

    @property
    def second_window(self) -> Window | None:
        """The window of ``otherwise``, None where there is none."""
        other: object = self.otherwise  # what callers without a type checker pass
        if not isinstance(other, Lookup) or not other.persist or other.unit is not None:
            return None
        return other.window if isinstance(other.window, Window) else None

    def window_of(self, topic: str) -> Window:  # noqa: ARG002 (as `Lookup` has it)
        """Return the window of a topic, which all have in common."""
        return self.window

    def forgets(self, topic: str) -> bool:  # noqa: ARG002 (as `Lookup` has it)
        """Return False: lanes are kept."""
        return False

    @property
    def rule(self) -> LastRule:
        """How its lanes are judged and remembered."""
        return LastRule(order_of(self.order), self.reorder_depth, self.below_floor, self.window)

    @property
    def keys(self) -> LaneKeys:
        """What is read of a record."""
        return LaneKeys(
            self.id,
            self.lane,
            order_of(self.order).name,
            None if self.otherwise is None else self.otherwise.id,
        )


Strategy = Lookup | LastId
Keys = IdSpec | LaneKeys | UnitKeys
