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
``header.NAME=COLUMN[:FORM]``
    each record also has a header NAME, the value of this column, unless that is null.
``headers.key=COLUMN,headers.value=COLUMN[:FORM]``
    the headers are two lists, of their names and of their values.
``partition=path:PATTERN``, ``topic=path:PATTERN``
    it stands in the path of the file, where the only group of this regular expression finds it.

A column that is not mentioned stands where its own name says. A column that is a text has what the text says: digits a
number, JSON a struct with fields, or headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.ordered_spec import Spec

KAFKA_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
TIME_FORMS: Final = ("s", "ms", "us", "ns", "iso")
"""Units of a timestamp that is a number, since the epoch.

``iso``: a text in ISO 8601, in UTC where it names no zone.
"""
BYTE_FORMS: Final = ("utf8", "base64", "hex", "json")
"""How bytes stand in a text; ``json``: the JSON text of a struct, a map, a list, or (``*``) of all other columns."""
INTEGER_FORMS: Final = ("int32", "int64")
"""The bytes that Java's serializers make of an integer, and of a long."""
ID_COLUMNS: Final = KAFKA_COLUMNS[-3:]
"""Columns that an ID may be made of."""
NOWHERE: Final = "-"
ALL_OTHERS: Final = "*"

NAMES_LIST: Final = "headers.key"
VALUES_LIST: Final = "headers.value"
HEADER: Final = "header."
"""How the name of a header begins that is a column of its own."""
_PATH: Final = "path"

_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "timestamp": TIME_FORMS,
    "key": (*BYTE_FORMS, *INTEGER_FORMS),
    "value": (*BYTE_FORMS, *INTEGER_FORMS),
    "headers": BYTE_FORMS[:3],
    VALUES_LIST: BYTE_FORMS[:3],
    HEADER: BYTE_FORMS[:3],
}
_MOST_NAMES: Final = 20
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


def parts_of(column: str) -> list[str]:
    """Return the names of a column and of the fields to follow from there; the dots of a quoted name are its own."""
    return [quoted or plain for quoted, plain in re.findall(r"`([^`]+)`|([^.`]+)", column)]


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def in_path(name: str, place: ColumnPlace) -> bool:
    """Whether a column stands in the path of the file; the form of its place is a pattern."""
    return name in ("topic", "partition") and bool(place.form)


def check_columns(
    archive: str, columns: Sequence[str], places: ColumnMap, needed: Iterable[str], has: Callable[[str], bool]
) -> None:
    """Make sure that an archive of these columns has those that are needed.

    ``needed`` are Kafka's names; ``has`` says whether there is a column of a text of ``--columns``.

    Raises:
        ConfigurationError: naming all that are missing.
    """
    missing = []
    for name in needed:
        place = place_of(places, name)
        if place.column in (NOWHERE, ALL_OTHERS) or in_path(name, place) or has(place.column):
            continue
        if name in places:
            dotted = place.column in columns
            quoted = f"; for the column whose name has a dot write {name}=`{place.column}`" if dotted else ""
            missing.append(
                f"no column {shown(place.column)}, where --columns says that {name} stands{quoted}"
            )
        elif name == "offset":
            missing.append(
                "no offsets, without which nobody can say what was processed of it: name their column with --columns "
                "offset=COLUMN"
            )
        else:
            unit = ":ms" if name == "timestamp" else ""
            nowhere = f", or --columns {name}=- if its records have none" if name in _MAY_BE_NOWHERE else ""
            missing.append(
                f"no column {shown(name)}: say where it stands with --columns {name}=COLUMN{unit}{nowhere}"
            )
    if missing:
        more = f" and {len(columns) - _MOST_NAMES} more" if len(columns) > _MOST_NAMES else ""
        listed = f"{', '.join(columns[:_MOST_NAMES]) or 'no columns'}{more}"
        raise ConfigurationError(f"archive {shown(archive)} has {'; '.join(missing)}; it has {listed}")


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
                f"--columns {shown(entry)} maps nothing; write NAME=COLUMN, e.g. --columns "
                "offset=kafka_offset,timestamp=ts:ms"
            )
        if name not in (*KAFKA_COLUMNS, NAMES_LIST, VALUES_LIST) and name.removeprefix(HEADER) in ("", name):
            raise ConfigurationError(
                f"--columns {shown(entry)}: Kafka has no column {shown(name)}; its columns are "
                f"{', '.join(KAFKA_COLUMNS)}, and {HEADER}NAME is a header"
            )
        if name in places:
            raise ConfigurationError(f"--columns maps {name} twice: {places[name]} and {column}; give one")
        places[name] = _place(entry, name, column)
    if 0 < sum(name in places for name in (NAMES_LIST, VALUES_LIST)) < 2:  # noqa: PLR2004 (both)
        raise ConfigurationError(
            f"--columns names one list of headers alone: give {NAMES_LIST} and {VALUES_LIST}"
        )
    if NAMES_LIST in places and places.setdefault("headers", ColumnPlace(NOWHERE)).column != NOWHERE:
        raise ConfigurationError(
            f"--columns has headers and {NAMES_LIST}, which are two forms of one: give one"
        )
    return places


