"""The recent marks of a partition whose IDs are looked up, and its IDs in flight: one hash table in columns.

entry
    the number of an ID in the columns: digests, offsets, timestamps
bucket
    eight slots. The first bits of a digest's first word select the bucket.
slot
    the number of an entry, and 32 bits of its digest, its *tag* (0: the slot is free). Where a bucket is full, a
    dictionary has the entries of further IDs.

A batch is found or added by some forty calls of numpy. A dictionary of `bytes` takes longer, and its million small
objects lie scattered among the messages, which makes all else slower, too (``benchmarks/hot_path.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._core.memory import Taken
from dedup_sdk._decision import Mark
from dedup_sdk._marks import DIGEST_BYTES, Found, Int64s, Marks, join_marks

Bools = NDArray[np.bool_]
Entries = NDArray[np.intp]

_SLOTS: Final = 8
_ROW: Final = 2 * _SLOTS
"""A bucket is a row of its tags, then its entries, so that it is one line of the processor's cache."""
_MEAN_USED: Final = 3
"""The table grows when a bucket has so many entries on average; then one bucket in 80 is full."""
_FEWEST_BITS: Final = 7
_WRITTEN_AT_ONCE: Final = 16_384
_GROWTH_BITS: Final = 2
_MOST_EXPECTED: Final = 131_072
"""There is room for so many entries at most before they come: six megabytes with their columns."""
_WORD_BITS: Final = 64
_TAG_MASK: Final = 2**32 - 1
_GONE: Final = 2
"""The tag of an entry that was dropped: that of no digest, because those are odd."""
_FEW: Final = 32
"""So many IDs are looked up one by one: numpy's calls would take longer."""
_MOST_DROPPED: Final = 4_096
"""With more dropped entries than that, and than others, the table is made anew."""
_DROPPED: Final = int(np.iinfo(np.int64).min)
"""The offset of an entry that was dropped."""
_FIRST_WORD: Final = Struct("<Q8x")
_WORD: Final = np.dtype("<u8")
_DIGEST: Final = np.dtype(f"V{DIGEST_BYTES}")
_BYTES_SUM: Final = np.uint64(0x0101010101010101)
"""Times this factor, the last byte of a word is the sum of its bytes."""
_LAST_BYTE: Final = np.uint64(56)
_BUCKET: Final = np.dtype(f"V{4 * _ROW}")


class Existing(NamedTuple):
    """Those of some IDs that had an entry already: their positions, ascending, and their entries."""

    indexes: Entries
    entries: Entries


_NONE_EXISTING: Final = Existing(np.empty(0, np.intp), np.empty(0, np.intp))


