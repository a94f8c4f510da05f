"""Re-sharding: where the marks of a topic go that has more partitions than when its records were written.

A record's key says to which partition the next one with that key goes. Where that is another one, its mark is left
in both: in its own partition, where a duplicate may be unread still, and *elsewhere*, in the partition of its key,
as a sighting just before that one's cut (`dedup_sdk._marks.elsewhere`).

**Meaning.** Such a mark has the offset ``~c``, where ``c`` is the cut of the partition that takes it,
``q``, and the timestamp of its own record. It says: when the group had completed ``q`` up to ``c``, it had
completed a record with this ID in another partition. Offsets of two partitions have no order. So it says
nothing of records of ``q`` below ``c``; for those from ``c`` on it counts if it is at most a window older,
or newer (`dedup_sdk._decision`). Any sighting in ``q`` from ``c`` on replaces it, because its offset is
higher.

**Fold.** Marks are copied, not moved. In one partition the last sighting is the one with the highest
offset, among several partitions the one with the latest timestamp; of the last one here and the latest
elsewhere the later is kept, and the one here if both are equal. So an ID of which nothing comes from
elsewhere has the mark that it has without re-sharding. Records without a key leave a mark where they lie
only. Count windows are refused: a rank is one of the partition's own records.

**Nothing is lost**, because

- marks come only from below the group's committed offset of their partition ``p``: the message was handled,
  or was a duplicate of a handled one;
- a reader of ``q`` sees the commits of ``q``, not of ``p``, and a mark from elsewhere names neither its
  partition nor its offset. So such marks are limited by commits where the snapshot is made, and only there:
  from the commits of one group, never vouched for, and only that group takes the snapshot
  (`dedup_sdk._kafka.recover.snapshot`). Commits go back only by a rewind;
- after a rewind of ``p`` alone, or where the commits of the group were deleted, ``q`` still recognises IDs
  completed in ``p`` before. ``p`` delivers these records again, so no message stays unhandled; where
  the record in ``p`` is gone by then, a resend in ``q`` stays hidden for the handling before. A snapshot
  made after the rewind does not have these marks;
- a mark from elsewhere hides a record only within a window, which is the meaning of "the same message";
- a group that is set back before the cut does not take the snapshot, and where the log was cut below ``c``,
  such marks are silent below ``c``: records there are delivered;
- every partition knows only as far back as the one that knows least, because each may have had keys of the
  others. A partition that was committed without our text puts all others in doubt: unverified, and
  delivered;
- a wrong partitioner puts marks where no record asks for them. The keys in the last partition show it,
  because all partitions existed when its first record was written (`Reshard.doubt`).

**Possible duplicates**: a record that is unread in ``p`` while its copy is read from ``q``, or completed in
``p`` after the cut; IDs without a key; IDs under several keys of which none leads to the partition; and, of
an ID with sightings in two partitions more than a window apart, copies of the earlier one.

`tests/property/test_reshard.py` lives through histories with a widened topic against an oracle that knows
all sightings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s, elsewhere
from dedup_sdk._masking import counted, shown
from spark_backfill.errors import BackfillError
from spark_backfill.history import NOTHING_COMMITTED, History
from spark_backfill.offset_range import NOTHING_KNOWN_MS, OffsetRange
from spark_backfill.partitioner import NO_KEY, Partitioner, partitions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """To how many partitions, by which partitioner; ``cuts`` are the offsets (exclusive) where each of them is cut."""

    partitions: int
    partitioner: Partitioner
    cuts: Mapping[int, int] = field(default_factory=dict)

    def targets(self, keys: pa.Array) -> Int64s:
        """Return the partition of each key, `NO_KEY` where there is none."""
        return partitions_of(keys, self.partitioner, self.partitions)

    def offset(self, partition: int) -> int:
        """Return the offset of a mark that comes to a partition from elsewhere."""
        return elsewhere(self.cuts[partition])

    def widened(self, history: History) -> History:
        """Return a history that has all partitions.

        Those that contribute nothing are empty, and take marks of others.

        Raises:
            BackfillError: the topic has more partitions.
        """
        there = {each.partition for each in history.offset_ranges} | set(history.skipped)
        if max(there) >= self.partitions:
            raise BackfillError(
                f"topic {shown(history.topic)} has {counted(max(there) + 1, 'partition')}, and "
                f"--partitions {self.partitions} is fewer: give the number that it has, or will have"
            )
        known = {each.partition: each for each in history.offset_ranges}
        empty = (
            _empty(number, is_new=history.skipped.get(number, NOTHING_COMMITTED) == NOTHING_COMMITTED)
            for number in range(self.partitions)
            if number not in known
        )
        offset_ranges = sorted((*known.values(), *empty), key=lambda each: each.partition)
        return replace(history, offset_ranges=tuple(offset_ranges))

    def with_cuts(self, offset_ranges: Sequence[OffsetRange]) -> Reshard:
        """Return it with the cuts of these offset ranges."""
        return replace(self, cuts={each.partition: each.high for each in offset_ranges})

    def doubt(self, topic: str, partitions: int, records: int, keyless: int, moved: int) -> str | None:
        """Return a line where the partitioner cannot be the producers', None where nothing speaks against it.

        ``partitions`` is how many the topic has, the others are counted of the records of its last one: nobody
        wrote there before it had so many, so that all keys there are placed among so many.
        """
        if partitions != self.partitions or not moved:
            return None
        return (
            f"warning: {moved:,} of {records - keyless:,} records with a key in {topic}[{partitions - 1}] "
            f"would lie elsewhere by {self.partitioner} among {partitions} partitions: is it what the "
            "producers use? See --partitioner"
        )


def _empty(partition: int, *, is_new: bool) -> OffsetRange:
    return OffsetRange(
        partition=partition,
        low=0,
        begin=0,
        high=0,
        complete=is_new,
        known_from_ms=None if is_new else NOTHING_KNOWN_MS,
    )


def is_moved(targets: Int64s, partition: int) -> NDArray[np.bool_]:
    """Return which records of a partition have a key that goes to another one now."""
    moved: NDArray[np.bool_] = (targets != NO_KEY) & (targets != partition)
    return moved
