"""A snapshot that was added to is the snapshot that would have been made of everything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.errors import SnapshotError
from dedup_sdk.ids import key
from spark_backfill import slots
from spark_backfill.base_range import alone
from spark_backfill.offset_range import expire
from tests.support.naive_fold import Row, digest_of, naive_fold
from tests.support.rebuilding import NOW_MS, marks_of, plan, rebuild, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk._marks import Progress
    from dedup_sdk._store.manifest import PartitionManifest

HOUR = Window(milliseconds=320)
COUNTS = [Window(count=6), Window(count=40), Window(count=9, milliseconds=320)]


@pytest.fixture(autouse=True, scope="module")
def small_slots() -> Iterator[None]:
    """Partitions of forty rows are cut into several digest ranges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "WORTH_SPLITTING", 12)
        patch.setattr(slots, "ROWS_PER_SLOT", 9)
        yield


def log_of(drawn: list[tuple[int | None, int, int, int]]) -> list[Row]:
    """A partition's log: of each record the ID, how many offsets and ms after the one before, and how many ms late."""
    rows: list[Row] = []
    offset = now_ms = 0
    for name, hole, step_ms, late_ms in drawn:
        offset, now_ms = offset + hole, now_ms + step_ms
        rows.append(Row(0, offset, max(now_ms - late_ms, 0), None if name is None else digest_of(name)))
        offset += 1
    return rows


def logs(most_late_ms: int) -> st.SearchStrategy[list[Row]]:
    """Logs with duplicates near and far, holes, records without an ID, and late ones."""
    record = st.tuples(
        st.none() | st.integers(0, 14), st.sampled_from([0, 0, 0, 2]), st.integers(0, 60), st.integers(0, most_late_ms)
    )  # fmt: skip
    return st.lists(record, min_size=1, max_size=60).map(log_of)


def drawn_records(others: list[str], most: int) -> st.SearchStrategy[list[tuple[int, int, str]]]:
    """What `disordered` makes a log of."""
    record = st.tuples(st.integers(0, 14), st.integers(0, 60), st.sampled_from(others))
    return st.lists(record, min_size=1, max_size=most)


def disordered(drawn: list[tuple[int, int, str]]) -> list[Row]:
    """Such a log: of each record the ID, how many ms after the one before, and what is wrong with its timestamp."""
    rows: list[Row] = []
    now_ms = 10_000
    for offset, (name, step_ms, other) in enumerate(drawn):
        now_ms += step_ms
        told = {"old": now_ms - 5_000, "future": 2 * NOW_MS, "none": -1}.get(other, now_ms)
        rows.append(Row(0, offset, told, digest_of(name)))
    return rows


def entry_of(manifest: object) -> PartitionManifest:
    """What a manifest says of partition 0."""
    found = manifest.partition(0)  # type: ignore[attr-defined]
    assert found is not None
    return found  # type: ignore[no-any-return]


@settings(max_examples=60, deadline=None)
@given(logs(0), st.lists(st.integers(0, 60), min_size=1, max_size=3), st.sampled_from([HOUR, *COUNTS]))
def test_in_any_number_of_steps(rows: list[Row], cuts: list[int], window: Window) -> None:
    """Fingerprint, cut, ranks and newest timestamp are those of a full rebuild, and no less is known."""
    end = rows[-1].offset + 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = sorted({*(min(cut, end) for cut in cuts), end})
        grown = rebuild(rows, window, folder / "0", high=steps[0])
        for number, cut in enumerate(steps[1:]):
            grown = rebuild(rows, window, folder / str(number + 1), high=cut, base=folder / str(number))
        full = rebuild(rows, window, folder / "full", high=end)
    assert grown.fingerprint == full.fingerprint
    ours, theirs = entry_of(grown), entry_of(full)
    assert (ours.low, ours.high, ours.accepted) == (theirs.low, theirs.high, theirs.accepted)
    assert ours.newest_ms == max(row.timestamp_ms for row in rows)
    assert (ours.since_ms or 0) <= (theirs.since_ms or 0)
    assert (ours.since_number or 0) == (theirs.since_number or 0)


def folded_in_turn(rows: list[Row], window: Window, cuts: list[int]) -> Progress:
    """What a store says that folded a log up to each of these offsets, and was closed there."""
    store, begin, progress = MemoryStore(), 0, None
    for cut in cuts:
        engine = Deduplicator(Lookup(id=key(), window=window), store=store, clock=lambda: NOW_MS / 1000)
        held = engine.attach("orders", 0)
        stored = None if held.loaded is None else held.loaded.progress
        held.start(plan_start(stored, committed=cut, low=0, complete=True))
        taken = [row for row in rows if begin <= row.offset < cut]
        times = np.asarray([row.timestamp_ms for row in taken], np.int64)
        held.fold([row.offset for row in taken], times, [row.digest for row in taken], cut)
        held.flush()
        progress = held.state.progress
        engine.close("orders", 0)
        begin = cut
    assert progress is not None
    return progress