def _place(entry: str, name: str, text: str) -> ColumnPlace:
    if name in ("topic", "partition") and text.startswith(f"{_PATH}:"):
        return ColumnPlace(_PATH, _pattern(entry, text.removeprefix(f"{_PATH}:")))
    column, colon, form = text.rpartition(":")
    if not colon:
        column, form = text, ""
    forms = _FORMS.get(HEADER if name.startswith(HEADER) else name, ())
    if form and form not in forms:
        known = ", ".join(forms) or "none"
        raise ConfigurationError(
            f"--columns {shown(entry)}: {name} has no form {shown(form)}; its forms: {known}"
        )
    if column == NOWHERE and (form or name not in _MAY_BE_NOWHERE):
        raise ConfigurationError(f"--columns {shown(entry)}: a record always has {name}; name its column")
    if column == ALL_OTHERS and (name, form) != ("value", "json"):
        raise ConfigurationError(f"--columns {shown(entry)}: only value=*:json takes all other columns")
    if not column:
        raise ConfigurationError(f"--columns {shown(entry)} names no column; write e.g. {name}=COLUMN")
    return ColumnPlace(column, form)


def _pattern(entry: str, text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ConfigurationError(f"--columns {shown(entry)}: {shown(text)} is no pattern ({error})") from None
    if groups != 1:
        raise ConfigurationError(
            f"--columns {shown(entry)}: {shown(text)} has {groups} groups, and one says what it finds; write e.g. "
            "partition=path:/partition_([0-9]+)/"
        )
    return text


def maps_headers(places: ColumnMap) -> bool:
    """Whether headers are columns of their own, or nowhere."""
    return place_of(places, "headers").column == NOWHERE or any(name.startswith(HEADER) for name in places)


def needed_columns(places: ColumnMap, id_columns: Iterable[str]) -> list[str]:
    """Return which columns an archive must have for those of the IDs.

    Mapped ones are among them; where headers are columns of their own, the one of all headers need not be there.
    """
    own = maps_headers(places)
    found = (
        "offset",
        "partition",
        "timestamp",
        *(name for name in id_columns if name != "headers" or not own),
    )
    return list(dict.fromkeys([*found, *(name for name in places if name not in ("key", "value"))]))


def id_columns(spec: Spec, *, with_keys: bool = False) -> tuple[str, ...]:
    """Return which of key, value and headers a spec reads; ``with_keys``: the keys are wanted besides."""
    needs = {*spec.needs, "key"} if with_keys else spec.needs
    return ID_COLUMNS if "record" in needs else tuple(name for name in ID_COLUMNS if name in needs)
