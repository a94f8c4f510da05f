"""What every record is told when it comes, or when the one it waited for is over."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import is_not
from typing import Any

import numpy as np

from dedup_sdk.decision import Mark, decide, decide_marked
from dedup_sdk.lane.chunk import (
    APART,
    DUPLICATE,
    KINDS,
    PARKED,
    PARKED_KIND,
    UNVERIFIED,
    Chunk,
    digest_of,
)
from dedup_sdk.lane.state import LaneState, Waiting
from dedup_sdk.marks import NONE_FOUND, Found, Int64s
from dedup_sdk.record import VerdictKind

Find = Callable[[bytes, int], Found]
"""Looks so many digests (16 bytes each) up among older marks."""


class Judging(LaneState):
    """The half of a lane that judges."""

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: list[bytes | None],
        missing: dict[int, str],
        find: Find,
        *,
        items: Sequence[Any] = (),
        discard_unkeyed: bool = False,
    ) -> Chunk:
        """Judge records at or above ``position``, ascending by offset; the chunk holds their verdicts.

        ``missing`` has, for every index without a digest, the reason. What is judged a duplicate is completed already.
        When ``find`` raises, nothing of the lane has changed.
        """
        chunk = Chunk(offsets, timestamps, digests, items)
        if self._restored:
            self._skip_restored(chunk)
        if self.window.is_off:
            self._leave_unlooked(chunk)
        elif missing:
            self._leave_unkeyed(chunk, missing, discard=discard_unkeyed)
        keyed = None if not chunk.unmarked else [i for i in range(len(offsets)) if i not in chunk.unmarked]
        asked: list[Any] = digests if keyed is None else [digests[index] for index in keyed]
        joined = b"".join(asked)
        found = find(joined, len(asked)) if asked else NONE_FOUND
        self._take_in(chunk)
        if keyed is None:
            chunk.joined = joined
            self.recent.timeline.extend(chunk.column, timestamps)
        else:
            self.recent.timeline.extend(chunk.column[keyed], timestamps[keyed])
        if asked:
            self._judge(chunk, keyed, asked, found)
        if chunk.open < len(offsets):
            self._note_dirty(chunk)
            self._advance()
        return chunk

    @staticmethod
    def _leave_unlooked(chunk: Chunk) -> None:
        """Look nothing up: a window that holds nothing has no sighting, so that what was not completed before is fresh."""
        chunk.reasons.update(dict.fromkeys(set(range(len(chunk.offsets))) - chunk.unmarked, "off"))
        chunk.unmarked.update(range(len(chunk.offsets)))

    def _judge(self, chunk: Chunk, keyed: list[int] | None, digests: list[bytes], found: Found) -> None:
        """Judge the records at ``keyed`` (None: all of them) by their digests, in one pass of columns."""
        offsets = chunk.offsets if keyed is None else [chunk.offsets[index] for index in keyed]
        before = list(map(self.recent.offsets.setdefault, digests, offsets))
        doubtful = self.since_ms is not None or self.since_number is not None
        if doubtful:
            self._doubt(chunk, range(len(chunk.offsets)) if keyed is None else keyed)
        if before == offsets and not found.indexes and self.ring is None:
            return
        stored = _as_marks(found)
        if self.ring is not None:
            met: Iterable[int] = range(len(offsets))
        else:
            met = list(compress(range(len(offsets)), map(is_not, before, offsets)))
            if stored:
                met = sorted({*met, *stored})
            met = self._meet_columns(chunk, met, keyed, digests=digests, before=before, stored=stored)
        for index in met:
            self._meet(chunk, index if keyed is None else keyed[index], stored.get(index))

    def _meet_columns(
        self,
        chunk: Chunk,
        met: list[int],
        keyed: list[int] | None,
        *,
        digests: list[bytes],
        before: list[int],
        stored: dict[int, Mark],
    ) -> list[int]:
        """Judge at once the records whose ID has one completed mark and nothing in flight; return the others."""
        rows = np.asarray(met, np.intp)
        seen = np.fromiter(map(before.__getitem__, met), np.int64, len(met))
        plain = seen < self.high
        for at in self._entangled(met, digests, stored):
            plain[at] = False
        others: list[int] = rows[~plain].tolist()
        if len(others) == len(met):
            return others
        asked, seen = rows[plain], seen[plain]
        rows = asked if keyed is None else np.asarray(keyed, np.intp)[asked]
        seen_ms = self.recent.timeline.at_all(seen)
        duplicates = decide_marked(chunk.column[rows], chunk.timestamps[rows], seen, seen_ms, self.window)
        if not duplicates.all():
            others = sorted([*others, *asked[~duplicates].tolist()])
            rows, seen, seen_ms = rows[duplicates], seen[duplicates], seen_ms[duplicates]
        chunk.find_duplicates(rows, seen, seen_ms, completed=not self.reveals)
        hits = rows.tolist()
        known: list[Any] = chunk.digests
        if self.reveals:
            for row in hits:
                self.recent.fly(known[row], chunk.offsets[row])
            return others
        self.recent.offsets.update(
            zip(map(known.__getitem__, hits), map(chunk.offsets.__getitem__, hits), strict=True)
        )
        return others

    def _entangled(self, met: list[int], digests: list[bytes], stored: dict[int, Mark]) -> list[int]:
        """Return the places in ``met`` whose verdict hangs on more than one mark, on each other, or on what is parked."""
        if not stored and not self.parked and len(set(map(digests.__getitem__, met))) == len(met):
            return []
        times = Counter(map(digests.__getitem__, met))
        return [
            at
            for at, index in enumerate(met)
            if index in stored or times[digests[index]] > 1 or digests[index] in self.parked
        ]

    def _doubt(self, chunk: Chunk, keyed: Iterable[int]) -> None:
        """Call what the marks do not cover unverified, until a mark says better."""
        if self._covered_by_count():
            return
        uncovered: Iterable[int] = keyed
        if self.window.time_ms is not None:
            if self.since_ms is None:
                return
            late = chunk.timestamps < self.since_ms + self.window.time_ms
            if not late.any():
                return
            uncovered = [index for index in keyed if late[index]]
        for index in uncovered:
            chunk.kinds[index] = UNVERIFIED
            chunk.reasons[index] = "uncovered"

    def _meet(self, chunk: Chunk, index: int, stored: Mark | None) -> None:
        """Judge one record whose ID may be known."""
        if self.ring is not None:
            self.ring.consider(chunk.offsets[index])
        digest = digest_of(chunk, index)
        if digest not in self.parked and self._settle_one(chunk, index, stored):
            return
        if self.reveals:
            self.undecided.discard(digest)
            self._reveal(chunk, index)
        else:
            chunk.states[index] = PARKED
            chunk.kinds[index] = PARKED_KIND
            chunk.reasons[index] = "in-flight"
            self.parked.setdefault(digest, deque()).append(Waiting(chunk, index, stored))

    def _reveal(self, chunk: Chunk, index: int) -> None:
        """Call a twin of what is in flight a duplicate, and offer it."""
        digest, offset = digest_of(chunk, index), chunk.offsets[index]
        leader = self.recent.offsets[digest]
        chunk.kinds[index] = DUPLICATE
        chunk.reasons[index] = "in-flight"
        if leader != offset:
            chunk.seen[index] = (leader, self.recent.timeline.at(leader))
        if self._is_open(leader) and leader != offset:
            self.recent.cover(digest, offset)
        else:
            self.recent.fly(digest, offset)
        if self.ring is not None:
            self.ring.forget(offset)

    def _settle_one(self, chunk: Chunk, index: int, stored: Mark | None) -> bool:
        """Give a record its verdict and return True, or False while that hangs on what is in flight."""
        offset, timestamp_ms = chunk.offsets[index], int(chunk.timestamps[index])
        certain, mark = self._last_sighting(digest_of(chunk, index), offset, stored)
        if not certain:
            return False
        kind = decide(
            offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), window=self.window,
            covered=self.covers(timestamp_ms),
        )  # fmt: skip
        chunk.kinds[index] = KINDS.index(kind)
        chunk.reasons.pop(index, None)
        if kind is VerdictKind.DUPLICATE and mark is not None:
            chunk.seen[index] = (max(mark.offset, -1), mark.timestamp_ms)
            self._repeat(chunk, index, stored)
            return True
        if kind is VerdictKind.UNVERIFIED:
            chunk.reasons[index] = "uncovered"
        self._offer(chunk, index)
        return True

    def _last_sighting(self, digest: bytes, offset: int, stored: Mark | None) -> tuple[bool, Mark | None]:
        """Return whether the verdict is certain by now, and the mark that it hangs on.

        In a lane with a count window the mark bears, for the rule, how many were accepted after it, below zero.
        """
        mark = stored
        leader = self.recent.offsets.get(digest, offset)
        if leader != offset:
            if self._is_open(leader):
                return False, None
            if mark is None or leader > mark.offset:
                mark = Mark(leader, self.recent.timeline.at(leader))
        if self.ring is not None and mark is not None:
            after = self.ring.accepted_after(digest, self.ring.numbers.get(digest, mark.number), offset)
            if after is None:
                self.undecided.add(digest)
                return False, None
            mark = mark._replace(number=-after)
        return True, mark

    def _repeat(self, chunk: Chunk, index: int, stored: Mark | None) -> None:
        """Move the mark of an ID to its duplicate, which is completed by itself, unless duplicates are shown."""
        digest, offset = digest_of(chunk, index), chunk.offsets[index]
        if self.reveals:
            self.recent.fly(digest, offset)
        else:
            chunk.finish(index)
            self.recent.offsets[digest] = offset
        if self.ring is not None:
            self.ring.forget(offset)
            if stored is not None:
                self.ring.numbers.setdefault(digest, stored.number)

    def _offer(self, chunk: Chunk, index: int) -> None:
        """Put a record in flight."""
        digest, offset = digest_of(chunk, index), chunk.offsets[index]
        if chunk.states[index] == PARKED:
            chunk.states[index] = APART
        self.recent.fly(digest, offset)
        if self.ring is not None:
            self.ring.offer(digest, offset)


def _as_marks(found: Found) -> dict[int, Mark]:
    numbers = found.numbers or [0] * len(found.indexes)
    columns = zip(found.offsets, found.timestamps, numbers, strict=True)
    return dict(zip(found.indexes, (Mark(*column) for column in columns), strict=True))
