"""Runs: rows of a log, folded and packed before they are shuffled.

A *run* is the rows of one partition that one task has read, at most some hundred thousand rows. It leaves the task as
*blocks*, one or a few a slot: a block is one row for Spark, with its marks as a few packed columns. So the shuffle
moves few large rows; millions of small ones would cost more than reading the log does, in conversions alone. A row has
at most `PIECE_BYTES`, because the JVM holds some copies of one for each core. In a run each ID has one mark already, so
that an ID on half of all records is a mark a run. Where a topic is re-sharded a run leaves blocks in other partitions'
slots, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dedup_sdk._marks import (
    DIGEST_BYTES,
    NO_MARKS,
    Int64s,
    Marks,
    cut_marks,
    join_marks,
    select_marks,
    take_digests,
)
from dedup_sdk._store.pages import newest_per_digest
from spark_backfill.duplicate_offsets import check_one_record, watched_marks
from spark_backfill.findings.producer_codes import Producers
from spark_backfill.partitioner import NO_KEY
from spark_backfill.reshard import Reshard, is_moved
from spark_backfill.reshard_fold import latest_per_digest
from spark_backfill.slots import SlotPlan

RUN_ROWS: Final = 500_000
"""Rows of a run: some 50 bytes of memory each, twice while they are sorted."""

PIECE_BYTES: Final = 4 * 2**20
_NUMBER_BYTES: Final = 8
PIECE_MARKS: Final = PIECE_BYTES // (DIGEST_BYTES + 2 * _NUMBER_BYTES)
"""Marks of a block: digest, offset and timestamp."""

BLOCK_SCHEMA: Final = (
    "slot int, first_offset long, first_ms long, newest_ms long, records long, unkeyed long, keyless long, moved long, "
    "redriven long, archived long, archived_unkeyed long, "
    "digests binary, offsets binary, timestamps binary, forgotten_ms long, told binary, "
    "watched_digests binary, watched_offsets binary"
)
_NAMES: Final = [column.split()[0] for column in BLOCK_SCHEMA.split(", ")]
_COUNTED: Final = 10
_TYPES: Final = [
    pa.int32(), *[pa.int64()] * _COUNTED, *[pa.binary()] * 3, pa.int64(), *[pa.binary()] * 3,
]  # fmt: skip
_NO_OFFSET: Final = 2**63 - 1


@dataclass(slots=True)
class Tally:
    """The counts of rows: how many, how many of them without an ID, and where and when they lie.

    ``first_offset`` is the lowest offset and ``first_ms`` its timestamp; ``newest_ms`` the newest timestamp, -1
    without any. Where they are re-sharded, ``keyless`` have no key, and the key of those that ``moved`` goes to
    another partition now. ``redriven`` leave two marks, one as the group that a redrive header names knows them.
    ``archived`` and ``archived_unkeyed``: those of ``records`` and ``unkeyed`` that an archive has.
    """

    first_offset: int = _NO_OFFSET
    first_ms: int = -1
    newest_ms: int = -1
    records: int = 0
    unkeyed: int = 0
    keyless: int = 0
    moved: int = 0
    redriven: int = 0
    archived: int = 0
    archived_unkeyed: int = 0

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the tally of all of these rows."""
        found = cls()
        for each in tallies:
            found.add(each)
        return found

    @property
    def begin_ms(self) -> int | None:
        """The timestamp (ms) where these rows begin, None where none has one.

        It is that of the newest where the first one has none.
        """
        if self.newest_ms < 0:
            return None
        return self.first_ms if self.first_ms >= 0 else self.newest_ms

    def add(self, other: Tally) -> None:
        """Count those rows, too."""
        if other.first_offset < self.first_offset:
            self.first_offset, self.first_ms = other.first_offset, other.first_ms
        self.newest_ms = max(self.newest_ms, other.newest_ms)
        self.records += other.records
        self.unkeyed += other.unkeyed
        self.keyless += other.keyless
        self.moved += other.moved
        self.redriven += other.redriven
        self.archived += other.archived
        self.archived_unkeyed += other.archived_unkeyed


