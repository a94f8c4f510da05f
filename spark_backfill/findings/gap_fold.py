"""The fold that finds gaps between sightings: vectorised inside a run, and exact over all runs of a partition.

A *run* holds all records of a partition whose offsets lie in one range; the runs of a partition have no offset in
common. Inside a run the gap between two sightings of an ID is counted at once, and of each ID one entry stays
(`Sightings`). Of two entries of an ID that follow each other the last record of the former and the first one of
the latter make one more gap. So an ID on half of all records costs one row a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import DIGEST_BYTES, Int64s, take_digests
from dedup_sdk._store.pages import Uint64s, digest_order, digest_words
from spark_backfill.findings.digest_sample import SIZE, DigestSample
from spark_backfill.findings.findings import MOST_REPEATERS, Findings, Repeater
from spark_backfill.findings.histogram import Histogram
from spark_backfill.findings.recency import Recency
from spark_backfill.findings.sightings import RunRows, Sightings
from spark_backfill.findings.tallies import PartitionTally, ProducerTally, largest_producers
from spark_backfill.findings.time_series import TimeSeries

_NONE: Final = np.empty(0, np.int64)
_NO_CODES: Final = np.empty(0, np.uint64)


def fold_run(rows: RunRows) -> tuple[Sightings, Findings]:
    """Return the sightings of a run, and the findings that need no other run."""
    high, low = digest_words(rows.digests)
    order = digest_order(high, low, rows.offsets)
    offsets, timestamps = rows.offsets[order], rows.timestamps[order]
    codes = np.zeros(len(order), np.uint64) if rows.producers is None else rows.producers[order]
    starts, again = _groups(high[order], low[order])
    ends = np.append(starts[1:], len(order)) - 1 if len(starts) else starts
    sightings = Sightings(
        take_digests(rows.digests, order[starts]),
        offsets[starts],
        timestamps[starts],
        offsets[ends],
        timestamps[ends],
        ends - starts + 1,
        codes[starts],
        codes[ends],
    )
    # One that was read twice is no duplicate of itself.
    again = again[offsets[again] > offsets[again - 1]]
    every_ms = np.concatenate([rows.timestamps, rows.unkeyed_ms])
    pairs = _Pairs(
        offsets[again] - offsets[again - 1],
        timestamps[again] - timestamps[again - 1],
        timestamps[again],
        codes[again - 1],
        codes[again],
    )
    gaps, producers = pairs.gaps(), dict[int, ProducerTally]()
    if rows.producers is not None:
        every_code = np.concatenate([rows.producers, rows.unkeyed_producers])
        producers = _producers(every_code, pairs, rows.names)
    return sightings, Findings(
        partitions={
            rows.partition: PartitionTally(
                records=len(every_ms),
                unkeyed=len(rows.unkeyed_ms),
                duplicates=len(again),
                oldest_ms=int(every_ms.min()) if len(every_ms) else None,
                newest_ms=int(every_ms.max()) if len(every_ms) else None,
            )
        },
        producers=producers,
        over_time=TimeSeries.of(every_ms, pairs.later_ms),
        gaps_ms=gaps.by_time,
        early=gaps.early,
        gaps_offsets=gaps.by_offset,
        sample=DigestSample.up_to(rows.sampling),
        sampling=rows.sampling,
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
    joined = _joined(runs)
    if not joined.count:
        return Findings()
    high, low = digest_words(joined.digests)
    order = digest_order(high, low, joined.first_offsets)
    columns = {
        each.name: getattr(joined, each.name)[order] for each in fields(Sightings) if each.name != "digests"
    }
    starts, again = _groups(high[order], low[order])
    ends = np.append(starts[1:], len(order)) - 1
    again = again[columns["first_offsets"][again] > columns["last_offsets"][again - 1]]
    before = again - 1
    pairs = _Pairs(
        columns["first_offsets"][again] - columns["last_offsets"][before],
        columns["first_ms"][again] - columns["last_ms"][before],
        columns["first_ms"][again],
        columns["last_producers"][before],
        columns["first_producers"][again],
    )
    gaps = pairs.gaps()
    counts = np.add.reduceat(columns["counts"], starts)
    unique = take_digests(joined.digests, order[starts])
    return Findings(
        partitions={partition: PartitionTally(ids=len(starts), duplicates=len(again))},
        producers=_producers(_NO_CODES, pairs, {}) if with_producers else {},
        over_time=TimeSeries.of(_NONE, pairs.later_ms),
        last_seen=Recency.of(columns["last_ms"][ends], now_ms),
        counts=Histogram.of(counts),
        repeaters=_repeaters(partition, unique, counts, columns, starts, ends),
        sample=DigestSample.of(partition, unique, sampled),
        gaps_ms=gaps.by_time,
        early=gaps.early,
        gaps_offsets=gaps.by_offset,
    )


class _Gaps(NamedTuple):
    by_time: Histogram
    early: int
    by_offset: Histogram


class _Pairs(NamedTuple):
    """Sightings of IDs and those just before them: how far apart, when the later ones came, and from whom both."""

    gaps_offsets: Int64s
    gaps_ms: Int64s
    later_ms: Int64s
    before: Uint64s
    after: Uint64s

    def gaps(self) -> _Gaps:
        """Count them; a gap in time may be negative."""
        late = self.gaps_ms >= 0
        early = len(late) - int(late.sum())
        return _Gaps(Histogram.of(self.gaps_ms[late]), early, Histogram.of(self.gaps_offsets))


def _joined(runs: Sequence[Sightings]) -> Sightings:
    names = [each.name for each in fields(Sightings) if each.name != "digests"]
    if not runs:
        return Sightings(b"", _NONE, _NONE, _NONE, _NONE, _NONE, _NO_CODES, _NO_CODES)
    columns: list[Any] = [np.concatenate([getattr(run, name) for run in runs]) for name in names]
    return Sightings(b"".join(run.digests for run in runs), *columns)


def _groups(high: Uint64s, low: Uint64s) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each digest of a sorted column begins, and the places of all other rows."""
    first = np.ones(len(high), np.bool_)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return np.flatnonzero(first), np.flatnonzero(~first)


