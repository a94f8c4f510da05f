"""An archive's rows with Kafka's columns, whatever they are called and however they are written.

The result has ``topic string, partition int, offset bigint, timestamp_ms bigint`` (-1 where a record has none) and, of
``key binary, value binary, headers array<struct<key: string, value: binary>>``, those that the ID spec reads.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import ALL_OTHERS, ID_COLUMNS, NOWHERE, ColumnMap, place_of

_HEADERS: Final = "array<struct<key: string, value: binary>>"
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NESTED: Final = (T.StructType, T.MapType, T.ArrayType)
_MOST_NAMES: Final = 20
_STEP: Final = re.compile(r"`([^`]*)`|([^.`]+)")


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

    def integer(self, name: str) -> Column:
        """Return ``partition`` or ``offset`` as a long."""
        found = self._required(name)
        if not isinstance(found.type, T.IntegralType):
            raise self._wrong(found, name, "an integer")
        return found.column.cast("long")

    def topic(self) -> Column:
        """Return the topic's name."""
        found = self._required("topic")
        if not isinstance(found.type, T.StringType):
            raise self._wrong(found, "topic", "a string")
        return found.column

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
        if found is not None and (named or _is_of_headers(found.type)):
            return self._headers(found)
        return F.lit(None).cast(_HEADERS)

    def _nowhere(self, name: str) -> bool:
        return place_of(self._places, name).column == NOWHERE

    def _find(self, name: str) -> Found | None:
        place = place_of(self._places, name)
        if place.column == NOWHERE:
            return None
        kind = type_at(self._frame.schema, place.column)
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
        kind = found.type
        entries: Column | None = None
        if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
            entries = F.map_entries(found.column)
            value = kind.valueType
        elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
            fields = {field.name: field.dataType for field in kind.elementType.fields}
            value = fields.get("value", T.NullType())
            entries = found.column if isinstance(fields.get("key"), T.StringType) else None
        else:
            value = T.NullType()
        if entries is None or not isinstance(value, T.StringType | T.BinaryType):
            raise self._wrong(
                found,
                "headers",
                "array<struct<key: string, value: binary or string>> or map<string, binary or string>",
            )
        if isinstance(value, T.BinaryType) and found.form:
            raise self._wrong(found, f"headers:{found.form}", "made of strings")

        def plain(header: Column) -> Column:
            content = header["value"]
            data = content if isinstance(value, T.BinaryType) else _decoded(content, found.form)
            return F.struct(header["key"].alias("key"), data.alias("value"))

        named = F.filter(entries, lambda header: header["key"].isNotNull())
        return F.transform(named, plain).cast(_HEADERS)


def _is_of_headers(kind: T.DataType) -> bool:
    """Whether a column that is only called so may have headers."""
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and isinstance(
            kind.valueType, T.StringType | T.BinaryType
        )
    if not isinstance(kind, T.ArrayType) or not isinstance(kind.elementType, T.StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return isinstance(fields.get("key"), T.StringType) and isinstance(
        fields.get("value"), T.StringType | T.BinaryType
    )


def type_at(schema: T.StructType, name: str) -> T.DataType | None:
    """Return the type of a column, or of a field of a struct behind a dot; None where there is none.

    Quoted names may have dots.
    """
    kind: T.DataType = schema
    for quoted, plain in _STEP.findall(name):
        step = quoted or plain
        fields = kind.fields if isinstance(kind, T.StructType) else []
        found = next((field.dataType for field in fields if field.name.lower() == step.lower()), None)
        if found is None:
            return None
        kind = found
    return kind


def _decoded(text: Column, form: str) -> Column:
    """The bytes of a text; one that is not in its form ends the job."""
    return F.to_binary(text, F.lit(form)) if form in ("base64", "hex") else text.cast("binary")
