"""ID specs through the SDK's own code, on Arrow batches: what ``json:`` and ``py:`` need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.ids.fields import Headers
from dedup_sdk.record import Record

_RESULT: Final = "partition int, offset long, timestamp_ms long, digest binary"
_PLACE: Final = ("partition", "offset", "timestamp_ms")
_COLUMNS: Final = {"headers": ("headers",), "key": ("key",), "value": ("value",)}
_ALL: Final = ("topic", "key", "value", "headers")


def with_digests(records: DataFrame, spec: IdSpec, *others: str) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms``, ``digest`` (16 bytes, null without an ID) and others of each record.

    Only the columns that the spec needs travel to Python.
    """
    needed = dict.fromkeys(column for need in sorted(spec.needs) for column in _COLUMNS.get(need, _ALL))
    narrow = records.select("partition", "offset", "timestamp_ms", *needed, *others)
    schema = ", ".join([_RESULT, *(f"{name} binary" for name in others)])
    return narrow.mapInArrow(_digester(str(spec), others), schema)


def _digester(
    text: str, others: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def digest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Read where it is used: a callable of ``py:`` is imported on the worker.
        spec = id_spec(text)
        for batch in batches:
            digests = spec.digests(ArrowFields(batch)).digests
            columns = [batch.column(name) for name in (*_PLACE, *others)]
            names = [*_PLACE, "digest", *others]
            columns.insert(len(_PLACE), pa.array(digests, pa.binary()))
            yield pa.RecordBatch.from_arrays(columns, names)

    return digest


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
        column = self._batch.column("headers")
        flat = column.flatten()
        names, values = flat.field("key").to_pylist(), flat.field("value").to_pylist()
        pairs = list(zip(names, values, strict=True))
        ends = column.offsets.to_pylist()
        first = ends[0]
        present = column.is_valid().to_pylist()
        return [
            pairs[start - first : end - first] if valid else None
            for start, end, valid in zip(ends, ends[1:], present, strict=False)
        ]

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return self._list("key")

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return self._list("value")

    def records(self) -> list[Record]:
        """Return the records themselves."""
        columns = (
            self._list(name) for name in ("topic", "partition", "offset", "timestamp_ms", "key", "value")
        )
        return [
            Record(topic, partition, offset, timestamp_ms, key, value, headers or ())
            for topic, partition, offset, timestamp_ms, key, value, headers in zip(
                *columns, self.headers(), strict=True
            )
        ]

    def _list(self, name: str) -> list[Any]:
        found: list[Any] = self._batch.column(name).to_pylist()
        return found