@settings(max_examples=60, deadline=None)
@given(logs(0), st.integers(1, 60), st.integers(1, 9))
def test_a_store_knows_of_numbers_what_a_snapshot_knows(rows: list[Row], cut: int, count: int) -> None:
    """Ranks begin behind what went for its number in both, so that a longer window doubts as much over either.

    Of times a store may know more, where an ID that had gone came again before its marks were written.
    """
    end, window = rows[-1].offset + 1, Window(count=count)
    cut = min(cut, end)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = rebuild(rows, window, folder / "base", high=cut)
        grown = rebuild(rows, window, folder / "grown", high=end, base=folder / "base")
    for manifest, cuts in ((base, [cut]), (grown, [cut, end]), (grown, [end])):
        ours, theirs = folded_in_turn(rows, window, cuts), entry_of(manifest)
        ranks_begin = max(ours.since_number or 0, ours.floor_number)
        assert (ours.accepted, ranks_begin) == (theirs.accepted, theirs.since_number or 0)
        assert (ours.since_ms or 0) <= (theirs.since_ms or 0)


@settings(max_examples=60, deadline=None)
@given(logs(200), st.integers(0, 60), st.integers(0, 60), st.integers(100, 700))
def test_what_is_said_to_be_known_is_known(rows: list[Row], cut: int, low: int, window_ms: int) -> None:
    """Late records, another window, a later beginning: what was sighted since the coverage begins is what a full rebuild has."""
    end = rows[-1].offset + 1
    window, cut = Window(milliseconds=window_ms), min(cut, end)
    low = min(low, cut)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rebuild(rows, HOUR, folder / "base", high=cut)
        grown = rebuild(rows, window, folder / "grown", low=low, high=end, base=folder / "base")
        ours = marks_of(folder / "grown")
    since_ms = entry_of(grown).since_ms or 0
    marks, _ = naive_fold([row for row in rows if row.offset >= low], window)
    marks = {digest: mark._replace(number=0) for digest, mark in marks.items()}
    assert ours.items() <= marks.items()
    assert {d: m for d, m in marks.items() if m.timestamp_ms >= since_ms}.items() <= ours.items()
    keep_from_ms = plan(rows, window, low=low, high=end).keep_from_ms or 0
    assert all(mark.timestamp_ms >= keep_from_ms for mark in ours.values())


@settings(max_examples=40, deadline=None)
@given(
    drawn_records(["", "", "", "old", "future", "none"], 12),
    drawn_records(["old", "none"], 2),
    drawn_records(["", "", "", "old", "future", "none"], 12),
    st.integers(100, 700),
    st.sampled_from(["all", "new"]),
)
def test_timestamps_in_no_order_cost_no_mark(
    before: list[tuple[int, int, str]],
    behind: list[tuple[int, int, str]],
    after: list[tuple[int, int, str]],
    window_ms: int,
    there: str,
) -> None:
    """Old, future and missing timestamps, also right behind the base's cut: no mark but the last, and none missing that is known.

    ``there``: whether all of the log is there, or only what came after the base.
    """
    rows, cut = disordered([*before, *behind, *after]), len(before)
    end = len(rows)
    window = Window(milliseconds=window_ms)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rebuild(rows, HOUR, folder / "base", high=cut)
        start = cut if there == "new" else 0
        grown = rebuild(rows, window, folder / "grown", high=end, base=folder / "base", start=start)
        ours = marks_of(folder / "grown")
    since_ms = entry_of(grown).since_ms
    last: dict[bytes, int] = {row.digest: row.timestamp_ms for row in rows if row.digest is not None}
    known = {digest for digest, last_ms in last.items() if last_ms >= (-1 if since_ms is None else since_ms)}
    assert known <= set(ours)
    assert {digest: mark.timestamp_ms for digest, mark in ours.items()}.items() <= last.items()


@settings(max_examples=40, deadline=None)
@given(logs(0), st.sampled_from([HOUR, *COUNTS]), st.none() | st.integers(0, 1_000))
def test_written_again_it_remembers_the_same(rows: list[Row], window: Window, before_ms: int | None) -> None:
    """Nothing is added: the marks are the same but for those that were to expire, and coverage tells of these."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = rebuild(rows, window, folder / "base", high=rows[-1].offset + 1)
        (offset_range,) = expire(alone(base, window, NOW_MS), before_ms)
        again = write(offset_range, [], window, folder / "again", base=folder / "base")
        before, after = marks_of(folder / "base"), marks_of(folder / "again")
    assert after == {d: mark for d, mark in before.items() if mark.timestamp_ms >= (before_ms or 0)}
    one, other = entry_of(base), entry_of(again)
    assert (other.low, other.high, other.accepted, other.newest_ms) == (
        one.low,
        one.high,
        one.accepted,
        one.newest_ms,
    )
    if before == after:
        assert (again.fingerprint, other.since_ms, other.since_number) == (
            base.fingerprint,
            one.since_ms,
            one.since_number,
        )
    else:
        newest_out_ms = max(mark.timestamp_ms for d, mark in before.items() if d not in after)
        assert other.since_ms is not None
        assert other.since_ms > newest_out_ms


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """A byte that changed since the manifest was written ends the run before anything is put in its place."""
    rows = log_of([(name, 0, 1, 0) for name in range(8)])
    rebuild(rows, HOUR, tmp_path / "base", high=4)
    (damaged,) = (tmp_path / "base" / "0").glob("*.sst")
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(SnapshotError, match=r"00000.sst has SHA-256 .*, its manifest says"):
        rebuild(rows, HOUR, tmp_path / "grown", high=8, base=tmp_path / "base")
    assert [each.name for each in tmp_path.iterdir()] == ["base"]
