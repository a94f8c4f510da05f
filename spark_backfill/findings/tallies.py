"""The counts of a partition and of a producer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

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

    def __add__(self, other: ProducerTally) -> ProducerTally:
        return ProducerTally(
            name=other.name if self.name is None else self.name,
            records=self.records + other.records,
            duplicates=self.duplicates + other.duplicates,
            of_others=self.of_others + other.of_others,
        )


Key = TypeVar("Key", bound=Hashable)
Tally = TypeVar("Tally", PartitionTally, ProducerTally)


def added(one: Mapping[Key, Tally], other: Mapping[Key, Tally]) -> dict[Key, Tally]:
    """Return the tallies of both, those under the same key added up."""
    total = dict(one)
    for key, tally in other.items():
        total[key] = total[key] + tally if key in total else tally
    return total


def largest_producers(tallies: Mapping[int, ProducerTally]) -> dict[int, ProducerTally]:
    """Return at most `MOST_PRODUCERS` tallies by code; the smallest are added up under `OTHER_PRODUCERS`."""
    if len(tallies) <= MOST_PRODUCERS:
        return dict(tallies)
    named = [code for code in tallies if code != OTHER_PRODUCERS]
    named.sort(key=lambda code: (-tallies[code].records, -tallies[code].duplicates, code))
    kept = {code: tallies[code] for code in named[: MOST_PRODUCERS - 1]}
    others = tallies.get(OTHER_PRODUCERS, ProducerTally())
    for code in named[MOST_PRODUCERS - 1 :]:
        others += tallies[code]
    kept[OTHER_PRODUCERS] = ProducerTally(
        records=others.records, duplicates=others.duplicates, of_others=others.of_others
    )
    return kept


def _given(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]
