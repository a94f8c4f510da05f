"""An archive's rows with Kafka's columns, whatever they are called and however they are written.

The result has ``topic string, partition int, offset bigint, timestamp_ms bigint`` (-1 where a record has none) and, of
``key binary, value binary, headers array<struct<key: string, value: binary>>``, those that the ID spec reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import (
    ALL_OTHERS,
    HEADER,
    INTEGER_FORMS,
    NAMES_LIST,
    NOWHERE,
    VALUES_LIST,
    ColumnMap,
    check_columns,
    in_path,
    parts_of,
    place_of,
    quoted,
)

_HEADERS: Final = "array<struct<key: string, value: binary>>"
_TEXTS: Final = "array<struct<key: string, value: string>>"
_TEXT_TYPES: Final = dict.fromkeys((NAMES_LIST, VALUES_LIST), T.ArrayType(T.StringType()))
"""The types of what JSON text has; all else is a text again."""
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NESTED: Final = (T.StructType, T.MapType, T.ArrayType)
_MOST_EXACT: Final = 2**53 - 1
"""A larger double is not one integer any more."""
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
        ConfigurationError: a column has a type that does not fit its use. Those that are used have to be checked.
    """

    def __init__(self, frame: DataFrame, places: ColumnMap, *, archive: str) -> None:
        self._frame = frame
        self._places = places
        self._archive = archive

    def check(self, needed: Iterable[str]) -> None:
        """Make sure that the columns are there; raises as `spark_backfill.column_map.check_columns`."""
        check_columns(
            self._archive,
            self._frame.columns,
            self._places,
            needed,
            lambda column: (
                self._type(column) is not None or self._json_field(column, T.StringType()) is not None
            ),
        )

    def has(self, name: str) -> bool:
        """Whether one of Kafka's columns is there."""
        return in_path(name, place_of(self._places, name)) or self._find(name) is not None

    def coordinate(self, name: str) -> Column:
        """Return ``topic`` as a string, ``partition`` or ``offset`` as a long, null where a number is no integer."""
        place = place_of(self._places, name)
        if in_path(name, place):
            said = F.regexp_extract(F.col("_metadata.file_path"), place.form, 1)
            return F.when(said != "", said).cast("string" if name == "topic" else "long")
        found = self._required(name)
        if name == "topic":
            if not isinstance(found.type, T.StringType | T.BinaryType):
                raise self._wrong(found, name, "a string")
            return found.column.cast("string")
        if isinstance(found.type, T.IntegralType | T.StringType):
            return found.column.cast("long")
        if not isinstance(found.type, T.NumericType):
            raise self._wrong(found, name, "an integer")
        most = F.lit(2**63 - 1 if isinstance(found.type, T.DecimalType) else _MOST_EXACT)
        fits = (F.abs(found.column) <= most) & (F.floor(found.column) == found.column)
        return F.when(fits, F.floor(found.column).cast("long"))

    def timestamp_ms(self) -> Column:
        """Return the records' timestamps in ms, -1 where there is none."""
        if self._nowhere("timestamp"):
            return F.lit(-1).cast("long")
        found = self._required("timestamp")
        return F.coalesce(self._milliseconds(found), F.lit(-1).cast("long"))

    def timestamp_is_number(self) -> bool:
        """Whether the unit of the timestamps is only known from the options."""
        found = self._find("timestamp")
        return found is not None and (isinstance(found.type, T.NumericType) or found.form in _PER_SECOND)

    def id_column(self, name: str) -> Column:
        """Return ``key`` or ``value`` as bytes."""
        if self._nowhere(name):
            return F.lit(None).cast("binary")
        if name == "value" and place_of(self._places, name).column == ALL_OTHERS:
            return self._all_others()
        return self._bytes(self._required(name), name)

    def headers(self, *, required: bool) -> Column:
        """Return the headers: those of their one column or of two lists, then those that are columns of their own.

        Without such columns they are null, if they are not ``required``.
        """
        own = [
            self._one_header(name, self._required(name)) for name in self._places if name.startswith(HEADER)
        ]
        if NAMES_LIST in self._places:
            listed = self._zipped(*(_as_list(self._required(name)) for name in (NAMES_LIST, VALUES_LIST)))
        else:
            listed = self._listed(required=required and not own)
        return (
            F.concat(*(F.coalesce(each, F.array().cast(_HEADERS)) for each in (listed, *own)))
            if own
            else listed
        )

    def _nowhere(self, name: str) -> bool:
        return place_of(self._places, name).column == NOWHERE

    def _find(self, name: str) -> Found | None:
        place = place_of(self._places, name)
        if place.column == NOWHERE:
            return None
        kind = self._type(place.column)
        if kind is not None:
            return Found(F.col(place.column), kind, place.column, place.form)
        field = self._json_field(place.column, _TEXT_TYPES.get(name, T.StringType()))
        return None if field is None else Found(*field, place.column, place.form)

    def _json_field(self, column: str, kind: T.DataType) -> tuple[Column, T.DataType] | None:
        """A field in a column of JSON text, as this type; None where there is no such column."""
        names = parts_of(column)
        for depth in range(1, len(names)):
            outer = ".".join(map(quoted, names[:depth]))
            if isinstance(self._type(outer), T.StringType):
                first, *inner = names[depth:]
                nested = kind
                for name in reversed(inner):
                    nested = T.StructType([T.StructField(name, nested)])
                shape = T.StructType([T.StructField(first, nested)])
                found = F.from_json(F.col(outer), shape, {"mode": "FAILFAST"}).getField(first)
                for name in inner:
                    found = found.getField(name)
                return found, kind
        return None

    def _type(self, column: str) -> T.DataType | None:
        """The type of a column, None where there is no such column."""
        try:
            # By a name alone a query also finds functions, e.g. user.
            return self._frame.select(self._frame[column]).schema[0].dataType
        except AnalysisException as error:
            if not _NOT_THERE.search(str(error)):
                raise
        return None

    def _required(self, name: str) -> Found:
        """One of the columns that were found."""
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def _wrong(self, found: Found, name: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(
            f"archive {shown(self._archive)}: column {shown(found.name)} is {found.type.simpleString()[:200]}, and "
            f"{name} has to be {wanted}; name another column with --columns {name}=COLUMN"
        )

    def _milliseconds(self, found: Found) -> Column:
        column, kind, form = found.column, found.type, found.form
        if isinstance(kind, T.StringType) and form in _PER_SECOND:
            kind = T.DecimalType(24, 3)
            column = column.cast(kind)
        if isinstance(kind, T.FractionalType) and form in _PER_SECOND:
            # Of seconds, the part behind the point are milliseconds.
            return F.floor(column * 1_000 / _PER_SECOND[form]).cast("long")
        if isinstance(kind, T.IntegralType) and form in _PER_SECOND:
            ratio = _PER_SECOND[form] // 1_000
            number = column.cast("long")
            if not ratio:
                return number * 1_000
            # Division goes towards zero, time before 1970 down.
            down = F.when(number % ratio < 0, F.lit(1)).otherwise(F.lit(0))
            return F.call_function("div", number, F.lit(ratio)) - down
        if isinstance(kind, T.NumericType | T.StringType) and not form:
            raise ConfigurationError(
                f"archive {shown(self._archive)}: column {shown(found.name)} is {kind.simpleString()}, and its unit "
                f"is not known: say --columns timestamp={found.name}:ms (or :s, :us, :ns, of a text also :iso)"
            )
        # Its type says the unit, whatever else does.
        if isinstance(kind, T.TimestampType | T.TimestampNTZType):
            return F.unix_millis(column.cast("timestamp"))
        if isinstance(kind, T.StringType) and form == "iso":
            return F.unix_millis(column.cast("timestamp"))
        raise self._wrong(
            found,
            "timestamp",
            "a timestamp, a number of :s, :ms, :us or :ns, or a text of :iso or such a number",
        )

    def _bytes(self, found: Found, name: str) -> Column:
        form = found.form
        if form == "json" and isinstance(found.type, _NESTED):
            return F.to_json(found.column).cast("binary")
        if form in INTEGER_FORMS and isinstance(found.type, T.IntegralType | T.StringType):
            return _big_endian(found.column, form)
        if _is_value(found.type, form) and form != "json":
            return _data(found.column, found.type, form)
        said = f", and --columns says :{form} of it" if form else ""
        raise self._wrong(
            found,
            name,
            "binary, a string (UTF-8, or :base64, :hex), an integer (:int32 or :int64, or :utf8 for its digits), or "
            f"with :json a struct, map or array{said}",
        )

    def _all_others(self) -> Column:
        taken = {
            place.column.partition(".")[0] for name, place in self._places.items() if not in_path(name, place)
        }
        others = [name for name in self._frame.columns if name not in taken]
        # Quoted, because a column's name may have a dot.
        return F.to_json(F.struct(*(F.col(quoted(name)) for name in others))).cast("binary")

    def _listed(self, *, required: bool) -> Column:
        """The headers of their one column; null where there is none of this kind, unless it is required."""
        found = None if self._nowhere("headers") else self._find("headers")
        if found is None:
            return F.lit(None).cast(_HEADERS)
        if isinstance(found.type, T.StringType):
            return _of_text(found.column, found.form)
        kinds = _value_types(found.type)
        if not kinds or not all(_is_value(kind, found.form or "utf8") for kind in kinds):
            if required or "headers" in self._places:
                raise self._no_headers(found)
            return F.lit(None).cast(_HEADERS)
        if isinstance(found.type, T.StructType):
            fields = zip(found.type.names, kinds, strict=True)
            return _present(
                (name, _data(found.column.getField(name), kind, found.form)) for name, kind in fields
            )
        entries = F.map_entries(found.column) if isinstance(found.type, T.MapType) else found.column
        return _plain(entries, kinds[0], found.form)

    def _no_headers(self, found: Found) -> ConfigurationError:
        return self._wrong(
            found,
            f"headers:{found.form}" if found.form else "headers",
            "array<struct<key: string, value: binary or string>>, map<string, binary or string>, or a struct of such "
            "values, or their JSON text; write headers.key=COLUMN,headers.value=COLUMN for two lists, "
            "header.NAME=COLUMN for one header",
        )

    def _zipped(self, names: Found, values: Found) -> Column:
        """The headers of two lists."""
        self._elements(names, NAMES_LIST)
        kind = self._elements(values, VALUES_LIST)

        def pair(name: Column, value: Column) -> Column:
            return F.struct(name.cast("string").alias("key"), _data(value, kind, values.form).alias("value"))

        return _named(F.zip_with(names.column, values.column, pair)).cast(_HEADERS)

    def _elements(self, found: Found, name: str) -> T.DataType:
        kind = found.type.elementType if isinstance(found.type, T.ArrayType) else None
        if kind is None or not _is_value(kind, found.form or "utf8"):
            raise self._wrong(found, name, "a list of strings or binary")
        return kind

    def _one_header(self, name: str, found: Found) -> Column:
        if not _is_value(found.type, found.form or "utf8"):
            raise self._wrong(found, name, "binary, a string (UTF-8, or :base64, :hex) or an integer")
        return _present([(name.removeprefix(HEADER), _data(found.column, found.type, found.form))])


def _value_types(kind: T.DataType) -> list[T.DataType]:
    """The types of the values, where a column of this type can have headers; of a struct, that of each field."""
    if isinstance(kind, T.StructType):
        return [field.dataType for field in kind.fields]
    key, value = None, None
    if isinstance(kind, T.MapType):
        key, value = kind.keyType, kind.valueType
    elif isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StructType):
        fields = {field.name: field.dataType for field in kind.elementType.fields}
        key, value = fields.get("key"), fields.get("value")
    return [value] if isinstance(key, T.StringType) and value is not None else []


