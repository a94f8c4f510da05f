"""Rebuilt equals lived.

A life, a replay and the backfill leave the same marks of one log, and the next records get the same verdicts.
"""

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
from dedup_sdk._store.manifest import Manifest, PartitionManifest, read_manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk.ids import digest_one, key
from spark_backfill import slots
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import OffsetRange, expire
from spark_backfill.ordered_spec import LastIdSpec, OrderedSpec, UnitSpec
from spark_backfill.range_plan import alone, horizon_ms
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
    progress_in,
    replayed,
    verdicts,
)
from tests.support.logs import logs
from tests.support.naive_fold import Row, naive_fold
from tests.support.naive_units import Entry, Event, events_of, read_events
from tests.support.rebuilding import NOW_MS, rebuild, rebuild_records, write
from tests.support.unit_logs import unit_log
from tests.support.unit_world import UnitWorld, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SEEDS = st.integers(0, 2**32 - 1)
RECENT_MARKS = st.sampled_from([1, 2, 3, 1000])
SLICES = st.sampled_from([1, 2, 3, 7, 50])

# --- IDs that are looked up ----------------------------------------------------------------------------------------

WINDOWS = [
    Window(milliseconds=20),
    Window(milliseconds=400),
    Window(count=1),
    Window(count=3),
    Window(milliseconds=60, count=3),
]


@pytest.fixture(autouse=True, scope="module")
def small_slots() -> Iterator[None]:
    """Partitions of forty rows are cut into several digest ranges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "WORTH_SPLITTING", 12)
        patch.setattr(slots, "ROWS_PER_SLOT", 9)
        yield


def keyed(drawn: Sequence[tuple[int, str | None, int]]) -> list[Record]:
    """Drawn rows as records whose key is the ID."""
    return [
        Record("t", 0, offset, timestamp_ms, key=ident.encode() if ident else None)
        for offset, ident, timestamp_ms in drawn
    ]


def rows_of(log: Sequence[Record]) -> list[Row]:
    """Such records as the rows of a reader."""
    return [
        Row(0, each.offset, each.timestamp_ms, None if each.key is None else digest_one(each.key))
        for each in log
    ]


def only_entry(manifest: Manifest) -> PartitionManifest:
    """A manifest's entry of partition 0."""
    entry = manifest.partition(0)
    assert entry is not None
    return entry


def grown(log: Sequence[Record], cuts: Iterable[int], window: Window, place: Path, run_rows: int) -> Path:
    """Make a snapshot of a log in steps that end at these offsets, each on top of the one before.

    Return the last folder.
    """
    low, end = log[0].offset, log[-1].offset + 1
    folder: Path | None = None
    for cut in sorted({*cuts, end}):
        base, folder = folder, place / f"to-{cut}"
        rebuild(rows_of(log), window, folder, low=low, high=cut, base=base, run_rows=run_rows)
    assert folder is not None
    return folder


def check_grown(
    grown: Manifest, log: Sequence[Record], cuts: Iterable[int], window: Window, place: Path
) -> None:
    """Check that it is the snapshot that is made in one step, and knows as far back as those of all cuts.

    An ID that had left the window at a cut is not known any more, though it may come again behind the cut.
    """
    low, end = log[0].offset, log[-1].offset + 1
    full_at = [
        rebuild(rows_of(log), window, place / f"full-to-{cut}", low=low, high=cut)
        for cut in sorted({*cuts, end})
    ]
    entry, wholes, full = only_entry(grown), list(map(only_entry, full_at)), full_at[-1]
    whole = wholes[-1]
    since_ms = max(each.known.since_ms or 0 for each in wholes)
    since_number = max(each.known.since_number or 0 for each in wholes)
    assert grown.fingerprint == full.fingerprint
    assert (entry.low, entry.high, entry.known.accepted, entry.known.newest_ms) == (
        whole.low,
        whole.high,
        whole.known.accepted,
        whole.known.newest_ms,
    )
    assert (entry.known.since_ms or 0) <= since_ms
    assert (entry.known.since_number or 0) == since_number


