"""What several groups have to read together of a source: of each partition one range that holds all of theirs. Pure.

    group a      |=====================|
    group b           |=======================|
    hull         |============================|

A range for each stretch of each group would read what they share once a group. What lies between two groups that are far apart is read
for nobody; it is left out where rows are packed (`spark_backfill.shared_runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from spark_backfill.stretch import Bounds, Stretch

_Read = TypeVar("_Read")


class Shared(Protocol):
    """How what is read of a source becomes each group's."""

    def over(self, groups: Sequence[Bounds]) -> Self:
        """Return it for a source of which each group takes these offsets."""


_Shared = TypeVar("_Shared", bound=Shared)


def in_log(stretches: Sequence[Stretch]) -> Bounds:
    """Return which offsets the stretches take from the topic itself."""
    parts = [each.in_log() for each in stretches]
    return {part.partition: (part.begin, part.high) for part in parts if part.offsets}


def in_archive(stretches: Sequence[Stretch]) -> Bounds:
    """Return which offsets the stretches take from an archive."""
    return {each.partition: part for each in stretches if (part := each.in_archive()) is not None}


def hull(groups: Sequence[Bounds]) -> tuple[Stretch, ...]:
    """Return what is read for all groups, by partition ascending: stretches that say no more than that."""
    ranges: dict[int, tuple[int, int]] = {}
    for bounds in groups:
        for partition, (begin, end) in bounds.items():
            known = ranges.get(partition, (begin, end))
            ranges[partition] = (min(known[0], begin), max(known[1], end))
    return tuple(
        Stretch(partition=partition, low=begin, begin=begin, high=end, complete=False, archived=(begin, end))
        for partition, (begin, end) in sorted(ranges.items())
    )


def read_once(
    groups: Sequence[Sequence[Stretch]],
    shared: _Shared,
    *,
    log: Callable[[Sequence[Stretch], _Shared], _Read],
    archive: Callable[[Sequence[Stretch], _Shared], _Read] | None,
) -> list[_Read]:
    """Return what the topic and an archive (None: there is none) give for all groups, each read once, and only if anybody takes of it."""
    found = []
    for part, read in ((in_log, log), (in_archive, archive)):
        bounds = [part(stretches) for stretches in groups]
        if read is not None and any(bounds):
            found.append(read(hull(bounds), shared.over(bounds)))
    return found


def offsets_of(stretches: Sequence[Stretch]) -> int:
    """Return how many offsets are read."""
    return sum(each.offsets for each in stretches)
