"""The description of a snapshot that a run made: its manifest, its report, and the data of a page about duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

from dedup_sdk._marks import Known
from dedup_sdk._store.manifest import Gap, Manifest, PartitionManifest
from dedup_sdk._store.protocol import DIGEST_NAME
from dedup_sdk._window import Window
from spark_backfill.base import Base
from spark_backfill.findings.findings import total
from spark_backfill.history import History
from spark_backfill.offset_range import OffsetRange, Staying, largest
from spark_backfill.options import Options
from spark_backfill.ordered_spec import Spec
from spark_backfill.report import Report
from spark_backfill.report_page.document import FINDINGS_NAME, Document, make_document
from spark_backfill.reshard import Reshard
from spark_backfill.runs import Tally
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan

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
    files = [file for entry in manifest.partitions for file in entry.files]
    tally = _tally(outcomes)
    # Every record with an ID, and mark of the base, is one mark at most.
    one_mark_each = (
        options.last_id is None
        and not tally.redriven
        and options.units is None
        and options.reshard is None
        and not (base is not None and base.stays)
    )
    report = Report(
        output=options.shown_output,
        cluster=manifest.cluster,
        topic=manifest.topic,
        group=manifest.group,
        vouched=manifest.vouched,
        id_spec=manifest.id_spec,
        window=manifest.window,
        partitions=len(manifest.partitions),
        sources=options.sources,
        versions=versions,
        base=None if base is None else base.source.place,
        base_marks=history.base_marks,
        known_since_ms=largest(entry.known.since_ms for entry in manifest.partitions),
        skipped={str(partition): reason for partition, reason in sorted(history.skipped.items())},
        offsets=history.offsets,
        records=tally.records,
        unkeyed=tally.unkeyed,
        marks=manifest.marks,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        filter_bytes=sum(file.filter_bytes for file in files),
        fingerprint=manifest.fingerprint,
        spark_start_seconds=round(spark_start_seconds, 3),
        seconds=round(seconds, 3),
        records_per_second=round((tally.records - taken_over) / seconds, 1) if seconds else 0.0,
        keyless=tally.keyless,
        moved=tally.moved,
        malformed=sum(outcome.malformed for outcome in outcomes),
        layers=max((len(entry.layers) for entry in manifest.partitions), default=0),
        duplicates_or_expired=tally.records + history.base_marks - tally.unkeyed - manifest.marks
        if one_mark_each
        else None,
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


def make_manifest(
    history: History,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    *,
    spec: Spec,
    window: Window,
    group: str | None,
    isolation: str,
    created_ms: int,
    reshard: Reshard | None = None,
    kept: Sequence[PartitionManifest] = (),
) -> Manifest:
    """Return the manifest of the files that the outcomes name; ``group`` None: the user vouches for the history.

    ``isolation`` is the level that all of the history was read with. With ``reshard`` every partition may have
    marks of any other, so that all know as much as the one that knows least. ``kept``: entries of partitions that the
    history lacks.
    """
    by_partition: dict[int, list[SlotOutcome]] = {
        offset_range.partition: [] for offset_range in history.offset_ranges
    }
    for outcome in sorted(outcomes, key=lambda outcome: outcome.slot):
        by_partition[plan.slots[outcome.slot].partition].append(outcome)
    ranges = history.offset_ranges
    weakest_ms = None
    if reshard is not None:
        weakest_ms = largest(
            each.since_ms(_tally(by_partition[each.partition]).begin_ms, None) for each in ranges
        )
    entries = [*kept]
    for each in ranges:
        number = each.partition
        # Where nothing is committed, the cut of a partition that takes marks of others is 0.
        committed = (each.high or None) if reshard else history.committed.get(number, each.high)
        entries.append(
            partition_manifest(
                each,
                by_partition[number],
                counted=window.count is not None,
                committed=None if group is None else committed,
                era="" if group is None else history.eras.get(number, ""),
                epoch=history.epochs.get(number),
                weakest_ms=weakest_ms,
            )
        )
    return Manifest(
        cluster=history.cluster,
        topic=history.topic,
        topic_id=history.topic_id,
        id_spec=str(spec),
        digest=DIGEST_NAME,
        isolation=isolation,
        window=str(window),
        group=group,
        vouched=group is None,
        created_ms=created_ms,
        partitions=tuple(sorted(entries, key=attrgetter("partition"))),
        resharded_from=() if reshard is None else tuple(each.partition for each in ranges if each.offsets),
        partitioner="" if reshard is None else reshard.partitioner,
    )


def partition_manifest(
    offset_range: OffsetRange,
    outcomes: Sequence[SlotOutcome],
    *,
    counted: bool,
    committed: int | None = None,
    era: str = "",
    epoch: int | None = None,
    weakest_ms: int | None = None,
) -> PartitionManifest:
    """Return the manifest's entry of one partition; ``outcomes``: those of its slots, ascending."""
    base = offset_range.base
    staying = (None if base is None else base.staying) or Staying()
    layer = max((file.layer + 1 for file in staying.files), default=0)
    files = (
        *staying.files,
        *(replace(outcome.file, layer=layer) for outcome in outcomes if outcome.file is not None),
    )
    tally = _tally(outcomes)
    newest_ms = tally.newest_ms
    forgotten_ms = largest((staying.forgotten_ms, *(each.forgotten_ms for each in outcomes)))
    accepted = sum(outcome.accepted for outcome in outcomes)
    if base is not None:
        newest_ms = max(newest_ms, base.newest_ms)
        accepted = accepted if outcomes or not counted else base.accepted
    gaps = (*(base.gaps if base is not None else ()), *offset_range.gaps)
    high = min([offset_range.high, *(each.cut for each in outcomes if each.cut is not None)])
    return PartitionManifest(
        partition=offset_range.partition,
        low=offset_range.low,
        high=high,
        known=Known(
            since_ms=largest((offset_range.since_ms(tally.begin_ms, forgotten_ms), weakest_ms)),
            since_number=_since_number(offset_range, outcomes) if counted else None,
            accepted=accepted,
            newest_ms=newest_ms,
        ),
        marks=sum(file.marks for file in files),
        files=files,
        committed=committed,
        era=era,
        epoch=epoch,
        gaps=tuple(Gap(begin=begin, end=end) for begin, end in gaps),
    )


def _tally(outcomes: Iterable[SlotOutcome]) -> Tally:
    return Tally.total(each.tally for each in outcomes)


def _since_number(offset_range: OffsetRange, outcomes: Sequence[SlotOutcome]) -> int | None:
    """The rank from which all accepted IDs are known; a partition is one slot here."""
    known = None if offset_range.complete else 0
    if offset_range.base is not None:
        known = offset_range.base.since_number
    return largest((known, *(each.forgotten_number for each in outcomes)))
