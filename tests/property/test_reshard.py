"""Re-sharding: marks of partitions that keys have left are found from where they go, and nothing is lost by it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._record import Record, Verdict, VerdictKind
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.ids import digest_one, header
from spark_backfill.history import History
from spark_backfill.offset_range import OffsetRange
from spark_backfill.partitioner import PARTITIONERS, Partitioner, partitions_of
from spark_backfill.publish import Output
from spark_backfill.range_plan import Horizons, LogPart, horizon_ms, plan_range
from spark_backfill.reshard import Reshard
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.runs import Block, RunPacker, to_batch
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.snapshot import make_manifest
from tests.support.steps import finish, installing, outcome_of

BASE_MS = 1_700_000_000_000
NOW_MS = BASE_MS + 10**9
SPEC = header("dedup-id")
NAMES = ["partition", "offset", "timestamp_ms", "digest", "record_key"]
TYPES = [pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary()]


class World(NamedTuple):
    """A topic that got more partitions (``after`` of them), and its records by partition.

    ``cuts``: how many of each partition the group has completed when the snapshot is made, ``committed``: when it
    is taken over.
    """

    after: int
    partitioner: Partitioner
    logs: dict[int, list[Record]]
    cuts: dict[int, int]
    committed: dict[int, int]


def placed(key: bytes | None, partitioner: Partitioner, partitions: int) -> int:
    """Where a key goes, -1 without one."""
    return int(partitions_of(pa.array([key], pa.binary()), partitioner, partitions)[0])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Few IDs and keys, so that an ID comes again under its key and others, before and after the widening."""
    before = draw(st.integers(1, 3))
    after = draw(st.integers(before, 5))
    partitioner = draw(st.sampled_from(PARTITIONERS))
    # An ID under a key of its own, or under one of another ID's; without a key it may go anywhere.
    keys = st.sampled_from(["own", "own", "other", "none"])
    ticks = st.sampled_from([1, 3, 20, 70, -2])
    rows = st.lists(
        st.tuples(st.sampled_from("aabbc-"), keys, ticks, st.integers(0, 9)), min_size=1, max_size=30
    )
    logs: dict[int, list[Record]] = {partition: [] for partition in range(after)}
    clock = BASE_MS
    for number, drawn in enumerate((draw(rows), draw(rows))):
        partitions = (before, after)[number]
        for ident, kind, tick, anywhere in drawn:
            clock += max(tick, 0)
            key = {"own": f"key of {ident}".encode(), "other": b"k", "none": None}[kind]
            place = placed(key, partitioner, partitions)
            partition = place if place >= 0 else anywhere % partitions
            headers = [("dedup-id", ident.encode())] if ident != "-" else []
            log = logs[partition]
            log.append(Record("t", partition, len(log), clock + min(tick, 0), key, b"", headers))
    cuts = {
        partition: draw(st.sampled_from([0, len(log), len(log) // 2]) | st.integers(0, len(log)))
        for partition, log in logs.items()
    }
    committed = {partition: draw(st.integers(cuts[partition], len(log))) for partition, log in logs.items()}
    return World(after, partitioner, logs, cuts, committed)


def digest(record: Record) -> bytes | None:
    """The digest of a record's ID."""
    return next((digest_one(value) for _, value in record.headers if value is not None), None)


def batch_of(records: list[Record]) -> pa.RecordBatch:
    """Rows as Spark gives them."""
    columns = [
        [each.partition for each in records],
        [each.offset for each in records],
        [each.timestamp_ms for each in records],
        [digest(each) for each in records],
        [each.key for each in records],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, NAMES)


def offset_ranges_of(world: World, window: Window) -> tuple[OffsetRange, ...]:
    """The offsets that a run would read of partitions where something was completed.

    Those of the others are added by the re-shard.
    """
    found = []
    for partition, log in world.logs.items():
        completed = log[: world.cuts[partition]]
        if not completed:
            continue
        keep_from_ms = horizon_ms(window, completed[-1].timestamp_ms, NOW_MS)
        kept = [each.offset for each in completed if each.timestamp_ms >= (keep_from_ms or 0)]
        found.append(
            plan_range(
                partition,
                LogPart(0, len(completed), 0, complete=True, first_kept=min(kept, default=None)),
                None,
                window=window,
                limits=Horizons(keep_from_ms, keep_from_ms),
            )
        )
    return tuple(found)


def resharded(world: World, window: Window, folder: Path, *, run_rows: int, ranges: int) -> Manifest:
    """Make the snapshot by the real fold, without Spark between its tasks."""
    skipped = {partition: "nothing committed" for partition, cut in world.cuts.items() if not cut}
    history = History(
        cluster="c", topic="t", topic_id="", offset_ranges=offset_ranges_of(world, window), skipped=skipped
    )
    reshard = Reshard(partitions=world.after, partitioner=world.partitioner)
    history = reshard.widened(history)
    reshard = reshard.with_cuts(history.offset_ranges)
    plan = SlotPlan(
        tuple(Slot(each.partition, n, ranges) for each in history.offset_ranges for n in range(ranges))
    )
    packer = RunPacker(plan, reshard=reshard, run_rows=run_rows)
    blocks: list[Block] = []
    for offset_range in history.offset_ranges:
        read = world.logs[offset_range.partition][offset_range.begin : offset_range.high]
        for start in range(0, len(read), 7):
            for partition, rows in rows_of_batch(batch_of(read[start : start + 7]), reshard):
                blocks += packer.add(partition, rows)
    blocks += packer.finish()
    with Output(str(folder)) as output:
        writer = SlotWriter(
            target=output.target,
            slots=plan.slots,
            keep_from_ms={each.partition: each.keep_from_ms for each in history.offset_ranges},
            resharded=True,
        )
        written = [text for batch in writer(map(to_batch, blocks)) for text in batch.column(0).to_pylist()]
        manifest = make_manifest(
            history, plan, [SlotOutcome.from_json(text) for text in written], spec=SPEC, window=window, group="g",
            isolation="read_committed", created_ms=NOW_MS, reshard=reshard,
        )  # fmt: skip
        output.publish(manifest, {})
    return manifest


def lived(world: World, window: Window, folder: Path, seed: int) -> dict[tuple[int, int], Verdict]:
    """Take the snapshot over, replay messages committed since, and live through the rest.

    The verdict of every record judged.
    """
    engine = Deduplicator(
        Lookup(id=SPEC, window=window), MemoryStore(), cluster="c", group="g", clock=lambda: NOW_MS / 1000
    )
    for partition, log in world.logs.items():
        held, committed = engine.attach("t", partition), world.committed[partition]
        # Where nothing is committed the group is a new one.
        plan = plan_start(None, committed=committed, low=0, complete=True, new=not committed)
        identity = Identity(cluster="c", group="g", topic="t", partition=partition, id_spec=str(SPEC))
        steps = start_from_snapshot(held, plan, [str(folder)], identity, None)
        plan, note = outcome_of(steps)
        assert note.startswith("snapshot of")
        tail = log[plan.replay_from : plan.replay_to]
        times = np.asarray([each.timestamp_ms for each in tail], np.int64)
        held.fold([each.offset for each in tail], times, [digest(each) for each in tail], plan.replay_to)
    random = np.random.default_rng(seed)
    positions, judged = dict(world.committed), dict[tuple[int, int], Verdict]()
    while behind := [partition for partition, log in world.logs.items() if positions[partition] < len(log)]:
        partition = int(random.choice(behind))
        batch = world.logs[partition][positions[partition] :][: int(random.integers(1, 5))]
        positions[partition] += len(batch)
        verdicts = dict(zip([each.offset for each in batch], engine.admit(batch), strict=True))
        open_records = [each for each in batch if verdicts[each.offset].deliver]
        while open_records:
            settled = engine.complete(open_records)
            verdicts |= {each.record.offset: each.verdict for each in settled}
            open_records = [each.record for each in settled if each.verdict.deliver]
        judged |= {(partition, offset): verdict for offset, verdict in verdicts.items()}
    return judged


def moved_to(world: World, record: Record) -> list[Record]:
    """Records completed elsewhere, of the same ID, by a key that goes to this record's partition now."""
    ident = digest(record)
    return [
        each
        for partition, log in world.logs.items()
        if partition != record.partition
        for each in log[: world.cuts[partition]]
        if digest(each) == ident and placed(each.key, world.partitioner, world.after) == record.partition
    ]


@pytest.mark.slow
@pytest.mark.parametrize("window", [Window(milliseconds=100_000), Window(milliseconds=40)], ids=str)
@given(world=worlds(), seed=st.integers(0, 2**32 - 1), run_rows=st.integers(1, 40), ranges=st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_nothing_is_lost_and_what_was_completed_is_recognised(
    window: Window, world: World, seed: int, run_rows: int, ranges: int
) -> None:
    """No first sighting is dropped.

    An ID last seen inside the window, here or in a partition that its key has left, is recognised.
    """
    reach_ms = window.time_ms
    assert reach_ms is not None
    with TemporaryDirectory() as folder:
        manifest = resharded(world, window, Path(folder), run_rows=run_rows, ranges=ranges)
        judged = lived(world, window, Path(folder), seed)
    for partition, log in world.logs.items():
        entry = manifest.partition(partition)
        assert entry is not None
        for record in log[world.committed[partition] :]:
            verdict = judged[partition, record.offset]
            if digest(record) is None:
                assert verdict.kind is VerdictKind.UNKEYED
                continue
            here = [each for each in log[: record.offset] if digest(each) == digest(record)]
            there = moved_to(world, record)
            close_here = [each for each in here if record.timestamp_ms - each.timestamp_ms <= reach_ms]
            close_there = [each for each in there if abs(record.timestamp_ms - each.timestamp_ms) <= reach_ms]
            if not verdict.deliver:
                assert verdict.kind is VerdictKind.DUPLICATE
                assert close_here or close_there
                assert verdict.seen_offset in {-1, *(each.offset for each in here)}
                continue
            # The last sighting counts here: one since the cut, else the later of the last one before it
            # and those elsewhere.
            since_cut = [each for each in here if each.offset >= world.cuts[partition]]
            last = (
                since_cut[-1]
                if since_cut
                else max((*here[-1:], *there), key=lambda each: each.timestamp_ms, default=None)
            )
            if last is not None and last in (*close_here, *close_there):
                assert verdict.kind is VerdictKind.UNVERIFIED
                assert entry.known.since_ms is not None
                assert last.timestamp_ms < entry.known.since_ms


@given(world=worlds(), run_rows=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_the_marks_of_a_partition_itself_stay(world: World, run_rows: int) -> None:
    """An ID that nothing brings along has the mark that it has without a re-shard.

    One that something brings has a mark as late or later.
    """
    window = Window(milliseconds=100_000)
    with TemporaryDirectory() as folder:
        manifest = resharded(world, window, Path(folder), run_rows=run_rows, ranges=2)
        engine = Deduplicator(Lookup(id=SPEC, window=window), cluster="c", group="g")
        assert manifest.partitioner == world.partitioner
        assert manifest.resharded_from == tuple(p for p, cut in world.cuts.items() if cut)
        for partition, log in world.logs.items():
            held = engine.attach("t", partition)
            plan = plan_start(None, committed=len(log), low=0, complete=True)
            finish(installing(held.store, folder, plan.progress))
            sightings: dict[bytes, list[Record]] = defaultdict(list)
            for record in log[: world.cuts[partition]]:
                if (ident := digest(record)) is not None:
                    sightings[ident].append(record)
            for ident, records in sightings.items():
                found = held.store.find(ident, 1)
                there = [each.timestamp_ms for each in moved_to(world, records[-1])]
                last = records[-1]
                if max(there, default=-1) > last.timestamp_ms:
                    assert (found.offsets, found.timestamps) == ([~world.cuts[partition]], [max(there)])
                else:
                    assert (found.offsets, found.timestamps) == ([last.offset], [last.timestamp_ms])
