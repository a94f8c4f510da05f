"""Rebuilt equals lived: a fold over a log leaves the marks that living through it leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk.core.plan import plan_start
from dedup_sdk.decision import Mark
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.ids import digest_one, key
from dedup_sdk.marks import Marks
from dedup_sdk.record import Record
from dedup_sdk.store.fingerprint import fingerprint
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import Identity
from dedup_sdk.strategy import Lookup
from dedup_sdk.window import Window
from tests.support.known_marks import newest_marks
from tests.support.logs import Row, logs

WALL_CLOCK_MS = 10_000


def engine_over(store: MemoryStore, window: Window, recent_marks: int) -> Deduplicator:
    """An engine that flushes after so many marks."""
    strategy = Lookup(id=key(), window=window)
    return Deduplicator(strategy, store=store, recent_marks=recent_marks, clock=lambda: WALL_CLOCK_MS / 1000)


def lived(log: list[Row], poison: set[int], window: Window, recent_marks: int, seed: int) -> MemoryStore:
    """Live through a log, ending records in an order that only the seed knows; what is poison becomes a dead letter."""
    store, random = MemoryStore(), np.random.default_rng(seed)
    engine = engine_over(store, window, recent_marks)
    records = {
        offset: Record("t", 0, offset, timestamp_ms, key=ident.encode() if ident else None)
        for offset, ident, timestamp_ms in log
    }
    waiting, in_flight = sorted(records), list[int]()
    while waiting or in_flight:
        if waiting and (not in_flight or random.random() < 0.4):
            count = int(random.integers(1, 8))
            batch, waiting = waiting[:count], waiting[count:]
            verdicts = engine.admit([records[offset] for offset in batch])
            in_flight += [offset for offset, verdict in zip(batch, verdicts, strict=True) if verdict.deliver]
        else:
            offset = in_flight.pop(int(random.integers(len(in_flight))))
            act = engine.dead_letter if offset in poison else engine.complete
            in_flight += [one.record.offset for one in act([records[offset]]) if one.verdict.deliver]
    engine.close("t", 0)
    return store


def folded(log: list[Row], window: Window, recent_marks: int, slice_records: int) -> MemoryStore:
    """Fold a log that others have completed."""
    store = MemoryStore()
    engine = engine_over(store, window, recent_marks)
    held = engine.attach("t", 0)
    begin, end = log[0][0], log[-1][0] + 1
    held.start(plan_start(None, committed=end, low=begin, complete=True))
    for first in range(0, len(log), slice_records):
        rows = log[first : first + slice_records]
        digests = [digest_one(ident.encode()) if ident else None for _, ident, _ in rows]
        times = np.asarray([timestamp_ms for *_, timestamp_ms in rows], np.int64)
        held.fold([offset for offset, *_ in rows], times, digests, rows[-1][0] + 1)
        engine.trim()
    engine.close("t", 0)
    return store


def live_marks(store: MemoryStore, window: Window, newest_ms: int) -> dict[bytes, Mark]:
    """Return the marks that a record of that time, coming next, could be a duplicate of."""
    partition = store.open(Identity(cluster="", group="", topic="t", partition=0, id_spec="key"), window)
    loaded = partition.load()
    assert loaded is not None
    known = newest_marks([loaded.recent, *partition.scan()])
    return {
        digest: mark
        for digest, mark in known.items()
        if window.holds(newest_ms - mark.timestamp_ms, loaded.progress.accepted - mark.number)
    }


def fingerprint_of(marks: dict[bytes, Mark]) -> str:
    """Return the fingerprint of marks."""
    columns = np.asarray(list(marks.values()), np.int64).reshape(-1, 3)
    return fingerprint([Marks(b"".join(marks), columns[:, 0], columns[:, 1])])


@pytest.mark.parametrize(
    ("window", "orderly"),
    [
        (Window(milliseconds=20), False),
        (Window(milliseconds=400), False),
        (Window(count=1), False),
        (Window(count=3), False),
        # With both windows a record that comes late may be doubted, and then it takes a number.
        (Window(milliseconds=60, count=3), True),
    ],
    ids=str,
)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_fold_leaves_the_marks_of_a_life(
    window: Window, data: st.DataObject, seed: int, *, orderly: bool
) -> None:
    """From the same log, dead letters or not, both ways give the same marks alive at the cut, flushes or not."""
    log = data.draw(logs(orderly=orderly))
    poison = data.draw(st.sets(st.sampled_from([offset for offset, *_ in log]), max_size=4))
    recent_marks = st.sampled_from([1, 3, 1000])
    life = lived(log, poison, window, data.draw(recent_marks), seed)
    fold = folded(log, window, data.draw(recent_marks), data.draw(st.integers(1, 50)))
    newest_ms = max(min(timestamp_ms, WALL_CLOCK_MS) for *_, timestamp_ms in log)
    of_life, of_fold = live_marks(life, window, newest_ms), live_marks(fold, window, newest_ms)
    assert of_fold == of_life
    assert fingerprint_of(of_fold) == fingerprint_of(of_life)
