"""The fold in offset order: the consumer's own engine, over a temporary store of the task.

Where the marks depend on the order of records (windows by count, compared IDs, units), the consumer's code
judges the rows of a partition one after the other, as in a replay of the whole history, and the marks of its store are
written. So a rebuilt store is the one that a consumer would have, by construction. Before that all rows are written to
a file, because where the last units end, and where the history begins in time, is known only when all rows were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from dedup_sdk._core.compared import Compared
from dedup_sdk._core.last_rule import LastRule
from dedup_sdk._core.reach import plan_start
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._marks import Int64s, Marks, Progress, join_marks, select_marks
from dedup_sdk._store.manifest import PartitionManifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._store.snapshot import read_files
from dedup_sdk._store.snapshot_source import RemoteFiles
from dedup_sdk._strategy import LastId
from dedup_sdk._units.doubt import ahead_ms_of
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.memory import UnitMemory
from spark_backfill.arrow_columns import bytes_list
from spark_backfill.base import Base, copy_from
from spark_backfill.finder import Finder
from spark_backfill.findings.findings import Findings
from spark_backfill.offset_range import OffsetRange, largest
from spark_backfill.ordered_rows import BLOCK_ORDER, rows_in
from spark_backfill.ordered_spec import OrderedSpec
from spark_backfill.publish import Target, own_folder
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.runs import Rows, Tally
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import write_pages
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.unit_ends import Ends, UnitEnds
from spark_backfill.workers import Folding, Source, Task, Workers

_SLICE_RECORDS: Final = 5_000
_NOBODY: Final = "backfill"
_TOPIC: Final = "rows"
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class BaseMarks:
    """The marks of a partition that an earlier snapshot has; ``files`` are the snapshot's, in a folder or at a URL."""

    files: Path | RemoteFiles
    entry: PartitionManifest

    def read(self, room: Path) -> Marks:
        """Return them; ``room`` has place for one file. Raises `SnapshotError` for a file that differs."""
        number = self.entry.partition
        copy = copy_from(self.files, number)
        return join_marks(list(read_files(self.entry.files, copy, place=f"base/{number}", temp_dir=room)))

    def progress(self) -> Progress:
        """Return the progress of a store that has these marks."""
        entry = self.entry
        return Progress(
            low=entry.low, high=entry.high, committed=entry.high, known=entry.known,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedWriter:
    """A function for ``mapInArrow``: blocks sorted by `BLOCK_ORDER` in, a JSON `SlotOutcome` a slot out.

    ``offset_ranges`` and ``bases`` are those of the run by partition; ``now_ms``: when the run began. ``finder``: who
    finds out what a report shows of IDs that are looked up, None where none was asked for. Files go to ``target``; the
    store of the fold is on this worker's disk.
    """

    target: Target
    slots: tuple[Slot, ...]
    offset_ranges: Mapping[int, OffsetRange]
    spec: OrderedSpec
    now_ms: int
    bases: Mapping[int, BaseMarks]
    finder: Finder | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold and write one slot after the other."""
        for number, blocks in groupby(_blocks(batches), key=itemgetter(0)):
            outcome = self._write(number, self.slots[number], (rows for _, rows in blocks)).to_json()
            yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.string())], ["outcome"])

    def _write(self, number: int, slot: Slot, blocks: Iterator[bytes]) -> SlotOutcome:
        offset_range = self.offset_ranges[slot.partition]
        with own_folder() as room:
            fold = OrderedFold(self.spec, offset_range, room, now_ms=self.now_ms)
            told = _Told(self.finder, slot)
            file = self.target.put(
                slot.partition,
                slot.range,
                lambda path: write_pages(path, fold.pages(told.of(blocks), self.bases.get(slot.partition))),
            )
        tally, progress = fold.tally, fold.progress
        whole = progress.high == offset_range.high
        return SlotOutcome(
            slot=number,
            tally=tally if whole else replace(tally, newest_ms=progress.known.newest_ms),
            accepted=progress.known.accepted,
            forgotten_ms=fold.forgotten_ms,
            forgotten_number=fold.forgotten_number,
            file=file,
            malformed=fold.malformed,
            failed_unit=fold.failed_unit,
            cut=progress.high,
            findings=told.findings(),
        )


class OrderedFold:
    """Folds the blocks of one partition, by offset, in an empty folder of its own.

    ``tally``, ``malformed`` (records whose ID the order cannot read), ``failed_unit`` (the last offset of a unit that
    failed, so that no older ID is known; None: there is none), ``progress`` (that of the store),
    ``forgotten_ms`` and ``forgotten_number`` (the newest timestamp and the highest number of IDs not known any more,
    None: all is) are known when all pages were taken. In memory are a block, units that are open, and a consumer's own
    state.
    """

    progress: Progress

    def __init__(self, spec: OrderedSpec, offset_range: OffsetRange, room: Path, *, now_ms: int) -> None:
        self.tally = Tally()
        self.malformed = 0
        self.failed_unit: int | None = None
        self.forgotten_ms: int | None = None
        self.forgotten_number: int | None = None
        self._strategy = spec.strategy
        self._keys = spec.keys
        self._offset_range = offset_range
        self._room = room
        self._now_ms = now_ms

    def pages(self, blocks: Iterable[bytes], base: BaseMarks | None = None) -> Iterator[Marks]:
        """Yield the marks of all IDs, ascending by digest; ``base``: those that the history begins with.

        Raises:
            StoreError: there is no room for the rows, or the store.
            SnapshotError: a file of the base differs from its manifest.
        """
        rows = self._room / "rows"
        ends = self._put_down(blocks, rows)
        self._fold(rows, ends, base)
        rows.unlink()
        (found,) = list_partitions(self._room)
        with read_partition(found.path) as opened:
            if opened.progress is None:
                raise AssertionError(f"{found.path} has no progress")
            self.progress = opened.progress
            self._note_progress(opened.progress)
            for page in opened.scan_all(below=opened.progress.high):
                kept = self._remembered(page, opened.progress)
                if kept.count:
                    yield kept

    def _put_down(self, blocks: Iterable[bytes], path: Path) -> Ends:
        """Write the blocks to a file and count their rows."""
        ends = UnitEnds(self._keys) if isinstance(self._keys, UnitKeys) else None
        with path.open("wb") as file:
            for block in blocks:
                if (rows := rows_in(block)) is None:
                    continue
                file.write(len(block).to_bytes(_NUMBER_BYTES, "little") + block)
                self.tally.add(_tally(rows, self._offset_range.in_archive()))
                for batch in rows.combine_chunks().to_batches(_SLICE_RECORDS):
                    self._look_at(batch, ends)
        high = self._offset_range.high
        return Ends(high, frozenset()) if ends is None else ends.finish(high)

    def _look_at(self, rows: pa.RecordBatch, ends: UnitEnds | None) -> None:
        """Find where units end, or count the IDs that their order cannot read."""
        if ends is not None:
            keyed = rows.filter(rows.column("digest").is_valid())
            if keyed.num_rows:
                ends.add(keyed.column("offset").to_pylist(), keyed.column("digest").to_pylist())
        elif isinstance(self._strategy, LastId) and isinstance(self._keys, SourceKeys):
            keys = bytes_list(rows.column("digest"))
            self.malformed += _malformed(self._strategy.rule, self._keys, keys)

    def _fold(self, path: Path, ends: Ends, base: BaseMarks | None) -> None:
        store = RocksStore(self._room)
        with Deduplicator(
            self._strategy, store, cluster=_NOBODY, group=_NOBODY, clock=lambda: self._now_ms / 1_000
        ) as engine:
            offset_range = self._offset_range
            terms = engine.terms_of(_TOPIC)
            if base is not None:
                # As a consumer left it that has stopped where the base ends.
                identity = engine.identity_of(_TOPIC, offset_range.partition, "", None, terms)
                with closing(store.open(identity, terms.window)) as opened:
                    opened.flush(base.progress(), base.read(self._room))
            held = engine.attach(_TOPIC, offset_range.partition)
            known = None if held.loaded is None else held.loaded.progress
            low = offset_range.begin if base is None else offset_range.low
            plan = plan_start(known, committed=ends.cut, low=low, complete=offset_range.complete)
            if base is None:
                first_ms = self.tally.begin_ms
                if first_ms is not None and isinstance(self._keys, UnitKeys):
                    first_ms += ahead_ms_of(terms.window, self._keys.mode)
                since_ms = offset_range.since_ms(first_ms, None)
                known_now = replace(plan.progress.known, since_ms=since_ms)
                plan = replace(plan, progress=replace(plan.progress, known=known_now))
            held.start(plan)
            for offsets, timestamps, keys in _slices(path, ends.cut):
                if ends.unfinished:
                    _pass_unfinished(held, offsets, timestamps.tolist(), keys, ends)
                held.fold(offsets, timestamps, keys, offsets[-1] + 1)
                engine.trim()
            # A unit left open ends nowhere below the cut.
            held.fold([], np.empty(0, np.int64), [], ends.cut)
            memory = held.memory
            if isinstance(memory, UnitMemory):
                begin_ms = max(plan.progress.known.since_ms or 0, self.tally.begin_ms or 0)
                if (memory.doubt.written_since_ms() or 0) > begin_ms:
                    self.failed_unit = max([ends.failed or 0, *ends.unfinished])

    def _note_progress(self, progress: Progress) -> None:
        known = progress.known
        if known.since_ms is not None:
            self.forgotten_ms = known.since_ms - 1
        if self._strategy.window_of(_TOPIC).count is not None:
            self.forgotten_number = max(known.since_number or 0, known.floor_number) or None

    def _remembered(self, page: Marks, progress: Progress) -> Marks:
        """Return the marks that the window reaches; the newest of the others counts as forgotten."""
        kept = np.ones(page.count, np.bool_)
        if page.numbers is not None:
            kept = page.numbers > progress.known.floor_number
        keep_from_ms = self._offset_range.keep_from_ms
        if keep_from_ms is not None:
            young = page.timestamps >= keep_from_ms
            if not young.all():
                self.forgotten_ms = largest((self.forgotten_ms, int(page.timestamps[~young].max())))
                if page.numbers is not None:
                    self.forgotten_number = largest((self.forgotten_number, int(page.numbers[~young].max())))
            kept &= young
        return page if kept.all() else select_marks(page, np.flatnonzero(kept))


class _Told:
    """Finds out about duplicates in blocks on their way to the fold."""

    def __init__(self, finder: Finder | None, slot: Slot) -> None:
        self._finder = finder
        self._slot = slot
        self._plan = SlotPlan((slot,))
        self._told: list[bytes] = []

    def of(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks."""
        for block in blocks:
            if self._finder is not None and (rows := rows_in(block)) is not None:
                found = list(self._rows(rows))
                self._told += [told for _, told in self._finder.told(self._slot.partition, found, self._plan)]
            yield block

    def findings(self) -> Findings | None:
        """Return the findings, None where no report was asked for."""
        return self._finder.merged(self._slot, self._told) if self._finder and self._told else None

    def _rows(self, rows: pa.Table) -> Iterator[Rows]:
        placed = rows.append_column(
            "partition", pa.array(np.full(rows.num_rows, self._slot.partition, np.int32))
        )
        for batch in placed.combine_chunks().to_batches():
            yield from (found for _, found in rows_of_batch(batch))


def write_ordered(
    workers: Workers,
    sources: Sequence[Source],
    plan: SlotPlan,
    offset_ranges: Sequence[OffsetRange],
    spec: OrderedSpec,
    target: Target,
    *,
    base: Base | None = None,
    finder: Finder | None = None,
    description: str,
    now_ms: int,
    around: Callable[[Task], Task],
) -> list[SlotOutcome]:
    """Fold blocks (`spark_backfill.ordered_rows`) and write their marks; return the outcome of each slot with a block.

    ``base``: the snapshot that offset ranges begin with, where they say so. ``around`` as in
    `spark_backfill.fold.write_slots`; ``now_ms`` is when the run began.
    """
    if not plan.slots:
        return []
    task = writer_of(spec, plan, offset_ranges, target, base=base, finder=finder, now_ms=now_ms)
    written = workers.fold(sources, Folding(around(task), len(plan.slots), BLOCK_ORDER), description)
    return list(map(SlotOutcome.from_json, written))


def writer_of(
    spec: OrderedSpec,
    plan: SlotPlan,
    offset_ranges: Sequence[OffsetRange],
    target: Target,
    *,
    base: Base | None = None,
    finder: Finder | None = None,
    now_ms: int,
) -> OrderedWriter:
    """Return the task that folds and writes; all as in `write_ordered`."""
    taken = {each.partition for each in offset_ranges if each.base is not None}
    entries = () if base is None else base.manifest.partitions
    return OrderedWriter(
        target=target,
        slots=plan.slots,
        offset_ranges={each.partition: each for each in offset_ranges},
        spec=spec,
        now_ms=now_ms,
        bases={
            entry.partition: BaseMarks(base.files, entry)
            for entry in entries
            if base is not None and entry.partition in taken
        },
        finder=finder,
    )


def plan_whole(offset_ranges: Sequence[OffsetRange]) -> SlotPlan:
    """Return the slots of a fold in offset order: each partition that has rows is one."""
    return SlotPlan(tuple(Slot(each.partition, 0, 1) for each in offset_ranges if each.rows))


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        for slot, rows in zip(batch.column("slot"), batch.column("rows"), strict=True):
            yield slot.as_py(), rows.as_py()


def _tally(rows: pa.Table, in_archive: tuple[int, int] | None) -> Tally:
    times = rows.column("timestamp_ms").to_numpy()
    # They ascend, and what an archive has lies below what is read from the topic.
    archived = (
        0 if in_archive is None else int(np.searchsorted(rows.column("offset").to_numpy(), in_archive[1]))
    )
    return Tally(
        first_offset=rows.column("offset")[0].as_py(),
        first_ms=int(times[0]),
        newest_ms=int(times.max()),
        records=rows.num_rows,
        unkeyed=rows.column("digest").null_count,
        archived=archived,
        archived_unkeyed=rows.column("digest").slice(0, archived).null_count,
    )


def _malformed(rule: LastRule, keys: SourceKeys, read: Sequence[bytes | None]) -> int:
    """Return how many of the IDs, as they were read, their order cannot read."""
    ids = keys.ids_of(read)
    compared = Compared(rule.order, ids)
    if compared.numbers is not None or None not in compared.places:
        return 0
    return sum(each is not None and rule.malformed(compared.candidate(row)) for row, each in enumerate(ids))


def _slices(path: Path, cut: int) -> Iterator[tuple[list[int], Int64s, list[bytes | None]]]:
    """Yield offsets, timestamps (ms) and keys of the rows below ``cut`` in a file of blocks, in slices."""
    with path.open("rb") as file:
        while length := file.read(_NUMBER_BYTES):
            rows = rows_in(file.read(int.from_bytes(length, "little")))
            for batch in () if rows is None else rows.combine_chunks().to_batches(_SLICE_RECORDS):
                below = int(np.searchsorted(batch.column("offset").to_numpy(), cut))
                if below:
                    part = batch.slice(0, below)
                    yield (
                        part.column("offset").to_pylist(),
                        part.column("timestamp_ms").to_numpy(),
                        bytes_list(part.column("digest")),
                    )


def _pass_unfinished(
    held: Partition,
    offsets: Sequence[int],
    timestamps_ms: Sequence[int],
    keys: list[bytes | None],
    ends: Ends,
) -> None:
    """Take the keys from records whose unit never ends.

    Each may have been handled by itself, or not, so that it leaves doubt and no mark.
    """
    memory = held.memory
    if not isinstance(memory, UnitMemory):
        raise TypeError(f"{memory} has no units")
    for row, (offset, timestamp_ms) in enumerate(zip(offsets, timestamps_ms, strict=True)):
        key = keys[row]
        if offset in ends.unfinished and key is not None:
            memory.doubt.note([memory.keys.name_of(key)], timestamp_ms)
            keys[row] = None