class Rows(NamedTuple):
    """Rows of one partition: ``n`` offsets and timestamps (ms), and the digests of those that have an ID.

    ``keyed`` says which do (bool, shape ``(n,)``); None: all. ``producers`` are those of all ``n`` rows, None
    where nobody asked. So are ``targets``: where records of the same key go now (`spark_backfill.reshard`); and
    ``redriven``: the digests of IDs together with redrive headers, None in a row without one.
    """

    offsets: Int64s
    timestamps: Int64s
    digests: bytes
    keyed: NDArray[np.bool_] | None = None
    producers: Producers | None = None
    targets: Int64s | None = None
    redriven: Sequence[bytes | None] | None = None

    def tally(self, partition: int, *, archived: bool = False) -> Tally:
        """Count them, which are of this partition, and all of the archive or none; there is at least one."""
        first = int(self.offsets.argmin())
        unkeyed = 0 if self.keyed is None else int(len(self.keyed) - self.keyed.sum())
        return Tally(
            first_offset=int(self.offsets[first]),
            first_ms=int(self.timestamps[first]),
            newest_ms=int(self.timestamps.max()),
            records=len(self.offsets),
            unkeyed=unkeyed,
            keyless=0 if self.targets is None else int((self.targets == NO_KEY).sum()),
            moved=0 if self.targets is None else int(is_moved(self.targets, partition).sum()),
            redriven=sum(each is not None for each in self.redriven or ()),
            archived=len(self.offsets) if archived else 0,
            archived_unkeyed=unkeyed if archived else 0,
        )

    def once(self, *, after: int) -> Rows:
        """Return each offset's row once, and only those above ``after``; the offsets have to ascend."""
        new = np.diff(self.offsets, prepend=after) > 0
        return self if new.all() else _where(self, new)

    def marks(self) -> Marks:
        """Return those that have an ID, as marks."""
        if self.keyed is None:
            return Marks(self.digests, self.offsets, self.timestamps)
        return Marks(self.digests, self.offsets[self.keyed], self.timestamps[self.keyed])

    def redriven_marks(self) -> Marks | None:
        """Return the marks that redriven IDs leave besides; None: there are none."""
        found = [(row, digest) for row, digest in enumerate(self.redriven or ()) if digest is not None]
        if not found:
            return None
        rows = [row for row, _ in found]
        return Marks(b"".join(digest for _, digest in found), self.offsets[rows], self.timestamps[rows])

    def moved(self, partition: int) -> _Moved | None:
        """Return those that have an ID, and a key that goes to another partition than this one now.

        None: there are none.
        """
        if self.targets is None:
            return None
        targets = self.targets if self.keyed is None else self.targets[self.keyed]
        places = np.flatnonzero(is_moved(targets, partition))
        return _Moved(targets[places], select_marks(self.marks(), places)) if places.size else None


class _Moved(NamedTuple):
    targets: Int64s
    marks: Marks


ReportBlocks = Callable[[int, Sequence[Rows], SlotPlan], Iterator[tuple[int, bytes]]]
"""What a run of these rows of a partition tells which slots for a report."""


class Block(NamedTuple):
    """A part of a run for one slot: marks, or the counts of the run, or what it has told for a report.

    The marks ascend by digest, each digest once. The counts go to the partition's first slot: the tally, and the marks
    of offsets that are ``watched`` (`spark_backfill.duplicate_offsets`; None: none are), of which the timestamps do not
    count. ``told``: see `ReportBlocks`.

    Blocks of a base have nothing to count, but ``forgotten_ms``, the newest timestamp of its marks that were left
    out (None: none were).
    """

    slot: int
    tally: Tally
    marks: Marks = NO_MARKS
    told: bytes | None = None
    forgotten_ms: int | None = None
    watched: Marks | None = None


@dataclass(slots=True)
class _Pending:
    tally: Tally = field(default_factory=Tally)
    marks: list[Marks] = field(default_factory=list)
    moved: list[_Moved] = field(default_factory=list)
    redriven: list[Marks] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)


