"""Rows: the places of records, and their IDs by the SDK's own code, as columns of Arrow. All sources give these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import DIGEST_BYTES, Digests, Int64s
from dedup_sdk._record import Record
from dedup_sdk.ids._columns import Fields, Headers, Ids, ReadOnce
from dedup_sdk.ids._spec import GroupKeys, redriven_keys
from spark_backfill.arrow_columns import bears_header, bytes_list, headers_list, last_values
from spark_backfill.ordered_spec import Spec, SpecText, keys_of, text_of

REDRIVEN: Final = "redriven"
"""The column with the digest of an ID together with any group's redrive header, null where a record has none."""
KEY_COLUMN: Final = "record_key"
"""The column with the records' keys, where they are re-sharded."""
PRODUCER: Final = "producer"
"""The column with the value of the header that names a producer."""
ROWS_SCHEMA: Final = "partition int, offset long, timestamp_ms long, digest binary"
"""Rows as a reader returns them; ``digest`` is null without an ID, and the source or unit key of specs with such."""
_NAMES: Final = [column.split()[0] for column in ROWS_SCHEMA.split(", ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The columns of rows that a run wants from a source.

    ``group``: a redrive header that names it is part of a record's ID; None: of nobody's. ``producer_header``,
    ``with_keys`` and ``with_redriven`` add `PRODUCER`, `KEY_COLUMN` and `REDRIVEN`.
    """

    spec: SpecText
    group: str | None = None
    producer_header: str | None = None
    with_keys: bool = False
    with_redriven: bool = False

    @classmethod
    def of(cls, spec: Spec, group: str | None) -> Self:
        """Return the plain rows of a spec."""
        return cls(spec=text_of(spec), group=group)

    @property
    def schema(self) -> str:
        """The columns, for Spark."""
        return ", ".join([ROWS_SCHEMA, *(f"{name} binary" for name in self.others)])

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the columns beside `ROWS_SCHEMA`."""
        wanted = {
            PRODUCER: self.producer_header is not None,
            KEY_COLUMN: self.with_keys,
            REDRIVEN: self.with_redriven,
        }
        return tuple(name for name, added in wanted.items() if added)


class RowKeys:
    """Reads the keys of records for a run of a group (`dedup_sdk.ids._redrive`).

    ``fields`` are those of the records which were asked about last. Without a group a redrive header changes no key;
    then ``redriven`` has the keys that the headers give besides, by row: the group that a header names knows the
    record by that one.
    """

    fields: ReadOnce

    def __init__(self, spec: SpecText, group: str | None) -> None:
        # Read where it is used: a callable of ``py:`` is imported on the worker.
        self._keys = keys_of(spec)
        self._of_group = None if group is None else GroupKeys(self._keys, group)
        self.redriven: Mapping[int, bytes | None] = {}

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of these records."""
        self.fields = ReadOnce.of(fields)
        if self._of_group is not None:
            return self._of_group.digests(self.fields)
        ids = self._keys.digests(self.fields)
        self.redriven = redriven_keys(self._keys, ids, self.fields, None)
        return ids


def rows_batch(
    wanted: Wanted,
    partitions: Int64s,
    offsets: Int64s,
    timestamps: Int64s,
    digests: Sequence[bytes | None],
    *,
    keys: RowKeys,
    key_column: Callable[[], pa.Array],
) -> pa.RecordBatch:
    """Return rows as they are wanted; ``keys`` has read their ``digests``, ``key_column`` gives the records' keys."""
    found: dict[str, Callable[[], pa.Array]] = {
        PRODUCER: lambda: pa.array(keys.fields.header(wanted.producer_header or ""), pa.binary()),
        KEY_COLUMN: key_column,
        REDRIVEN: lambda: _by_row(keys.redriven, len(offsets)),
    }
    rows = [
        pa.array(partitions.astype(np.int32)),
        pa.array(offsets),
        pa.array(timestamps),
        _digest_column(digests),
        *(found[name]() for name in wanted.others),
    ]
    return pa.RecordBatch.from_arrays(rows, [*_NAMES, *wanted.others])


def _digest_column(digests: Sequence[bytes | None]) -> pa.Array:
    if not isinstance(digests, Digests):
        return pa.array(digests, pa.binary())
    # They lie joined already: one by one they would cost as much as their making.
    count = len(digests)
    ends = np.arange(0, DIGEST_BYTES * count + 1, DIGEST_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(digests.joined)]
    )


def _by_row(redriven: Mapping[int, bytes | None], count: int) -> pa.Array:
    if not redriven:
        return pa.nulls(count, pa.binary())
    return pa.array([redriven.get(row) for row in range(count)], pa.binary())


class ArrowFields:
    """The fields of the records of an Arrow batch, as `dedup_sdk.ids.Fields`, and their headers by name."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    @property
    def count(self) -> int:
        """How many records these are."""
        return int(self._batch.num_rows)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        return headers_list(self._batch.column("headers"))

    def header(self, wanted: str) -> list[bytes | None]:
        """Return the value of each record's last header of exactly this name, None where there is none."""
        return last_values(self._batch.column("headers"), wanted)

    def has_header(self, wanted: str) -> bool:
        """Whether any record has a header of exactly this name."""
        return "headers" in self._batch.schema.names and bears_header(self._batch.column("headers"), wanted)

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
