"""A record that is judged by itself, in a chunk that grows: all is as if each had been a batch of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._core.flight import OFFERED, RecordRef
from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.ranges import Ranges
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import NOTHING_KNOWN, Found, Known, Progress
from dedup_sdk._window import Window
from tests.support.marks import digest

_NOW_MS = 100_000
_WINDOW_MS = 3_000

record = st.tuples(st.just("record"), st.integers(0, 6), st.integers(0, 6_000), st.integers(1, 3))
"""An ID, its timestamp's distance from the present in ms, and its distance from the record before."""
end = st.tuples(st.sampled_from(["complete", "release", "alone"]), st.integers(0, 5))
others = st.tuples(st.sampled_from(["write", "flush", "holes"]))


class Side:
    """A partition's state, a store as a dictionary, and all that was seen of them."""

    def __init__(self, since_ms: int | None, *, by_itself: bool) -> None:
        self._stored: dict[bytes, tuple[int, int]] = {}
        self._by_itself = by_itself
        window = Window(seconds=_WINDOW_MS // 1_000)
        self._memory = LookupMemory(window, Progress(low=0, high=0, known=Known(since_ms=since_ms)))
        self.state = PartitionState(self._memory)
        self.seen: list[Any] = []
        self._sent: list[int] = []
        self.by_itself = 0

    def find(self, digests: bytes, count: int) -> Found:
        """Look IDs up in the store."""
        cut = [digests[16 * row : 16 * (row + 1)] for row in range(count)]
        rows = [row for row, each in enumerate(cut) if each in self._stored]
        marks = [self._stored[cut[row]] for row in rows]
        return Found(rows, [mark[0] for mark in marks], [mark[1] for mark in marks])

    def record(self, name: int, age_ms: int, gap: int) -> None:
        """Have a record come, ``gap`` offsets behind the last one."""
        flight, place = self.state.flight, None
        offset, time_ms, key = flight.position + gap - 1, _NOW_MS - age_ms, digest(str(name))
        if self._by_itself and flight.is_plain:
            place = self._memory.admit_one(offset, time_ms, key, offset, self.find, now_ms=_NOW_MS)
        self._sent.append(offset)
        self.by_itself += place is not None
        if place is None:
            times = np.array([time_ms], np.int64)
            chunk = self.state.admit([offset], times, [key], {}, self.find, items=[offset], now_ms=_NOW_MS)
            place = RecordRef(chunk, 0)
        self.seen.append((place.chunk.verdict(place.row), place.chunk.states[place.row], place.offset))

    def do(self, what: str, *arguments: int) -> None:
        """Do something, and note what there is to see."""
        flight, memory = self.state.flight, self.state.memory
        if what == "record":
            self.record(*arguments)
        elif what in ("complete", "release", "alone"):
            given_out = [offset for chunk in flight.chunks for offset in self._offered(chunk)]
            if given_out:
                place = flight.place(given_out[arguments[0] % len(given_out)])
                assert place is not None
                self._end(what, place)
        elif what == "write":
            self.write()
        elif what == "flush":
            self.write()
            marks = memory.take_recent(memory.reach.completed_ms, self.find).marks
            self._store(marks.digests, marks.offsets.tolist(), marks.timestamps.tolist())
        else:
            flight.pass_holes(flight.position + 2)
        above = self._among_sent(flight.completed_above(flight.high))
        self.seen.append((flight.high, flight.position, flight.in_flight, above))

    def _among_sent(self, ranges: Ranges) -> set[int]:
        """Return the records in some ranges: a range may have holes of the log, where there are none."""
        return {each for each in self._sent if any(start <= each < end for start, end in ranges)}

    @staticmethod
    def _offered(chunk: Any) -> list[int]:
        return [offset for offset, state in zip(chunk.offsets, chunk.states, strict=True) if state in (1, 3)]

    def _end(self, what: str, place: RecordRef) -> None:
        chunk, row = place
        if what == "release":
            self.state.flight.release(place)
        elif what == "alone":
            chunk.offer_individually(row)
        else:
            # As `poll` does: with its whole chunk, where nothing else of that was offered.
            whole = chunk.states[row] == OFFERED and chunk.states.count(OFFERED) == 1
            freed = self.state.complete_chunk(chunk) if whole else self.state.complete(chunk, [row])
            self.seen.append([each.offset for each in freed])

    def write(self) -> None:
        """Note the next step, and have no doubt of what is in it."""
        step = self.state.take_step()
        if step is None:
            self.seen.append(None)
            return
        columns = (step.marks.digests, step.marks.offsets.tolist(), step.marks.timestamps.tolist())
        marks = {
            (columns[0][16 * at : 16 * at + 16], *each)
            for at, each in enumerate(zip(*columns[1:], strict=True))
        }
        done = self._among_sent(step.progress.done)
        self.seen.append((replace(step.progress, done=()), done, marks))

    def _store(self, digests: bytes, offsets: list[int], timestamps: list[int]) -> None:
        for at, mark in enumerate(zip(offsets, timestamps, strict=True)):
            key = digests[16 * at : 16 * at + 16]
            self._stored[key] = max(mark, self._stored.get(key, mark))


@given(
    since_ms=st.sampled_from([None, NOTHING_KNOWN, _NOW_MS - 4_000]),
    steps=st.lists(st.one_of(record, record, end, others), max_size=60),
)
def test_nobody_sees_how_a_record_was_judged(since_ms: int | None, steps: list[tuple[Any, ...]]) -> None:
    """Verdicts, watermarks, what comes next, and what is written."""
    alone, in_batches = (Side(since_ms, by_itself=each) for each in (True, False))
    for step in steps:
        alone.do(*step)
        in_batches.do(*step)

    assert alone.seen == in_batches.seen


def test_most_records_are_judged_by_themselves() -> None:
    """So that the other test compares what it says."""
    side = Side(None, by_itself=True)
    for name in range(50):
        side.do("record", name, 0, 1)
        side.do("complete", 0)
        if not name % 10:
            side.do("write")
    assert side.by_itself == 50
    assert side.state.flight.high == 50
