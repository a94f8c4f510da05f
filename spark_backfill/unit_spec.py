"""The spec of units, as texts: a worker gets them, and reads them where they are used."""

from __future__ import annotations

from dataclasses import dataclass

from dedup_sdk._strategy import Lookup
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.unit import UNIT_RECORDS, Repeats, Unit, UnitMode
from dedup_sdk._window import Window
from dedup_sdk.ids import id_spec
from dedup_sdk.ids._columns import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
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

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.keys.needs

    def __str__(self) -> str:
        return str(self.keys)