def _is_value(kind: T.DataType, form: str) -> bool:
    """Whether values of a type are bytes, in this form."""
    if isinstance(kind, T.BinaryType):
        return form in ("", "utf8")
    return isinstance(kind, T.StringType) or (isinstance(kind, T.IntegralType) and form == "utf8")


def _data(value: Column, kind: T.DataType, form: str) -> Column:
    """The bytes of a value; of an integer its digits. A text that is not in its form ends the job."""
    if isinstance(kind, T.BinaryType):
        return value
    if isinstance(kind, T.StringType) and form in ("base64", "hex"):
        return F.to_binary(value, F.lit(form))
    return value.cast("string").cast("binary")


def _big_endian(number: Column, form: str) -> Column:
    """The bytes that Java's serializer makes of an integer."""
    digits = 8 if form == "int32" else 16
    checked = number.cast("int" if form == "int32" else "long").cast("long")
    return F.to_binary(F.right(F.lpad(F.hex(checked), 16, "0"), F.lit(digits)), F.lit("hex"))


def _present(headers: Iterable[tuple[str, Column]]) -> Column:
    """Those of these headers that have a value."""
    each = [F.struct(F.lit(name).alias("key"), value.alias("value")) for name, value in headers]
    return F.filter(F.array(*each).cast(_HEADERS), lambda header: header["value"].isNotNull())


