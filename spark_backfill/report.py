"""The report of a run: one JSON object on stdout, and the same in the snapshot's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dedup_sdk._masking import counted
from dedup_sdk._window import length_text
from spark_backfill.report_page.wording import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a snapshot that a run made.

    - ``records``: committed records that were read; ``offsets``: the offsets that this took; ``unkeyed``:
      records without an ID; ``marks``: IDs remembered at the cut, an ID once for each layer that has it;
      ``layers``: the most that a partition has; ``files`` and ``bytes``: sorted files; ``filter_bytes``: the files of
      their filters; ``fingerprint``: of all marks, equal where two snapshots of one layer remember the same.
    - ``keyless``, ``moved``: where the topic is re-sharded, records without a key, and those whose key goes to
      another partition now.
    - ``malformed``: where IDs are compared, records whose ID the order cannot read.
    - ``duplicates_or_expired``: how many of these records (and marks of the base) are no IDs remembered at the
      cut: duplicates, and those that the window does not reach; None where IDs are compared, in units, or where
      the topic is re-sharded.
    - ``sources``: where records were read; ``versions``: of which version those of them that are tables with versions
      (Delta's number, the ID of Iceberg's snapshot); ``base``: the snapshot that was added to, None without one, and
      ``base_marks`` its marks that were taken.
    - ``known_since_ms``: sightings at or after this record timestamp are known in all partitions; None: of the
      whole history.
    - ``skipped``: partitions that contribute nothing, with the reason.
    - ``seconds``: the time of the whole run, without the start of Spark; ``records_per_second``: the records that this
      run read itself, divided by ``seconds``. Records of parts that it took over do not count.
    """

    output: str
    cluster: str
    topic: str
    group: str | None
    vouched: bool
    id_spec: str
    window: str
    partitions: int
    sources: tuple[str, ...]
    base: str | None
    base_marks: int
    known_since_ms: int | None
    skipped: Mapping[str, str]
    offsets: int
    records: int
    unkeyed: int
    marks: int
    files: int
    bytes: int
    fingerprint: str
    spark_start_seconds: float
    seconds: float
    records_per_second: float
    filter_bytes: int = 0
    keyless: int = 0
    moved: int = 0
    malformed: int = 0
    duplicates_or_expired: int | None = None
    layers: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def summary(report: Mapping[str, Any]) -> list[str]:
    """Return a `Report` in JSON as lines for people."""
    owner = "no single group" if report["group"] is None else f"group {report['group']}"
    sources = ", ".join(report["sources"]) or "the base"
    filters = report["filter_bytes"]
    files = counted(report["files"], "file")
    others, start_s = report["duplicates_or_expired"], report["spark_start_seconds"]
    start = f", and {_seconds_text(start_s)} for the start of Spark" if start_s else ""
    told = {
        "snapshot": report["output"],
        "topic": f"{report['topic']}, {counted(report['partitions'], 'partition')}, history of {owner}",
        "left out": "; ".join(f"partition {number}: {why}" for number, why in report["skipped"].items()),
        "records": f"{report['records']:,} from {sources}, {report['unkeyed']:,} without an ID",
        "IDs": f"{report['marks']:,}" + (", some in several layers" if report["layers"] > 1 else ""),
        "duplicates": "" if others is None else f"{others:,}, with records that the window does not reach",
        "size": f"{size_text(report['bytes'] + filters)}, {size_text(filters)} of it filters, {files}",
        "time": f"{_seconds_text(report['seconds'])}{start}; {report['records_per_second']:,.0f} records/s",
    }
    return [f"{name:<10}  {line}" for name, line in told.items() if line]


def _seconds_text(seconds: float) -> str:
    return length_text(round(seconds) * 1_000, most_units=2)
