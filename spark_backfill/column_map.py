"""Where Kafka's columns stand in an archive: the ``--columns`` as values.

    offset=kafka_offset,partition=meta.partition,timestamp=ts:ms,key=k:base64,value=*:json,headers=-

``NAME=COLUMN``
    Kafka's column NAME (`KAFKA_COLUMNS`) is the archive's COLUMN; fields of structs are written with dots.
``NAME=COLUMN:FORM``
    how it is written there: a timestamp's unit (`TIME_FORMS`), the encoding of a key or a value (`BYTE_FORMS`).
``NAME=-``
    the archive does not have it, and the records never had any: it is null.
``value=*:json``
    the value is a JSON object of all columns that are not named otherwise.

A column that is not mentioned stands where its own name says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dedup_sdk.errors import ConfigurationError
from spark_backfill.ordered_spec import Spec

KAFKA_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
TIME_FORMS: Final = ("s", "ms", "us", "ns", "iso")
"""Units of a timestamp that is a number, since the epoch.

``iso``: a text in ISO 8601, in UTC where it names no zone.
"""
BYTE_FORMS: Final = ("utf8", "base64", "hex", "json")
"""How bytes stand in a text; ``json``: the JSON text of a struct, a map, a list, or (``*``) of all other columns."""
ID_COLUMNS: Final = KAFKA_COLUMNS[-3:]
"""Columns that an ID may be made of."""
NOWHERE: Final = "-"
ALL_OTHERS: Final = "*"

_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "timestamp": TIME_FORMS,
    "key": BYTE_FORMS,
    "value": BYTE_FORMS,
    "headers": BYTE_FORMS[:3],
}
_MAY_BE_NOWHERE: Final = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """The archive's column of one of Kafka's, and its form (empty: by its type)."""

    column: str
    form: str = ""

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.column}:{self.form}" if self.form else self.column


ColumnMap = Mapping[str, ColumnPlace]
"""By Kafka's name; a column not listed has its own name and no form."""


def place_of(places: ColumnMap, name: str) -> ColumnPlace:
    """Return where one of `KAFKA_COLUMNS` stands."""
    return places.get(name, ColumnPlace(name))


def parse_columns(texts: Sequence[str]) -> dict[str, ColumnPlace]:
    """Read the texts of ``--columns``, each a list separated by commas.

    Raises:
        ConfigurationError: one line that names the text that is no mapping.
    """
    places: dict[str, ColumnPlace] = {}
    for entry in [entry.strip() for text in texts for entry in text.split(",")]:
        name, equals, column = entry.partition("=")
        if not equals or not column:
            raise ConfigurationError(
                f"--columns {entry!r} maps nothing; write NAME=COLUMN, e.g. --columns "
                "offset=kafka_offset,timestamp=ts:ms"
            )
        if name not in KAFKA_COLUMNS:
            raise ConfigurationError(
                f"--columns {entry!r}: Kafka has no column {name!r}; its columns are {', '.join(KAFKA_COLUMNS)}"
            )
        if name in places:
            raise ConfigurationError(f"--columns maps {name} twice: {places[name]} and {column}; give one")
        places[name] = _place(entry, name, column)
    return places


def _place(entry: str, name: str, text: str) -> ColumnPlace:
    column, colon, form = text.rpartition(":")
    if not colon:
        column, form = text, ""
    if form and form not in _FORMS.get(name, ()):
        known = ", ".join(_FORMS.get(name, ())) or "none"
        raise ConfigurationError(f"--columns {entry!r}: {name} has no form {form!r}; its forms: {known}")
    if column == NOWHERE and (form or name not in _MAY_BE_NOWHERE):
        raise ConfigurationError(f"--columns {entry!r}: a record always has {name}; name its column")
    if column == ALL_OTHERS and (name, form) != ("value", "json"):
        raise ConfigurationError(f"--columns {entry!r}: only value=*:json takes all other columns")
    if not column:
        raise ConfigurationError(f"--columns {entry!r} names no column; write e.g. {name}=COLUMN")
    return ColumnPlace(column, form)


def id_columns(spec: Spec, *, with_keys: bool = False) -> tuple[str, ...]:
    """Return which of key, value and headers a spec reads; ``with_keys``: the keys are wanted besides."""
    needs = {*spec.needs, "key"} if with_keys else spec.needs
    return ID_COLUMNS if "record" in needs else tuple(name for name in ID_COLUMNS if name in needs)
