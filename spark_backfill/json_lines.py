"""JSON lines: one object a line, whose fields are texts, never of types guessed from the data.

A guess would turn the IDs ``5`` and ``"5"`` of two lines into one, and ``1e2`` into ``100.0``. So keys and values
stay the text that stands there: of a JSON string its characters, of anything else its JSON text as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)
from pyspark.sql import types as T  # noqa: N812 (as above)

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import (
    ALL_OTHERS,
    KAFKA_COLUMNS,
    NAMES_LIST,
    NOWHERE,
    VALUES_LIST,
    ColumnMap,
    in_path,
    parts_of,
    place_of,
)

_TEXT: Final = T.StringType()
_TYPES: Final[Mapping[str, T.DataType]] = {
    NAMES_LIST: T.ArrayType(_TEXT),
    VALUES_LIST: T.ArrayType(_TEXT),
}
_EXACT_SINCE: Final = 4
_CODED: Final = ("base64", "hex")
_IS_JSON: Final = re.compile(r"\.json(\.[^/]*)?$")


def read_json_lines(
    spark: SparkSession,
    paths: str | list[str],
    places: ColumnMap,
    wanted: Iterable[str],
    options: Mapping[str, str],
) -> DataFrame:
    """Return the lines of the files below ``paths``, with the fields where the ``wanted`` columns stand.

    A line that is no object ends the job when it is read.

    Raises:
        ConfigurationError: the places contradict each other, or are not possible in JSON lines, or with this Spark.
    """
    check_exact_text(spark.version, places, wanted)
    tree: dict[str, Any] = {}
    for name in [*wanted, *(name for name in places if name not in KAFKA_COLUMNS)]:
        place = place_of(places, name)
        if place.column == ALL_OTHERS:
            raise ConfigurationError(
                f"--columns {name}={place}: the fields of JSON lines are not known in advance; with "
                "--format text a line is the value, or name the field that has it"
            )
        if place.column != NOWHERE and not in_path(name, place):
            _put(tree, parts_of(place.column), _TYPES.get(name, _TEXT))
    return spark.read.schema(_struct(tree)).options(**{"mode": "FAILFAST", **options}).json(paths)


def read_lines(spark: SparkSession, files: list[str], name: str) -> DataFrame:
    """Return the lines of files that are one of Kafka's columns, ``key`` or ``headers``, as that column.

    A line of JSON is the key, or an object whose field is the list of headers; any other is the key as it is.
    """
    lines = spark.read.text(files)
    if not all(_IS_JSON.search(file) for file in files):
        return lines.withColumnRenamed("value", name)
    text = F.col("value")
    field = text if name == "headers" else F.concat(F.lit('{"key":'), text, F.lit("}"))
    return lines.withColumn(name, F.from_json(field, f"{name} string", {"mode": "FAILFAST"})[name])


def check_exact_text(version: str, places: ColumnMap, wanted: Iterable[str]) -> None:
    """Refuse a version of Spark that writes numbers anew (``1e2`` as ``100.0``) where keys or values may have some.

    Raises:
        ConfigurationError: naming the column.
    """
    if int(version.partition(".")[0]) >= _EXACT_SINCE:
        return
    for name in {"key", "value"}.intersection(wanted):
        place = place_of(places, name)
        if place.form not in _CODED and place.column != NOWHERE:
            raise ConfigurationError(
                f"Spark {version} changes numbers in JSON lines, and with them IDs: take Spark {_EXACT_SINCE}, or "
                f"lines whose {name} is a text in base64 or hex (--columns {name}={place.column}:base64)"
            )


def _put(tree: dict[str, Any], path: Sequence[str], kind: T.DataType) -> None:
    *folders, last = path
    for folder in folders:
        tree = tree.setdefault(folder, {})
        if not isinstance(tree, dict):
            raise ConfigurationError(
                f"--columns {'.'.join(path)}: {shown(folder)} is taken for a column itself"
            )
    tree[last] = kind


def _struct(tree: dict[str, Any]) -> T.StructType:
    return T.StructType(
        [
            T.StructField(name, _struct(below) if isinstance(below, dict) else below)
            for name, below in tree.items()
        ]
    )
