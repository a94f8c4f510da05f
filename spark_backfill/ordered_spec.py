"""Strategies whose marks depend on the order of records, as texts that Spark sends to its workers.

A worker parses them, and imports there the names of ``py:``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._strategy import REORDER_DEPTH, Keys, LastId, Lookup
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.unit import UNIT_RECORDS, Repeats, Unit, UnitMode
from dedup_sdk._window import Window
from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.ids._columns import Need
from dedup_sdk.orders import named


class _StrategySpec:
    """A strategy as texts; ``str`` is the manifest's ID spec."""

    __slots__ = ()

    @property
    def keys(self) -> Keys:
        """The keys read of a record."""
        raise NotImplementedError

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.keys.needs

    def __str__(self) -> str:
        return str(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIdSpec(_StrategySpec):
    """A `LastId` as texts, all but ``reorder_depth``.

    Its ID spec, the name of its order (`dedup_sdk.orders.named`), the ID spec of the source (None: the partition),
    its window. ``otherwise`` and ``otherwise_window``: ID spec and window of its second opinion, both None where
    it has none. ``str`` is the manifest's ID spec.
    """

    id: str
    order: str
    source: str | None
    window: str
    reorder_depth: int = REORDER_DEPTH
    otherwise: str | None = None
    otherwise_window: str | None = None

    def canonical(self) -> Self:
        """Return it with the canonical texts of its specs and windows; raises as `strategy` does."""
        strategy = self.strategy
        second = strategy.otherwise
        return replace(
            self,
            id=str(strategy.id),
            source=None if strategy.source is None else str(strategy.source),
            window=str(strategy.window),
            otherwise=None if second is None else str(second.id),
            otherwise_window=None if second is None else str(second.window),
        )

    @property
    def strategy(self) -> LastId:
        """The strategy of the consumer; raises `ConfigurationError` and `IdSpecError`."""
        second = None
        if self.otherwise is not None and self.otherwise_window is not None:
            second = Lookup(id=id_spec(self.otherwise), window=Window.parse(self.otherwise_window))
        return LastId(
            id=id_spec(self.id),
            order=named(self.order),
            source=None if self.source is None else id_spec(self.source),
            reorder_depth=self.reorder_depth,
            otherwise=second,
            window=Window.parse(self.window),
        )

    @property
    def reach(self) -> Window:
        """How long anything is remembered.

        It is the longer of the windows, as in the consumer (`dedup_sdk._core.reach.KnownRange.horizon_ms`).
        """
        strategy = self.strategy
        second = strategy.second_window
        if second is None:
            return strategy.window
        return max(strategy.window, second, key=lambda window: window.time_ms or 0)

    @property
    def keys(self) -> SourceKeys:
        """The keys read of a record."""
        return self.strategy.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec(_StrategySpec):
    """A `Lookup` with units as texts.

    Its ID spec, that of the unit, the headers that say where it ends, mode and repeats, and the window. ``str`` is
    the manifest's ID spec.
    """

    id: str
    unit: str
    size_header: str
    end_header: str
    mode: UnitMode
    repeats: Repeats
    window: str
    records: int = UNIT_RECORDS

    @property
    def strategy(self) -> Lookup:
        """The strategy of the consumer; raises `ConfigurationError` and `IdSpecError`."""
        return Lookup(
            id=id_spec(self.id),
            window=Window.parse(self.window),
            unit=Unit(
                id=id_spec(self.unit),
                size_header=self.size_header,
                end_header=self.end_header,
                repeats=self.repeats,
                records=self.records,
            ),
            unit_mode=self.mode,
        )

    @property
    def keys(self) -> UnitKeys:
        """The keys read of a record."""
        keys = self.strategy.keys
        if not isinstance(keys, UnitKeys):
            raise TypeError(f"{keys} reads no units")
        return keys


@dataclass(frozen=True, slots=True)
class CountSpec(_StrategySpec):
    """A `Lookup` with a window by count, as texts. ``str`` is the manifest's ID spec."""

    id: str
    window: str

    @property
    def strategy(self) -> Lookup:
        """The strategy of the consumer; raises `ConfigurationError` and `IdSpecError`."""
        return Lookup(id=id_spec(self.id), window=Window.parse(self.window))

    @property
    def keys(self) -> Keys:
        """The IDs read of a record."""
        return self.strategy.keys


OrderedSpec = LastIdSpec | UnitSpec | CountSpec
"""Specs whose rows are folded in offset order (`spark_backfill.ordered_fold`)."""
Spec = IdSpec | OrderedSpec
"""The keys read of a record: its ID, its source key, or its unit key."""
SpecText = str | OrderedSpec
"""The same for a worker."""


def text_of(spec: Spec) -> SpecText:
    """Return the text for a worker."""
    return str(spec) if isinstance(spec, IdSpec) else spec


def keys_of(spec: SpecText) -> Keys:
    """Return the reader of the IDs, source keys or unit keys of records."""
    return id_spec(spec) if isinstance(spec, str) else spec.keys
