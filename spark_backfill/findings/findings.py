"""All that is found out about a history's duplicates: small whatever its size, and the sum of its parts' findings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, Final, NamedTuple

from spark_backfill.findings.digest_sample import DigestSample, Seen
from spark_backfill.findings.histogram import added
from spark_backfill.findings.time_series import TimeSeries

MOST_REPEATERS: Final = 20
MOST_PRODUCERS: Final = 1_000
"""Findings that were added tell so many producers apart: 0.1 to 0.5 MB of JSON, which each run and each slot may have.

The code of the others is one of them. If there are more producers, those with the fewest records so far join the others
each time that findings are added: a count is then a lower bound, and a producer that begins late can be missing.
"""

OTHER_PRODUCERS: Final = 0
"""The code under which the others count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTally:
    """Records of one partition, those without an ID, the distinct IDs, and records whose ID came before.

    ``oldest_ms`` and ``newest_ms`` are the bounds of the records' timestamps, of no meaning without any.
    """

    records: int = 0
    unkeyed: int = 0
    ids: int = 0
    duplicates: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = -1

    def __add__(self, other: PartitionTally) -> PartitionTally:
        return PartitionTally(
            records=self.records + other.records,
            unkeyed=self.unkeyed + other.unkeyed,
            ids=self.ids + other.ids,
            duplicates=self.duplicates + other.duplicates,
            oldest_ms=min(self.oldest_ms, other.oldest_ms),
            newest_ms=max(self.newest_ms, other.newest_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTally:
    """Records of one producer, those whose ID came before, and those of them where another producer had sent it last.

    ``name`` is empty where only its code is known yet.
    """

    name: str = ""
    records: int = 0
    duplicates: int = 0
    of_others: int = 0

    def __add__(self, other: ProducerTally) -> ProducerTally:
        return ProducerTally(
            name=self.name or other.name,
            records=self.records + other.records,
            duplicates=self.duplicates + other.duplicates,
            of_others=self.of_others + other.of_others,
        )


class Repeater(NamedTuple):
    """An ID (its digest in hexadecimal) that came so many ``times`` in a partition.

    Offsets and timestamps (ms) of its first and its last sighting.
    """

    times: int
    digest: str
    partition: int
    first_offset: int
    last_offset: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts of one part of a topic, or of all of it; ``+`` adds those of parts that have no record in common.

    A *duplicate* is a record whose ID came before it in its partition, its *gap* the distance from the sighting
    just before: a window of ``w`` ms hides exactly the duplicates with a gap of at most ``w``, because a duplicate
    refreshes its mark.

    - ``partitions`` by number; ``producers`` by code (see `producer_codes`), empty where no header was named, at most
      `MOST_PRODUCERS` in a sum.
    - ``gaps_ms``, ``gaps_offsets``: histograms of the gaps; ``early`` of the former are negative, and count as 0.
      A pair of which a record has no date (`time_series.is_date`) is not in ``gaps_ms``.
    - ``repeaters``: the IDs that came most often, most often first, at most `MOST_REPEATERS`.
    - ``sampling``: all of it is about one ID in so many and their records, and as many records without an ID.
    """

    partitions: Mapping[int, PartitionTally] = field(default_factory=dict)
    producers: Mapping[int, ProducerTally] = field(default_factory=dict)
    gaps_ms: Mapping[int, int] = field(default_factory=dict)
    gaps_offsets: Mapping[int, int] = field(default_factory=dict)
    early: int = 0
    records_over_time: TimeSeries = field(default_factory=TimeSeries)
    duplicates_over_time: TimeSeries = field(default_factory=TimeSeries)
    repeaters: tuple[Repeater, ...] = ()
    sample: DigestSample = field(default_factory=DigestSample)
    sampling: int = 1

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            partitions=added(self.partitions, other.partitions),
            producers=_largest(added(self.producers, other.producers)),
            gaps_ms=added(self.gaps_ms, other.gaps_ms),
            gaps_offsets=added(self.gaps_offsets, other.gaps_offsets),
            early=self.early + other.early,
            records_over_time=self.records_over_time + other.records_over_time,
            duplicates_over_time=self.duplicates_over_time + other.duplicates_over_time,
            repeaters=tuple(sorted([*self.repeaters, *other.repeaters], reverse=True)[:MOST_REPEATERS]),
            sample=self.sample + other.sample,
            sampling=max(self.sampling, other.sampling),
        )

    @property
    def total(self) -> PartitionTally:
        """All partitions as one; an ID counts once for each that has it."""
        return reduce(PartitionTally.__add__, self.partitions.values(), PartitionTally())

    def worst_partitions(self) -> list[tuple[int, PartitionTally]]:
        """Return the partitions with their numbers, those with the most duplicates first."""
        return sorted(self.partitions.items(), key=lambda each: (-each[1].duplicates, each[0]))

    def worst_producers(self) -> list[ProducerTally]:
        """Return the producers, those with the most duplicates first."""
        return sorted(self.producers.values(), key=lambda each: (-each.duplicates, -each.records, each.name))

    def ids_within(self, window_ms: int) -> int:
        """Return how many IDs of the topic a window remembers: exact up to `SIZE` of them, then from the sample."""
        return round(self.total.ids * self.sampling * self.sample.share_within(window_ms))

    def to_json(self) -> dict[str, Any]:
        """Return the content that `from_json` reads: numbers, and digests in hexadecimal."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Findings:
        """Read the output of `to_json`; KeyError, TypeError or ValueError where it is something else."""
        read: dict[str, Any] = dict(content)
        for name in ("gaps_ms", "gaps_offsets"):
            read[name] = _by_number(content[name])
        for name, tally in (("partitions", PartitionTally), ("producers", ProducerTally)):
            read[name] = {key: tally(**value) for key, value in _by_number(content[name]).items()}
        for name in ("records_over_time", "duplicates_over_time"):
            read[name] = TimeSeries(content[name]["width_ms"], _by_number(content[name]["counts"]))
        read["repeaters"] = tuple(Repeater(*each) for each in content["repeaters"])
        seen = tuple(Seen(*each) for each in content["sample"]["seen"])
        return cls(**read | {"sample": DigestSample(seen, content["sample"]["limit"])})

    def __str__(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))


def total(parts: Iterable[Findings]) -> Findings:
    """Return the sum of the findings of parts that have no record in common."""
    return reduce(Findings.__add__, parts, Findings())


def _by_number(content: Mapping[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in content.items()}


def _largest(tallies: Mapping[int, ProducerTally]) -> Mapping[int, ProducerTally]:
    """At most `MOST_PRODUCERS` tallies by code; the smallest are added up under `OTHER_PRODUCERS`."""
    if len(tallies) <= MOST_PRODUCERS:
        return tallies
    named = [code for code in tallies if code != OTHER_PRODUCERS]
    named.sort(key=lambda code: (-tallies[code].records, -tallies[code].duplicates, code))
    kept = {code: tallies[code] for code in named[: MOST_PRODUCERS - 1]}
    others = [tally for code, tally in tallies.items() if code not in kept]
    kept[OTHER_PRODUCERS] = replace(reduce(ProducerTally.__add__, others), name="")
    return kept
