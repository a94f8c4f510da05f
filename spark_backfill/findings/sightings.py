"""The fold that finds gaps between sightings: vectorised inside a run, and exact over all runs of a partition.

A *run* holds all records of a partition whose offsets lie in one range; the runs of a partition have no offset in
common. Inside a run the gap between two sightings of an ID is counted at once, and of each ID one entry stays: where
it was seen first and last, and how often. Of two entries of an ID that follow each other the last record of the former
and the first one of the latter make one more gap. So an ID on half of all records costs one row a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s
from dedup_sdk._store.pages import Uint64s, digest_order, digest_words
from spark_backfill.findings.digest_sample import SIZE, DigestSample
from spark_backfill.findings.findings import MOST_REPEATERS, Findings, PartitionTally, ProducerTally, Repeater
from spark_backfill.findings.histogram import counted, histogram
from spark_backfill.findings.time_series import TimeSeries, is_date

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


def sightings_of(
    digests: bytes, keyed: NDArray[np.bool_], offsets: Int64s, timestamps: Int64s, producers: Uint64s
) -> Sightings:
    """Return one for each of ``n`` records, in columns of shape ``(n,)``.

    ``digests`` are those of the ``keyed`` ones, 16 bytes each; the others have an ID of zeros.
    """
    found = np.zeros(len(offsets), SIGHTINGS)
    found["digest"][keyed] = np.frombuffer(digests, "V16")
    found["first_offset"] = found["last_offset"] = offsets
    found["first_ms"] = found["last_ms"] = timestamps
    found["first_producer"] = found["last_producer"] = producers
    found["count"] = 1
    return found


def fold_run(
    partition: int, records: Sightings, keyed: NDArray[np.bool_], names: Mapping[int, str]
) -> tuple[Sightings, Findings]:
    """Return the sightings of a run, one for each ID, ascending, and the findings that need no other run.

    ``records`` may have any order; ``keyed`` says which have an ID. ``names`` are the producers' by code.
    """
    # Rows are taken several times faster than they are indexed.
    merged, found = _merged(partition, records.take(np.flatnonzero(keyed)))
    tally = PartitionTally(
        records=len(records),
        unkeyed=len(records) - int(keyed.sum()),
        oldest_ms=int(records["first_ms"].min(initial=PartitionTally().oldest_ms)),
        newest_ms=int(records["first_ms"].max(initial=PartitionTally().newest_ms)),
    )
    return merged, found + Findings(
        partitions={partition: tally},
        producers={
            code: ProducerTally(name=names[code], records=count)
            for code, count in _by_producer(records["first_producer"]).items()
        },
        records_over_time=TimeSeries.of(records["first_ms"]),
    )


def merge_runs(partition: int, runs: Sequence[Sightings], *, now_ms: int, sampled: int = SIZE) -> Findings:
    """Return the findings about IDs known only when all runs of a partition that have them are looked at together.

    The runs have no offset in common and may come in any order. A last sighting beyond ``now_ms`` counts as one at
    that time; ``sampled`` is the most IDs that go into the sample.
    """
    if not any(map(len, runs)):
        return Findings()
    merged, found = _merged(partition, np.concatenate(runs))
    last_ms = np.clip(merged["last_ms"], 0, now_ms)
    return found + Findings(
        partitions={partition: PartitionTally(ids=len(merged))},
        repeaters=_repeaters(partition, merged),
        sample=DigestSample.of(partition, merged["digest"].tobytes(), last_ms, sampled),
    )


def _merged(partition: int, sightings: Sightings) -> tuple[Sightings, Findings]:
    """Return the sightings with one for each ID, ascending, and the findings about the gaps between them."""
    high, low = digest_words(sightings["digest"].tobytes())
    order = digest_order(high, low, sightings["first_offset"])
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
    is_timed = is_date(before["last_ms"]) & is_date(after["first_ms"])
    gaps_ms = (after["first_ms"] - before["last_ms"])[is_timed]
    codes = after["first_producer"]
    of_others = _by_producer(codes[codes != before["last_producer"]])
    return merged, Findings(
        partitions={partition: PartitionTally(duplicates=len(after))},
        producers={
            code: ProducerTally(duplicates=count, of_others=of_others.get(code, 0))
            for code, count in _by_producer(codes).items()
        },
        gaps_ms=histogram(np.maximum(gaps_ms, 0)),
        gaps_offsets=histogram(after["first_offset"] - before["last_offset"]),
        early=int((gaps_ms < 0).sum()),
        duplicates_over_time=TimeSeries.of(after["first_ms"]),
    )


def _by_producer(codes: Uint64s) -> dict[int, int]:
    return counted(codes[codes != 0])


def _repeaters(partition: int, sightings: Sightings) -> tuple[Repeater, ...]:
    """The IDs of ascending sightings that came most often; of those that came equally often the largest digests."""
    several = sightings[sightings["count"] > 1]
    often = several[np.argsort(several["count"], kind="stable")[::-1][:MOST_REPEATERS]]
    columns = ("first_offset", "last_offset", "first_ms", "last_ms")
    return tuple(
        Repeater(
            times=int(each["count"]),
            digest=each["digest"].tobytes().hex(),
            partition=partition,
            **{name: int(each[name]) for name in columns},
        )
        for each in often
    )
