"""Plans which offsets of a partition are read: pure, the answers of Kafka and of an archive are given.

    archive        |==================|
    log                     (gap)         |=====================|
    base      |=========|
                   begin              end log start             high (the cut)

Where several have an offset, it counts once: as a mark of the base, else as a record of the log, else of the archive.
The result is that of a run that reads all of it, as far back as each of them knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from dedup_sdk._core.reach import GRACE
from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._window import Window
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import NOTHING_KNOWN_MS, BasePart, OffsetRange, largest

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


def horizon_ms(window: Window, last_ms: int | None, now_ms: int) -> int | None:
    """Return the timestamp (ms) before which a sighting may be left out, None where everything is kept.

    ``last_ms`` is the timestamp of the last record before the cut (-1 or None: unknown), a lower bound of the
    newest one. One from the future counts as now, so that it cannot push everything else out of the window.
    """
    if window.time_ms is None or last_ms is None or last_ms < 0:
        return None
    return min(last_ms, now_ms) - window.time_ms - window.time_ms // GRACE


def horizons(window: Window, last_ms: int | None, now_ms: int) -> Horizons:
    """Return the horizons of a partition whose last record before the cut has this timestamp (ms; None: not known)."""
    keep_from_ms = horizon_ms(window, last_ms, now_ms)
    if keep_from_ms is None or last_ms is None or window.time_ms is None:
        return Horizons(None, None)
    return Horizons(keep_from_ms, min(last_ms, now_ms) - window.time_ms)


class LogPart(NamedTuple):
    """The history ``[low, high)`` of a partition, and what the log has of it.

    - ``start``: the log's first offset (``high`` or more: nothing).
    - ``first_ms``: the timestamp (ms) of its first record below ``high``, None without one; ``soon_ms``: the latest of
      its first `FEW_RECORDS` timestamps, None where it has no first one.
    - ``first_kept``: the first offset of a timestamp at or after the horizon, None where nobody looked; it may lie
      before that record.
    - ``complete``: the history begins at ``low``.
    """

    low: int
    high: int
    start: int
    complete: bool
    first_ms: int | None = None
    first_kept: int | None = None
    soon_ms: int | None = None

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


def plan_range(
    partition: int,
    log: LogPart,
    archived: Archived | None,
    *,
    window: Window,
    limits: Horizons,
    whole: bool = False,
) -> OffsetRange:
    """Plan the offsets of one partition to read from the log, and from the archive that lies before it.

    ``whole``: reading begins where the history does, however far the window reaches, as it does where the window is a
    count. ``OffsetRange.gaps`` are offsets that the window reaches, and that neither has.
    """
    whole = whole or window.count is not None
    edge = min(max(log.low, log.start), log.high)
    taken = archived if archived is not None and archived.begin < edge and archived.end > log.low else None
    # Nothing of an archive is one that ends where the history begins.
    begin, end = (log.low, log.low) if taken is None else (max(taken.begin, log.low), min(taken.end, edge))
    lacks_before_log = end < edge and _lacks(log, edge, taken, window, limits)
    if end < edge and (whole or not lacks_before_log):
        # Acceptance numbers count on from where the history begins: across a gap they would be too small, and marks
        # live too long. Nor does a source that is remembered on both sides of one tell which IDs it lacks.
        begin = end = log.low
    reads_archive = begin < end
    gaps = []
    if reads_archive and log.low < begin and taken is not None:
        inside = _begins_inside(taken, limits)
        if _reaches(window, log.high - begin, inside=inside):
            gaps.append((log.low, begin))
    if lacks_before_log:
        gaps.append((end, edge))
    oldest = first = begin if reads_archive else edge
    if not whole and limits.keep_from_ms is not None:
        kept = taken.first_kept if reads_archive and taken is not None else None
        in_log = edge if log.first_kept is None else min(max(edge, log.first_kept), log.high)
        first = max(begin, kept) if kept is not None and kept < end else in_log
    return OffsetRange(
        partition=partition,
        low=log.low,
        begin=first,
        high=log.high,
        complete=log.complete and first == log.low and not gaps,
        keep_from_ms=limits.keep_from_ms,
        # Not all sightings that the window reaches are behind a gap.
        known_from_ms=largest(
            (
                limits.keep_from_ms if first > oldest else None,
                _known_behind(log, taken, limits) if lacks_before_log else None,
            )
        ),
        archived=(first, end) if first < end else None,
        archived_rows=None if taken is None else taken.rows,
        log_from=max(first, edge),
        gaps=tuple(gaps),
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
    times = (log.first_ms, log.soon_ms if is_late else None, None if taken is None else taken.last_ms)
    known_ms = largest(times)
    return NOTHING_KNOWN_MS if known_ms is None or known_ms < 0 else known_ms


def plan_on_base(
    entry: PartitionManifest,
    log: LogPart,
    archived: Archived | None,
    *,
    low: int,
    window: Window,
    limits: Horizons,
) -> OffsetRange:
    """Plan the offsets to read of ``[low, log.high)``; ``log`` and ``archived`` are planned from the base's cut on."""
    if not _expired(entry, limits.keep_from_ms):
        # Timestamps are in no order: the first record that the window reaches may lie behind old ones, and marks
        # of the base be as new.
        log = log._replace(first_kept=None)
        archived = None if archived is None else archived._replace(first_kept=archived.begin)
    above = plan_range(entry.partition, log, archived, window=window, limits=limits)
    return on_base(above, entry, low=low, counted=window.count is not None)


