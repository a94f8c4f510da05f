"""Rows that no archive may have: they are no records of Kafka, or none of the topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dedup_sdk._kafka.error_text import time_text
from dedup_sdk._store.paths import MAX_PARTITIONS
from spark_backfill.errors import BackfillError, known_cause, one_line
from spark_backfill.range_plan import Archived

SHOWN_TOPICS: Final = 5
_YEAR_1973_MS: Final = 100_000_000_000
_YEAR_2096_MS: Final = 4_000_000_000_000


def checked_part(found: Mapping[str, Any], *, units_are_said: bool) -> Archived:
    """Return the facts found of a partition.

    ``nulls`` (rows without an offset), ``newest_ms``, and the fields of `Archived`. ``partition`` None: rows
    without one. ``units_are_said``: the unit of timestamps is only known from the options.

    Raises:
        BackfillError: rows without an offset or a partition, negative ones, or absurd timestamps.
    """
    if found["partition"] is None or found["nulls"]:
        lacks = "partition" if found["partition"] is None else "offset"
        count = found["rows"] if found["partition"] is None else found["nulls"]
        raise BackfillError(
            f"{count} rows of the archive have no {lacks}: they are no records of Kafka; see --columns {lacks}=COLUMN"
        )
    partition, newest_ms = int(found["partition"]), int(found["newest_ms"])
    if not 0 <= partition < MAX_PARTITIONS or found["begin"] < 0:
        raise BackfillError(
            f"the archive has partition {partition}, offset {found['begin']}: neither can be negative, nor a partition "
            f"{MAX_PARTITIONS} or more; see --columns"
        )
    if units_are_said and newest_ms > 0 and not _YEAR_1973_MS < newest_ms < _YEAR_2096_MS:
        raise BackfillError(
            f"the archive's newest timestamp in partition {partition} would be {time_text(newest_ms)}: "
            "is its unit in --columns timestamp=COLUMN:UNIT right?"
        )
    return Archived(**{name: found[name] for name in Archived._fields})


def unreadable(place: str, options: Mapping[str, str], error: Exception) -> BackfillError:
    """Return the error for a place that Spark cannot open; ``options`` are those of its reader."""
    known = known_cause(error)
    if known is not None:
        return BackfillError(known)
    given = "".join(f", --read-option {name}" for name in options)
    return BackfillError(
        f"archive {place!r} cannot be opened: Spark said {one_line(error)!r}; check --source, --format{given}"
    )


def without_topic(rows: int) -> BackfillError:
    """Return the error for rows without a topic in an archive that has topics: nobody knows whose they are."""
    return BackfillError(
        f"{rows} rows of the archive have no topic, and others have one: write it into them, or put their "
        "files into a folder whose files all have no such column"
    )


def nothing_of_topic(topic: str, others: Iterable[str]) -> BackfillError:
    """Return the error for an archive that has other topics only."""
    has = ", ".join(sorted(map(repr, others))[:SHOWN_TOPICS]) or "no rows"
    return BackfillError(
        f"the archive has nothing of topic {topic!r}: it has {has}; check --source and --topic"
    )


def told_open_files(names: Sequence[str]) -> str:
    """Return the line about files that were left out. Only a next one would say which offsets their rows have."""
    more = ", ..." if len(names) > SHOWN_TOPICS else ""
    return (
        f"left out: {', '.join(names[:SHOWN_TOPICS])}{more}, the last of a partition; where records may be "
        "missing in it the offsets of its rows are not known, and no next file tells. Name the offset's "
        "column with --columns offset=COLUMN if the records bear it"
    )


def only_open_files(names: Sequence[str]) -> BackfillError:
    """Return the error for an archive of which nothing is left without such files."""
    return BackfillError(
        f"the archive has one file of each partition ({names[0]}), and no next one says whether records are "
        "missing in it, without which the offsets of its rows are not known: name their column with "
        "--columns offset=COLUMN"
    )
