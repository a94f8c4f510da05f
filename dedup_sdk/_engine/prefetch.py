"""Steps that can fail, done before any record is admitted: check the records, look their IDs up in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, index

import numpy as np

from dedup_sdk._marks import Find, Found, Int64s, cut_digests
from dedup_sdk._masking import shown
from dedup_sdk._record import Record
from dedup_sdk.errors import ConfigurationError

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def columns_of(records: Sequence[Record]) -> tuple[list[int], Int64s]:
    """Return the offsets and the timestamps (ms, shape ``(n,)``) of records.

    Raises `ConfigurationError` for the first impossible offset, and the first timestamp that does not fit into 64 bits.
    """
    # The next offset must fit, too.
    offsets = _column(records, "offset", 0, _LARGEST - 1)
    return offsets.tolist(), _column(records, "timestamp_ms", _SMALLEST, _LARGEST)


def _column(records: Sequence[Record], name: str, least: int, most: int) -> Int64s:
    values = list(map(attrgetter(name), records))
    try:
        column = np.asarray(values)
    except ValueError:
        column = np.empty(0, object)
    if column.dtype == np.int64 and (not values or (column.min() >= least and column.max() <= most)):
        return column
    return np.asarray([_number(record, name, least, most) for record in records], np.int64)


def _number(record: Record, name: str, least: int, most: int) -> int:
    value = getattr(record, name)
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise ConfigurationError(
            f"{record.topic}[{record.partition}]@{record.offset}: {name}={shown(value)} is no whole number from "
            f"{least} to {most}; give the record's own, as Kafka has it"
        )
    return number


def looked_up(find: Find, digests: Iterable[bytes | None]) -> Find:
    """Look all digests up at once, and return a `Find` that answers from the result; raises the errors of ``find``."""
    asked = list(dict.fromkeys(digest for digest in digests if digest is not None))
    found = find(b"".join(asked), len(asked))
    rows = {asked[index]: row for row, index in enumerate(found.indexes)}
    known = frozenset(asked)

    def answer(joined: bytes, count: int) -> Found:
        wanted = cut_digests(joined)
        if not known.issuperset(wanted):
            return find(joined, count)
        hits = [(index, rows[digest]) for index, digest in enumerate(wanted) if digest in rows]
        return Found(
            [index for index, _ in hits],
            [found.offsets[row] for _, row in hits],
            [found.timestamps[row] for _, row in hits],
            None if found.numbers is None else [found.numbers[row] for _, row in hits],
            None if found.payloads is None else [found.payloads[row] for _, row in hits],
        )

    return answer
