"""All that is found out about a history's duplicates: small whatever its size, and the sum of its parts' findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, Final, TypeVar

from spark_backfill.findings.digest_sample import DigestSample
from spark_backfill.findings.histogram import Histogram
from spark_backfill.findings.recency import Recency
from spark_backfill.findings.time_series import TimeSeries

MOST_REPEATERS: Final = 20
MOST_PRODUCERS: Final = 200
"""So many producers are told apart, those with the most records; the others count together."""

OTHER_PRODUCERS: Final = 0
"""The code under which the others count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTally:
    """Records of one partition, those without an ID, the distinct IDs, and records whose ID came before.

    ``oldest_ms`` and ``newest_ms`` are the bounds of the records' timestamps, None without any.
    """

    records: int = 0
    unkeyed: int = 0
    ids: int = 0
    duplicates: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None

    @property
    def share(self) -> float | None:
        """The share of duplicates among the records with an ID, None without any."""
        keyed = self.records - self.unkeyed
        return self.duplicates / keyed if keyed else None

    def __add__(self, other: PartitionTally) -> PartitionTally:
        return PartitionTally(
            records=self.records + other.records,
            unkeyed=self.unkeyed + other.unkeyed,
            ids=self.ids + other.ids,
            duplicates=self.duplicates + other.duplicates,
            oldest_ms=min(_given(self.oldest_ms, other.oldest_ms), default=None),
            newest_ms=max(_given(self.newest_ms, other.newest_ms), default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTally:
    """Records of one producer, those whose ID came before, and those of them where another producer had sent it last.

    ``name`` is the text of its header, None where only its code is known yet.
    """

    name: str | None = None
    records: int = 0
    duplicates: int = 0
    of_others: int = 0

    @property
    def shown_name(self) -> str:
        """How the producer is called in figures and tables."""
        return "all others" if self.name is None else self.name or "no header"

    @property
    def share(self) -> float | None:
        """The share of duplicates among the records, None without any."""
        return self.duplicates / self.records if self.records else None

    def __add__(self, other: ProducerTally) -> ProducerTally:
        return ProducerTally(
            name=other.name if self.name is None else self.name,
            records=self.records + other.records,
            duplicates=self.duplicates + other.duplicates,
            of_others=self.of_others + other.of_others,
        )


Tally = TypeVar("Tally", PartitionTally, ProducerTally)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Repeater:
    """An ID that came ``count`` times in a partition.

    Offsets and timestamps (ms) of its first and its last sighting.
    """

    count: int
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

    - ``partitions`` by number; ``producers`` by code (see `producer_codes`), empty where no header was named.
    - ``gaps_ms``, ``gaps_offsets``: the gaps; ``early`` of the former are negative, and hidden by any window.
    - ``over_time``: records and duplicates; ``last_seen``: the last sightings of IDs.
    - ``counts``: how many times IDs came, one value for each ID of each partition.
    - ``repeaters``: the IDs that came most often, most often first, at most `MOST_REPEATERS`.
    - ``sample``: of IDs, with the partitions that they came from.
    - ``sampling``: all of it is about one ID in so many and their records, and as many records without an ID.
    """

    partitions: Mapping[int, PartitionTally] = field(default_factory=dict)
    producers: Mapping[int, ProducerTally] = field(default_factory=dict)
    gaps_ms: Histogram = field(default_factory=Histogram)
    early: int = 0
    gaps_offsets: Histogram = field(default_factory=Histogram)
    over_time: TimeSeries = field(default_factory=TimeSeries)
    last_seen: Recency = field(default_factory=Recency)
    counts: Histogram = field(default_factory=Histogram)
    repeaters: tuple[Repeater, ...] = ()
    sample: DigestSample = field(default_factory=DigestSample)
    sampling: int = 1

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            partitions=_added(self.partitions, other.partitions),
            producers=_largest(_added(self.producers, other.producers)),
            gaps_ms=self.gaps_ms + other.gaps_ms,
            early=self.early + other.early,
            gaps_offsets=self.gaps_offsets + other.gaps_offsets,
            over_time=self.over_time + other.over_time,
            last_seen=self.last_seen + other.last_seen,
            counts=self.counts + other.counts,
            repeaters=tuple(sorted([*self.repeaters, *other.repeaters], reverse=True)[:MOST_REPEATERS]),
            sample=self.sample + other.sample,
            sampling=max(self.sampling, other.sampling),
        )

    @property
    def records(self) -> int:
        """How many records these are about."""
        return sum(tally.records for tally in self.partitions.values())

    @property
    def unkeyed(self) -> int:
        """How many of them have no ID."""
        return sum(tally.unkeyed for tally in self.partitions.values())

    @property
    def duplicates(self) -> int:
        """How many of them bear an ID that came before in their partition."""
        return self.gaps_ms.total + self.early

    def worst_partitions(self, most: int) -> list[tuple[int, PartitionTally]]:
        """Return at most so many partitions, those with the most duplicates, by number."""
        return sorted(sorted(self.partitions.items(), key=lambda each: (-each[1].duplicates, each[0]))[:most])

    def worst_producers(self, most: int) -> list[ProducerTally]:
        """Return at most so many producers, those with the most duplicates first."""
        return sorted(self.producers.values(), key=lambda each: (-each.duplicates, -each.records))[:most]

    def to_json(self) -> dict[str, Any]:
        """Return the content that `from_json` reads: numbers, and digests in hexadecimal."""
        return {
            "partitions": {str(number): asdict(tally) for number, tally in sorted(self.partitions.items())},
            "producers": {str(code): asdict(tally) for code, tally in sorted(self.producers.items())},
            "gaps_ms": self.gaps_ms.to_json(),
            "early": self.early,
            "gaps_offsets": self.gaps_offsets.to_json(),
            "over_time": self.over_time.to_json(),
            "last_seen": self.last_seen.to_json(),
            "counts": self.counts.to_json(),
            "repeaters": [asdict(repeater) for repeater in self.repeaters],
            "sample": self.sample.to_json(),
            "sampling": self.sampling,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Findings:
        """Read the output of `to_json`; KeyError, TypeError or ValueError where it is something else."""
        return cls(
            partitions={int(key): PartitionTally(**tally) for key, tally in content["partitions"].items()},
            producers={int(key): ProducerTally(**tally) for key, tally in content["producers"].items()},
            gaps_ms=Histogram.from_json(content["gaps_ms"]),
            early=content["early"],
            gaps_offsets=Histogram.from_json(content["gaps_offsets"]),
            over_time=TimeSeries.from_json(content["over_time"]),
            last_seen=Recency.from_json(content["last_seen"]),
            counts=Histogram.from_json(content["counts"]),
            repeaters=tuple(Repeater(**repeater) for repeater in content["repeaters"]),
            sample=DigestSample.from_json(content["sample"]),
            sampling=content["sampling"],
        )

    def __str__(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))


def total(parts: list[Findings]) -> Findings:
    """Return the sum of the findings of parts that have no record in common."""
    return reduce(Findings.__add__, parts, Findings())


def _added(one: Mapping[int, Tally], other: Mapping[int, Tally]) -> dict[int, Tally]:
    """The tallies of both, those under the same key added up."""
    total = dict(one)
    for key, tally in other.items():
        total[key] = total[key] + tally if key in total else tally
    return total


def _largest(tallies: Mapping[int, ProducerTally]) -> dict[int, ProducerTally]:
    """At most `MOST_PRODUCERS` tallies by code; the smallest are added up under `OTHER_PRODUCERS`."""
    if len(tallies) <= MOST_PRODUCERS:
        return dict(tallies)
    named = [code for code in tallies if code != OTHER_PRODUCERS]
    named.sort(key=lambda code: (-tallies[code].records, -tallies[code].duplicates, code))
    kept = {code: tallies[code] for code in named[: MOST_PRODUCERS - 1]}
    others = [tally for code, tally in tallies.items() if code not in kept]
    kept[OTHER_PRODUCERS] = replace(reduce(ProducerTally.__add__, others), name=None)
    return kept


def _given(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]
