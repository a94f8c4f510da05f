"""The history of an archive when no broker is asked: all that lies there, and the user says of which topic."""

from __future__ import annotations

from dedup_sdk.window import Window
from spark_backfill.archived import LogPart, Survey, horizons, plan_joined, survey_archive
from spark_backfill.history import History


def archived_history(
    survey: Survey, window: Window, *, cluster: str, topic: str, topic_id: str, now_ms: int
) -> History:
    """Return all offsets that an archive has, as a history that the user vouches for.

    Raises:
        BackfillError: the archive has nothing of the topic, or rows that are no records.
    """
    archived, last_ms = survey_archive(survey, {}, {}, window=window, now_ms=now_ms)
    stretches = []
    for number, known in sorted(archived.items()):
        part = LogPart(known.begin, known.end, known.end, None, None, complete=known.begin == 0)
        limits = horizons(window, last_ms.get(number), now_ms)
        stretches.append(plan_joined(number, part, known, window=window, limits=limits))
    return History(cluster=cluster, topic=topic, topic_id=topic_id, stretches=tuple(stretches))
