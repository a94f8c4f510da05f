"""Rebuilt equals lived: a life, a replay and the backfill leave the same marks of one log, and the next records get the same verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dedup_sdk import Deduplicator, Lookup, Record, Window
from dedup_sdk._core.reach import GRACE
from dedup_sdk._marks import Progress
from dedup_sdk._store.manifest import PartitionManifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk.ids import digest_one, key
from spark_backfill.errors import BackfillError
from spark_backfill.last_id_spec import LastIdSpec
from spark_backfill.offset_range import OffsetRange, horizon_ms
from spark_backfill.unit_spec import UnitSpec
from tests.support.known_marks import Kept, newest_of
from tests.support.lives import (
    Memory,
    begin_with,
    engine_over,
    in_snapshot,
    in_store,
    in_window,
    lived,
    offset_range_of,
    replayed,
    verdicts,
)
from tests.support.logs import logs
from tests.support.naive_fold import Row
from tests.support.naive_units import Entry, Event, events_of, read_events
from tests.support.rebuilding import NOW_MS, rebuild, rebuild_records
from tests.support.unit_logs import unit_log
from tests.support.unit_world import UnitWorld, record_of

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = st.integers(0, 2**32 - 1)
RECENT_MARKS = st.sampled_from([1, 2, 3, 1000])
SLICES = st.sampled_from([1, 2, 3, 7, 50])

# --- IDs that are looked up ----------------------------------------------------------------------------------------


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
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=150, deadline=None)
def test_looked_up_ids(window: Window, data: st.DataObject, seed: int, *, orderly: bool) -> None:
    """Dead letters or not, flushes or not, all three have the same marks alive at the cut."""
    log = [
        Record("t", 0, offset, timestamp_ms, key=ident.encode() if ident else None)
        for offset, ident, timestamp_ms in data.draw(logs(orderly=orderly))
    ]
    poison = data.draw(st.sets(st.sampled_from([each.offset for each in log]), max_size=4))
    strategy = Lookup(id=key(), window=window)
    life = lived(log, poison, strategy, data.draw(RECENT_MARKS), seed)
    replay = replayed(log, strategy, data.draw(RECENT_MARKS), data.draw(SLICES))
    is_alive = in_window(window, max(min(each.timestamp_ms, NOW_MS) for each in log))
    left = in_store(replay, strategy).alive(is_alive)
    assert left == in_store(life, strategy).alive(is_alive)
    rows = [
        Row(0, each.offset, each.timestamp_ms, None if each.key is None else digest_one(each.key))
        for each in log
    ]
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        rebuild(rows, window, folder, low=log[0].offset, high=log[-1].offset + 1, run_rows=data.draw(SLICES))
        assert left == in_snapshot(folder).alive(is_alive)


# --- IDs that are compared with the last one -----------------------------------------------------------------------

WINDOW_MS = 160
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
def compared(draw: st.DrawFn, order: str) -> list[Record]:
    """A log of one partition with holes, late and repeated IDs, two origins, bad ones, no ID, no source, and idle windows."""
    numbers, size = st.integers(1, 14), draw(st.sampled_from([1, 5, 15, 40]))
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 1, 1, 2, 5]),
                st.sampled_from(["x", "x", "x", "y", "z", None]),
                st.one_of(numbers, numbers, numbers, numbers, st.sampled_from(["bad", None])),
                st.sampled_from([0] * 9 + [1]),
                st.sampled_from([0, 0, 0, 1, 1, 5, -LATE_MS, WINDOW_MS - 1, WINDOW_MS, WINDOW_MS + 1, 3 * WINDOW_MS]),
            ),
            min_size=size,
            max_size=size + 5,
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


@st.composite
def with_others(draw: st.DrawFn, order: str) -> list[Record]:
    """A log of `compared`; most of its records have another ID, too, which comes again, and may be the text of a source."""
    others = st.sampled_from(["a", "b", "c", "d", "e", "x", "y", None])
    found = []
    for each in draw(compared(order)):
        other = draw(others)
        more = [] if other is None else [("other", other.encode())]
        found.append(replace(each, headers=[*each.headers, *more]))
    return found


@dataclass(frozen=True)
class Comparing:
    """An order, the ID spec of the source, and whether there is a second opinion."""

    order: str
    source: str | None
    second: bool

    def __str__(self) -> str:
        names = dict(zip(ORDERS, ("dense", "sparse", "function"), strict=True))
        return f"{names[self.order]}-{self.source}{'-otherwise' * self.second}"

    def log(self, data: st.DataObject) -> list[Record]:
        """Draw a log."""
        return data.draw(with_others(self.order) if self.second else compared(self.order))

    def spec(self, data: st.DataObject, most_depth: int, seconds_ms: tuple[int, ...]) -> LastIdSpec:
        """Draw a strategy, with one of these windows for the second opinion."""
        second_ms = data.draw(st.sampled_from(seconds_ms)) if self.second else None
        return LastIdSpec(
            id="header:seq",
            order=self.order,
            source=self.source,
            window=f"{WINDOW_MS}ms",
            reorder_depth=data.draw(st.integers(0, most_depth)),
            otherwise=None if second_ms is None else "header:other",
            otherwise_window=None if second_ms is None else f"{second_ms}ms",
        )


ALL = [Comparing(*each) for each in product(ORDERS, [None, "header:source"], [False, True])]
BY_SOURCE = [each for each in ALL if each.source is not None]


def alive_at(spec: LastIdSpec, newest_ms: int) -> Callable[[Kept, int], bool]:
    """Whether a record of that time, coming next, could belong to the source of a mark, or ask for the ID of a mark."""
    strategy = spec.strategy
    second = strategy.second_window or strategy.window

    def is_alive(mark: Kept, _accepted: int) -> bool:
        # Only the mark of a source has a payload.
        window = strategy.window if mark.payload else second
        return window.holds(newest_ms - mark.timestamp_ms, 0)

    return is_alive


@pytest.mark.parametrize("comparing", ALL, ids=str)
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_compared_ids(comparing: Comparing, data: st.DataObject, seed: int) -> None:
    """Dead letters or not, all three leave the same sources and looked-up IDs; from each of them the next records get the same verdicts."""
    whole = comparing.log(data)
    at = len(whole) - data.draw(st.integers(0, len(whole) // 2))
    log, tail = whole[:at], whole[at:]
    spec = comparing.spec(data, 4, (WINDOW_MS // 4, WINDOW_MS, 3 * WINDOW_MS, 10**6))
    strategy = spec.strategy
    poison = data.draw(st.sets(st.sampled_from([each.offset for each in log]), max_size=4))
    life = lived(log, poison, strategy, data.draw(RECENT_MARKS), seed, midway=comparing.second)
    replay = replayed(log, strategy, data.draw(RECENT_MARKS), data.draw(SLICES))
    oldest_ms, newest_ms = (edge(each.timestamp_ms for each in log) for edge in (min, max))
    is_alive = alive_at(spec, newest_ms)
    ranges = st.integers(1, 3 if comparing.source or comparing.second else 1)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        manifest = rebuild_records(
            log,
            offset_range_of(log, spec.reach),
            spec,
            folder,
            ranges=data.draw(ranges),
            task_records=data.draw(SLICES),
            watched=data.draw(st.booleans()),
        )
        rebuilt = in_snapshot(folder).alive(is_alive)
        assert rebuilt == in_store(life, strategy).alive(is_alive)
        assert rebuilt == in_store(replay, strategy).alive(is_alive)
        assert manifest.id_spec == str(strategy.keys)
        assert manifest.partitions[0].newest_ms == newest_ms
        reach_ms = spec.reach.time_ms
        if reach_ms is not None and newest_ms - oldest_ms <= reach_ms:
            # Nothing has left the longer window, so that all is known from the beginning on.
            assert manifest.partitions[0].since_ms is None
        taken = engine_over(MemoryStore(), strategy)
        *_, note = begin_with(taken, folder, strategy, low=log[0].offset, committed=log[-1].offset + 1)
        assert note.startswith("snapshot of")
    assert verdicts(taken, tail) == verdicts(engine_over(life, strategy), tail)


@pytest.mark.parametrize("comparing", BY_SOURCE, ids=str)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_compared_ids_whose_history_begins_late(comparing: Comparing, data: st.DataObject) -> None:
    """Where the beginning of the history is gone, the backfill doubts what a replay from there doubts, and says from when on it knows all."""
    log = comparing.log(data)
    spec = comparing.spec(data, 3, (WINDOW_MS // 4, 10**6))
    replay = replayed(log, spec.strategy, 1000, data.draw(SLICES), complete=False)
    is_alive = alive_at(spec, max(each.timestamp_ms for each in log))
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        offset_range = offset_range_of(log, spec.reach, complete=False)
        manifest = rebuild_records(log, offset_range, spec, folder, ranges=3, task_records=data.draw(SLICES))
        assert in_snapshot(folder).alive(is_alive) == in_store(replay, spec.strategy).alive(is_alive)
    since_ms = manifest.partitions[0].since_ms
    assert since_ms is not None
    assert since_ms >= log[0].timestamp_ms


# --- units -----------------------------------------------------------------------------------------------------------

UNIT_WINDOWS = [
    Window(milliseconds=15), Window(hours=1), Window(count=3), Window(milliseconds=40, count=4), Window(count=1),
]  # fmt: skip
MODES = ["all-or-nothing", "members"]


def unit_spec(window: Window, mode: Any = "all-or-nothing", repeats: Any = "drop") -> UnitSpec:
    """What the worlds are given."""
    return UnitSpec(
        id="header:dedup-id",
        unit="header:dedup-unit",
        size_header="dedup-unit-size",
        end_header="dedup-unit-end",
        mode=mode,
        repeats=repeats,
        window=str(window),
        records=100,
    )


def rebuilt_units(
    log: list[Entry],
    spec: UnitSpec,
    folder: Path,
    *,
    high: int,
    low: int = 0,
    complete: bool = True,
    task_records: int = 7,
) -> PartitionManifest:
    """Make a snapshot of ``[low, high)``, and return its entry."""
    inside = [entry for entry in log if low <= entry.offset < high]
    window = spec.strategy.window_of("t")
    offset_range = OffsetRange(
        partition=0,
        low=low,
        begin=low,
        high=high,
        complete=complete,
        keep_from_ms=horizon_ms(window, inside[-1].timestamp_ms, NOW_MS),
    )
    records = [record_of(entry) for entry in inside]
    manifest = rebuild_records(records, offset_range, spec, folder, task_records=task_records, now_ms=NOW_MS)
    assert manifest.id_spec == str(spec.keys)
    entry = manifest.partition(0)
    assert entry is not None
    return entry


def in_world(world: UnitWorld) -> tuple[Memory, Progress]:
    """The marks of a world's engine, and how far it is."""
    held = world.engine.partitions["t", 0]
    held.flush()
    progress = held.state.progress
    return Memory(newest_of(held.store.scan()), progress.accepted), progress


