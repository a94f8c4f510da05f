"""Rebuilt equals lived where records belong to units: the backfill's own tasks, a replay, a life and a list leave the same marks."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dedup_sdk.core.plan import plan_start
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.ids import digest_one
from dedup_sdk.kafka.recovery import start_from_snapshot
from dedup_sdk.progress import Progress
from dedup_sdk.store.manifest import PartitionManifest, read_manifest
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.snapshot import read_snapshot
from dedup_sdk.window import Window
from spark_backfill.errors import BackfillError
from spark_backfill.stretch import Stretch, horizon_ms
from spark_backfill.unit_spec import UnitSpec
from tests.property.test_reshard import outcome_of
from tests.support.known_marks import newest_marks
from tests.support.naive_units import Entry, Event, events_of, read_events
from tests.support.rebuilding_shuffled import rebuild_shuffled
from tests.support.unit_logs import unit_log
from tests.support.unit_world import UnitWorld, record_of

NOW_MS = 10**9
WINDOWS = [
    Window(milliseconds=15), Window(hours=1), Window(count=3), Window(milliseconds=40, count=4), Window(count=1),
]  # fmt: skip
MODES = ["all-or-nothing", "members"]
SEEDS = st.integers(0, 2**32)
Known = dict[bytes, tuple[int, int, int]]


def spec_of(window: Window, mode: Any = "all-or-nothing", repeats: Any = "drop") -> UnitSpec:
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


def rebuilt(
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
    stretch = Stretch(
        partition=0,
        low=low,
        begin=low,
        high=high,
        complete=complete,
        keep_from_ms=horizon_ms(window, inside[-1].timestamp_ms, NOW_MS),
    )
    records = [record_of(entry) for entry in inside]
    manifest = rebuild_shuffled(records, stretch, spec, folder, task_records=task_records, now_ms=NOW_MS)
    assert manifest.id_spec == str(spec.keys)
    entry = manifest.partition(0)
    assert entry is not None
    return entry


def remembered(folder: Path, window: Window, clock_ms: int) -> Known:
    """The marks of a snapshot inside the window."""
    entry = read_manifest(folder).partition(0)
    assert entry is not None
    return _live(newest_marks(read_snapshot(folder, entry)), window, clock_ms, entry.accepted)


def _live(marks: Any, window: Window, clock_ms: int, accepted: int) -> Known:
    return {
        digest: (mark.offset, mark.timestamp_ms, mark.number)
        for digest, mark in marks.items()
        if window.holds(clock_ms - mark.timestamp_ms, accepted - mark.number)
    }


def in_world(world: UnitWorld, clock_ms: int) -> tuple[Known, Progress]:
    """The marks of a world's engine inside the window, and how far it is."""
    held = world.engine.partitions["t", 0]
    held.flush()
    progress = held.state.progress
    return _live(
        newest_marks(held.store.scan()), world.strategy.window_of("t"), clock_ms, progress.accepted
    ), progress


def told_by_list(events: list[Event], window: Window, clock_ms: int, **more: Any) -> tuple[Known, int]:
    """What a list says is remembered, and how many were accepted."""
    told = read_events(events, time_ms=window.time_ms, count=window.count, **more)
    counted = window.count is not None
    return {
        digest_one(ident.encode()): (offset, at_ms, number if counted else 0)
        for ident, (offset, at_ms, number) in told.seen.items()
        if window.holds(clock_ms - at_ms, told.accepted - number)
    }, told.accepted if counted else 0


@given(seed=SEEDS, mode=st.sampled_from(MODES), window=st.sampled_from(WINDOWS), repeats=st.sampled_from(["drop", "deliver"]))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_fold_is_that_of_a_list(seed: int, mode: Any, window: Window, repeats: Any) -> None:
    """Cut anywhere: a unit that is open there leaves nothing, and the cut lies before it, outside all others."""
    draw = Random(seed)
    log = unit_log(draw, count=draw.randrange(1, 60), idents=draw.randrange(1, 20))
    high = draw.choice(log).offset + 1
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        entry = rebuilt(
            log,
            spec_of(window, mode, repeats),
            folder,
            high=high,
            task_records=draw.randrange(1, 50),
        )
        events = events_of([each for each in log if each.offset < entry.high])
        clock_ms = max(each.timestamp_ms for each in log)
        known, accepted = told_by_list(events, window, clock_ms, members=mode == "members", repeats=repeats)
        assert (remembered(folder, window, clock_ms), entry.accepted) == (known, accepted)
    # Nothing crosses the cut, and it is the highest such place.
    places = {each.offset: [other.offset for other in log if other.unit is not None and other.unit == each.unit] for each in log}  # fmt: skip
    crossing = [
        cut for cut in range(high + 1) if any(min(of) < cut <= max(of) for of in places.values() if of)
    ]
    assert entry.high == max(cut for cut in range(high + 1) if cut not in crossing)


