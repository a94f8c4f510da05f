"""The fold that finds gaps between sightings: vectorised inside a run, and exact over all runs of a partition.

A *run* holds all records of a partition whose offsets lie in one range; the runs of a partition have no offset in
common. Inside a run the gap between two sightings of an ID is counted at once, and of each ID one entry stays: where
it was seen first and last, and how often. Of two entries of an ID that follow each other the last record of the former
and the first one of the latter make one more gap. So an ID on half of all records costs one row a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s
from dedup_sdk._store.pages import Uint64s, digest_order, digest_words
from spark_backfill.findings.digest_sample import SIZE, DigestSample
from spark_backfill.findings.findings import MOST_REPEATERS, Findings, PartitionTally, ProducerTally, Repeater
from spark_backfill.findings.histogram import Histogram
from spark_backfill.findings.recency import Recency
from spark_backfill.findings.time_series import TimeSeries

SIGHTINGS: Final = np.dtype(
    [
        ("digest", "V16"),
        *((name, "<i8") for name in ("first_offset", "first_ms", "last_offset", "last_ms", "count")),
        *((name, "<u8") for name in ("first_producer", "last_producer")),
    ]
)
"""An ID in some records: where it was seen first and last, and how often.

The producers' codes are 0 where none is counted.
"""

Sightings = NDArray[np.void]
"""An array of `SIGHTINGS`."""

_NONE: Final = np.empty(0, np.int64)
_NO_CODES: Final = np.empty(0, np.uint64)


class Run(NamedTuple):
    """The records of a run, in any order.

    ``sightings``: of each record with an ID; ``unkeyed_ms`` and ``unkeyed_producers`` are those of the records without
    one, shape ``(m,)``. ``names`` are the producers' names by code; without them no producer is counted.
    ``sampling``: they are the records of one ID in so many.
    """

    partition: int
    sightings: Sightings
    unkeyed_ms: Int64s = _NONE
    unkeyed_producers: Uint64s = _NO_CODES
    names: Mapping[int, str] = {}
    sampling: int = 1


def sightings_of(digests: bytes, offsets: Int64s, timestamps: Int64s, producers: Uint64s) -> Sightings:
    """Return those of ``n`` records: ``16 * n`` bytes of digests, and columns of shape ``(n,)``."""
    found = np.empty(len(offsets), SIGHTINGS)
    found["digest"] = np.frombuffer(digests, "V16")
    found["first_offset"] = found["last_offset"] = offsets
    found["first_ms"] = found["last_ms"] = timestamps
    found["first_producer"] = found["last_producer"] = producers
    found["count"] = 1
    return found


def fold_run(run: Run) -> tuple[Sightings, Findings]:
    """Return the sightings of a run, one for each ID, ascending, and the findings that need no other run."""
    merged, found = _merged(run.partition, run.sightings, with_producers=bool(run.names))
    every_ms = np.concatenate([run.sightings["last_ms"], run.unkeyed_ms])
    tally = PartitionTally(
        records=len(every_ms),
        unkeyed=len(run.unkeyed_ms),
        oldest_ms=int(every_ms.min()) if len(every_ms) else None,
        newest_ms=int(every_ms.max()) if len(every_ms) else None,
    )
    every_producer = np.concatenate([run.sightings["last_producer"], run.unkeyed_producers])
    return merged, found + Findings(
        partitions={run.partition: tally},
        producers={
            code: ProducerTally(name=run.names[code], records=count)
            for code, count in (_counted(every_producer).items() if run.names else ())
        },
        over_time=TimeSeries.of(every_ms, _NONE),
        sample=DigestSample.up_to(run.sampling),
        sampling=run.sampling,
    )


def merge_runs(
    partition: int,
    runs: Sequence[Sightings],
    *,
    now_ms: int,
    with_producers: bool = False,
    sampled: int = SIZE,
) -> Findings:
    """Return the findings about IDs known only when all runs of a partition that have them are looked at together.

    The runs have no offset in common and may come in any order. A last sighting beyond ``now_ms`` counts as one at
    that time; ``sampled`` is the most IDs that go into the sample.
    """
    if not any(map(len, runs)):
        return Findings()
    merged, found = _merged(partition, np.concatenate(runs), with_producers=with_producers)
    return found + Findings(
        partitions={partition: PartitionTally(ids=len(merged))},
        last_seen=Recency.of(merged["last_ms"], now_ms),
        counts=Histogram.of(merged["count"]),
        repeaters=_repeaters(partition, merged),
        sample=DigestSample.of(partition, merged["digest"].tobytes(), sampled),
    )


def _merged(partition: int, sightings: Sightings, *, with_producers: bool) -> tuple[Sightings, Findings]:
    """Return the sightings with one for each ID, ascending, and the findings about the gaps between them."""
    high, low = digest_words(sightings["digest"].tobytes())
    order = digest_order(high, low, sightings["first_offset"])
    # Rows are taken several times faster than they are indexed.
    ordered, high, low = sightings.take(order), high[order], low[order]
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    starts, ends = np.flatnonzero(is_first), np.flatnonzero(np.roll(is_first, -1))
    merged = ordered.take(starts)
    for column in ("last_offset", "last_ms", "last_producer"):
        merged[column] = ordered[column].take(ends)
    merged["count"] = np.add.reduceat(ordered["count"], starts)

    # A record that was read twice is no duplicate of itself.
    is_later = ordered["first_offset"] > np.roll(ordered["last_offset"], 1)
    again = np.flatnonzero(~is_first & is_later)
    before, after = ordered.take(again - 1), ordered.take(again)
    gaps_ms = after["first_ms"] - before["last_ms"]
    late = gaps_ms >= 0
    return merged, Findings(
        partitions={partition: PartitionTally(duplicates=len(after))},
        producers=_duplicates(before, after) if with_producers else {},
        over_time=TimeSeries.of(_NONE, after["first_ms"]),
        gaps_ms=Histogram.of(gaps_ms[late]),
        early=len(late) - int(late.sum()),
        gaps_offsets=Histogram.of(after["first_offset"] - before["last_offset"]),
    )


def _duplicates(before: Sightings, after: Sightings) -> dict[int, ProducerTally]:
    """Count the duplicates of each producer, whose name is not known here."""
    codes = after["first_producer"]
    of_others = _counted(codes[codes != before["last_producer"]])
    return {
        code: ProducerTally(duplicates=count, of_others=of_others.get(code, 0))
        for code, count in _counted(codes).items()
    }


def _counted(codes: Uint64s) -> dict[int, int]:
    found, counts = np.unique(codes, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _repeaters(partition: int, sightings: Sightings) -> tuple[Repeater, ...]:
    """The IDs of ascending sightings that came most often; of those that came equally often the largest digests."""
    several = sightings[sightings["count"] > 1]
    often = several[np.argsort(several["count"], kind="stable")[::-1][:MOST_REPEATERS]]
    numbers = ("count", "first_offset", "last_offset", "first_ms", "last_ms")
    return tuple(
        Repeater(
            partition=partition,
            digest=each["digest"].tobytes().hex(),
            **{name: int(each[name]) for name in numbers},
        )
        for each in often
    )
