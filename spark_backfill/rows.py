"""Rows: the places of records, and their IDs by the SDK's own code, as columns of Arrow. All sources give these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import DIGEST_BYTES, Digests, Int64s
from dedup_sdk._record import Record
from dedup_sdk._strategy import Keys
from dedup_sdk.ids import IdSpec
from dedup_sdk.ids._columns import Column, Headers, digest_columns
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix
from dedup_sdk.ids._spec import Leaf
from spark_backfill.arrow_columns import bears_header, bytes_list, headers_list, last_values
from spark_backfill.ordered_spec import Spec, SpecText, text_of

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


def rows_batch(
    wanted: Wanted,
    partitions: Int64s,
    offsets: Int64s,
    timestamps: Int64s,
    digests: Sequence[bytes | None],
    *,
    redriven: Mapping[int, bytes | None],
    keys: Callable[[], pa.Array],
    producers: Callable[[], Sequence[bytes | None]],
) -> pa.RecordBatch:
    """Return rows as they are wanted; ``keys`` and ``producers`` are asked for where they are.

    ``redriven``: the digests of IDs together with redrive headers, by row.
    """
    found: dict[str, Callable[[], pa.Array]] = {
        PRODUCER: lambda: pa.array(producers(), pa.binary()),
        KEY_COLUMN: keys,
        REDRIVEN: lambda: _by_row(redriven, len(offsets)),
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
