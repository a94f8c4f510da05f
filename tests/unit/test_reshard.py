"""Marks that come from other partitions: which counts, from when on all are known, and their fate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._marks import NOTHING_KNOWN, Known, Marks, Progress, elsewhere
from dedup_sdk._record import Record, VerdictKind
from dedup_sdk._store.manifest import Manifest, fitting_partition, read_manifest, write_manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.errors import SnapshotError
from dedup_sdk.ids import digest_one, key
from spark_backfill.history import NOTHING_COMMITTED, History
from spark_backfill.offset_range import OffsetRange
from spark_backfill.reshard import Reshard
from spark_backfill.reshard_fold import ReshardFold, latest_per_digest
from spark_backfill.slots import SlotPlan
from spark_backfill.snapshot import make_manifest
from tests.support.steps import finish, installing

WINDOW = Window(days=1)
NOW_MS = 1_700_000_000_000
A, B = digest_one(b"a"), digest_one(b"b")


def int64s(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column."""
    return np.array(numbers, np.int64)


def manifest_of(skipped: dict[int, str], partitions: int = 3) -> Manifest:
    """The manifest of a topic whose partition 0 is known from the beginning and partition 1 from a time.

    It has no mark.
    """
    offset_ranges = (
        OffsetRange(partition=0, low=0, begin=0, high=9, complete=True),
        OffsetRange(partition=1, low=0, begin=4, high=9, complete=False, known_from_ms=NOW_MS),
    )
    history = History(cluster="", topic="t", topic_id="", offset_ranges=offset_ranges, skipped=skipped)
    reshard = Reshard(partitions=partitions, partitioner="murmur2")
    return make_manifest(
        reshard.widened(history), SlotPlan(()), [], spec=key(), window=WINDOW, group="", isolation="read_committed",
        created_ms=0, reshard=reshard,
    )  # fmt: skip


def test_all_partitions_know_as_much_as_the_one_that_knows_least() -> None:
    """Any of them may have marks of any other.

    One that nobody has begun has none to give, one that nobody vouches for may have many.
    """
    fresh = manifest_of({2: NOTHING_COMMITTED})
    assert [(each.low, each.high, each.known.since_ms) for each in fresh.partitions] == [
        (0, 9, NOW_MS), (0, 9, NOW_MS), (0, 0, NOW_MS),
    ]  # fmt: skip
    assert [each.committed for each in fresh.partitions] == [9, 9, None]
    doubtful = manifest_of({2: "committed without this package's metadata"}, partitions=4)
    assert [each.known.since_ms for each in doubtful.partitions] == [NOTHING_KNOWN] * 4


def test_a_manifest_remembers_who_gave_and_how(tmp_path: Path) -> None:
    """Written and read back; one without a re-shard has neither."""
    manifest = manifest_of({})
    assert (manifest.resharded_from, manifest.partitioner) == ((0, 1), "murmur2")
    for each in (manifest, replace(manifest, resharded_from=(), partitioner="")):
        write_manifest(tmp_path, each)
        assert read_manifest(tmp_path) == each


def test_a_new_partition_knows_no_more_than_what_came_to_it(tmp_path: Path) -> None:
    """A group that begins with it knows all of its own records, but not of those before: these doubts are told."""
    write_manifest(tmp_path, manifest_of({}))
    engine = Deduplicator(Lookup(id=key(), window=WINDOW), clock=lambda: NOW_MS / 1000)
    held = engine.attach("t", 2)
    identity = Identity(cluster="", group="", topic="t", partition=2, id_spec="key")
    plan = plan_start(None, committed=5, low=5, new=True)
    for _ in start_from_snapshot(held, plan, [str(tmp_path)], identity, None):
        pass
    assert held.memory.reach.since_ms == NOW_MS
    early, late = engine.admit(
        [Record("t", 2, 5, NOW_MS, b"a"), Record("t", 2, 6, NOW_MS + 86_400_000, b"b")]
    )
    assert (early.kind, early.reason, late.kind) == (VerdictKind.UNVERIFIED, "uncovered", VerdictKind.FRESH)


