"""An archive's rows with Kafka's columns, whatever they are called and however they are written.

The result has ``topic string, partition int, offset bigint, timestamp_ms bigint`` (-1 where a record has none) and, of
``key binary, value binary, headers array<struct<key: string, value: binary>>``, those that the ID spec reads.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import ALL_OTHERS, ID_COLUMNS, NOWHERE, ColumnMap, place_of

_HEADERS: Final = "array<struct<key: string, value: binary>>"
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NESTED: Final = (T.StructType, T.MapType, T.ArrayType)
_MOST_NAMES: Final = 20
_COORDINATES: Final[dict[str, tuple[type[T.DataType], str, str]]] = {
    "topic": (T.StringType, "a string", "string"),
    "partition": (T.IntegralType, "an integer", "long"),
    "offset": (T.IntegralType, "an integer", "long"),
}
_NOT_THERE: Final = re.compile(r"UNRESOLVED_COLUMN|FIELD_NOT_FOUND|INVALID_EXTRACT|INVALID_ATTRIBUTE_NAME")
"""How Spark says that a frame has no such column, a struct no such field, or that a text is the name of none."""


class Found(NamedTuple):
    """A column of the archive: itself, its type, its name, and the form that ``--columns`` gave it (empty: none)."""

    column: Column
    type: T.DataType
    name: str
    form: str


class KafkaColumns:
    """Finds Kafka's columns in a frame. ``archive`` is how messages name it.

    Raises:
        ConfigurationError: a column is missing, or has a type that does not fit its use.
    """

    def __init__(self, frame: DataFrame, places: ColumnMap, *, archive: str) -> None:
        self._frame = frame
        self._places = places
        self._archive = archive

    def has(self, name: str) -> bool:
        """Whether one of Kafka's columns is there."""
        return self._find(name) is not None

    def coordinate(self, name: str) -> Column:
        """Return ``topic`` as a string, ``partition`` or ``offset`` as a long."""
        found = self._required(name)
        kind, wanted, cast_to = _COORDINATES[name]
        if not isinstance(found.type, kind):
            raise self._wrong(found, name, wanted)
        return found.column.cast(cast_to)

    def timestamp_ms(self) -> Column:
        """Return the records' timestamps in ms, -1 where there is none."""
        if self._nowhere("timestamp"):
            return F.lit(-1).cast("long")
        found = self._required("timestamp")
        return F.coalesce(self._milliseconds(found), F.lit(-1).cast("long"))

    def timestamp_is_number(self) -> bool:
        """Whether the unit of the timestamps is only known from the options."""
        found = self._find("timestamp")
        return found is not None and isinstance(found.type, T.IntegralType)

    def id_column(self, name: str) -> Column:
        """Return ``key``, ``value`` or ``headers`` in Kafka's type."""
        if self._nowhere(name):
            return F.lit(None).cast(_HEADERS if name == "headers" else "binary")
        if name == "value" and place_of(self._places, name).column == ALL_OTHERS:
            return self._all_others()
        found = self._required(name)
        return self._headers(found) if name == "headers" else self._bytes(found, name)

    def optional_headers(self) -> Column:
        """Return the headers where the archive has a column of them, else null."""
        named = "headers" in self._places
        found = None if self._nowhere("headers") else self._find("headers")
        if found is not None and (named or _header_values(found.type) is not None):
            return self._headers(found)
        return F.lit(None).cast(_HEADERS)

    def _nowhere(self, name: str) -> bool:
        return place_of(self._places, name).column == NOWHERE

    def _find(self, name: str) -> Found | None:
        place = place_of(self._places, name)
        if place.column == NOWHERE:
            return None
        kind = None
        try:
            # By a name alone a query also finds functions, e.g. user.
            kind = self._frame.select(self._frame[place.column]).schema[0].dataType
        except AnalysisException as error:
            if not _NOT_THERE.search(str(error)):
                raise
        if kind is None and name in self._places:
            dotted = place.column in self._frame.columns
            quoted = f"; for the column whose name has a dot write {name}=`{place.column}`" if dotted else ""
            raise ConfigurationError(
                f"archive {self._archive!r} has no column {place.column!r}, where --columns says that "
                f"{name} stands{quoted}; {self.listed()}"
            )
        return None if kind is None else Found(F.col(place.column), kind, place.column, place.form)

    def _required(self, name: str) -> Found:
        found = self._find(name)
        if found is not None:
            return found
        unit = ":ms" if name == "timestamp" else ""
        nowhere = (
            f", or --columns {name}=- if its records have none" if name in (*ID_COLUMNS, "timestamp") else ""
        )
        raise ConfigurationError(
            f"archive {self._archive!r} has no column {name!r}: say where it stands with --columns {name}=COLUMN{unit}"
            f"{nowhere}; {self.listed()}"
        )

    def listed(self) -> str:
        """Return the names of all columns, for a message."""
        names = self._frame.columns
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return f"it has {', '.join(names[:_MOST_NAMES]) or 'no columns'}{more}"

    def _wrong(self, found: Found, name: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(
            f"archive {self._archive!r}: column {found.name!r} is {found.type.simpleString()[:200]}, and "
            f"{name} has to be {wanted}; name another column with --columns {name}=COLUMN"
        )

    def _milliseconds(self, found: Found) -> Column:
        column, kind, form = found.column, found.type, found.form
        if isinstance(kind, T.IntegralType) and form in _PER_SECOND:
            ratio = _PER_SECOND[form] // 1_000
            number = column.cast("long")
            if not ratio:
                return number * 1_000
            # Division goes towards zero, time before 1970 down.
            down = F.when(number % ratio < 0, F.lit(1)).otherwise(F.lit(0))
            return F.call_function("div", number, F.lit(ratio)) - down
        if isinstance(kind, T.IntegralType) and not form:
            raise ConfigurationError(
                f"archive {self._archive!r}: column {found.name!r} is {kind.simpleString()}, and its unit "
                f"is not known: say --columns timestamp={found.name}:ms (or :s, :us, :ns)"
            )
        if isinstance(kind, T.TimestampType | T.TimestampNTZType) and not form:
            return F.unix_millis(column.cast("timestamp"))
        if isinstance(kind, T.StringType) and form == "iso":
            return F.unix_millis(column.cast("timestamp"))
        raise self._wrong(
            found, "timestamp", "a timestamp, a number of :s, :ms, :us or :ns, or a text of :iso"
        )

    def _bytes(self, found: Found, name: str) -> Column:
        form = found.form
        if form == "json" and isinstance(found.type, _NESTED):
            return F.to_json(found.column).cast("binary")
        if isinstance(found.type, T.BinaryType) and not form:
            return found.column
        if isinstance(found.type, T.StringType) and form != "json":
            return _decoded(found.column, form)
        said = f", and --columns says :{form} of it" if form else ""
        raise self._wrong(
            found,
            name,
            f"binary, a string (UTF-8, or :base64, :hex), or with :json a struct, map or array{said}",
        )

    def _all_others(self) -> Column:
        taken = {place.column.partition(".")[0] for place in self._places.values()}
        others = [name for name in self._frame.columns if name not in taken]
        # Quoted, because a column's name may have a dot.
        return F.to_json(F.struct(*(F.col(f"`{name.replace('`', '``')}`") for name in others))).cast("binary")

    def _headers(self, found: Found) -> Column:
        value = _header_values(found.type)
        if value is None:
            raise self._wrong(
                found,
                "headers",
                "array<struct<key: string, value: binary or string>> or map<string, binary or string>",
            )
        if isinstance(value, T.BinaryType) and found.form:
            raise self._wrong(found, f"headers:{found.form}", "made of strings")
        entries = F.map_entries(found.column) if isinstance(found.type, T.MapType) else found.column

        def plain(header: Column) -> Column:
            content = header["value"]
            data = content if isinstance(value, T.BinaryType) else _decoded(content, found.form)
            return F.struct(header["key"].alias("key"), data.alias("value"))

        named = F.filter(entries, lambda header: header["key"].isNotNull())
        return F.transform(named, plain).cast(_HEADERS)


def _header_values(kind: T.DataType) -> T.DataType | None:
    """The type of the values, where a column of this type can have headers."""
    key, value = None, None
    if isinstance(kind, T.MapType):
        key, value = kind.keyType, kind.valueType
    elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
        fields = {field.name: field.dataType for field in kind.elementType.fields}
        key, value = fields.get("key"), fields.get("value")
    fits = isinstance(key, T.StringType) and isinstance(value, T.StringType | T.BinaryType)
    return value if fits else None


def _decoded(text: Column, form: str) -> Column:
    """The bytes of a text; one that is not in its form ends the job."""
    return F.to_binary(text, F.lit(form)) if form in ("base64", "hex") else text.cast("binary")
