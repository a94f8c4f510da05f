"""ID specs through the SDK's own code, on Arrow batches, for ``json:``, ``cloudevents`` and ``py:``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_RESULT: Final = "partition int, offset long, timestamp_ms long, digest binary"
_PLACE: Final = ("partition", "offset", "timestamp_ms")
_COLUMNS: Final = {"headers": ("headers",), "key": ("key",), "value": ("value",)}
_ALL: Final = ("topic", "key", "value", "headers")


def with_digests(
    records: DataFrame, spec: IdSpec, *others: str, group: str | None = None, with_redriven: bool = False
) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms``, ``digest`` and others of each record.

    A digest has 16 bytes, and is null without an ID. ``group`` and ``with_redriven``: as in `digester`. Only the
    columns that the spec needs travel to Python, and headers where there are any.
    """
    added = [*others, *([REDRIVEN] if with_redriven else [])]
    schema = ", ".join([_RESULT, *(f"{name} binary" for name in added)])
    task = digester(str(spec), *others, group=group, with_redriven=with_redriven)
    return read_columns(records, spec, *others).mapInArrow(task, schema)


def read_columns(records: DataFrame, spec: Spec, *others: str) -> DataFrame:
    """Return the columns of records that `digester` reads."""
    needed = dict.fromkeys(column for need in sorted(spec.needs) for column in _COLUMNS.get(need, _ALL))
    if "headers" in records.columns:
        needed["headers"] = None
    return records.select("partition", "offset", "timestamp_ms", *needed, *others)


def digester(
    text: SpecText, *others: str, group: str | None = None, with_redriven: bool = False
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``: records in, the rows of `with_digests` out.

    Source keys in the place of digests where IDs are compared. ``group``: a redrive header that names it is part
    of a record's ID; None: of nobody's. ``with_redriven``: a column `REDRIVEN` has the digest of the ID together
    with any group's header, null where a record has no such header.
    """

    def digest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Read where it is used: a callable of ``py:`` is imported on the worker.
        spec = keys_of(text)
        for batch in batches:
            digests, redriven = read_keys(spec, batch, group)
            columns = [batch.column(name) for name in (*_PLACE, *others)]
            names = [*_PLACE, "digest", *others]
            columns.insert(len(_PLACE), pa.array(digests, pa.binary()))
            if with_redriven:
                names.append(REDRIVEN)
                columns.append(pa.array(by_row(redriven, batch.num_rows), pa.binary()))
            yield pa.RecordBatch.from_arrays(columns, names)

    return digest


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


def by_row(redriven: Mapping[int, bytes | None], count: int) -> list[bytes | None]:
    """Return a value for each of so many rows."""
    return [redriven.get(row) for row in range(count)]


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
