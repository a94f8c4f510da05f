"""The records of a partition that an archive has beside the log, and the offsets that neither has: pure.

    archive        |==================|
    log                     (gap)         |=====================|
                   begin              end log start             high (the cut)

From the log's beginning on the log counts, so that records in both count once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from dedup_sdk._window import Window
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import NOTHING_KNOWN_MS, OffsetRange, horizon_ms, plan_offset_range

FEW_RECORDS: Final = 5
"""So many records behind a gap are looked at, because the first one may be late.

It may be older than the records before it.
"""
_SHOWN_GAPS: Final = 3


class Archived(NamedTuple):
    """One partition in an archive: the offsets ``[begin, end)``, with ``rows`` rows.

    ``first_ms`` is the timestamp (ms) of its first row, ``last_ms`` that of the last row before the cut (None:
    there is no such row), ``first_kept`` the first offset before the cut of a timestamp at or after the horizon
    (None: there is none). ``end_ms`` is the timestamp of the very last row, -1 where it has none. ``oldest_ms`` is
    the lowest timestamp of all rows.
    """

    partition: int
    begin: int
    end: int
    rows: int
    first_ms: int
    last_ms: int | None
    first_kept: int | None
    end_ms: int = -1
    oldest_ms: int = -1

    @property
    def has_duplicates(self) -> bool:
        """Whether some offset certainly comes twice: there are more rows than offsets for them."""
        return self.rows > self.end - self.begin

    def kept_below(self, cut: int | None) -> int | None:
        """Return ``first_kept`` where no row is older than the horizon."""
        return self.begin if cut is None or self.begin < cut else None


Survey = Callable[[Mapping[int, int], Mapping[int, int]], Mapping[int, Archived]]
"""Looks through an archive.

