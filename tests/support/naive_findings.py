"""The findings of a history about its duplicates, as a loop over a dictionary: to compare with the vectorised fold."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_backfill.findings.sightings import Sightings, sightings_of
from spark_backfill.findings.time_series import LAST_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


class Sighting(NamedTuple):
    """A record; ``digest`` None: no ID."""

    partition: int
    offset: int
    timestamp_ms: int
    digest: bytes | None
    producer: int = 1


class NaiveFindings:
    """Reads the records of a topic in offset order, partition by partition."""

    def __init__(self, records: Iterable[Sighting]) -> None:
        self.gaps_ms, self.gaps_offsets, self.duplicate_ms = list[int](), list[int](), list[int]()
        self.counts, self.ids = Counter[tuple[int, bytes]](), defaultdict[bytes, set[int]](set)
        self.records, self.unkeyed, self.duplicates = Counter[int](), Counter[int](), Counter[int]()
        self.of_others, self.sent, self.sent_again = Counter[int](), Counter[int](), Counter[int]()
        self.last: dict[tuple[int, bytes], Sighting] = {}
        for record in sorted(records):
            self._read(record)

    def _read(self, record: Sighting) -> None:
        self.records[record.partition] += 1
        self.sent[record.producer] += 1
        if record.digest is None:
            self.unkeyed[record.partition] += 1
            return
        name = (record.partition, record.digest)
        self.counts[name] += 1
        self.ids[record.digest].add(record.partition)
        before, self.last[name] = self.last.get(name), record
        if before is None:
            return
        self.duplicates[record.partition] += 1
        self.sent_again[record.producer] += 1
        self.of_others[record.producer] += before.producer != record.producer
        if 0 <= record.timestamp_ms <= LAST_MS and 0 <= before.timestamp_ms <= LAST_MS:
            self.gaps_ms.append(record.timestamp_ms - before.timestamp_ms)
        self.gaps_offsets.append(record.offset - before.offset)
        self.duplicate_ms.append(record.timestamp_ms)


def run_rows(
    partition: int, records: Sequence[Sighting]
) -> tuple[int, Sightings, NDArray[np.bool_], dict[int, str]]:
    """Return records of one partition as `fold_run` takes them; producer 7 is called ``p7``."""
    keyed = np.array([record.digest is not None for record in records], np.bool_)
    sightings = sightings_of(
        b"".join(record.digest or b"" for record in records),
        keyed,
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp_ms for record in records], np.int64),
        np.array([record.producer for record in records], np.uint64),
    )
    return partition, sightings, keyed, {record.producer: f"p{record.producer}" for record in records}