@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_a_sighting_elsewhere_is_believed_until_the_group_goes_back_before_its_cut(
    store: str, tmp_path: Path
) -> None:
    """After its cut it makes duplicates, until a sighting here takes its place.

    After a rewind it is gone, and nothing is hidden by it.
    """
    keys: KeyStore = MemoryStore() if store == "memory" else RocksStore(tmp_path)
    with Deduplicator(Lookup(id=key(), window=WINDOW), keys, clock=lambda: NOW_MS / 1000) as engine:
        for partition, cut in ((0, 0), (1, 5)):
            held = engine.attach("t", partition)
            progress = Progress(low=0, high=cut, committed=cut, known=Known(newest_ms=NOW_MS))
            held.start(plan_start(None, committed=cut, low=0, complete=True))
            marks = Marks(A, int64s(elsewhere(cut)), int64s(NOW_MS - 1_000))
            held.store.flush(progress, marks)
            held.skip_to(cut)
            first, again = engine.admit([Record("t", partition, cut + n, NOW_MS + n, b"a") for n in (0, 1)])
            assert (first.kind, first.seen_offset, first.age_ms) == (VerdictKind.DUPLICATE, -1, 1_000)
            assert (again.kind, again.seen_offset) == (VerdictKind.DUPLICATE, cut)
            engine.close("t", partition)
        held = engine.attach("t", 1)
        stored = held.loaded
        assert stored is not None
        assert stored.progress.high == 7
        held.start(plan_start(replace(stored.progress, committed=7), committed=2, low=0, complete=True))
        (verdict,) = engine.admit([Record("t", 1, 2, NOW_MS, b"a")])
        assert verdict.deliver


def test_marks_of_other_partitions_are_believed_of_the_group_itself_only(tmp_path: Path) -> None:
    """Whoever vouches says nothing of how far this group is in the others.

    Its snapshot is refused by a line, also by the store.
    """
    write_manifest(tmp_path, replace(manifest_of({}), group=None, vouched=True))
    held = Deduplicator(Lookup(id=key(), window=WINDOW), clock=lambda: NOW_MS / 1000).attach("t", 2)
    identity = Identity(cluster="", group="billing", topic="t", partition=2, id_spec="key")
    progress = plan_start(None, committed=5, low=5, new=True).progress
    with pytest.raises(SnapshotError, match="has marks of other partitions and names no group") as caught:
        fitting_partition(tmp_path, read_manifest(tmp_path), identity, progress, numbered=False)
    assert "\n" not in str(caught.value)
    with pytest.raises(SnapshotError, match="make one with --partitions and --group"):
        finish(installing(held.store, tmp_path, progress))
    of_another = replace(manifest_of({}), group="shipping")
    with pytest.raises(SnapshotError, match="is of group='shipping', not 'billing'"):
        fitting_partition(tmp_path, of_another, identity, progress, numbered=False)


def test_the_later_sighting_counts_and_the_one_here_where_both_are_as_late() -> None:
    """Here the highest offset is the last, elsewhere the latest time; several runs are one."""
    there = elsewhere(9)
    runs = [
        [(A, 3, 50), (B, 2, 90), (A, there, 70)],
        [(A, 8, 40), (A, there, 60), (B, there, 80)],
        [(B, there, 90)],
    ]
    fold = ReshardFold(None)
    for rows in runs:
        fold.add(
            b"".join(row[0] for row in rows),
            int64s(*(row[1] for row in rows)),
            int64s(*(row[2] for row in rows)),
        )
    marks = fold.finish().marks
    found = zip(
        [marks.digests[:16], marks.digests[16:]],
        marks.offsets.tolist(),
        marks.timestamps.tolist(),
        strict=True,
    )
    assert {digest: (offset, stamp) for digest, offset, stamp in found} == {A: (there, 70), B: (2, 90)}


def test_marks_from_elsewhere_leave_at_the_horizon_of_where_they_are() -> None:
    """Older marks are left out, and told."""
    fold = ReshardFold(80)
    fold.add(A + B, int64s(elsewhere(0), 1), int64s(79, 80))
    folded = fold.finish()
    assert (folded.marks.digests, folded.forgotten_ms) == (B, 79)


def test_of_sightings_elsewhere_the_latest_counts() -> None:
    """Not the one of the highest offset: records that come late say less of the next one than those before them."""
    latest = latest_per_digest(Marks(A + B + A, int64s(5, 6, 7), int64s(90, 10, 80)))
    assert sorted(zip(latest.offsets.tolist(), latest.timestamps.tolist(), strict=True)) == [(5, 90), (6, 10)]