def on_base(offset_range: OffsetRange, entry: PartitionManifest, *, low: int, counted: bool) -> OffsetRange:
    """Return the offset range ``[low, high)`` of which only a part is to be read.

    That part is ``offset_range``, planned from ``entry.high`` on. ``counted``: the window has a count.
    """
    contiguous = offset_range.begin == entry.high and not offset_range.gaps
    if not contiguous and (counted or (not offset_range.gaps and _expired(entry, offset_range.keep_from_ms))):
        # Nobody knows the IDs accepted in between, or no mark of the base is of use any more.
        return replace(offset_range, low=low, complete=False)
    part = BasePart(
        marks=entry.marks,
        floor=low,
        accepted=entry.known.accepted,
        since_number=entry.known.since_number,
        newest_ms=entry.known.newest_ms,
        gaps=tuple((max(gap.begin, low), gap.end) for gap in entry.gaps if gap.end > low),
    )
    # Where the base knows nothing, the rows read are the first known.
    base_ms = entry.known.since_ms
    since_ms = None if base_ms is None or base_ms >= NOTHING_KNOWN_MS else base_ms
    if not contiguous:
        # A base that knows nothing adds no knowledge.
        known_ms = (
            None if since_ms is None and entry.known.since_ms is not None else offset_range.known_from_ms
        )
        return replace(
            offset_range,
            low=low,
            complete=False,
            known_from_ms=known_ms,
            unknown_before_ms=since_ms,
            base=part,
        )
    return replace(
        offset_range, low=low, complete=entry.known.since_ms is None, known_from_ms=since_ms, base=part
    )


def _expired(entry: PartitionManifest, keep_from_ms: int | None) -> bool:
    """Whether all that a base knows, and all that it does not know, is older than the window reaches."""
    if keep_from_ms is None or entry.known.newest_ms >= keep_from_ms:
        return False
    return entry.known.since_ms is None or entry.known.since_ms <= keep_from_ms


def alone(manifest: Manifest, window: Window, now_ms: int) -> tuple[OffsetRange, ...]:
    """Return the offset ranges of a base to which nothing is added.

    Marks that its own window does not reach any more are left out.
    """
    return tuple(
        on_base(
            OffsetRange(
                partition=entry.partition,
                low=entry.high,
                begin=entry.high,
                high=entry.high,
                complete=True,
                keep_from_ms=horizon_ms(window, entry.known.newest_ms, now_ms),
            ),
            entry,
            low=entry.low,
            counted=window.count is not None,
        )
        for entry in sorted(manifest.partitions, key=lambda entry: entry.partition)
    )


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
