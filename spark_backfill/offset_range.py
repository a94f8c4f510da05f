"""Which offsets of a partition are folded, and how far back the result knows.

    log start          low            begin                     high (the cut)      stable end
    |------------------|--------------|=========================|-------------------|
                       |  the group's own history               |
                                      |  the offsets to read    |

``low``
    where the offset range of log begins that is taken for processed: from the metadata of the group's commit, or
    where the log begins when the user vouches for it.
``high``
    the cut: the group's committed offset, else the end of the log (for ``read_committed``: the last stable offset).
``begin``
    with a window by time alone, the first offset inside one window (and a sixteenth, for late records) before the cut;
    with a count window always the start of the offset range, because acceptance numbers are ranks counted from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dedup_sdk._store.manifest import SortedFile

NOTHING_KNOWN_MS: Final = 2**62
"""As ``since_ms``: no sighting is known."""


def largest(values: Iterable[int | None]) -> int | None:
    """Return the largest value; None values are left out, and without any other value the result is None."""
    return max((each for each in values if each is not None), default=None)


Bounds = Mapping[int, tuple[int, int]]
"""Offsets ``[begin, end)`` by partition, none of them empty."""


class Staying(NamedTuple):
    """The files of a base that stay as they are (`spark_backfill.layers`).

    ``forgotten_ms``: the newest timestamp (ms) of those that do not, None where all stay.
    """

    files: tuple[SortedFile, ...] = ()
    forgotten_ms: int | None = None


class BasePart(NamedTuple):
    """The marks of another snapshot (the *base*) for an offset range's beginning, ``[low, begin)``.

    This is not read again.

    - ``marks``: how many it has; those of offsets before ``floor`` are left out.
    - ``accepted``, ``since_number``, ``newest_ms``, ``gaps``: as in its manifest.
    - ``staying``: where its files stay; None: the marks are read and written anew.
    """

    marks: int
    floor: int
    accepted: int
    since_number: int | None
    newest_ms: int
    gaps: tuple[tuple[int, int], ...] = ()
    staying: Staying | None = None

    @property
    def rows(self) -> int:
        """How many marks are read."""
        return self.marks if self.staying is None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets of one partition that are folded.

    - ``low``, ``high``: the offset range that the result is about, as offsets ``[low, high)``.
    - ``begin``: where reading begins, ``low <= begin <= high``.
    - ``complete``: nothing of the history is missing before ``begin``.
    - ``keep_from_ms``: marks of an older timestamp (ms) are left out; None: none are.
    - ``known_from_ms``: the window, not the history, ends at ``begin``: all sightings from this timestamp (ms) on
      are read.
    - ``archived``: the offsets that are read from an archive, ``[begin, end)``; None: none are. ``archived_rows``: at
      most so many rows it has of them; None: as many as offsets.
    - ``log_from``: where reading the topic itself begins; None: at ``begin``.
    - ``gaps``: offsets ``[begin, end)`` inside ``[low, high)`` that the window reaches and that are nowhere, ascending.
    - ``unknown_before_ms``: whatever else is known, no sighting of an older timestamp (ms) is; None: there is no
      such bound.
    - ``base``: the marks taken from a base instead of read; None: nothing is.
    """

    partition: int
    low: int
    begin: int
    high: int
    complete: bool
    keep_from_ms: int | None = None
    known_from_ms: int | None = None
    archived: tuple[int, int] | None = None
    archived_rows: int | None = None
    log_from: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    unknown_before_ms: int | None = None
    base: BasePart | None = None

    @property
    def rows(self) -> int:
        """At most how many rows are folded: records that are read, and marks of the base that are."""
        return self.offsets + (0 if self.base is None else self.base.rows)

    @property
    def offsets(self) -> int:
        """How many offsets are read, without those that an archive lacks; at least as many as there are records."""
        in_archive = self.in_archive()
        if in_archive is None:
            return self.high - self.begin
        begin, end = in_archive
        found = end - begin if self.archived_rows is None else min(end - begin, self.archived_rows)
        return found + self.in_log().offsets

    def in_log(self) -> OffsetRange:
        """Return the part of it read from the topic itself."""
        if self.log_from is None:
            return self
        return replace(self, begin=min(max(self.begin, self.log_from), self.high), archived=None)

    def in_archive(self) -> tuple[int, int] | None:
        """Return the offsets ``[begin, end)`` that are read from an archive, None where none are."""
        if self.archived is None or self.begin >= self.archived[1]:
            return None
        return max(self.begin, self.archived[0]), self.archived[1]

    def since_ms(self, first_ms: int | None, forgotten_ms: int | None) -> int | None:
        """Return the timestamp (ms) from which all sightings are known, None: from the beginning of the history.

        ``first_ms`` is the timestamp of the first record that was read, ``forgotten_ms`` the newest of the marks
        that were left out; both None where there was none.
        """
        if self.complete:
            known = None
        elif self.known_from_ms is not None:
            known = self.known_from_ms
        else:
            known = NOTHING_KNOWN_MS if first_ms is None else first_ms
        # A log may have any timestamp; a negative one stands for none.
        after_ms = None if forgotten_ms is None else max(forgotten_ms + 1, 0)
        return largest((known, after_ms, self.unknown_before_ms))


def log_bounds(offset_ranges: Sequence[OffsetRange]) -> Bounds:
    """Return which offsets the offset ranges take from the topic itself."""
    parts = [each.in_log() for each in offset_ranges]
    return {part.partition: (part.begin, part.high) for part in parts if part.offsets}


def archive_bounds(offset_ranges: Sequence[OffsetRange]) -> Bounds:
    """Return which offsets the offset ranges take from an archive."""
    return {each.partition: part for each in offset_ranges if (part := each.in_archive()) is not None}


def expire(offset_ranges: Sequence[OffsetRange], before_ms: int | None) -> tuple[OffsetRange, ...]:
    """Return the offset ranges, so that no mark is kept that was last seen before this timestamp.

    It is in ms; None keeps marks of any age.
    """
    if before_ms is None:
        return tuple(offset_ranges)
    return tuple(replace(each, keep_from_ms=max(before_ms, each.keep_from_ms or 0)) for each in offset_ranges)


def spans(numbers: Iterable[int]) -> str:
    """Return numbers, which ascend, in few words: ``0-2,5``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, each)) for each in found)