def _producers(records: Uint64s, pairs: _Pairs, names: Mapping[int, str]) -> dict[int, ProducerTally]:
    tallies = dict[int, ProducerTally]()
    foreign = pairs.after[pairs.after != pairs.before]
    for field, codes in (("records", records), ("duplicates", pairs.after), ("of_others", foreign)):
        found, counts = np.unique(codes, return_counts=True)
        for code, count in zip(found.tolist(), counts.tolist(), strict=True):
            tally = ProducerTally(name=names.get(code), **{field: count})
            tallies[code] = tallies[code] + tally if code in tallies else tally
    return largest_producers(tallies)


def _repeaters(
    partition: int,
    digests: bytes,
    counts: Int64s,
    columns: Mapping[str, NDArray[np.int64]],
    starts: NDArray[np.intp],
    ends: NDArray[np.intp],
) -> tuple[Repeater, ...]:
    several = np.flatnonzero(counts > 1)
    if len(several) > MOST_REPEATERS:
        least = np.partition(counts[several], -MOST_REPEATERS)[-MOST_REPEATERS]
        several = several[counts[several] >= least]
        # Of those that came equally often the largest digests, whoever looks.
        several = several[np.lexsort((several, counts[several]))[::-1][:MOST_REPEATERS]]
    found = [
        Repeater(
            count=int(counts[at]),
            digest=digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)].hex(),
            partition=partition,
            first_offset=int(columns["first_offsets"][starts[at]]),
            last_offset=int(columns["last_offsets"][ends[at]]),
            first_ms=int(columns["first_ms"][starts[at]]),
            last_ms=int(columns["last_ms"][ends[at]]),
        )
        for at in several.tolist()
    ]
    return tuple(sorted(found, reverse=True))
