"""The records of a run, and their sightings: of each ID where it was seen first and last, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk._marks import DIGEST_BYTES, Int64s
from dedup_sdk._store.pages import Uint64s

_NONE: Final = np.empty(0, np.int64)
_NO_CODES: Final = np.empty(0, np.uint64)


class RunRows(NamedTuple):
    """The records of a run, in any order.

    ``digests`` is ``16 * n`` bytes, one for each record with an ID; ``offsets``, ``timestamps`` (ms) and
    ``producers`` (codes) are those of the same records, shape ``(n,)``; ``unkeyed_ms`` and ``unkeyed_producers``
    those of the records without an ID, shape ``(m,)``. ``names`` are the producers' names by code; without them no
    producer is counted. ``sampling``: they are the records of one ID in so many.
    """

    partition: int
    digests: bytes
    offsets: Int64s
    timestamps: Int64s
    unkeyed_ms: Int64s = _NONE
    producers: Uint64s | None = None
    unkeyed_producers: Uint64s = _NO_CODES
    names: Mapping[int, str] = {}
    sampling: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Sightings:
    """Of ``n`` IDs of a run, ascending by digest, where they were seen first and last, and how often.

    ``digests`` is ``16 * n`` bytes; the columns have shape ``(n,)``. The producers' codes are 0 where none is counted.
    """

    digests: bytes
    first_offsets: Int64s
    first_ms: Int64s
    last_offsets: Int64s
    last_ms: Int64s
    counts: Int64s
    first_producers: Uint64s
    last_producers: Uint64s

    @property
    def count(self) -> int:
        """How many IDs these are."""
        return len(self.counts)

    def cut(self, start: int, end: int) -> Sightings:
        """Return those at positions ``[start, end)``."""
        digests = self.digests[DIGEST_BYTES * start : DIGEST_BYTES * end]
        return Sightings(digests, *(getattr(self, name)[start:end] for name in _COLUMNS))

    def to_bytes(self) -> bytes:
        """Return the digests and, one after the other, the columns as little-endian numbers of 8 bytes."""
        return self.digests + b"".join(getattr(self, name).astype("<i8").tobytes() for name in _COLUMNS)

    @classmethod
    def from_bytes(cls, data: bytes) -> Sightings:
        """Read the output of `to_bytes`."""
        count, rest = divmod(len(data), ENTRY_BYTES)
        if rest:
            raise ValueError(
                f"{len(data)} bytes are no sightings of {ENTRY_BYTES} bytes each; read them again"
            )
        columns = np.frombuffer(data, "<i8", offset=DIGEST_BYTES * count).reshape(len(_COLUMNS), count)
        types = (np.uint64 if name.endswith("producers") else np.int64 for name in _COLUMNS)
        numbers: list[Any] = [column.astype(kind) for column, kind in zip(columns, types, strict=True)]
        return cls(data[: DIGEST_BYTES * count], *numbers)


_COLUMNS: Final = tuple(each.name for each in fields(Sightings) if each.name != "digests")
ENTRY_BYTES: Final = DIGEST_BYTES + 8 * len(_COLUMNS)
"""Bytes of a sighting."""
