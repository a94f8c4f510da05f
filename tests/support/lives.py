"""Three ways to the marks of one log.

A consumer's life, a replay of records that others completed, and a snapshot of the backfill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dedup_sdk import Deduplicator, Record, Verdict
from dedup_sdk._core.reach import plan_start
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._marks import Marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.snapshot import read_snapshot
from dedup_sdk.ids import RecordFields
from spark_backfill.offset_range import OffsetRange
from spark_backfill.range_plan import horizon_ms
from tests.support.disks import keeping
from tests.support.known_marks import Kept, newest_of
from tests.support.rebuilding import NOW_MS
from tests.support.steps import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from dedup_sdk._core.reach import StartPlan
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._marks import Progress
    from dedup_sdk._strategy import Strategy
    from dedup_sdk._window import Window


class Memory(NamedTuple):
    """All marks by digest, and how many IDs were accepted."""

    marks: dict[bytes, Kept]
    accepted: int

    def alive(self, is_alive: Callable[[Kept, int], bool]) -> tuple[str, dict[bytes, Kept]]:
        """Return the marks for which ``is_alive(mark, accepted)`` holds, behind the fingerprint of them all."""
        kept = {digest: mark for digest, mark in self.marks.items() if is_alive(mark, self.accepted)}
        return _fingerprint(kept), kept


def in_window(window: Window, newest_ms: int) -> Callable[[Kept, int], bool]:
    """Whether a record of that time, coming next, could be a duplicate of a mark's."""
    return lambda mark, accepted: window.holds(newest_ms - mark.timestamp_ms, accepted - mark.number)


def engine_over(store: MemoryStore, strategy: Strategy, recent_marks: int = 1000) -> Deduplicator:
    """Return an engine that flushes after so many marks."""
    return Deduplicator(
        strategy, keeping(recent_marks, store), cluster="c", group="g", clock=lambda: NOW_MS / 1000
    )


def lived(
    log: Sequence[Record],
    poison: set[int],
    strategy: Strategy,
    recent_marks: int,
    seed: int,
    *,
    midway: bool = False,
) -> MemoryStore:
    """Live through a log, ending records in an order that only the seed knows.

    Those at offsets in ``poison`` become dead letters. Now and then the process ends and another begins: when
    nothing is in flight, or ``midway``, whatever is. Records that are not durable come again.
    """
    store, random = MemoryStore(), np.random.default_rng(seed)
    engine = engine_over(store, strategy, recent_marks)
    waiting, in_flight = list(log), list[Record]()
    while waiting or in_flight:
        if waiting and (not in_flight or random.random() < 0.4):
            count = int(random.integers(1, 8))
            batch, waiting = waiting[:count], waiting[count:]
            in_flight += [each for each, told in zip(batch, engine.admit(batch), strict=True) if told.deliver]
        else:
            record = in_flight.pop(int(random.integers(len(in_flight))))
            act = engine.dead_letter if record.offset in poison else engine.complete
            in_flight += [one.record for one in act([record]) if one.verdict.deliver]
        if (midway or not in_flight) and random.random() < (0.1 if midway else 0.2):
            high = engine.next_offset("t", 0) or 0
            engine.shut()
            engine = engine_over(store, strategy, recent_marks)
            waiting, in_flight = [each for each in log if each.offset >= high], []
    engine.shut()
    return store


def replayed(
    log: Sequence[Record],
    strategy: Strategy,
    recent_marks: int,
    slice_records: int,
    *,
    complete: bool = True,
    closed_at: Iterable[int] = (),
) -> MemoryStore:
    """Fold a log that others have completed; ``complete``: it begins where the history of the group does.

    At the offsets in ``closed_at`` the process ends, and another one goes on from its store.
    """
    store, low, end = MemoryStore(), log[0].offset, log[-1].offset + 1
    for committed in sorted({*closed_at, end}):
        engine = engine_over(store, strategy, recent_marks)
        held = engine.attach("t", 0)
        stored = None if held.loaded is None else held.loaded.progress
        held.start(plan_start(stored, committed=committed, low=low, complete=complete))
        begin = low if stored is None else stored.high
        part = [each for each in log if begin <= each.offset < committed]
        for start in range(0, len(part), slice_records):
            records = part[start : start + slice_records]
            keys = strategy.keys.digests(RecordFields(records)).digests
            times = np.asarray([each.timestamp_ms for each in records], np.int64)
            held.fold([each.offset for each in records], times, keys, records[-1].offset + 1)
            engine.trim()
        engine.shut()
    return store


def offset_range_of(log: Sequence[Record], window: Window, *, complete: bool = True) -> OffsetRange:
    """Return the offsets that a run of the backfill reads of a log; ``window``: how long anything is remembered."""
    return OffsetRange(
        partition=0,
        low=log[0].offset,
        begin=log[0].offset,
        high=log[-1].offset + 1,
        complete=complete,
        keep_from_ms=horizon_ms(window, log[-1].timestamp_ms, NOW_MS),
    )


def in_store(store: MemoryStore, strategy: Strategy) -> Memory:
    """Return all that a store remembers."""
    pages, progress = _loaded(store, strategy)
    return Memory(newest_of(pages), progress.known.accepted)


def progress_in(store: MemoryStore, strategy: Strategy) -> Progress:
    """Return how far a store is, and from where on it knows all."""
    return _loaded(store, strategy)[1]


def _loaded(store: MemoryStore, strategy: Strategy) -> tuple[list[Marks], Progress]:
    partition = store.open(_identity(strategy), strategy.window_of("t"))
    loaded = partition.load()
    assert loaded is not None
    pages = [*partition.scan(), loaded.recent]
    partition.close()
    return pages, loaded.progress


def in_snapshot(folder: Path) -> Memory:
    """Return all that a snapshot remembers of partition 0."""
    entry = read_manifest(folder).partition(0)
    assert entry is not None
    return Memory(newest_of(read_snapshot(folder, entry)), entry.known.accepted)


def begin_with(
    engine: Deduplicator, folder: Path, strategy: Strategy, *, low: int, committed: int, complete: bool = True
) -> tuple[Partition, StartPlan, str]:
    """Let an engine without a store begin with a snapshot.

    Return its partition, the plan that is left, and the note for the log.
    """
    held = engine.attach("t", 0)
    plan = plan_start(None, committed=committed, low=low, complete=complete)
    left, note = outcome_of(start_from_snapshot(held, plan, [str(folder)], _identity(strategy), None))
    return held, left, note


def verdicts(engine: Deduplicator, tail: Sequence[Record]) -> list[Verdict]:
    """Judge records one after the other, each completed before the next comes."""
    told = []
    for record in tail:
        [verdict] = engine.admit([record])
        told.append(verdict)
        if verdict.deliver:
            engine.complete([record])
    return told


def _identity(strategy: Strategy) -> Identity:
    return Identity(cluster="c", group="g", topic="t", partition=0, id_spec=str(strategy.keys))


def _fingerprint(marks: dict[bytes, Kept]) -> str:
    columns = np.asarray([mark[:2] for mark in marks.values()], np.int64).reshape(-1, 2)
    payloads = [mark.payload for mark in marks.values()]
    return fingerprint([Marks(b"".join(marks), columns[:, 0], columns[:, 1], payloads=payloads)])
