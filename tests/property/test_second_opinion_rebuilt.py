"""Rebuilt equals lived where comparing has a second opinion: sources and what is looked up, each for as long as the longer window says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk import Record
from dedup_sdk.marks import Marks
from dedup_sdk.store.memory import MemoryStore
from spark_backfill.errors import BackfillError
from spark_backfill.last_id_spec import LastIdSpec
from spark_backfill.slot_shuffle import SlotShuffle
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.stretch import Stretch
from tests.property.test_last_id_rebuilt import (
    ORDERS,
    WINDOW_MS,
    engine_over,
    in_snapshot,
    in_store,
    lived,
    logs,
    replayed,
    start,
    stretch_of,
    verdicts,
)
from tests.support.rebuilding_shuffled import rebuild_shuffled, rows_of

Kept = dict[bytes, tuple[int, int, bytes]]
"""Marks by digest: offset, timestamp, payload."""


def spec_of(order: str, source: str | None, depth: int, second_ms: int) -> LastIdSpec:
    """A strategy on the headers of `with_others`."""
    return LastIdSpec(
        id="header:seq",
        order=order,
        source=source,
        window=f"{WINDOW_MS}ms",
        reorder_depth=depth,
        otherwise="header:other",
        otherwise_window=f"{second_ms}ms",
    )


@st.composite
def with_others(draw: st.DrawFn, order: str) -> list[Record]:
    """A log of `logs`, most of whose records bear another ID, too, that may be the text of a source, and comes again."""
    others = st.sampled_from(["a", "b", "c", "d", "e", "x", "y", None])
    found = []
    for each in draw(logs(order)):
        other = draw(others)
        more = [] if other is None else [("other", other.encode())]
        found.append(replace(each, headers=[*each.headers, *more]))
    return found


def remembered(pages: list[Marks], newest_ms: int, second_ms: int) -> tuple[Kept, Kept]:
    """Sources, and what is looked up, that a record of that time could ask for, coming next."""
    known: Kept = {}
    for page in pages:
        payloads = page.payloads or [b""] * page.count
        for row in range(page.count):
            digest, offset = page.digests[16 * row : 16 * row + 16], int(page.offsets[row])
            if offset >= known.get(digest, (-1, 0, b""))[0]:
                known[digest] = (offset, int(page.timestamps[row]), payloads[row])
    sources = {digest: mark for digest, mark in known.items() if mark[2] and newest_ms - mark[1] <= WINDOW_MS}
    looked_up = {
        digest: mark for digest, mark in known.items() if not mark[2] and newest_ms - mark[1] <= second_ms
    }
    return sources, looked_up


@pytest.mark.parametrize("order", ORDERS, ids=["dense", "sparse", "function"])
@pytest.mark.parametrize("source", [None, "header:source"])
@given(
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(0, 3),
    second_ms=st.sampled_from([WINDOW_MS // 4, WINDOW_MS, 3 * WINDOW_MS, 10**6]),
)
@settings(max_examples=30, deadline=None)
def test_the_backfill_leaves_sources_and_looked_up_ids_of_a_life(
    order: str, source: str | None, data: st.DataObject, seed: int, depth: int, second_ms: int
) -> None:
    """From the same log life, replay and backfill leave the same marks; from each the next records get the same verdicts."""
    whole = data.draw(with_others(order))
    at = data.draw(st.integers(1, len(whole)))
    log, tail = whole[:at], whole[at:]
    spec = spec_of(order, source, depth, second_ms)
    recent_marks = st.sampled_from([1, 2, 1000])
    poison = data.draw(st.sets(st.sampled_from([each.offset for each in log]), max_size=4))
    life = lived(log, poison, spec, data.draw(recent_marks), seed, midway=True)
    replay = replayed(log, spec, data.draw(recent_marks), data.draw(st.integers(1, 50)), complete=True)
    newest_ms = max(each.timestamp_ms for each in log)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        manifest = rebuild_shuffled(
            log,
            stretch_of(log, window=spec.reach),
            spec,
            folder,
            ranges=data.draw(st.integers(1, 3)),
            task_records=data.draw(st.integers(1, 50)),
            watched=data.draw(st.booleans()),
        )
        rebuilt = remembered(in_snapshot(folder), newest_ms, second_ms)
        assert rebuilt == remembered(in_store(life, spec), newest_ms, second_ms)
        assert rebuilt == remembered(in_store(replay, spec), newest_ms, second_ms)
        assert manifest.id_spec == str(spec.strategy.keys)
        if newest_ms - min(each.timestamp_ms for each in log) <= second_ms:
            # Nothing has left the longer window, so that all is known from the beginning on.
            assert manifest.partitions[0].since_ms is None
        taken = engine_over(MemoryStore(), spec, 1000)
        note = start(taken, log, spec, folder)
        assert note.startswith("snapshot of")
    assert verdicts(taken, tail) == verdicts(engine_over(life, spec, 1000), tail)


@pytest.mark.parametrize("order", ORDERS, ids=["dense", "sparse", "function"])
@given(data=st.data(), second_ms=st.sampled_from([WINDOW_MS // 4, 10**6]))
@settings(max_examples=20, deadline=None)
def test_a_history_that_begins_late_leaves_what_a_replay_leaves(
    order: str, data: st.DataObject, second_ms: int
) -> None:
    """Where the beginning is gone, both know the same, and from when on."""
    log = data.draw(with_others(order))
    spec = spec_of(order, "header:source", 2, second_ms)
    replay = replayed(log, spec, 1000, data.draw(st.integers(1, 50)), complete=False)
    newest_ms = max(each.timestamp_ms for each in log)
    with TemporaryDirectory() as place:
        folder = Path(place) / "snapshot"
        manifest = rebuild_shuffled(
            log, stretch_of(log, window=spec.reach, complete=False), spec, folder, ranges=3
        )
        rebuilt = remembered(in_snapshot(folder), newest_ms, second_ms)
    assert rebuilt == remembered(in_store(replay, spec), newest_ms, second_ms)
    since_ms = manifest.partitions[0].since_ms
    assert since_ms is not None
    assert since_ms >= log[0].timestamp_ms


def record(offset: int, ident: str, other: str, timestamp_ms: int = 1_000) -> Record:
    """A record of partition 0."""
    return Record("t", 0, offset, timestamp_ms, headers=[("seq", ident.encode()), ("other", other.encode())])


def test_a_source_lives_as_long_as_what_is_looked_up(tmp_path: Path) -> None:
    """By the longer of the windows, as in the consumer; what is older leaves, and coverage says from when on all is known."""
    spec = spec_of("integer", None, 9, 10 * WINDOW_MS)
    assert spec.reach.time_ms == 10 * WINDOW_MS
    assert spec_of("integer", None, 9, 1).reach.time_ms == WINDOW_MS
    log = [
        record(0, "5", "a", 1_000),
        record(1, "?", "b", 1_000 + WINDOW_MS),
        record(2, "?", "c", 1_000 + 11 * WINDOW_MS),
    ]
    manifest = rebuild_shuffled(
        log, stretch_of(log, window=spec.reach), spec, tmp_path / "snapshot", ranges=2
    )
    sources, looked_up = remembered(in_snapshot(tmp_path / "snapshot"), 0, 0)
    assert [mark[0] for mark in sources.values()] == []
    assert sorted(mark[0] for mark in looked_up.values()) == [1, 2]
    assert manifest.partitions[0].since_ms == 1_001
    log = log[:2]
    rebuild_shuffled(log, stretch_of(log, window=spec.reach), spec, tmp_path / "snapshot")
    sources, looked_up = remembered(in_snapshot(tmp_path / "snapshot"), 0, 0)
    assert [mark[0] for mark in sources.values()] == [0]
    assert sorted(mark[0] for mark in looked_up.values()) == [0, 1]


def test_a_row_that_comes_twice_is_sighted_once(tmp_path: Path) -> None:
    """At the earlier of its times, any before none, wherever the rows of an ID lie."""
    spec = spec_of("integer", None, 9, WINDOW_MS)
    rows = [
        record(at, "5", "a", timestamp_ms) for at, timestamp_ms in ((3, 1_007), (0, 9), (3, -1), (3, 1_003))
    ]
    stretch = Stretch(partition=0, low=0, begin=0, high=4, complete=True)
    rebuild_shuffled(rows, stretch, spec, tmp_path / "snapshot", task_records=1, watched=True)
    _, looked_up = remembered(in_snapshot(tmp_path / "snapshot"), 0, 0)
    assert [mark[:2] for mark in looked_up.values()] == [(3, 1_003)]


def test_two_records_of_one_offset_that_differ_in_what_is_looked_up_are_refused(tmp_path: Path) -> None:
    """An archive of two logs ends the run, also where both have the same ID there."""
    spec = spec_of("integer", None, 9, WINDOW_MS)
    rows = [record(0, "5", "a"), record(0, "5", "b")]
    with pytest.raises(BackfillError, match="offset 0 of partition 0 is there twice"):
        rebuild_shuffled(rows, stretch_of(rows, window=spec.reach), spec, tmp_path / "snapshot", watched=True)


def test_an_id_on_most_records_is_a_row_a_batch() -> None:
    """Of what is looked up only the last sighting goes through the shuffle, from where a task read it."""
    spec = spec_of("integer", None, 9, WINDOW_MS)
    records = [record(at, str(at), "hot" if at % 10 else "cold", 1_000 + at) for at in range(100)]
    slots = SlotPlan((Slot(0, 0, 1),))
    partitioner = SlotShuffle(spec=spec, plan=slots)
    rows = [
        (row["offset"], row["timestamp_ms"])
        for batch in partitioner([rows_of(records[:50], spec), rows_of(records[50:], spec)])
        for row in batch.to_pylist()
        if row["id"] is None
    ]
    assert sorted(rows) == [(at, 1_000 + at) for at in (40, 49, 90, 99)]
