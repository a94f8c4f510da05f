"""What a run says of each snapshot that it made: manifest, report, and what a page about duplicates is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from dedup_sdk.store.manifest import Manifest
from spark_backfill.base import Base
from spark_backfill.findings.findings import total
from spark_backfill.options import Options
from spark_backfill.output import REPORT_NAME
from spark_backfill.report import Report, make_report
from spark_backfill.report_page.document import FINDINGS_NAME, Document, make_document
from spark_backfill.share import Share
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan
from spark_backfill.snapshot import make_manifest


class Made(NamedTuple):
    """A snapshot whose files are written."""

    manifest: Manifest
    report: Report
    document: Document

    def shared_at(self, place: str, marks: int) -> Self:
        """Return it with a report that says where how many of its marks are shared."""
        return self._replace(report=replace(self.report, shared=place, shared_marks=marks))

    def write_reports(self, folder: Path, *, with_findings: bool) -> None:
        """Put all but the manifest into the snapshot's folder."""
        (folder / REPORT_NAME).write_text(f"{self.report}\n", encoding="ascii")
        if with_findings:
            (folder / FINDINGS_NAME).write_text(f"{self.document}\n", encoding="ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is the same of all snapshots of a run; ``seconds`` are those of the run, without the start of Spark."""

    options: Options
    plan: SlotPlan
    base: Base | None
    created_ms: int
    spark_start_seconds: float
    seconds: float

    def made(self, number: int, share: Share, outcomes: Sequence[SlotOutcome]) -> Made:
        """Describe the snapshot of a group, by its place in the run, whose slots have these outcomes."""
        options, base = self.options, self.base
        manifest = make_manifest(
            share.history,
            self.plan,
            outcomes,
            spec=options.spec,
            window=options.window,
            group=owner(options, share.group, base),
            isolation=isolation_of(options, base),
            created_ms=self.created_ms,
            reshard=options.reshard,
            left_out=None if options.dealt is None else share.given_up.offsets,
        )
        below = f"/{options.members[number]}" if options.members else ""
        report = make_report(
            manifest,
            output=f"{options.shown_output}{below}",
            sources=options.sources.described(),
            base=None if base is None else base.source.place,
            base_marks=share.base_marks,
            skipped=share.history.skipped,
            offsets=share.offsets,
            records=sum(outcome.records for outcome in outcomes),
            unkeyed=sum(outcome.unkeyed for outcome in outcomes),
            given_up=share.given_up.count,
            keyless=sum(outcome.keyless for outcome in outcomes),
            moved=sum(outcome.moved for outcome in outcomes),
            malformed=sum(outcome.malformed for outcome in outcomes),
            spark_start_seconds=self.spark_start_seconds,
            seconds=self.seconds,
        )
        found = total([outcome.findings for outcome in outcomes if outcome.findings is not None])
        document = make_document(manifest, report, found, producer_header=options.producer_header)
        return Made(manifest, report, document)


def owner(options: Options, group: str | None, base: Base | None) -> str | None:
    """Return the group whose own history a snapshot is, None: somebody vouches for it."""
    if base is not None and options.base.compact:
        return base.manifest.group
    return None if options.vouched else group


def isolation_of(options: Options, base: Base | None) -> str:
    """Return the level that all of the history was read with."""
    if base is not None and options.base.compact:
        return base.manifest.isolation
    return options.sources.isolation
