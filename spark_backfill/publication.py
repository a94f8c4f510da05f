"""The description of a snapshot that a run made: manifest, report, and the data of a page about duplicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dedup_sdk._store.manifest import Manifest, PartitionManifest
from spark_backfill.base import Base
from spark_backfill.findings.findings import total
from spark_backfill.history import History
from spark_backfill.options import Options
from spark_backfill.report import Report, make_report
from spark_backfill.report_page.document import FINDINGS_NAME, Document, make_document
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan
from spark_backfill.snapshot import make_manifest

REPORT_NAME: Final = "report.json"


class Made(NamedTuple):
    """A snapshot whose files are written; ``document`` is None where no report about duplicates was asked for."""

    manifest: Manifest
    report: Report
    document: Document | None

    def reports(self) -> dict[str, str]:
        """Return the texts beside the manifest, by file name."""
        texts = {REPORT_NAME: self.report, FINDINGS_NAME: self.document}
        return {name: f"{text}\n" for name, text in texts.items() if text is not None}


def describe(
    history: History,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    *,
    options: Options,
    base: Base | None,
    versions: Mapping[str, str],
    taken_over: int,
    created_ms: int,
    spark_start_seconds: float,
    seconds: float,
) -> Made:
    """Describe the snapshot whose slots have these outcomes.

    ``versions``: of the sources that have some; ``taken_over``: how many records earlier runs read; ``seconds``: those
    of the run, without the start of Spark.
    """
    manifest = make_manifest(
        history,
        plan,
        outcomes,
        spec=options.spec,
        window=options.window,
        group=owner(options, base),
        isolation=isolation_of(options, base),
        created_ms=created_ms,
        reshard=options.reshard,
        kept=kept_entries(history, base),
    )
    report = make_report(
        manifest,
        output=options.shown_output,
        sources=options.sources,
        versions=versions,
        base=None if base is None else base.source.place,
        base_marks=history.base_marks,
        skipped=history.skipped,
        offsets=history.offsets,
        records=sum(outcome.records for outcome in outcomes),
        unkeyed=sum(outcome.unkeyed for outcome in outcomes),
        keyless=sum(outcome.keyless for outcome in outcomes),
        moved=sum(outcome.moved for outcome in outcomes),
        malformed=sum(outcome.malformed for outcome in outcomes),
        taken_over=taken_over,
        spark_start_seconds=spark_start_seconds,
        seconds=seconds,
        one_mark_each=options.last_id is None
        and options.units is None
        and options.reshard is None
        and not (base is not None and base.stays),
    )
    if options.report is None:
        return Made(manifest, report, None)
    found = total([outcome.findings for outcome in outcomes if outcome.findings is not None])
    document = make_document(manifest, report, found, producer_header=options.producer_header)
    return Made(manifest, report, document)


def kept_entries(history: History, base: Base | None) -> list[PartitionManifest]:
    """Return what a snapshot that is added to knows of partitions that the history skips."""
    if base is None or not base.stays:
        return []
    return [entry for entry in base.manifest.partitions if entry.partition in history.skipped and entry.files]


def owner(options: Options, base: Base | None) -> str | None:
    """Return the group whose own history a snapshot is, None: somebody vouches for it."""
    if base is not None and options.compact:
        return base.manifest.group
    return None if options.vouched else options.group


def isolation_of(options: Options, base: Base | None) -> str:
    """Return the level that all of the history was read with."""
    if base is not None and options.compact:
        return base.manifest.isolation
    return options.isolation