def _as_list(found: Found) -> Found:
    """A column that may be the JSON text of a list, as that list."""
    if not isinstance(found.type, T.StringType):
        return found
    texts = T.ArrayType(T.StringType())
    return found._replace(column=F.from_json(found.column, texts, {"mode": "FAILFAST"}), type=texts)


def _plain(entries: Column, kind: T.DataType, form: str) -> Column:
    """The headers of a list of names and values of this type."""

    def pair(header: Column) -> Column:
        return F.struct(header["key"].alias("key"), _data(header["value"], kind, form).alias("value"))

    return F.transform(_named(entries), pair).cast(_HEADERS)


def _of_text(text: Column, form: str) -> Column:
    """The headers of a text.

    JSON is a list of objects ``{"key": ..., "value": ...}``, one object of names and values, or kcat's flat list;
    anything else is ``NAME:VALUE;...`` with both in base64, as Aiven's sinks write it.
    """
    strict = {"mode": "FAILFAST"}
    entries = F.map_entries(F.from_json(text, "map<string, string>", strict)).cast(_TEXTS)
    flat = F.from_json(text, "array<string>", strict)
    names = F.filter(flat, lambda _, place: place % 2 == 0)
    paired = F.transform(
        names,
        lambda name, place: F.struct(name.alias("key"), F.get(flat, 2 * place + 1).alias("value")),
    ).cast(_TEXTS)
    listed = F.from_json(text, _TEXTS, strict)

    def coded(pair: Column) -> Column:
        name, value = (F.to_binary(F.get(F.split(pair, ":"), place), F.lit("base64")) for place in (0, 1))
        return F.struct(name.cast("string").alias("key"), value.alias("value"))

    pairs = F.transform(F.filter(F.split(text, ";"), lambda pair: pair != ""), coded).cast(_HEADERS)
    return (
        F.when(~text.rlike(r"^\s*[\[{]"), pairs)
        .when(text.rlike(r"^\s*\{"), _plain(entries, T.StringType(), form))
        .when(text.rlike(r'^\s*\[\s*"'), _plain(paired, T.StringType(), form))
        .otherwise(_plain(listed, T.StringType(), form))
    )


def _named(headers: Column) -> Column:
    return F.filter(headers, lambda header: header["key"].isNotNull())
