"""IDs of records in Arrow batches, by the SDK's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from dedup_sdk._record import Record
from dedup_sdk._strategy import Keys
from dedup_sdk.ids import IdSpec
from dedup_sdk.ids._columns import Column, Headers, digest_columns
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix
from dedup_sdk.ids._spec import Leaf
from spark_backfill.arrow_columns import bears_header, bytes_list, headers_list, last_values
from spark_backfill.last_id_spec import Spec, SpecText, keys_of

REDRIVEN: Final = "redriven"
"""The column with the digest of an ID together with any group's redrive header, null where a record has none."""
KEY_COLUMN: Final = "record_key"
"""The column with the records' keys, where they are re-sharded."""
PRODUCER: Final = "producer"
"""The column with the value of the header that names a producer."""
ROWS_SCHEMA: Final = "partition int, offset long, timestamp_ms long, digest binary"
"""Rows as a reader returns them; ``digest`` is null without an ID, and the source or unit key of specs with such."""
_PLACE: Final = ("partition", "offset", "timestamp_ms")
_COLUMNS: Final = {"headers": ("headers",), "key": ("key",), "value": ("value",)}
_ALL: Final = ("topic", "key", "value", "headers")


def rows_schema(*others: str) -> str:
    """Return `ROWS_SCHEMA` with other columns."""
    return ", ".join([ROWS_SCHEMA, *(f"{name} binary" for name in others)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Digester:
    """A function for ``mapInArrow``: records in, their rows (`schema`) out.

    ``group``: a redrive header that names it is part of a record's ID; None: of nobody's. ``producer_header``,
    ``with_keys`` and ``with_redriven`` add `PRODUCER`, `KEY_COLUMN` and `REDRIVEN`.
    """

    spec: SpecText
    group: str | None = None
    producer_header: str | None = None
    with_keys: bool = False
    with_redriven: bool = False

    @property
    def schema(self) -> str:
        """The columns, for Spark."""
        wanted = {
            PRODUCER: self.producer_header is not None,
            KEY_COLUMN: self.with_keys,
            REDRIVEN: self.with_redriven,
        }
        return rows_schema(*(name for name, added in wanted.items() if added))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the IDs of the records."""
        # Read where it is used: a callable of ``py:`` is imported on the worker.
        spec = keys_of(self.spec)
        for batch in batches:
            digests, redriven = read_keys(spec, batch, self.group)
            rows = {name: batch.column(name) for name in _PLACE} | {"digest": pa.array(digests, pa.binary())}
            if self.producer_header is not None:
                named = last_values(batch.column("headers"), self.producer_header)
                rows[PRODUCER] = pa.array(named, pa.binary())
            if self.with_keys:
                rows[KEY_COLUMN] = batch.column("key")
            if self.with_redriven:
                rows[REDRIVEN] = by_row(redriven, batch.num_rows)
            yield pa.RecordBatch.from_pydict(rows)


def read_columns(records: DataFrame, spec: Spec, *, with_keys: bool = False) -> DataFrame:
    """Return the columns of records that a `Digester` reads, and no others: the rest stays in the JVM."""
    needed = dict.fromkeys(column for need in sorted(spec.needs) for column in _COLUMNS.get(need, _ALL))
    more = ("key", "headers") if with_keys else ("headers",)
    return records.select(*_PLACE, *dict.fromkeys((*needed, *more)))


class ReadKeys(NamedTuple):
    """The keys of the records of a batch, None without an ID.

    For a run without a group there are also those that redrive headers give besides, by row.
    """

    digests: Sequence[bytes | None]
    redriven: Mapping[int, bytes | None]


def read_keys(spec: Keys, batch: pa.RecordBatch, group: str | None) -> ReadKeys:
    """Return the digest (or source key, or unit key) of each record of a batch as a group knows them.

    See `dedup_sdk.ids._redrive`.
    """
    digests = _plain_digests(spec, batch)
    if "headers" not in batch.schema.names or not bears_header(batch.column("headers"), REDRIVE_HEADER):
        return ReadKeys(digests, {})
    prefix = redrive_prefix(group)
    headers = enumerate(last_values(batch.column("headers"), REDRIVE_HEADER))
    redriven = {
        row: spec.redriven(key, header)
        for row, header in headers
        if header is not None and header.startswith(prefix) and (key := digests[row]) is not None
    }
    if group is None:
        return ReadKeys(digests, redriven)
    changed = list(digests)
    for row, key in redriven.items():
        changed[row] = key
    return ReadKeys(changed, {})


def by_row(redriven: Mapping[int, bytes | None], count: int) -> pa.Array:
    """Return the column `REDRIVEN` of so many rows."""
    if not redriven:
        return pa.nulls(count, pa.binary())
    return pa.array([redriven.get(row) for row in range(count)], pa.binary())


def _plain_digests(spec: Keys, batch: pa.RecordBatch) -> Sequence[bytes | None]:
    """Return the digest (or source key) of each record of a batch, None without an ID.

    This is `IdSpec.digests`, by columns where that is possible.
    """
    if not isinstance(spec, IdSpec):
        return spec.digests(ArrowFields(batch)).digests
    leaves = spec.describe()
    if all(map(_is_a_column, leaves)):
        return digest_columns([Column(_values(leaf, batch)) for leaf in leaves]).digests
    return spec.digests(ArrowFields(batch)).digests


def _is_a_column(leaf: Leaf) -> bool:
    return leaf.kind in ("header", "key", "value")


def _values(leaf: Leaf, batch: pa.RecordBatch) -> list[bytes | None]:
    if leaf.kind == "header":
        return last_values(batch.column("headers"), leaf.argument)
    return bytes_list(batch.column(leaf.kind))


class ArrowFields:
    """The fields of the records of an Arrow batch, as `dedup_sdk.ids.Fields`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    @property
    def count(self) -> int:
        """How many records these are."""
        return int(self._batch.num_rows)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        return headers_list(self._batch.column("headers"))

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return bytes_list(self._batch.column("key"))

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return bytes_list(self._batch.column("value"))

    def records(self) -> list[Record]:
        """Return the records themselves."""
        plain = (
            self._batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "timestamp_ms")
        )
        return [
            Record(topic, partition, offset, timestamp_ms, key, value, headers or ())
            for topic, partition, offset, timestamp_ms, key, value, headers in zip(
                *plain, self.keys(), self.values(), self.headers(), strict=True
            )
        ]