def test_what_had_left_the_window_at_a_cut_is_in_doubt_though_it_came_again(tmp_path: Path) -> None:
    """The snapshot that was made in one step has never been without the ID, and knows all."""
    log = keyed([(0, "b", 1_000), (5, "a", 1_100), (6, "b", 1_100)])
    window = Window(milliseconds=60, count=3)
    manifest = read_manifest(grown(log, [6], window, tmp_path, run_rows=7))
    check_grown(manifest, log, [6], window, tmp_path)
    assert (only_entry(manifest).known.since_ms, only_entry(manifest).known.since_number) == (1_001, 1)
    assert only_entry(read_manifest(tmp_path / "full-to-7")).known.since_ms is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "orderly"),
    # With both windows a record that comes late may be doubted, and then it takes a number.
    [(window, window.time_ms is not None and window.count is not None) for window in WINDOWS],
    ids=str,
)
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=100, deadline=None)
def test_looked_up_ids(window: Window, data: st.DataObject, seed: int, *, orderly: bool) -> None:
    """Dead letters or not, flushes or not, all three have the same marks alive at the cut.

    The backfill makes the same snapshot in one step and in many.
    """
    orderly = orderly or data.draw(st.booleans())
    log = keyed(data.draw(logs(orderly=orderly)))
    low, end = log[0].offset, log[-1].offset + 1
    cuts = st.lists(st.integers(low + 1, end), max_size=2)
    poison = data.draw(st.sets(st.sampled_from([each.offset for each in log]), max_size=4))
    strategy = Lookup(id=key(), window=window)
    life = lived(log, poison, strategy, data.draw(RECENT_MARKS), seed)
    replay = replayed(log, strategy, data.draw(RECENT_MARKS), data.draw(SLICES), closed_at=data.draw(cuts))
    is_alive = in_window(window, max(min(each.timestamp_ms, NOW_MS) for each in log))
    left = in_store(replay, strategy).alive(is_alive)
    assert left == in_store(life, strategy).alive(is_alive)
    steps = data.draw(cuts)
    with TemporaryDirectory() as place:
        folder = grown(log, steps, window, Path(place), run_rows=data.draw(SLICES))
        assert left == in_snapshot(folder).alive(is_alive)
        manifest = read_manifest(folder)
        if steps and orderly:
            check_grown(manifest, log, steps, window, Path(place))
        if window.time_ms is None:
            # A longer window doubts as much over either.
            told = progress_in(replay, strategy)
            ranks_begin = max(told.known.since_number or 0, told.known.floor_number)
            entry = only_entry(manifest)
            assert (told.known.accepted, ranks_begin) == (entry.known.accepted, entry.known.since_number or 0)


@st.composite
def cut_logs(draw: st.DrawFn) -> tuple[list[Record], int]:
    """A log, and the end of a base in it.

    Records come a little late, or at any time, above all right behind the base.
    """
    names, steps = st.integers(0, 14), st.integers(0, 60)
    late: list[tuple[int, int, int | None]] = []
    if draw(st.booleans()):
        late += draw(st.lists(st.tuples(names, steps, st.integers(0, 200)), min_size=1, max_size=60))
        cut = draw(st.integers(0, len(late)))
    else:
        record = st.tuples(names, steps, st.sampled_from([0, 0, 0, 5_000, -NOW_MS, None]))
        old = st.tuples(names, steps, st.sampled_from([5_000, None]))
        late += draw(st.lists(record, min_size=1, max_size=12))
        cut = len(late)
        late += draw(st.lists(old, min_size=1, max_size=2)) + draw(st.lists(record, min_size=1, max_size=12))
    now_ms, log = 10_000, list[tuple[int, str | None, int]]()
    for offset, (name, step_ms, late_ms) in enumerate(late):
        now_ms += step_ms
        log.append((offset, f"{name}", -1 if late_ms is None else now_ms - late_ms))
    return keyed(log), cut