The cuts (offsets, exclusive) and horizons (timestamps, ms) by partition in, its facts out.
"""


class Horizons(NamedTuple):
    """Timestamps (ms) before which no sighting is of use; None: nobody knows of any such.

    ``keep_from_ms`` is the one of `horizon_ms`, ``exact_ms`` that of the window itself, without the grace.
    """

    keep_from_ms: int | None
    exact_ms: int | None


def horizons(window: Window, last_ms: int | None, now_ms: int) -> Horizons:
    """Return the horizons of a partition whose last record before the cut has this timestamp (ms; None: not known)."""
    keep_from_ms = horizon_ms(window, last_ms, now_ms)
    if keep_from_ms is None or last_ms is None or window.time_ms is None:
        return Horizons(None, None)
    return Horizons(keep_from_ms, min(last_ms, now_ms) - window.time_ms)


class LogPart(NamedTuple):
    """The part of the history ``[low, high)`` that is in the log.

    ``start``: the log's first offset (``high`` or more: nothing); ``first_ms`` the timestamp (ms) of its first
    record below ``high``, None without one; ``first_kept`` as of `plan_offset_range`; ``complete``: the history
    begins at ``low``. ``soon_ms`` is the latest of its first `FEW_RECORDS` timestamps (ms), None where it has no
    first one. ``is_vague``: ``first_kept`` may lie far before that record.
    """

    low: int
    high: int
    start: int
    first_ms: int | None
    first_kept: int | None
    complete: bool
    soon_ms: int | None = None
    is_vague: bool = False

    def times(self) -> tuple[int | None, ...]:
        """Return the timestamps (ms) of records behind its beginning, the first one first."""
        return (self.first_ms,) if self.soon_ms is None else (self.first_ms, self.soon_ms)


def survey_archive(
    survey: Survey, cuts: Mapping[int, int], last_ms: Mapping[int, int | None], *, window: Window, now_ms: int
) -> tuple[Mapping[int, Archived], dict[int, int | None]]:
    """Look through an archive; return its facts and the timestamps (ms) of the last records before the cuts.

    ``last_ms`` has those that the log knows. Only where the log does not have it, and the archive has rows that
    are too old to be of use, the archive is looked through again.
    """

    def kept_from(known: Mapping[int, int | None]) -> dict[int, int]:
        found = {number: horizons(window, each, now_ms).keep_from_ms for number, each in known.items()}
        return {number: each for number, each in found.items() if each is not None}

    known = dict(last_ms)
    archived = survey(cuts, kept_from(known))
    late = {number: each.last_ms for number, each in archived.items() if known.get(number) is None}
    late_from = kept_from(late)
    if any(archived[number].oldest_ms < from_ms for number, from_ms in late_from.items()):
        again = survey(cuts, late_from)
        archived = {number: again[number] if number in late else each for number, each in archived.items()}
    else:
        archived = {
            number: each._replace(first_kept=each.kept_below(cuts.get(number)))
            if number in late_from
            else each
            for number, each in archived.items()
        }
    return archived, {**known, **late}


def plan_joined(
    partition: int,
    log: LogPart,
    archived: Archived | None,
    *,
    window: Window,
    limits: Horizons,
    whole: bool = False,
) -> OffsetRange:
    """Plan the offsets of one partition to read from the log, and from the archive that lies before it.

    ``whole``: the fold begins where the history does, however far the window reaches, as it does where the window
    is a count. ``Stretch.gaps`` are offsets that the window reaches, and that neither has.
    """
    whole = whole or window.count is not None
    edge = min(max(log.low, log.start), log.high)
    begin = end = edge
    taken = archived if archived is not None and archived.begin < edge and archived.end > log.low else None
    if taken is not None:
        begin, end = max(taken.begin, log.low), min(taken.end, edge)
    lacks_before_log = end < edge and _lacks(log, edge, taken, window, limits)
    # Acceptance numbers count on from where the history begins: across a gap they would be too small, and marks
    # live too long. Nor does a source that is remembered on both sides of one tell which IDs it lacks.
    uncounted = lacks_before_log and whole
    if begin == edge or uncounted or (end < edge and not lacks_before_log):
        return _log_alone(partition, log, edge, taken, window=window, limits=limits)
    gaps = []
    if (
        log.low < begin
        and taken is not None
        and _reaches(window, log.high - begin, inside=_begins_inside(taken, limits))
    ):
        gaps.append((log.low, begin))
    if lacks_before_log:
        gaps.append((end, edge))
    first = begin
    if not whole and limits.keep_from_ms is not None:
        kept = archived.first_kept if archived is not None else None
        in_log = edge if log.first_kept is None else min(max(edge, log.first_kept), log.high)
        first = max(begin, kept) if kept is not None and kept < end else in_log
    known_from_ms = None
    if lacks_before_log:
        known_from_ms = _known_behind(log, taken, limits)
    elif first > begin:
        known_from_ms = limits.keep_from_ms
    return OffsetRange(
        partition=partition,
        low=log.low,
        begin=first,
        high=log.high,
        complete=log.complete and first == log.low and not gaps,
        keep_from_ms=limits.keep_from_ms,
        known_from_ms=known_from_ms,
        archived=(first, end) if first < end else None,
        log_from=max(first, edge),
        gaps=tuple(gaps),
    )


def _log_alone(
    partition: int, log: LogPart, edge: int, taken: Archived | None, *, window: Window, limits: Horizons
) -> OffsetRange:
    offset_range = plan_offset_range(
        partition,
        low=log.low,
        high=log.high,
        log_start=log.start,
        complete=log.complete,
        window=window,
        keep_from_ms=limits.keep_from_ms,
        first_kept=log.first_kept,
    )
    if log.low >= edge or not _lacks(log, edge, taken, window, limits):
        return offset_range
    offset_range = replace(offset_range, gaps=((log.low, edge),))
    if offset_range.known_from_ms is None:
        return offset_range
    # Not all sightings that the window reaches are behind the gap.
    return replace(
        offset_range, known_from_ms=max(offset_range.known_from_ms, _known_behind(log, taken, limits))
    )


def _lacks(log: LogPart, edge: int, taken: Archived | None, window: Window, limits: Horizons) -> bool:
    """Whether the window reaches offsets that are gone right before ``edge``, where the log begins.

    ``taken`` lies before them. Timestamps are in no strict order: that one record behind them is old says nothing,
    if others there are young, or rows before.
    """
    inside = (taken is not None and taken.first_kept is not None) or any(
        _is_inside(each, limits) for each in log.times()
    )
    return _reaches(window, log.high - edge, inside=inside)


def _begins_inside(archived: Archived, limits: Horizons) -> bool:
    """Whether the window reaches the first rows of an archive, one of which may be late."""
    kept = archived.first_kept
    return _is_inside(archived.first_ms, limits) or (kept is not None and kept < archived.begin + FEW_RECORDS)


def _is_inside(timestamp_ms: int | None, limits: Horizons) -> bool:
    """Whether the window of the record at the cut reaches a timestamp (ms; None, -1: not known, and so it may)."""
    return (
        limits.exact_ms is None or timestamp_ms is None or timestamp_ms < 0 or timestamp_ms > limits.exact_ms
    )


def _reaches(window: Window, offsets_after: int, *, inside: bool) -> bool:
    """Whether the window of the record at the cut reaches the record so many offsets before it.

    By time, it also has to reach ``inside`` it.
    """
    # An ID is remembered while both hold.
    return (window.time_ms is None or inside) and (window.count is None or offsets_after < window.count)


def _known_behind(log: LogPart, taken: Archived | None, limits: Horizons) -> int:
    """From which timestamp (ms) on all sightings are known where offsets before the log are gone."""
    if log.first_ms is None:
        return NOTHING_KNOWN_MS
    is_late = log.first_ms < 0 or not _is_inside(log.first_ms, limits)
    times = [log.first_ms, log.soon_ms if is_late else None, taken.last_ms if taken is not None else None]
    known_ms = max(each for each in times if each is not None)
    return known_ms if known_ms >= 0 else NOTHING_KNOWN_MS


def check_gaps(topic: str, offset_ranges: Sequence[OffsetRange], *, allowed: bool) -> list[str]:
    """Return a line for each partition with gaps, for the user.

    Raises:
        BackfillError: there are some, and they were not ``allowed``.
    """
    lines = [
        f"{topic}[{each.partition}] lacks offsets {', '.join(f'{begin} to {end - 1}' for begin, end in each.gaps)}"
        for each in offset_ranges
        if each.gaps
    ]
    if lines and not allowed:
        # An archive with records on both sides of the cut has those between them.
        cut = (
            "; right behind a base's cut there may have been no record (a transaction's marker): give the "
            "archive's files from before the cut, too"
            if any(each.gaps and each.base for each in offset_ranges)
            else ""
        )
        more = f" and {len(lines) - _SHOWN_GAPS} more partitions" if len(lines) > _SHOWN_GAPS else ""
        raise BackfillError(
            f"history inside the window is gone: {'; '.join(lines[:_SHOWN_GAPS])}{more}: add an archive "
            f"that has it with --source, or go on with --allow-gap, so that coverage begins behind it{cut}"
        )
    return lines
