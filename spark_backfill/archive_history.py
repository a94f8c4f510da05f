"""The history of an archive when no broker is asked: all that lies there, and the user says of which topic."""

from __future__ import annotations

from dedup_sdk._window import Window
from spark_backfill.base import Base, check_base_log, entries_of, resumable
from spark_backfill.history import History
from spark_backfill.range_plan import LogPart, Survey, horizons, plan_on_base, plan_range, survey_archive


def archived_history(
    survey: Survey,
    window: Window,
    *,
    cluster: str,
    topic: str,
    topic_id: str,
    now_ms: int,
    base: Base | None,
    whole: bool = False,
) -> History:
    """Return all offsets that an archive has, as a history that the user vouches for; a base's are not read again.

    ``whole`` as in `spark_backfill.range_plan.plan_range`.

    Raises:
        BackfillError: the archive has nothing of the topic, or rows that are no records, or does not go on where
            the base ends.
    """
    if base is not None:
        check_base_log(base, cluster=cluster, topic_id=topic_id, partitions=())
    archived, last_ms = survey_archive(survey, {}, {}, window=window, now_ms=now_ms)
    entries = {} if base is None else entries_of(base.manifest)
    offset_ranges = []
    for number in sorted({*archived, *entries}):
        known, entry = archived.get(number), entries.get(number)
        seen_ms = last_ms.get(number)
        if entry is None and known is not None:
            part = LogPart(known.begin, known.end, known.end, None, None, complete=known.begin == 0)
            limits = horizons(window, seen_ms, now_ms)
            offset_ranges.append(plan_range(number, part, known, window=window, limits=limits, whole=whole))
        elif entry is not None:
            low = entry.low if known is None else min(known.begin, entry.low)
            high = entry.high if known is None else max(known.end, entry.high)
            resumable(entry, low=max(low, 0), high=high, vouched=True, window=window)
            limits = horizons(window, entry.newest_ms if seen_ms is None else seen_ms, now_ms)
            part = LogPart(entry.high, high, high, None, None, complete=True)
            offset_ranges.append(plan_on_base(entry, part, known, low=low, window=window, limits=limits))
    return History(cluster=cluster, topic=topic, topic_id=topic_id, offset_ranges=tuple(offset_ranges))
