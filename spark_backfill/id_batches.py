"""ID specs through the SDK's own code, on Arrow batches: what ``json:``, ``cloudevents`` and ``py:`` need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from dedup_sdk.ids import IdSpec
from dedup_sdk.ids.digest import Column, digest_columns
from dedup_sdk.ids.fields import Headers
from dedup_sdk.ids.parts import Leaf
from dedup_sdk.record import Record
from dedup_sdk.strategy import Keys
from spark_backfill.arrow_columns import bytes_list, headers_list, last_values
from spark_backfill.lane_spec import Spec, SpecText, keys_of

_RESULT: Final = "partition int, offset long, timestamp_ms long, digest binary"
_PLACE: Final = ("partition", "offset", "timestamp_ms")
_COLUMNS: Final = {"headers": ("headers",), "key": ("key",), "value": ("value",)}
_ALL: Final = ("topic", "key", "value", "headers")


def with_digests(records: DataFrame, spec: IdSpec, *others: str) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms``, ``digest`` (16 bytes, null without an ID) and others of each record.

    Only the columns that the spec needs travel to Python.
    """
    schema = ", ".join([_RESULT, *(f"{name} binary" for name in others)])
    return read_columns(records, spec, *others).mapInArrow(digester(str(spec), *others), schema)


def read_columns(records: DataFrame, spec: Spec, *others: str) -> DataFrame:
    """Return of records what `digester` reads."""
    needed = dict.fromkeys(column for need in sorted(spec.needs) for column in _COLUMNS.get(need, _ALL))
    return records.select("partition", "offset", "timestamp_ms", *needed, *others)


def digester(text: SpecText, *others: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``: records in, the rows of `with_digests` out; lane keys in the place of digests where IDs are compared."""

    def digest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Read where it is used: a callable of ``py:`` is imported on the worker.
        spec = keys_of(text)
        for batch in batches:
            digests = digests_of(spec, batch)
            columns = [batch.column(name) for name in (*_PLACE, *others)]
            names = [*_PLACE, "digest", *others]
            columns.insert(len(_PLACE), pa.array(digests, pa.binary()))
            yield pa.RecordBatch.from_arrays(columns, names)

    return digest


def digests_of(spec: Keys, batch: pa.RecordBatch) -> Sequence[bytes | None]:
    """Return the digest (or lane key) of each record of a batch, None without an ID: `IdSpec.digests`, by columns where that is possible."""
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
