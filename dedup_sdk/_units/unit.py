"""The definition of a unit, as the user gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from dedup_sdk._checks import choice, seconds, whole
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec, header, id_spec

UnitMode = Literal["all-or-nothing", "members"]
Repeats = Literal["drop", "deliver"]

UNIT_RECORDS: Final = 10_000
"""The default of the most records that a unit may have."""
MOST_UNIT_RECORDS: Final = 1_000_000
UNIT_MEGABYTES: Final = 256
"""The default of the most megabytes that may come of a partition while a unit is open."""
MOST_UNIT_MEGABYTES: Final = 1_000_000
UNIT_TIMEOUT_S: Final = 60.0
"""The default of the seconds in which a unit must become whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Which records belong together, and how long they are waited for.

    Args:
        id: an ID spec or its text that names a record's unit; a record without it, or with an empty one, belongs to
            none.
        size_header: the header that states, in decimal digits and on any record of the unit, how many records it has.
        end_header: the header that marks the last record of a unit, whatever its value (null is none); enough where no
            size is known.
        repeats: how to treat a record whose ID an earlier record of the same unit bears: ``drop`` (it is a duplicate,
            the unit is not) or ``deliver`` (as Artemis does).
        records: a unit that has more records than that is not waited for any longer.
        timeout: seconds after its first record in which a unit must become whole, counting the time in which there is
            nothing more to read; then it is not waited for any longer.
        megabytes: so much may come of a partition (values, of any unit and of none) since the first record of a unit
            that is not whole: all of it is in memory for it. Then the unit is not waited for any longer.

    Raises `ConfigurationError` for anything else.
    """

    id: IdSpec = field(default_factory=lambda: header("dedup-unit"))
    size_header: str = "dedup-unit-size"
    end_header: str = "dedup-unit-end"
    repeats: Repeats = "drop"
    records: int = UNIT_RECORDS
    timeout: float = UNIT_TIMEOUT_S
    megabytes: int = UNIT_MEGABYTES

    def __post_init__(self) -> None:
        """Accept a text for the ID; refuse anything else in one line."""
        object.__setattr__(self, "id", id_spec(self.id))
        for name in ("size_header", "end_header"):
            header(getattr(self, name))
        if self.size_header == self.end_header:
            raise ConfigurationError(
                f"size_header={shown(self.size_header)} is the end_header, too: a number is no end mark; give two names"
            )
        choice("repeats", self.repeats, ("drop", "deliver"))
        advice = f"give a whole number from 1 to {MOST_UNIT_RECORDS:,}"
        whole("records", self.records, advice=advice, most=MOST_UNIT_RECORDS)
        advice = f"give a whole number from 1 to {MOST_UNIT_MEGABYTES:,}"
        whole("megabytes", self.megabytes, advice=advice, most=MOST_UNIT_MEGABYTES)
        if not seconds("timeout", self.timeout):
            raise ConfigurationError(f"timeout={shown(self.timeout)}: give seconds above 0, e.g. 60")


def unit_of(given: object) -> Unit:
    """Return a unit that is given as one, or as the ID spec that names it, or its text."""
    if isinstance(given, Unit):
        return given
    if isinstance(given, IdSpec | str):
        return Unit(id=id_spec(given))
    raise ConfigurationError(f"unit={shown(given)}: give an ID spec, e.g. header('dedup-unit'), or Unit(...)")