class RunPacker:
    """Takes rows, gives blocks. For one task; rows of several partitions may come in turns.

    ``told``: a report was asked for, so that rows have to come by offset, each offset once, and what each run tells
    goes with its blocks. ``reshard``: marks go to the partition of their record's key, too. ``watch``: by partition the
    bits of `watched_marks`, where rows may come from two logs. ``archived``: the rows are those of an archive.
    """

    def __init__(
        self,
        plan: SlotPlan,
        *,
        told: ReportBlocks | None = None,
        reshard: Reshard | None = None,
        watch: Mapping[int, int] | None = None,
        archived: bool = False,
        run_rows: int = RUN_ROWS,
    ) -> None:
        self._plan = plan
        self._watch = watch or {}
        self._archived = archived
        self._told = told
        self._reshard = reshard
        self._run_rows = run_rows
        self._rows = 0
        self._pending: dict[int, _Pending] = {}

    def add(self, partition: int, rows: Rows) -> Iterator[Block]:
        """Take rows; yields blocks when a run is long enough."""
        if not len(rows.offsets):
            return
        pending = self._pending.setdefault(partition, _Pending())
        pending.tally.add(rows.tally(partition, archived=self._archived))
        pending.marks.append(rows.marks())
        if (moved := rows.moved(partition)) is not None:
            pending.moved.append(moved)
        if (redriven := rows.redriven_marks()) is not None:
            pending.redriven.append(redriven)
        if self._told is not None:
            pending.rows.append(rows)
        self._rows += len(rows.offsets)
        if self._rows >= self._run_rows:
            yield from self.finish()

    def finish(self) -> Iterator[Block]:
        """Yield the blocks that are left."""
        self._rows = 0
        while self._pending:
            partition, pending = self._pending.popitem()
            marks = join_marks(pending.marks)
            if self._told is None:
                check_one_record(partition, marks)
            yield Block(
                self._plan.ranges(partition).start,
                pending.tally,
                watched=watched_marks(marks, self._watch[partition]) if partition in self._watch else None,
            )
            yield from self._pieces(partition, newest_per_digest(marks))
            if self._told is not None:
                for slot, told in self._told(partition, pending.rows, self._plan):
                    yield Block(slot, Tally(), told=told)
            if pending.moved and self._reshard is not None:
                yield from self._moved_blocks(pending.moved, self._reshard)
            if pending.redriven:
                # Two records of one ID at one offset: no fault of the log, and none that is counted twice.
                yield from self._pieces(partition, newest_per_digest(join_marks(pending.redriven)))

    def _moved_blocks(self, parts: Sequence[_Moved], reshard: Reshard) -> Iterator[Block]:
        targets = np.concatenate([part.targets for part in parts])
        marks = join_marks([part.marks for part in parts])
        order = np.argsort(targets, kind="stable")
        numbers, starts = np.unique(targets[order], return_index=True)
        for target, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            latest = latest_per_digest(select_marks(marks, places))
            yield from self._pieces(
                target, replace(latest, offsets=np.full(latest.count, reshard.offset(target), np.int64))
            )

    def _pieces(self, partition: int, marks: Marks) -> Iterator[Block]:
        for slot, start, end in self._plan.cut(partition, marks.digests, PIECE_MARKS):
            yield Block(slot, Tally(), cut_marks(marks, start, end))


def to_batch(block: Block) -> pa.RecordBatch:
    """Return a block as a row of `BLOCK_SCHEMA`."""
    marks = block.marks
    packed = (marks.digests, marks.offsets.tobytes(), marks.timestamps.tobytes())
    found = (
        block.forgotten_ms,
        block.told,
        None if block.watched is None else block.watched.digests,
        None if block.watched is None else block.watched.offsets.tobytes(),
    )
    values = (block.slot, *astuple(block.tally), *packed, *found)
    columns = [pa.array([value], kind) for value, kind in zip(values, _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, _NAMES)


def from_batch(batch: pa.RecordBatch) -> Iterator[Block]:
    """Read rows of `BLOCK_SCHEMA`. Columns that do not fit together are an error: they would make wrong marks."""
    columns = [batch.column(name) for name in _NAMES]
    for row in range(batch.num_rows):
        slot, *counted = (column[row].as_py() for column in columns[: 1 + _COUNTED])
        digests, *packed, forgotten_ms, told, watched, places = (
            column[row].as_py() for column in columns[1 + _COUNTED :]
        )
        offsets, timestamps = (np.frombuffer(each, np.int64) for each in packed)
        marks = Marks(digests, offsets, timestamps)
        lengths = {len(each) for each in (offsets, timestamps)}
        if lengths != {len(digests) / DIGEST_BYTES}:
            message = (
                f"a block of slot {slot} has {len(digests)} bytes of digests, and columns of "
                f"{sorted(lengths)} values; the shuffle has damaged it, run the job again"
            )
            raise ValueError(message)
        yield Block(
            slot,
            Tally(*counted),
            marks,
            told,
            forgotten_ms,
            None if watched is None else _watched(watched, np.frombuffer(places, np.int64)),
        )


def _watched(digests: bytes, offsets: Int64s) -> Marks:
    return Marks(digests, offsets, np.zeros(len(offsets), np.int64))


def by_partition(partitions: NDArray[Any], rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Deal rows out to their partitions (integers of shape ``(n,)``, at least one), in which they keep their order."""
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), rows
        return
    for partition in np.unique(partitions).tolist():
        yield partition, _where(rows, partitions == partition)


def _where(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    inside = mask if rows.keyed is None else mask[rows.keyed]
    digests = take_digests(rows.digests, np.flatnonzero(inside))
    keyed = None if rows.keyed is None else rows.keyed[mask]
    producers = None if rows.producers is None else rows.producers._replace(codes=rows.producers.codes[mask])
    targets = None if rows.targets is None else rows.targets[mask]
    redriven = (
        None if rows.redriven is None else [rows.redriven[row] for row in np.flatnonzero(mask).tolist()]
    )
    return Rows(rows.offsets[mask], rows.timestamps[mask], digests, keyed, producers, targets, redriven)
