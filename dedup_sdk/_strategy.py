"""Strategies: the two ways to recognise a duplicate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from dedup_sdk._checks import choice, flag, whole
from dedup_sdk._core.lookup import open_lookup
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import BelowFloor
from dedup_sdk._engine.gates import Gate
from dedup_sdk._marks import Marks, Progress
from dedup_sdk._masking import shown
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.unit import Unit, UnitMode, unit_of
from dedup_sdk._window import Window, Windows, window_of
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.orders import Order, order_of

if TYPE_CHECKING:
    from datetime import timedelta

    from dedup_sdk._core.last_rule import LastRule

MissingIdPolicy = Literal["process", "discard", "fail"]

REORDER_DEPTH: Final = 128
"""The default of ``reorder_depth``."""
MOST_REORDER_DEPTH: Final = 1_000_000
IDLE_DAYS: Final = 30
"""The default of `LastId`'s window."""


class Terms(NamedTuple):
    """A strategy applied to partitions with one window."""

    keys: Keys
    """The keys to read from records."""
    id_spec: str
    """Their canonical text."""
    window: Window
    rule: str
    """The fingerprint of the rule (`dedup_sdk._rule_fingerprint.rule_digits`)."""
    open: Callable[[Progress, Marks], PartitionState]
    """Returns the state of a partition: its progress, and the recent marks beside it."""
    gates: Callable[[PartitionState], list[Gate]] | None = None
    """Returns the gates that records of a partition in this state pass, where there are any."""
    ephemeral: bool = False
    """Whether partitions start without marks whenever they are opened, and store none.

    Nothing is missing there: no replay, no snapshot, no doubt. A window that is off needs no verdict of its own: it
    holds no sighting, and then the rule says fresh.
    """
    marks_single_ids: bool = False
    """Whether a mark stands for one ID, so that up to its offset it shows which records were completed.

    False where it is the mark of a source, or of a unit.
    """
    depends_on_order: bool = True
    """Whether marks depend on the whole history and not only on last sightings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Look the ID up among those completed inside the window.

    For IDs in any order; memory and disk grow with the window.

    ``id`` is an ID spec or its text (``"header:dedup-id"``). ``on_missing_id`` is the policy for a record
    without an ID: ``process`` (deliver and count, the default), ``discard`` (count, do not deliver),
    ``fail`` (raise `MissingIdError`). ``window`` may be `Windows`, one for each topic; in a topic whose
    window is off every record is delivered, with or without an ID. With ``persist=False`` IDs are kept in
    memory only, and a partition starts without any whenever it is opened; completed offsets are stored all
    the same.

    ``unit`` groups records that belong together, by an ID spec (``header("dedup-unit")``) or a `Unit`: they
    are delivered when all of them have arrived, and remembered when all are completed. With
    ``unit_mode="all-or-nothing"`` one duplicate among them hides them all; with ``"members"`` each has its
    own verdict.
    """

    id: IdSpec
    window: Window | Windows
    on_missing_id: MissingIdPolicy = field(default="process")
    persist: bool = True
    unit: Unit | IdSpec | None = None
    unit_mode: UnitMode = "all-or-nothing"

    if TYPE_CHECKING:
        # The constructor accepts more types than the fields have.
        def __init__(
            self,
            *,
            id: IdSpec | str,  # noqa: A002 (the public name)
            window: Window | Windows | timedelta | str,
            on_missing_id: MissingIdPolicy = "process",
            persist: bool = True,
            unit: Unit | IdSpec | str | None = None,
            unit_mode: UnitMode = "all-or-nothing",
        ) -> None: ...

    def __post_init__(self) -> None:
        """Accept texts for ``id``, ``window`` and ``unit``; refuse anything else."""
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

    def terms(self, window: Window, *, digest: str, isolation: str) -> Terms:
        """Return the terms for partitions with a window; ``digest`` and ``isolation`` as in `rule_digits`."""
        keys = self.keys
        rule = rule_digits(keys, window, digest=digest, isolation=isolation)
        ephemeral = not self.persist or window.is_off
        if not isinstance(keys, UnitKeys) or window.is_off:
            return Terms(
                keys, str(keys), window, rule, partial(open_lookup, window), ephemeral=ephemeral, marks_single_ids=True,
                depends_on_order=window.count is not None,
            )  # fmt: skip
        # Where there are units only.
        from dedup_sdk._units.gate import unit_gates
        from dedup_sdk._units.memory import open_units

        return Terms(
            keys, str(keys), window, rule, partial(open_units, window, keys), unit_gates, ephemeral=ephemeral
        )

    @property
    def waits_for_time(self) -> bool:
        """Whether records may wait for others that have to come in time: those of a unit."""
        return self.unit is not None

    @property
    def keys(self) -> IdSpec | UnitKeys:
        """The keys to read from records."""
        if self.unit is None:
            return self.id
        return UnitKeys(self.id, unit_of(self.unit), self.unit_mode, wants_ids=self.on_missing_id == "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastId:
    """Compare the ID with the last one of its source: an ID that is not newer is a duplicate.

    For IDs that have an order: a source takes a few bytes, however many IDs it has sent. A record whose ID
    cannot be compared is delivered and counted, and its source starts again from it.

    Args:
        id: an ID spec or its text; the values of several parts are joined by a colon (``header:epoch+header:sequence``
            gives ``7:1042``). An ID may have 4,096 bytes.
        order: compares two IDs: one of `dedup_sdk.orders`, or `order_of` of a function ``(last, new)`` that
            returns 1 (newer), 0, -1 or None, with its version.
        source: an ID spec that names the source within the partition, e.g. ``header:producer``; None: the
            partition is one source.
        reorder_depth: how many IDs below the last one are remembered, so that a late record that was never
            seen is processed; for a dense order (integers) how many numbers.
        below_floor: what to do with a record below these: ``deliver`` (and count it as unverified) or
            ``discard``. With ``discard`` late records are lost; with ``reorder_depth=0`` it is the plain
            high-water mark of the literature.
        otherwise: a `Lookup` for records that comparing cannot decide (uncomparable, malformed, below the
            floor, uncovered): the ID that it reads is looked up among those completed within its window, by
            time alone. Then every record leaves a mark for it.
        window: how long a source is remembered after its last record, by time alone.
        on_missing_id: what to do with a record without an ID, or without a source; as in `Lookup`.
    """

    id: IdSpec
    order: Order
    source: IdSpec | None = None
    reorder_depth: int = REORDER_DEPTH
    below_floor: BelowFloor = "deliver"
    otherwise: Lookup | None = None
    window: Window = field(default_factory=lambda: Window(days=IDLE_DAYS))
    on_missing_id: MissingIdPolicy = field(default="process")

    if TYPE_CHECKING:
        # As `Lookup` has it.
        def __init__(
            self,
            *,
            id: IdSpec | str,  # noqa: A002 (the public name)
            order: Order,
            source: IdSpec | str | None = None,
            reorder_depth: int = REORDER_DEPTH,
            below_floor: BelowFloor = "deliver",
            otherwise: Lookup | None = None,
            window: Window | timedelta | str = ...,
            on_missing_id: MissingIdPolicy = "process",
        ) -> None: ...

    def __post_init__(self) -> None:
        """Accept texts for specs and window; refuse anything else."""
        object.__setattr__(self, "id", id_spec(self.id))
        object.__setattr__(self, "order", order_of(self.order))
        if self.source is not None:
            object.__setattr__(self, "source", id_spec(self.source))
        object.__setattr__(self, "window", window_of("window", self.window))
        if self.window.count is not None:
            message = (
                f"window={shown(str(self.window))}: a source is remembered for a time, not for a count; give e.g. "
                "Window(days=30)"
            )
            raise ConfigurationError(message)
        other: object = self.otherwise
        if other is not None and (self.second_window is None or self.second_window.count is not None):
            message = (
                f"otherwise={shown(other)}: give a Lookup with one window by time, that persists and has no units, "
                "e.g. Lookup(id=header('order-id'), window=Window(days=7))"
            )
            raise ConfigurationError(message)
        advice = f"give a whole number from 0 to {MOST_REORDER_DEPTH:,}"
        whole("reorder_depth", self.reorder_depth, advice=advice, least=0, most=MOST_REORDER_DEPTH)
        choice("below_floor", self.below_floor, ("deliver", "discard"))
        choice("on_missing_id", self.on_missing_id, ("process", "discard", "fail"))

    @property
    def waits_for_time(self) -> bool:
        """Whether records may wait for others: no, each is judged when it comes."""
        return False

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

    def terms(self, window: Window, *, digest: str, isolation: str) -> Terms:
        """Return the terms for partitions with its window, as `Lookup.terms`.

        Sources are always stored, and depend on the order.
        """
        from dedup_sdk._core.last import open_last

        keys = self.keys
        rule = rule_digits(keys, window, digest=digest, isolation=isolation)
        return Terms(
            keys, str(keys), window, rule, partial(open_last, self.rule, keys, fallback=self.second_window)
        )

    @property
    def rule(self) -> LastRule:
        """The rule by which its sources are judged and stored."""
        from dedup_sdk._core.last_rule import LastRule

        return LastRule(self.order, self.reorder_depth, self.below_floor, self.window)

    @property
    def keys(self) -> SourceKeys:
        """The keys to read from records."""
        return SourceKeys(
            self.id,
            self.source,
            self.order.name,
            None if self.otherwise is None else self.otherwise.id,
        )


Strategy = Lookup | LastId
Keys = IdSpec | SourceKeys | UnitKeys