@given(
    cut_log=cut_logs(),
    low=st.sampled_from([0, 0, 3, 20]),
    window_ms=st.integers(100, 700),
    lost=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_grown_snapshot_knows_what_it_says_to_know(
    cut_log: tuple[list[Record], int], low: int, window_ms: int, *, lost: bool
) -> None:
    """Timestamps in no order, another window than the base's, a later beginning; the log may have lost the base's part.

    No mark is there but an ID's last, and none is missing that was sighted since the coverage begins.
    """
    log, cut = cut_log
    rows, end = rows_of(log), len(log)
    low = min(low, cut)
    of_base, window = Window(milliseconds=320), Window(milliseconds=window_ms)
    with TemporaryDirectory() as name:
        folder = Path(name)
        rebuild(rows, of_base, folder / "base", high=cut)
        start = cut if lost else 0
        manifest = rebuild(
            rows, window, folder / "grown", low=low, high=end, base=folder / "base", start=start
        )
        ours = in_snapshot(folder / "grown").marks
    since_ms = only_entry(manifest).known.since_ms
    known, _ = naive_fold([row for row in rows if row.offset >= low], window)
    last = {digest: Kept(mark.offset, mark.timestamp_ms, 0, b"") for digest, mark in known.items()}
    assert ours.items() <= last.items()
    assert {
        d: m for d, m in last.items() if since_ms is None or m.timestamp_ms >= since_ms
    }.items() <= ours.items()


@given(
    drawn=logs(orderly=True), window=st.sampled_from(WINDOWS), before_ms=st.none() | st.integers(1_000, 1_600)
)
@settings(max_examples=40, deadline=None)
def test_a_snapshot_that_is_written_again_remembers_the_same(
    drawn: list[tuple[int, str | None, int]], window: Window, before_ms: int | None
) -> None:
    """Nothing is added: the marks are the same but for those that were to expire, and coverage tells of these."""
    rows = rows_of(keyed(drawn))
    with TemporaryDirectory() as name:
        folder = Path(name)
        base = rebuild(rows, window, folder / "base", high=rows[-1].offset + 1)
        (offset_range,) = expire(alone(base, window, NOW_MS), before_ms)
        again = write(offset_range, [], window, folder / "again", base=folder / "base")
        before, after = in_snapshot(folder / "base").marks, in_snapshot(folder / "again").marks
    assert after == {d: mark for d, mark in before.items() if mark.timestamp_ms >= (before_ms or 0)}
    one, other = only_entry(base), only_entry(again)
    assert (other.low, other.high, other.known.accepted, other.known.newest_ms) == (
        one.low,
        one.high,
        one.known.accepted,
        one.known.newest_ms,
    )
    if before == after:
        assert (again.fingerprint, other.known.since_ms, other.known.since_number) == (
            base.fingerprint,
            one.known.since_ms,
            one.known.since_number,
        )
    else:
        newest_out_ms = max(mark.timestamp_ms for d, mark in before.items() if d not in after)
        assert other.known.since_ms is not None
        assert other.known.since_ms > newest_out_ms


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
    """A log of one partition with holes, two origins and idle windows.

    IDs are late, repeated, bad or missing; so is a source at times.
    """
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
    """A log of `compared`.

    Most of its records have another ID, too, which comes again, and may be the text of a source.
    """
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


def written_twice(draw: st.DataObject, log: Sequence[Record]) -> list[Record]:
    """A log, and behind it some of its records again, at the same time, a later one, or none.

    The earlier time counts.
    """
    any_record, late_ms = st.sampled_from(log) | st.sampled_from(log[-3:]), st.sampled_from([0, 7, None])
    again = draw.draw(st.lists(st.tuples(any_record, late_ms), min_size=1, max_size=4))
    return [
        *log,
        *(replace(each, timestamp_ms=-1 if ms is None else each.timestamp_ms + ms) for each, ms in again),
    ]


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


@pytest.mark.slow
@pytest.mark.parametrize("comparing", ALL, ids=str)
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_compared_ids(comparing: Comparing, data: st.DataObject, seed: int) -> None:
    """Dead letters or not, all three leave the same sources and looked-up IDs.

    From each of them the next records get the same verdicts.
    """
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
    watched = data.draw(st.booleans())
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        manifest = rebuild_records(
            written_twice(data, log) if watched else log,
            offset_range_of(log, spec.reach),
            spec,
            folder,
            task_records=data.draw(SLICES),
            watched=watched,
        )
        rebuilt = in_snapshot(folder).alive(is_alive)
        assert rebuilt == in_store(life, strategy).alive(is_alive)
        assert rebuilt == in_store(replay, strategy).alive(is_alive)
        assert manifest.id_spec == str(strategy.keys)
        assert watched or manifest.partitions[0].known.newest_ms == newest_ms
        reach_ms = spec.reach.time_ms
        if reach_ms is not None and newest_ms - oldest_ms <= reach_ms:
            # Nothing has left the longer window, so that all is known from the beginning on.
            assert manifest.partitions[0].known.since_ms is None
        taken = engine_over(MemoryStore(), strategy)
        *_, note = begin_with(taken, folder, strategy, low=log[0].offset, committed=log[-1].offset + 1)
        assert note.startswith("snapshot of")
    assert verdicts(taken, tail) == verdicts(engine_over(life, strategy), tail)


@pytest.mark.parametrize("comparing", BY_SOURCE, ids=str)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_compared_ids_whose_history_begins_late(comparing: Comparing, data: st.DataObject) -> None:
    """Where the beginning of the history is gone, the backfill doubts the same as a replay from there.

    It says from when on it knows all.
    """
    log = comparing.log(data)
    spec = comparing.spec(data, 3, (WINDOW_MS // 4, 10**6))
    replay = replayed(log, spec.strategy, 1000, data.draw(SLICES), complete=False)
    is_alive = alive_at(spec, max(each.timestamp_ms for each in log))
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        offset_range = offset_range_of(log, spec.reach, complete=False)
        manifest = rebuild_records(log, offset_range, spec, folder, task_records=data.draw(SLICES))
        assert in_snapshot(folder).alive(is_alive) == in_store(replay, spec.strategy).alive(is_alive)
    since_ms = manifest.partitions[0].known.since_ms
    assert since_ms is not None
    assert since_ms >= log[0].timestamp_ms


# --- units -----------------------------------------------------------------------------------------------------------

UNIT_WINDOWS = [
    Window(milliseconds=15), Window(hours=1), Window(count=3), Window(milliseconds=40, count=4), Window(count=1),
]  # fmt: skip
MODES = ["all-or-nothing", "members"]


def unit_spec(window: Window, mode: Any = "all-or-nothing", repeats: Any = "drop") -> UnitSpec:
    """The unit spec of the worlds."""
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
    again: Sequence[Entry] = (),
) -> PartitionManifest:
    """Make a snapshot of ``[low, high)``, and return its entry; ``again``: records that an archive has twice."""
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
    records = [record_of(entry) for entry in [*inside, *again]]
    manifest = rebuild_records(
        records,
        offset_range,
        spec,
        folder,
        task_records=task_records,
        watched=bool(again),
        now_ms=NOW_MS,
    )
    assert manifest.id_spec == str(spec.keys)
    return only_entry(manifest)


def in_world(world: UnitWorld) -> tuple[Memory, Progress]:
    """The marks of a world's engine, and how far it is."""
    held = world.engine.partitions["t", 0]
    held.flush()
    progress = held.state.progress
    return Memory(newest_of(held.store.scan()), progress.known.accepted), progress


def told_by_list(events: list[Event], window: Window, **more: Any) -> Memory:
    """The memory by a list of events."""
    told = read_events(events, time_ms=window.time_ms, count=window.count, **more)
    counted = window.count is not None
    marks = {
        digest_one(ident.encode()): Kept(offset, at_ms, number if counted else 0, b"")
        for ident, (offset, at_ms, number) in told.seen.items()
    }
    return Memory(marks, told.accepted if counted else 0)


@pytest.mark.slow
@given(
    seed=SEEDS,
    mode=st.sampled_from(MODES),
    window=st.sampled_from(UNIT_WINDOWS),
    repeats=st.sampled_from(["drop", "deliver"]),
)
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
            again=[
                replace(each, timestamp_ms=each.timestamp_ms + draw.choice([0, 7]))
                for each in draw.choices([each for each in log if each.offset < high], k=draw.randrange(4))
            ],
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
    places = {
        each.offset: [other.offset for other in log if other.unit is not None and other.unit == each.unit]
        for each in log
    }
    crossing = [
        cut for cut in range(high + 1) if any(min(of) < cut <= max(of) for of in places.values() if of)
    ]
    assert entry.high == max(cut for cut in range(high + 1) if cut not in crossing)


@pytest.mark.slow
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
    # How much is in doubt hangs on how many records are folded at once, and the late records of a failed unit on where
    # one begins.
    if calm and commit.complete and entry.known.since_ms is None and again.known.since_ms is None:
        assert (going_on.alive(is_alive), on.known.accepted) == (replay.alive(is_alive), again.known.accepted)
    # Whatever is in doubt: an ID that nobody has handled would hide its message for good.
    handled = {digest_one(ident.encode()) for ident in world.idents}
    assert {*found.alive(is_alive)[1], *going_on.alive(is_alive)[1]} <= handled


def _taken(world: UnitWorld, folder: Path) -> tuple[UnitWorld, str]:
    """Let the group begin without a store, with a snapshot; return that, and its log lines."""
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
    """A unit that was left open long before the cut leaves nothing, and hides nothing.

    IDs that need it are in doubt, and the cut stays.
    """
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
    assert entry.known.since_ms is not None
    assert entry.known.since_ms > 3_001, "whether the unit with the same ID was rejected is not known"


# --- an archive of two logs ----------------------------------------------------------------------------------------


def by_number(*, source: str | None = None, second: bool = False) -> LastIdSpec:
    """Integers in the header ``seq``, ``second``: with a second opinion."""
    return LastIdSpec(
        id="header:seq",
        order="integer",
        source=source,
        window=f"{WINDOW_MS}ms",
        reorder_depth=9,
        otherwise="header:other" if second else None,
        otherwise_window=f"{WINDOW_MS}ms" if second else None,
    )


@pytest.mark.parametrize(
    ("spec", "other", "marks"),
    [
        (by_number(source="header:source"), {"seq": b"6"}, 1),
        (by_number(source="header:source"), {"source": b"y"}, 1),
        (by_number(second=True), {"other": b"b"}, 2),
        (unit_spec(Window(hours=1)), {"dedup-id": b"b"}, 1),
    ],
    ids=["id", "source", "looked-up", "unit"],
)
def test_two_records_at_one_offset_are_refused(
    spec: OrderedSpec, other: dict[str, bytes], marks: int, tmp_path: Path
) -> None:
    """They end the run, whatever they differ in; the same record twice is one."""
    headers = [("seq", b"5"), ("source", b"x"), ("other", b"a")]
    named = {**dict(headers), **dict(record_of(Entry(0, 1_000, "a", "u", is_end=True)).headers)}
    one, another = (
        Record("t", 0, 0, 1_000, headers=list(each.items())) for each in (named, {**named, **other})
    )
    offset_range = OffsetRange(partition=0, low=0, begin=0, high=1, complete=True)
    manifest = rebuild_records([one, one], offset_range, spec, tmp_path / "one", watched=True)
    assert manifest.marks == marks
    with pytest.raises(BackfillError, match="offset 0 of partition 0 is there twice with different contents"):
        rebuild_records([one, another], offset_range, spec, tmp_path / "two", watched=True)