class RecentMarks:
    """Digest -> offset and timestamp of the newest record with that ID, completed or in flight.

    The watermark tells whether that record is completed (then the entry is a mark) or in flight. So completing a
    record changes nothing here, and one look-up a record answers three questions: is it a duplicate in this batch, is
    it in flight, was it seen lately.

    ``behind`` keeps the completed mark of an ID that is in flight again. A flush writes that mark too, because the mark
    must outlive a crash before the record is completed. If the mark has a higher offset than the record, the mark stays
    when the record is completed. ``older_in_flight`` has the marks, ascending by offset, of an ID's other records in
    flight, below the newest one. Only observe mode fills the dictionary: there nothing is held back, and a completed
    duplicate may lie below a record in flight. ``room``: the number of entries for which there is memory.
    """

    def __init__(self) -> None:
        self.behind: dict[bytes, Mark] = {}
        self.older_in_flight: dict[bytes, list[Mark]] = {}
        self._begin(0)

    def __len__(self) -> int:
        return self._count - self._dropped

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, bytes) and self.entry_of(digest) >= 0

    # --- one ID --------------------------------------------------------------------------------------------

    def get(self, digest: bytes) -> Mark | None:
        """Return the newest record with an ID, None without one."""
        entry = self.entry_of(digest)
        return None if entry < 0 else Mark(self._offsets.item(entry), self._timestamps.item(entry))

    def put(self, digest: bytes, offset: int, timestamp_ms: int) -> None:
        """Make a record the newest with its ID."""
        entry = self.find_or_enter(digest, offset, timestamp_ms)
        if entry >= 0:
            self._offsets[entry], self._timestamps[entry] = offset, timestamp_ms

    def begin(self, digest: bytes, offset: int, timestamp_ms: int) -> None:
        """Put an ID in flight in front of the mark that it has."""
        mark = self.get(digest)
        # `find_or_add` may have entered this very record: then no older mark is there to keep.
        if mark is not None and mark.offset != offset:
            self.behind[digest] = mark
        self.put(digest, offset, timestamp_ms)

    def complete(self, digest: bytes, offset: int) -> None:
        """Make the ID in flight at ``offset`` a mark, unless the mark behind it lies higher."""
        behind = self.behind.pop(digest, None)
        if behind is not None and behind.offset > offset:
            self.put(digest, behind.offset, behind.timestamp_ms)

    def cover(self, digest: bytes, offset: int, timestamp_ms: int) -> None:
        """Put a duplicate in front of an ID that is in flight, and in flight stays."""
        mark = self.get(digest)
        if mark is not None:
            self.older_in_flight.setdefault(digest, []).append(mark)
        self.put(digest, offset, timestamp_ms)

    def complete_older_in_flight(self, digest: bytes, is_open: Callable[[int], bool]) -> None:
        """Make the newest completed of an ID's covered records its mark behind, unless a higher mark is there."""
        covered = self.older_in_flight[digest]
        still = [mark for mark in covered if is_open(mark.offset)]
        ended = [mark for mark in covered if mark not in still]
        if still:
            self.older_in_flight[digest] = still
        else:
            del self.older_in_flight[digest]
        behind = self.behind.get(digest)
        if ended and (behind is None or behind.offset < ended[-1].offset):
            self.behind[digest] = ended[-1]

    def drop(self, digest: bytes, offset: int) -> None:
        """Forget an ID that a unit stood in line for at ``offset``, which leaves no mark of it."""
        entry = self.entry_of(digest)
        if entry >= 0 and self._offsets[entry] == offset:
            self._offsets[entry] = _DROPPED
            self._dropped += 1
            if self._overflow.pop(digest, None) is None:
                # Not 0: a batch takes the number of used slots for the place of the next one.
                # Free slots name entry 0, too: only the tag tells the slot of the first entry apart.
                bucket = self._buckets[_FIRST_WORD.unpack(digest)[0] >> self._shift]
                bucket[:_SLOTS][(bucket[_SLOTS:] == entry) & (bucket[:_SLOTS] != 0)] = _GONE
            if self._dropped > max(_MOST_DROPPED, len(self)):
                self._keep(self._live())

    # --- columns -------------------------------------------------------------------------------------------

    def find_or_add(self, digests: bytes, offsets: Int64s, timestamps: Int64s) -> Existing:
        """Put IDs in flight that have no entry, of ``n`` joined digests, and return the others.

        An ID that comes more than once is put in flight at its first place, and returned for the others.
        """
        count = len(offsets)
        if count <= _FEW:
            return self._find_or_add_each(range(count), digests, offsets, timestamps)
        if self._count + count > self.room:
            self._reserve(count)
        cells = np.frombuffer(digests, _DIGEST)
        first = cells.view(_WORD)[::2]
        buckets = _indexes(first >> np.uint64(self._shift))
        tags = first.astype(np.uint32) | np.uint32(1)
        copied = self._copy_of(buckets)
        # An ID in the overflow is not found here. Its bucket is full, so that the ID is among the late ones.
        existing = self._find_all(cells, tags, copied)
        rows = np.arange(count)
        if len(existing.indexes):
            unknown = np.ones(count, np.bool_)
            unknown[existing.indexes] = False
            rows = unknown.nonzero()[0]
        used = _words(copied[:, :_SLOTS] != 0) * _BYTES_SUM >> _LAST_BYTE
        late = self._enter_all(
            rows,
            cells,
            tags,
            buckets * _ROW,
            _indexes(used),
            offsets,
            timestamps,
        )
        return (
            _joined(existing, self._find_or_add_each(late, digests, offsets, timestamps))
            if late
            else existing
        )

    def marks_at(self, entries: Entries) -> tuple[Int64s, Int64s]:
        """Return offsets and timestamps of entries, shapes ``(k,)``."""
        return self._offsets[entries], self._timestamps[entries]

    def move(self, entries: Entries, offsets: Int64s, timestamps: Int64s) -> None:
        """Make records the newest of their entries, shapes ``(k,)``; of an entry that comes twice the last counts."""
        self._offsets[entries], self._timestamps[entries] = offsets, timestamps

    def fold(self, digests: bytes, offsets: Int64s, timestamps: Int64s) -> None:
        """Take completed records over, ascending by offset; an entry of a higher offset stays."""
        indexes, entries = self.find_or_add(digests, offsets, timestamps)
        later = self._offsets[entries] < offsets[indexes]
        # Of an ID that comes more than once, the last assignment counts.
        self.move(entries[later], offsets[indexes[later]], timestamps[indexes[later]])

    def keep_from(self, offset: int) -> None:
        """Forget the IDs whose record lies below ``offset``."""
        entries = self._live()
        self._keep(entries[self._offsets[entries] >= offset])

    def clear(self) -> None:
        """Forget all entries."""
        self._begin(0)

    def take(self, are_open: Callable[[Int64s], Bools]) -> Taken:
        """Remove all marks of IDs that are not in flight, and return them with those of ``behind``, which stay.

        ``are_open`` returns for an array of offsets, shape ``(n,)``, which of them are not completed. The marks keep
        this table, so that `find` still works; IDs in flight move to a new one.
        """
        entries = self._live()
        are_in_flight = are_open(self._offsets[entries])
        marks, in_flight = self._marks(entries[~are_in_flight]), entries[are_in_flight]
        taken, offsets = copy(self), self._offsets
        self._keep(in_flight)
        # In the old table, which the flush searches, IDs in flight are no marks. `_keep` still needed them.
        offsets[in_flight] = _DROPPED
        # The records that a mark covers are older than it, whether they are completed or not.
        self.older_in_flight = {
            digest: under for digest, under in self.older_in_flight.items() if digest in self
        }
        if self.behind:
            columns = np.asarray([mark[:2] for mark in self.behind.values()], np.int64)
            marks = join_marks([marks, Marks(b"".join(self.behind), columns[:, 0], columns[:, 1])])
        return Taken(marks, taken.find)

    def put_back(self, marks: Marks, are_open: Callable[[Int64s], Bools]) -> None:
        """Take marks back that `take` returned; ``are_open`` as there.

        An ID that went in flight since stays in front of its mark; of two marks the higher one stays.
        """
        indexes, entries = self.find_or_add(marks.digests, marks.offsets, marks.timestamps)
        offsets = self._offsets[entries]
        in_flight, higher = are_open(offsets), offsets < marks.offsets[indexes]
        moved = higher & ~in_flight
        self.move(entries[moved], marks.offsets[indexes[moved]], marks.timestamps[indexes[moved]])
        for index in indexes[in_flight].tolist():
            digest = marks.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]
            mark = Mark(marks.offsets.item(index), marks.timestamps.item(index))
            self.behind[digest] = max(mark, self.behind.get(digest, mark))

    def find(self, digests: bytes, count: int) -> Found:
        """Look up ``count`` joined digests among the entries, as a store does."""
        found = self._find_each(range(count), digests) if count <= _FEW else self._find_columns(digests)
        offsets, timestamps = self.marks_at(found.entries)
        live = offsets != _DROPPED
        return Found(found.indexes[live].tolist(), offsets[live].tolist(), timestamps[live].tolist())

    def _find_each(self, rows: Iterable[int], digests: bytes) -> Existing:
        existing = [
            (row, entry)
            for row in rows
            if (entry := self.entry_of(digests[DIGEST_BYTES * row : DIGEST_BYTES * (row + 1)])) >= 0
        ]
        return _existing(existing)

    def _find_columns(self, digests: bytes) -> Existing:
        cells = np.frombuffer(digests, _DIGEST)
        first = cells.view(_WORD)[::2]
        buckets = _indexes(first >> np.uint64(self._shift))
        copied = self._copy_of(buckets)
        existing = self._find_all(cells, first.astype(np.uint32) | np.uint32(1), copied)
        # Slots fill from the left: only a bucket whose last slot is taken can have entries in the overflow.
        full = (copied[:, _SLOTS - 1] != 0).nonzero()[0]
        others = (
            [row for row in full.tolist() if cells[row].tobytes() in self._overflow] if self._overflow else []
        )
        return _joined(existing, self._find_each(others, digests))

    def _marks(self, entries: Entries) -> Marks:
        return Marks(self._cells.take(entries).tobytes(), *self.marks_at(entries))

    def _live(self) -> Entries:
        """Return all entries, ascending: in the order in which they were added."""
        entries: Entries = (self._offsets[: self._count] != _DROPPED).nonzero()[0]
        return entries

    def _keep(self, entries: Entries) -> None:
        """Forget all other entries. The new table has room for as many as before: growing costs time."""
        kept = self._marks(entries)
        self._begin(min(len(self), _MOST_EXPECTED))
        self.find_or_add(kept.digests, kept.offsets, kept.timestamps)

    # --- the table -----------------------------------------------------------------------------------------

    def _begin(self, expected: int) -> None:
        """Begin without entries, with room for so many."""
        self._offsets = self._timestamps = np.empty(0, np.int64)
        self._digests = bytearray()
        self._cells = np.empty(0, _DIGEST)
        self._count = self._dropped = self.room = self._bits = 0
        # One bucket, without room for any entry.
        self._shift = _WORD_BITS
        self._buckets = np.zeros((1, _ROW), np.uint32)
        # Look-ups of one ID read single words, and an item of a memoryview costs a quarter of numpy's.
        self._flat = self._buckets.ravel().data
        self._overflow: dict[bytes, int] = {}
        if expected:
            self._reserve(expected)

    def entry_of(self, digest: bytes) -> int:
        """Return the entry of an ID, -1 without one."""
        (word,) = _FIRST_WORD.unpack(digest)
        at, tag = (word >> self._shift) * _ROW, word & _TAG_MASK | 1
        tags = self._flat[at : at + _SLOTS].tolist()
        if tag in tags:
            for slot, each in enumerate(tags, at + _SLOTS):
                if each == tag:
                    entry = self._flat[slot]
                    if self._digests[DIGEST_BYTES * entry : DIGEST_BYTES * (entry + 1)] == digest:
                        return entry
        return self._overflow.get(digest, -1)

    def find_or_enter(self, digest: bytes, offset: int, timestamp_ms: int) -> int:
        """Return the entry of an ID; -1 if it had none, and has one now."""
        (word,) = _FIRST_WORD.unpack(digest)
        at, tag = (word >> self._shift) * _ROW, word & _TAG_MASK | 1
        tags = self._flat[at : at + _SLOTS].tolist()
        if (tag in tags or self._overflow) and (found := self.entry_of(digest)) >= 0:
            return found
        entry = self._count
        if entry == self.room:
            self._reserve(1)
            # The table may be another one now.
            at = (word >> self._shift) * _ROW
            tags = self._flat[at : at + _SLOTS].tolist()
        self._digests[DIGEST_BYTES * entry : DIGEST_BYTES * (entry + 1)] = digest
        self._offsets[entry], self._timestamps[entry] = offset, timestamp_ms
        self._count += 1
        if 0 in tags:
            at += tags.index(0)
            self._flat[at], self._flat[at + _SLOTS] = tag, entry
        else:
            self._overflow[digest] = entry
        return -1

    def _find_or_add_each(
        self, rows: Iterable[int], digests: bytes, offsets: Int64s, timestamps: Int64s
    ) -> Existing:
        """Do so for some rows of the columns, ascending, one after the other."""
        existing: list[tuple[int, int]] = []
        for row in rows:
            digest = digests[DIGEST_BYTES * row : DIGEST_BYTES * (row + 1)]
            entry = self.find_or_enter(digest, offsets.item(row), timestamps.item(row))
            if entry >= 0:
                existing.append((row, entry))
        return _existing(existing)

    def _copy_of(self, buckets: Entries) -> NDArray[np.uint32]:
        """Return copies of buckets, shape ``(n, 16)``."""
        copied = self._buckets.view(_BUCKET).ravel().take(buckets)
        return copied.view(np.uint32).reshape(len(buckets), _ROW)

    def _find_all(
        self, cells: NDArray[np.void], tags: NDArray[np.uint32], copied: NDArray[np.uint32]
    ) -> Existing:
        """Return the IDs that have a slot in their bucket."""
        hits = copied[:, :_SLOTS] == tags[:, None]
        known = _words(hits).nonzero()[0]
        rows, slots = hits[known].nonzero()
        known = known[rows]
        entries = copied[known, _SLOTS + slots].astype(np.intp)
        same = self._cells[entries] == cells[known]
        return Existing(known, entries) if same.all() else Existing(known[same], entries[same])

    def _enter_all(
        self,
        rows: Entries,
        cells: NDArray[np.void],
        tags: NDArray[np.uint32],
        places: Entries,
        used: Entries,
        offsets: Int64s,
        timestamps: Int64s,
    ) -> list[int]:
        """Add IDs that have no slot; return those that were not added: another one took the slot, or none is free.

        ``places``: where their buckets begin; ``used``: how many slots are taken.
        """
        late: list[int] = []
        if used.max() == _SLOTS:
            full = used.take(rows) == _SLOTS
            late, rows = rows[full].tolist(), rows[~full]
        places = (places + used).take(rows)
        # Of rows that want one slot the first gets it: it is assigned last.
        slots = self._buckets.ravel()
        slots[places[::-1]] = rows[::-1]
        won = slots.take(places) == rows
        if not won.all():
            late = sorted(late + rows[~won].tolist())
            rows, places = rows[won], places[won]
        start, end = self._count, self._count + len(rows)
        # In the default mode numpy would write to a copy first.
        cells.take(rows, out=self._cells[start:end], mode="clip")
        offsets.take(rows, out=self._offsets[start:end], mode="clip")
        timestamps.take(rows, out=self._timestamps[start:end], mode="clip")
        slots[places] = tags.take(rows)
        slots[places + _SLOTS] = np.arange(start, end)
        self._count = end
        return late

    def _reserve(self, more: int) -> None:
        """Make room for so many more entries."""
        needed = self._count + more
        if needed > len(self._offsets):
            count, room = self._count, max(needed, 2 * len(self._offsets), _MEAN_USED << _FEWEST_BITS)
            digests, offsets, timestamps = self._digests, self._offsets, self._timestamps
            # Another one: while numpy has a view of a bytearray, Python does not let it grow.
            self._digests = bytearray(DIGEST_BYTES * room)
            self._digests[: DIGEST_BYTES * count] = digests[: DIGEST_BYTES * count]
            self._cells = np.frombuffer(self._digests, _DIGEST)
            self._offsets, self._timestamps = np.empty(room, np.int64), np.empty(room, np.int64)
            self._offsets[:count], self._timestamps[:count] = offsets[:count], timestamps[:count]
        if needed > _MEAN_USED << self._bits or not self._bits:
            grown = self._bits + _GROWTH_BITS if self._bits else _FEWEST_BITS
            self._bits = max(grown, (needed // _MEAN_USED).bit_length())
            self._index_anew()
        self.room = min(len(self._offsets), _MEAN_USED << self._bits)

    def _index_anew(self) -> None:
        """Give every entry a slot in a new table."""
        self._shift = _WORD_BITS - self._bits
        self._buckets = np.zeros((1 << self._bits, _ROW), np.uint32)
        self._flat = self._buckets.ravel().data
        self._overflow = {}
        if not self._count:
            return
        entries, first = self._live(), self._cells.view(_WORD)[::2]
        # Bucket and entry in one word: a plain sort takes less time than a sort of indexes.
        keys = first[entries] >> np.uint64(self._shift) << np.uint64(32) | entries.view(np.uint64)
        keys.sort()
        entries, buckets = _indexes(keys & np.uint64(2**32 - 1)), _indexes(keys >> np.uint64(32))
        begins = np.arange(len(entries))
        slots = begins.copy()
        begins[1:][buckets[1:] == buckets[:-1]] = 0
        slots -= np.maximum.accumulate(begins)
        fit = slots < _SLOTS
        for entry in entries[~fit].tolist():
            self._overflow[self._cells[entry].tobytes()] = entry
        entries, buckets, slots = entries[fit], buckets[fit], slots[fit]
        tags = first[entries].astype(np.uint32) | np.uint32(1)
        # In parts, between which another thread has its turn: the table is new, and its pages are made here.
        for begin in range(0, len(entries), _WRITTEN_AT_ONCE):
            part = slice(begin, begin + _WRITTEN_AT_ONCE)
            self._buckets[buckets[part], slots[part]] = tags[part]
            self._buckets[buckets[part], slots[part] + _SLOTS] = entries[part]


def _existing(pairs: list[tuple[int, int]]) -> Existing:
    if not pairs:
        return _NONE_EXISTING
    columns = np.array(pairs, np.intp)
    return Existing(columns[:, 0], columns[:, 1])


def _indexes(words: NDArray[np.uint64]) -> Entries:
    """Return words below 2**63 as indexes; without a copy, unless the platform has shorter ones."""
    return words.view(np.int64).astype(np.intp, copy=False)


def _words(truths: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return rows of eight truth values, a byte each, as one word each."""
    return truths.view(np.uint64).ravel()


def _joined(existing: Existing, others: Existing) -> Existing:
    """Return both, ascending by position."""
    if not len(others.indexes):
        return existing
    indexes = np.concatenate((existing.indexes, others.indexes))
    order = indexes.argsort()
    return Existing(indexes[order], np.concatenate((existing.entries, others.entries))[order])
