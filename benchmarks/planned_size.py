"""The tasks and files of a backfill of a given size, by the job's own planner: nothing is read.

Partitions are equally full, and digests uniform. A *night* is a run of ``--add``; the base has a snapshot of all IDs,
and the layers of the nights before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup_sdk import Window
from dedup_sdk._store.manifest import RANK_DIGITS, Manifest, SortedFile, filter_bounds
from dedup_sdk.ids import header
from spark_backfill.base import entries_of
from spark_backfill.base_reader import BaseFile, share_out
from spark_backfill.client_reader import Range, plan_ranges
from spark_backfill.history import History
from spark_backfill.layers import most_layers, on_layers
from spark_backfill.offset_range import OffsetRange, log_bounds
from spark_backfill.range_plan import on_base
from spark_backfill.runs import Tally
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot, SlotPlan, plan_slots
from spark_backfill.snapshot import make_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANKS: Final = 16**RANK_DIGITS
_DIGEST_DIGITS: Final = 32
_BYTES_AN_ID: Final = 25
_NOW_MS: Final = 1_700_000_000_000
WINDOW: Final = Window(days=365)
SPEC: Final = header("dedup-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a topic: records of all partitions together, and those of a night; tasks that run at a time."""

    records: int
    partitions: int
    cores: int
    nightly: int


class Planned(NamedTuple):
    """A run as the job would plan it: ranges of the topic, tasks that read the base, slots, and the base's files."""

    offset_ranges: tuple[OffsetRange, ...]
    ranges: tuple[Range, ...]
    base_tasks: tuple[tuple[BaseFile, ...], ...]
    slots: SlotPlan

    @property
    def read_tasks(self) -> int:
        """How many tasks read, from the topic or the base."""
        return len(self.ranges) + len(self.base_tasks)

    @property
    def slot_rows(self) -> int:
        """The rows of the largest slot."""
        ranges = {slot.partition: slot.ranges for slot in self.slots.slots}
        return max(-(-each.rows // ranges[each.partition]) for each in self.offset_ranges if each.rows)


def shares(total: int, parts: int) -> list[int]:
    """Return so many about equal whole numbers of this sum."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def plan_full(size: Size) -> Planned:
    """Plan a run that reads all records."""
    return _planned(
        [
            OffsetRange(partition=partition, low=0, begin=0, high=high, complete=True, keep_from_ms=None)
            for partition, high in enumerate(shares(size.records, size.partitions))
        ],
        size.cores,
        None,
    )


def plan_night(base: Manifest, size: Size, *, anew: bool = False) -> Planned:
    """Plan a run that adds a night's records to a snapshot; ``anew``: it writes all partitions anew."""
    entries = entries_of(base)
    ranges = []
    for partition, added in enumerate(shares(size.nightly, size.partitions)):
        entry = entries[partition]
        above = OffsetRange(
            partition=partition,
            low=entry.high,
            begin=entry.high,
            high=entry.high + added,
            complete=True,
            keep_from_ms=None,
        )
        ranges.append(on_base(above, entry, low=0, counted=False))
    return _planned(ranges if anew else on_layers(ranges, base), size.cores, base)


def snapshot_of(planned: Planned, run: int) -> Manifest:
    """Return the manifest that this run, by its number, would write; each row is an ID of its own."""
    rows = {each.partition: each.rows for each in planned.offset_ranges}
    outcomes = []
    for number, slot in enumerate(planned.slots.slots):
        marks = shares(rows[slot.partition], slot.ranges)[slot.range]
        name = f"{slot.range:05d}-{run:016x}-{number:08x}"
        outcomes.append(_outcome(number, name, slot, marks))
    history = History(
        cluster="c" * 22, topic="orders", topic_id="t" * 22, offset_ranges=planned.offset_ranges
    )
    return make_manifest(
        history,
        planned.slots,
        outcomes,
        spec=SPEC,
        window=WINDOW,
        group="billing",
        isolation="read_committed",
        created_ms=_NOW_MS,
    )


def nights(size: Size) -> list[tuple[Planned, Manifest]]:
    """Plan a full run and nights behind it, up to one that writes all partitions anew, which is the last.

    The job writes some of them anew in each night (`spark_backfill.layers.most_layers`); the nights before have none.
    """
    full = plan_full(size)
    found = [(full, snapshot_of(full, 0))]
    layered = min(map(most_layers, range(size.partitions))) - 1
    for run in range(1, layered + 2):
        planned = plan_night(found[-1][1], size, anew=run > layered)
        found.append((planned, snapshot_of(planned, run)))
    return found


def nights_a_round(size: Size) -> float:
    """Return in how many nights a partition is written anew once, in the mean."""
    return sum(map(most_layers, range(size.partitions))) / size.partitions


def _planned(offset_ranges: Sequence[OffsetRange], cores: int, base: Manifest | None) -> Planned:
    floors = {each.partition for each in offset_ranges if each.base is not None and each.base.staying is None}
    entries = base.partitions if base is not None else ()
    files = [
        BaseFile(entry.partition, file)
        for entry in entries
        if entry.partition in floors
        for file in entry.files
    ]
    return Planned(
        tuple(offset_ranges),
        plan_ranges(log_bounds(offset_ranges), cores),
        share_out(files, parallelism=cores) if files else (),
        plan_slots(offset_ranges, parallelism=cores),
    )


def _outcome(number: int, name: str, slot: Slot, marks: int) -> SlotOutcome:
    first, last = (_RANKS * (slot.range + end) // slot.ranges - end for end in (0, 1))
    tail = _DIGEST_DIGITS - RANK_DIGITS
    file = SortedFile(
        name=name,
        marks=marks,
        bytes=_BYTES_AN_ID * marks,
        smallest=f"{first:0{RANK_DIGITS}x}{'0' * tail}",
        largest=f"{last:0{RANK_DIGITS}x}{'f' * tail}",
        oldest_ms=_NOW_MS,
        newest_ms=_NOW_MS,
        newest_number=None,
        fingerprint=f"{number:032x}",
        sha256=f"{number:064x}",
        filter_bytes=filter_bounds(marks)[0],
        filter_sha256=f"{number:064x}",
    )
    return SlotOutcome(
        slot=number,
        tally=Tally(first_offset=0, first_ms=_NOW_MS, newest_ms=_NOW_MS, records=marks),
        accepted=0,
        forgotten_ms=None,
        forgotten_number=None,
        file=file if marks else None,
    )
