"""Arrow columns as the values that the SDK takes: lists of bytes, headers, milliseconds."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s
from dedup_sdk.ids._columns import Headers

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def joined_values(column: pa.Array) -> tuple[bytes, NDArray[np.int32]]:
    """Return the values of a binary column one after the other, and where each begins and ends.

    These edges have shape ``(n + 1,)``; the first one may be any number.
    """
    _, ends, data = column.buffers()
    count = len(column)
    if not count or data is None:
        return b"", np.zeros(count + 1, np.int32)
    edges = np.frombuffer(ends, np.int32)[column.offset : column.offset + count + 1]
    return data[int(edges[0]) : int(edges[-1])].to_pybytes(), edges


def bytes_list(column: pa.Array) -> list[bytes | None]:
    """Return the values of a column of bytes or texts (these in UTF-8), None where there is none."""
    plain = column.cast(pa.binary())
    joined, edges = joined_values(plain)
    at = (edges - edges[0]).tolist()
    found: list[bytes | None] = [joined[start:end] for start, end in itertools.pairwise(at)]
    if plain.null_count:
        for row in np.flatnonzero(~np.asarray(plain.is_valid())).tolist():
            found[row] = None
    return found


def _entries(column: pa.ListArray) -> tuple[Any, dict[str, pa.Array]]:
    """Where the headers of each record begin and end, shape ``(n + 1,)``, and the fields of all that lie between."""
    ends = np.asarray(column.offsets)
    flat = column.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    # With the nulls of a struct passed on to its fields.
    return ends, dict(zip((field.name for field in flat.type), flat.flatten(), strict=True))


def headers_list(column: pa.ListArray) -> list[Headers | None]:
    """Return the headers of each record, None where there are none; entries without a name are left out."""
    ends, fields = _entries(column)
    keys = pc.dictionary_encode(fields["key"])
    words = keys.dictionary.to_pylist()
    values = bytes_list(fields["value"])
    named = np.asarray(keys.is_valid()) if keys.null_count else None
    names = (
        [words[index] for index in keys.indices.fill_null(0).to_numpy().tolist()]
        if words
        else [""] * len(keys)
    )
    at = (ends - ends[0]).tolist()
    if named is not None:
        before = np.concatenate([[0], np.cumsum(named)])
        at = before[at].tolist()
        rows = np.flatnonzero(named).tolist()
        names, values = [names[row] for row in rows], [values[row] for row in rows]
    pairs: list[Any] = list(zip(names, values, strict=True))
    if len(pairs) == len(column) and not column.null_count and at == list(range(len(pairs) + 1)):
        return [[pair] for pair in pairs]
    present = column.is_valid().to_pylist()
    return [
        pairs[start:end] if valid else None for start, end, valid in zip(at, at[1:], present, strict=False)
    ]


def last_values(column: pa.ListArray, name: str) -> list[bytes | None]:
    """Return the value of each record's last header of exactly this name, None where there is none."""
    ends, fields = _entries(column)
    named = pc.equal(fields["key"], name)
    if (
        len(named) == len(column)
        and not column.null_count
        and named.true_count == len(named)
        and (np.diff(ends) == 1).all()
    ):
        return bytes_list(fields["value"])
    rows = np.flatnonzero(np.asarray(pc.fill_null(named, fill_value=False)))
    taken = np.full(len(column), -1, np.int64)
    # Of several rows for one record the last stays.
    taken[np.searchsorted(ends, rows + ends[0], side="right") - 1] = rows
    lacks = (taken < 0) | ~np.asarray(column.is_valid())
    return bytes_list(fields["value"].take(pa.array(taken, mask=lacks)))


def bears_header(column: pa.ListArray, name: str) -> bool:
    """Whether any record has a header of exactly this name."""
    _, fields = _entries(column)
    return bool(pc.any(pc.equal(fields["key"], name)).as_py())


def milliseconds(column: pa.Array, unit: str) -> Int64s:
    """Return timestamps in ms, -1 where there is none.

    ``unit``: of a column of numbers; empty where its type says it.
    """
    scale = _PER_SECOND[unit or column.type.unit]
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    # A second has 1,000 ms.
    found: Int64s = numbers * (1_000 // scale) if scale <= 1_000 else numbers // (scale // 1_000)  # noqa: PLR2004
    return np.where(np.asarray(column.is_valid()), found, -1)
