"""`LastId`: the tasks of the backfill, a replay and a consumer's life leave the same state of each source, and the next records get the same verdicts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk import Deduplicator, Record, Verdict, Window
from dedup_sdk.core.plan import plan_start
from dedup_sdk.core.reach import GRACE
from dedup_sdk.core.seen import Candidate
from dedup_sdk.ids import RecordFields
from dedup_sdk.kafka.recovery import start_from_snapshot
from dedup_sdk.marks import Marks
from dedup_sdk.store.fingerprint import fingerprint
from dedup_sdk.store.manifest import read_manifest
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.snapshot import read_snapshot
from spark_backfill.errors import BackfillError
from spark_backfill.last_id_fold import LastIdFold, ShuffledRow
from spark_backfill.last_id_spec import LastIdSpec
from spark_backfill.stretch import Stretch, horizon_ms
from tests.property.test_reshard import outcome_of
from tests.support.rebuilding_shuffled import rebuild_shuffled

WINDOW_MS = 160
NOW_MS = 10**9
LATE_MS = WINDOW_MS // GRACE
ORDERS = (
    "mysql-gtid",
    "snowflake(epoch_ms=0, machine_bits=1, sequence_bits=3, by_machine)",
    f"py:{__name__}:within@1",
)
SERVERS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "2174b383-5441-11e8-b90a-c80aa9429562")


def within(last: bytes, new: bytes) -> int | None:
    """Compare ``a7`` and ``a12`` by their numbers, within a letter."""
    if not last[1:].isdigit() or not new[1:].isdigit() or last[:1] != new[:1]:
        return None
    one, other = int(last[1:]), int(new[1:])
    return (other > one) - (other < one)


def spelled(order: str, origin: int, number: int) -> bytes:
    """Return an ID of one of `ORDERS`: two origins, numbers from 1."""
    if order == "mysql-gtid":
        return f"{SERVERS[origin]}:{number}".encode()
    if order.startswith("snowflake"):
        return str((number // 8 << 4) + (origin << 3) + number % 8).encode()
    return f"{'ab'[origin]}{number}".encode()


@st.composite
def logs(draw: st.DrawFn, order: str) -> list[Record]:
    """A log of one partition with holes, late and repeated IDs, two origins, bad ones, no ID, no source, and idle windows."""
    numbers = st.integers(1, 14)
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 1, 1, 2, 5]),
                st.sampled_from(["x", "x", "x", "y", "z", None]),
                st.one_of(numbers, numbers, numbers, numbers, st.sampled_from(["bad", None])),
                st.sampled_from([0] * 9 + [1]),
                st.sampled_from([0, 0, 0, 1, 1, 5, -LATE_MS, WINDOW_MS - 1, WINDOW_MS, WINDOW_MS + 1, 3 * WINDOW_MS]),
            ),
            min_size=1,
            max_size=45,
        )
    )  # fmt: skip
    offset, now_ms, found = draw(st.sampled_from([0, 9])), 1_000, list[Record]()
    for step, source, number, origin, tick in steps:
        now_ms += max(tick, 0)
        headers: list[tuple[str, bytes | None]] = [] if source is None else [("source", source.encode())]
        if number == "bad":
            headers.append(("seq", b"?"))
        elif isinstance(number, int):
            headers.append(("seq", spelled(order, origin, number)))
        found.append(Record("t", 0, offset, now_ms + min(tick, 0), headers=headers))
        offset += step
    return found


def engine_over(store: MemoryStore, spec: LastIdSpec, recent_marks: int) -> Deduplicator:
    """An engine that flushes after so many sources."""
    return Deduplicator(
        spec.strategy, store, cluster="c", group="g", recent_marks=recent_marks, clock=lambda: NOW_MS / 1000
    )


def lived(
    log: list[Record],
    poison: set[int],
    spec: LastIdSpec,
    recent_marks: int,
    seed: int,
    *,
    midway: bool = False,
) -> MemoryStore:
    """Live through a log, ending records in an order that only the seed knows; those of ``poison`` become dead letters.

    Now and then the process is another, when nothing is in flight, or ``midway``, whatever is: what is not durable comes again.
    """
    store, random = MemoryStore(), np.random.default_rng(seed)
    engine = engine_over(store, spec, recent_marks)
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
            engine = engine_over(store, spec, recent_marks)
            waiting, in_flight = [each for each in log if each.offset >= high], []
    engine.shut()
    return store


def replayed(
    log: list[Record],
    spec: LastIdSpec,
    recent_marks: int,
    slice_records: int,
    *,
    complete: bool,
) -> MemoryStore:
    """Fold a log that others have completed."""
    store = MemoryStore()
    engine = engine_over(store, spec, recent_marks)
    held = engine.attach("t", 0)
    held.start(plan_start(None, committed=log[-1].offset + 1, low=log[0].offset, complete=complete))
    for start in range(0, len(log), slice_records):
        records = log[start : start + slice_records]
        keys = spec.keys.digests(RecordFields(records)).digests
        times = np.asarray([each.timestamp_ms for each in records], np.int64)
        held.fold([each.offset for each in records], times, keys, records[-1].offset + 1)
        engine.trim()
    engine.shut()
    return store


def stretch_of(log: list[Record], *, complete: bool = True, window: Window | None = None) -> Stretch:
    """What a run reads of a log."""
    return Stretch(
        partition=0,
        low=log[0].offset,
        begin=log[0].offset,
        high=log[-1].offset + 1,
        complete=complete,
        keep_from_ms=horizon_ms(window or WINDOW, log[-1].timestamp_ms, NOW_MS),
    )


def spec_of(order: str, source: str | None, depth: int) -> LastIdSpec:
    """A strategy on the headers of `logs`."""
    return LastIdSpec(
        id="header:seq", order=order, source=source, window=f"{WINDOW_MS}ms", reorder_depth=depth
    )


WINDOW = spec_of("integer", None, 0).strategy.window


def remembered(pages: list[Marks], newest_ms: int) -> tuple[str, dict[bytes, tuple[int, int, bytes]]]:
    """The fingerprint of the sources that a record of that time, coming next, could belong to, and these themselves."""
    known: dict[bytes, tuple[int, int, bytes]] = {}
    for page in pages:
        for row in range(page.count):
            digest, offset = page.digests[16 * row : 16 * row + 16], int(page.offsets[row])
            if offset >= known.get(digest, (-1, 0, b""))[0]:
                assert page.payloads is not None
                known[digest] = (offset, int(page.timestamps[row]), page.payloads[row])
    alive = {digest: mark for digest, mark in known.items() if newest_ms - mark[1] <= WINDOW_MS}
    marks = Marks(
        b"".join(alive),
        np.asarray([mark[0] for mark in alive.values()], np.int64),
        np.asarray([mark[1] for mark in alive.values()], np.int64),
        payloads=[mark[2] for mark in alive.values()],
    )
    return fingerprint([marks]), alive


def in_store(store: MemoryStore, spec: LastIdSpec) -> list[Marks]:
    """All that a store remembers."""
    identity = Identity(cluster="c", group="g", topic="t", partition=0, id_spec=str(spec))
    partition = store.open(identity, WINDOW)
    loaded = partition.load()
    assert loaded is not None
    pages = [*partition.scan(), loaded.recent]
    partition.close()
    return pages


def in_snapshot(folder: Path) -> list[Marks]:
    """All that a snapshot remembers."""
    entry = read_manifest(folder).partition(0)
    assert entry is not None
    return list(read_snapshot(folder, entry))


def start(engine: Deduplicator, log: list[Record], spec: LastIdSpec, folder: Path) -> str:
    """Let an engine begin with a snapshot of a log; return what the log says."""
    held = engine.attach("t", 0)
    plan = plan_start(None, committed=log[-1].offset + 1, low=log[0].offset, complete=True)
    identity = Identity(cluster="c", group="g", topic="t", partition=0, id_spec=str(spec))
    _, note = outcome_of(start_from_snapshot(held, plan, [str(folder)], identity, None))
    return note


def verdicts(engine: Deduplicator, tail: list[Record]) -> list[Verdict]:
    """Judge records one after the other, each over before the next comes."""
    told = []
    for record in tail:
        [verdict] = engine.admit([record])
        told.append(verdict)
        if verdict.deliver:
            engine.complete([record])
    return told


@pytest.mark.parametrize("order", ORDERS, ids=["dense", "sparse", "function"])
@pytest.mark.parametrize("source", [None, "header:source"])
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), depth=st.integers(0, 4), ranges=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_the_backfill_leaves_the_sources_of_a_life(
    order: str, source: str | None, data: st.DataObject, seed: int, depth: int, ranges: int
) -> None:
    """From the same log, dead letters or not, all three leave the same sources; from each of them the next records get the same verdicts."""
    whole = data.draw(logs(order))
    at = data.draw(st.integers(1, len(whole)))
    log, tail = whole[:at], whole[at:]
    spec = spec_of(order, source, depth)
    recent_marks = st.sampled_from([1, 2, 1000])
    poison = data.draw(st.sets(st.sampled_from([each.offset for each in log]), max_size=4))
    life = lived(log, poison, spec, data.draw(recent_marks), seed)
    replay = replayed(log, spec, data.draw(recent_marks), data.draw(st.integers(1, 50)), complete=True)
    newest_ms = max(each.timestamp_ms for each in log)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        manifest = rebuild_shuffled(
            log,
            stretch_of(log),
            spec,
            folder,
            ranges=ranges if source else 1,
            task_records=data.draw(st.integers(1, 50)),
            watched=data.draw(st.booleans()),
        )
        rebuilt = remembered(in_snapshot(folder), newest_ms)
        assert rebuilt == remembered(in_store(life, spec), newest_ms)
        assert rebuilt == remembered(in_store(replay, spec), newest_ms)
        assert manifest.id_spec == str(spec.keys)
        assert manifest.partitions[0].newest_ms == newest_ms
        taken = engine_over(MemoryStore(), spec, 1000)
        note = start(taken, log, spec, folder)
        assert note.startswith("snapshot of")
    assert verdicts(taken, tail) == verdicts(engine_over(life, spec, 1000), tail)


@pytest.mark.parametrize("order", ORDERS, ids=["dense", "sparse", "function"])
@given(data=st.data(), depth=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_history_that_begins_late_is_doubted_alike(order: str, data: st.DataObject, depth: int) -> None:
    """Where the beginning is gone, a source knows of itself what a replay from there would have it know."""
    log = data.draw(logs(order))
    spec = spec_of(order, "header:source", depth)
    replay = replayed(log, spec, 1000, data.draw(st.integers(1, 50)), complete=False)
    newest_ms = max(each.timestamp_ms for each in log)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        task_records = data.draw(st.integers(1, 50))
        manifest = rebuild_shuffled(
            log, stretch_of(log, complete=False), spec, folder, ranges=3, task_records=task_records
        )
        assert remembered(in_snapshot(folder), newest_ms) == remembered(in_store(replay, spec), newest_ms)
    since_ms = manifest.partitions[0].since_ms
    assert since_ms is not None
    assert since_ms >= log[0].timestamp_ms


def record(offset: int, source: str, ident: str, timestamp_ms: int = 1_000) -> Record:
    """A record of partition 0."""
    return Record(
        "t", 0, offset, timestamp_ms, headers=[("source", source.encode()), ("seq", ident.encode())]
    )


def test_two_records_at_one_offset_are_refused(tmp_path: Path) -> None:
    """An archive of two logs ends the run, whether the source is the same or another; the same record twice is one sighting, the earlier one."""
    spec = spec_of("integer", "header:source", 9)
    first = record(0, "x", "5")
    for other in (record(0, "x", "6"), record(0, "y", "5")):
        with pytest.raises(
            BackfillError, match="offset 0 of partition 0 is there twice with different contents"
        ):
            rebuild_shuffled([first, other], stretch_of([first]), spec, tmp_path / "a", watched=True)
    later = [record(0, "x", "5", timestamp_ms) for timestamp_ms in (-1, 1_007, 1_003)]
    rebuild_shuffled(later, stretch_of([first]), spec, tmp_path / "b", watched=True)
    [page] = in_snapshot(tmp_path / "b")
    assert (page.offsets.tolist(), page.timestamps.tolist()) == ([0], [1_003])


@pytest.mark.parametrize(("last", "known"), [(39, None), (59, 0), (61, 2), (80, None)])
def test_a_source_across_a_gap_of_the_history_is_in_doubt(last: int, known: int | None) -> None:
    """What it remembers is right, and not all: until enough has come that is new, whatever it does not remember is uncovered."""
    spec = spec_of("integer", None, 2)
    rule = spec.strategy.rule
    offsets = [*range(40), *range(60, last + 1)]
    rows = [
        ShuffledRow(0, b"l" * 16, at, at, Candidate(b"%d" % at, rule.order.place(b"%d" % at)))
        for at in offsets
    ]
    high, gaps = (60, ((40, 60),)) if last >= 59 else (40, ())
    stretch = Stretch(partition=0, low=0, begin=0, high=max(high, last + 1), complete=False, gaps=gaps)
    [page] = LastIdFold(rule, stretch).pages(rows)
    assert page.payloads is not None
    assert rule.restore(page.payloads[0], 0, 0).seen.known == known


def test_a_source_of_any_length_takes_no_more_memory() -> None:
    """All records of a partition may be in one source: its rows stream by, and only what it remembers stays."""
    spec, count = spec_of("integer", None, 128), 60_000
    rule = spec.strategy.rule

    def rows() -> Iterator[ShuffledRow]:
        for number in range(count):
            text = f"{number:060}".encode()
            yield ShuffledRow(0, b"l" * 16, number, number, Candidate(text, rule.order.place(text)))

    fold = LastIdFold(rule, Stretch(partition=0, low=0, begin=0, high=count, complete=True))
    tracemalloc.start()
    try:
        [page] = fold.pages(rows())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.offsets.tolist() == [count - 1]
    assert most < 500_000, "60,000 rows are some twenty million bytes"