def told_by_list(events: list[Event], window: Window, **more: Any) -> Memory:
    """What a list says is remembered."""
    told = read_events(events, time_ms=window.time_ms, count=window.count, **more)
    counted = window.count is not None
    marks = {
        digest_one(ident.encode()): Kept(offset, at_ms, number if counted else 0, b"")
        for ident, (offset, at_ms, number) in told.seen.items()
    }
    return Memory(marks, told.accepted if counted else 0)


@given(seed=SEEDS, mode=st.sampled_from(MODES), window=st.sampled_from(UNIT_WINDOWS), repeats=st.sampled_from(["drop", "deliver"]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_fold_of_units_is_that_of_a_list(seed: int, mode: Any, window: Window, repeats: Any) -> None:
    """Cut anywhere: a unit that is open there leaves nothing, and the cut lies before it, outside all others."""
    draw = Random(seed)
    log = unit_log(draw, count=draw.randrange(1, 60), idents=draw.randrange(1, 20))
    high = draw.choice(log).offset + 1
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        entry = rebuilt_units(
            log,
            unit_spec(window, mode, repeats),
            folder,
            high=high,
            task_records=draw.randrange(1, 50),
        )
        events = events_of([each for each in log if each.offset < entry.high])
        clock_ms = max(each.timestamp_ms for each in log)
        is_alive = in_window(window, clock_ms)
        known, told = (
            in_snapshot(folder),
            told_by_list(events, window, members=mode == "members", repeats=repeats),
        )
        assert (known.alive(is_alive), known.accepted) == (told.alive(is_alive), told.accepted)
    # Nothing crosses the cut, and it is the highest such place.
    places = {each.offset: [other.offset for other in log if other.unit is not None and other.unit == each.unit] for each in log}  # fmt: skip
    crossing = [
        cut for cut in range(high + 1) if any(min(of) < cut <= max(of) for of in places.values() if of)
    ]
    assert entry.high == max(cut for cut in range(high + 1) if cut not in crossing)


@given(seed=SEEDS, mode=st.sampled_from(MODES))
@settings(max_examples=120, deadline=None)
def test_units(seed: int, mode: Any) -> None:
    """A snapshot and a replay agree, also after crashes and failed units; without faults a list says the same."""
    draw = Random(seed)
    window = draw.choice(UNIT_WINDOWS)
    faults = draw.random() < 0.5
    world = UnitWorld(window, mode=mode, recent_marks=draw.choice([1, 3, 1000]))
    world.produce(
        unit_log(
            draw,
            count=draw.randrange(1, 40),
            idents=draw.randrange(1, 20),
            broken=faults and draw.random() < 0.5,
        )
    )
    names = ["admit", "admit", "handle", "handle", "release", "commit"]
    names += ["crash", "wait"] if faults else []
    world.play(
        [(draw.choice(names), draw.randrange(8), draw.randrange(6)) for _ in range(draw.randrange(40))]
    )
    assert world.commit is not None
    commit, clock_ms = world.commit, max(entry.timestamp_ms for entry in world.log)
    assume(commit.low < commit.offset and any(entry.offset >= commit.low for entry in world.log))
    calm = not world.faults
    is_alive = in_window(window, clock_ms)
    life, _ = in_world(world)
    lived_through = life.alive(is_alive), life.accepted
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        entry = rebuilt_units(
            world.log,
            unit_spec(window, mode),
            folder,
            high=commit.offset,
            low=commit.low,
            complete=commit.complete,
            task_records=draw.randrange(1, 50),
        )
        found = in_snapshot(folder)
        taken, note = _taken(world, folder)
        assert note.startswith("snapshot of")
        going_on, on = in_world(taken)
    world.move()
    replay, again = in_world(world)
    if calm and commit.complete:
        assert (found.alive(is_alive), found.accepted) == lived_through
        assert replay.alive(is_alive) == lived_through[0]
    if not faults and commit.complete:
        told = told_by_list(events_of(world.log), window, members=mode == "members")
        assert (told.alive(is_alive), told.accepted) == lived_through
    # Where a failed unit lies at the cut, the snapshot ends before it, and the rest is replayed.
    assert on.high == again.high == commit.offset
    # How much is in doubt hangs on how many records are folded at once, and what is late of a failed unit on where one begins.
    if calm and commit.complete and entry.since_ms is None and again.since_ms is None:
        assert (going_on.alive(is_alive), on.accepted) == (replay.alive(is_alive), again.accepted)
    # Whatever is in doubt: an ID that nobody has handled would hide its message for good.
    handled = {digest_one(ident.encode()) for ident in world.idents}
    assert {*found.alive(is_alive)[1], *going_on.alive(is_alive)[1]} <= handled


def _taken(world: UnitWorld, folder: Path) -> tuple[UnitWorld, str]:
    """Let the group begin without a store, with a snapshot; return that, and what its log says."""
    commit = world.commit
    assert commit is not None
    fresh = UnitWorld(world.strategy.window_of("t"), mode=world.strategy.unit_mode)
    fresh.log = world.log
    fresh.engine = Deduplicator(
        world.strategy, MemoryStore(), cluster="c", group="g", clock=lambda: world.now_s
    )
    held, left, note = begin_with(
        fresh.engine,
        folder,
        world.strategy,
        low=commit.low,
        committed=commit.offset,
        complete=commit.complete,
    )
    fresh.replay(held, left.replay_from, left.replay_to)
    return fresh, note


def test_what_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    """A unit that was left open long before the cut leaves nothing, and hides nothing; what hangs on it is in doubt, and the cut stays."""
    log = [Entry(0, 1_000, "a", "lost"), Entry(1, 1_001, "b")]
    log += [Entry(30_000 + at, 2_000 + at, f"c{at}") for at in range(3)]
    log += [
        Entry(40_000, 3_000, "d", "next"),
        Entry(40_001, 3_001, "a", "next", is_end=True),
        Entry(40_002, 3_002, "e", "open"),
    ]
    entry = rebuilt_units(log, unit_spec(Window(hours=1)), tmp_path / "s", high=40_003)
    assert entry.high == 40_002
    assert sorted(mark.offset for mark in in_snapshot(tmp_path / "s").marks.values()) == [
        1,
        30_000,
        30_001,
        30_002,
    ]
    assert entry.since_ms is not None
    assert entry.since_ms > 3_001, "whether the unit with the same ID was rejected is not known"


def test_the_same_record_twice_is_one_and_two_records_are_refused(tmp_path: Path) -> None:
    """An archive of two logs ends the run."""
    spec = unit_spec(Window(hours=1))
    one, end = Entry(0, 1_000, "a", "u"), Entry(1, 1_001, "b", "u", is_end=True)
    entry = rebuilt_units([one, one, end, end], spec, tmp_path / "s", high=2)
    assert entry.marks == 2
    with pytest.raises(BackfillError, match="offset 1 of partition 0 is there twice with different contents"):
        rebuilt_units([one, end, Entry(1, 1_001, "c", "u", is_end=True)], spec, tmp_path / "t", high=2)