@given(seed=SEEDS, mode=st.sampled_from(MODES))
@settings(max_examples=60, deadline=None)
def test_the_backfill_leaves_what_a_life_did(seed: int, mode: Any) -> None:
    """Of a group, and of one that crashed or had units that failed: what a replay of its history gives."""
    draw = Random(seed)
    window = draw.choice(WINDOWS)
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
    lived, progress = in_world(world, clock_ms)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        entry = rebuilt(
            world.log,
            spec_of(window, mode),
            folder,
            high=commit.offset,
            low=commit.low,
            complete=commit.complete,
            task_records=draw.randrange(1, 50),
        )
        found = remembered(folder, window, clock_ms)
        taken, note = _taken(world, folder)
        assert note.startswith("snapshot of")
        going_on, on = in_world(taken, clock_ms)
    world.move()
    replayed, again = in_world(world, clock_ms)
    if calm and commit.complete:
        assert (found, entry.accepted) == (lived, progress.accepted)
    # Where a failed unit lies at the cut, the snapshot ends before it, and the rest is replayed.
    assert on.high == again.high == commit.offset
    # How much is in doubt hangs on how many records are folded at once, and what is late of a failed unit on where one begins.
    if calm and commit.complete and entry.since_ms is None and again.since_ms is None:
        assert (going_on, on.accepted) == (replayed, again.accepted)
    # Whatever is in doubt: an ID that nobody has handled would hide its message for good.
    handled = {digest_one(ident.encode()) for ident in world.idents}
    assert {*found, *going_on} <= handled


def _taken(world: UnitWorld, folder: Path) -> tuple[UnitWorld, str]:
    """Let the group begin without a store, with a snapshot; return that, and what its log says."""
    assert world.commit is not None
    fresh = UnitWorld(world.strategy.window_of("t"), mode=world.strategy.unit_mode)
    fresh.log = world.log
    fresh.engine = Deduplicator(
        world.strategy, MemoryStore(), cluster="c", group="g", clock=lambda: world.now_s
    )
    held = fresh.engine.attach("t", 0)
    plan = plan_start(
        None, committed=world.commit.offset, low=world.commit.low, complete=world.commit.complete
    )
    identity = Identity(cluster="c", group="g", topic="t", partition=0, id_spec=str(world.strategy.keys))
    went_on, note = outcome_of(start_from_snapshot(held, plan, [str(folder)], identity, None))
    fresh._replay(held, went_on.replay_from, went_on.replay_to)
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
    entry = rebuilt(log, spec_of(Window(hours=1)), tmp_path / "s", high=40_003)
    known = remembered(tmp_path / "s", Window(hours=1), 4_000)
    assert entry.high == 40_002
    assert sorted(offset for offset, _, _ in known.values()) == [1, 30_000, 30_001, 30_002]
    assert entry.since_ms is not None
    assert entry.since_ms > 3_001, "whether the unit with the same ID was rejected is not known"


def test_the_same_record_twice_is_one_and_two_records_are_refused(tmp_path: Path) -> None:
    """An archive of two logs ends the run."""
    spec = spec_of(Window(hours=1))
    one, end = Entry(0, 1_000, "a", "u"), Entry(1, 1_001, "b", "u", is_end=True)
    entry = rebuilt([one, one, end, end], spec, tmp_path / "s", high=2)
    assert entry.marks == 2
    with pytest.raises(BackfillError, match="offset 1 of partition 0 is there twice with different contents"):
        rebuilt([one, end, Entry(1, 1_001, "c", "u", is_end=True)], spec, tmp_path / "t", high=2)
