"""Slots: the units of the one shuffle, each a digest range of one partition, each one sorted file.

Digests are uniform (they are SHA-256), so that ranges of equal size are known in advance to be of equal load, without a
pass over the data to find bounds. A fold in offset order has a whole partition as one slot
(`spark_backfill.ordered_fold.plan_whole`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk._marks import DIGEST_BYTES
from spark_backfill.offset_range import OffsetRange

ROWS_PER_SLOT: Final = 2_000_000
"""A task sorts its slot in memory: some 100 bytes a row."""

WORTH_SPLITTING: Final = 100_000
_PREFIX_VALUES: Final = 65_536
_WORD_BYTES: Final = 4


class Slot(NamedTuple):
    """A digest range of a partition; ``range`` counts them, ascending, of ``ranges`` equal ones."""

    partition: int
    range: int
    ranges: int


@dataclass(frozen=True)
class SlotPlan:
    """All slots, in order of their numbers: a slot's number is its place."""

    slots: tuple[Slot, ...]

    def cut(self, partition: int, digests: bytes, most: int) -> Iterator[tuple[int, int, int]]:
        """Yield slot, start and end of the digests that lie in one slot, at most so many at a time.

        ``digests`` are ``16 * n`` bytes, ascending where the partition has more than one slot. The slot is found from
        the first two bytes of a digest. Raises `KeyError` where the plan does not have the partition.
        """
        first = self._first[partition]
        ranges = self.slots[first].ranges
        edges = [0, len(digests) // DIGEST_BYTES]
        if ranges > 1:
            prefixes = np.frombuffer(digests, ">u2").reshape(-1, DIGEST_BYTES // 2)[:, 0].astype(np.int64)
            indexes = prefixes * ranges // _PREFIX_VALUES
            edges = np.searchsorted(indexes, np.arange(ranges + 1)).tolist()
        for index, (start, end) in enumerate(pairwise(edges)):
            for begin in range(start, end, most):
                yield first + index, begin, min(begin + most, end)

    def ranges(self, partition: int) -> range:
        """Return all slots of a partition; `KeyError` as in `cut`."""
        first = self._first[partition]
        return range(first, first + self.slots[first].ranges)

    @functools.cached_property
    def _first(self) -> dict[int, int]:
        return {slot.partition: number for number, slot in enumerate(self.slots) if slot.range == 0}


def plan_slots(offset_ranges: Sequence[OffsetRange], *, parallelism: int, arriving: int = 0) -> SlotPlan:
    """Cut the partitions that have something to fold into slots.

    ``parallelism`` is how many tasks run at a time. ``arriving``: about how
    many marks come to each partition from others, so that each has slots.
    """
    busy = [offset_range for offset_range in offset_ranges if offset_range.rows or arriving]
    least = -(-parallelism // len(busy)) if busy else 1
    slots: list[Slot] = []
    for offset_range in busy:
        ranges = 1
        rows = offset_range.rows + arriving
        if rows > WORTH_SPLITTING:
            ranges = min(max(-(-rows // ROWS_PER_SLOT), least), _PREFIX_VALUES)
        slots += [Slot(offset_range.partition, number, ranges) for number in range(ranges)]
    return SlotPlan(tuple(slots))


def placement_column(slot: Column, count: int) -> Column:
    """Return a column by which ``repartition(count, column)`` gives every slot a task of its own.

    Spark places a row by a hash of the column, which would put several slots into one task and none into another.
    So each slot gets an integer that Spark's own hash sends to the task of the slot's number. They lie in one binary
    literal: a list would be a call of the JVM for each.

    Spark 4.1 can be told the task itself (``repartitionById``); older ones cannot, but by an RDD or a job that asks
    for the hashes.
    """
    tasks = keys = np.empty(0, np.int64)
    candidates = 16 * count
    while len(keys) < count:
        tasks, keys = np.unique(
            _spark_hash(np.arange(candidates, dtype=np.uint32)) % count, return_index=True
        )
        candidates *= 4
    packed = F.lit(bytearray(keys[np.argsort(tasks)].astype(">i4").tobytes()))
    word = packed.substr(slot * _WORD_BYTES + 1, F.lit(_WORD_BYTES))
    return F.conv(F.hex(word), 16, 10).cast("int")


def _spark_hash(numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return Spark's ``hash`` of integers.

    MurmurHash3 (x86, 32 bits) of their four bytes, with seed 42, signed.
    """
    mixed = _rotated(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(mixed ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return mixed.view(np.int32).astype(np.int64)


def _rotated(words: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))
