"""The IDs of a second opinion outlive its store.

By a snapshot of a consumer that lives, by a replay, through other depths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk import Deduplicator, LastId, Lookup, MemoryStore, Record, RocksStore, Window, header, orders
from dedup_sdk._core.reach import plan_start
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._store.backup import snapshot_store
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.protocol import Identity
from dedup_sdk.errors import ForeignStoreError
from dedup_sdk.ids import RecordFields
from tests.support.steps import outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._store.protocol import KeyStore

COUNT = 40
DEAD_LETTERED = 17


def strategy(*, depth: int = 2, other: str | None = "other") -> LastId:
    """Numbers, in doubt by another ID (None: without)."""
    second = None if other is None else Lookup(id=header(other), window=Window(days=1))
    return LastId(id=header("seq"), order=orders.integer(), reorder_depth=depth, otherwise=second)


def record(offset: int, text: str, other: str) -> Record:
    """A record with both IDs."""
    return Record("t", 0, offset, 1_000 + offset, headers=[("seq", text.encode()), ("other", other.encode())])


LOG = [record(offset, str(offset), f"other-{offset}") for offset in range(COUNT)]


def live(store: KeyStore) -> Deduplicator:
    """An engine that has lived through the log, with some of it flushed; one record was dead-lettered."""
    engine = Deduplicator(strategy(), store, group="g", clock=lambda: 10**6)
    for each in LOG:
        engine.admit([each])
        (engine.dead_letter if each.offset == DEAD_LETTERED else engine.complete)([each])
        if each.offset == COUNT // 2:
            engine.partitions["t", 0].flush()
    return engine


def judge_again(engine: Deduplicator) -> list[str]:
    """The verdict on each message when it comes under an ID that nobody can read."""
    told = []
    for each in LOG:
        again = record(COUNT + each.offset, "?", f"other-{each.offset}")
        [verdict] = engine.admit([again])
        told.append(verdict.kind.value)
        engine.complete([again] if verdict.deliver else [])
    return told


EXPECTED = ["duplicate"] * COUNT


def test_a_snapshot_of_a_consumer_has_it(tmp_path: Path) -> None:
    """Sources and looked-up marks lie in one snapshot, and come out of it unchanged.

    One with another strategy is not taken.
    """
    engine = live(RocksStore(tmp_path / "store"))
    snapshot_store(list_partitions(tmp_path / "store"), tmp_path / "store", tmp_path / "snapshot")
    engine.shut()
    notes = []
    for other in ("other", None):
        taker = Deduplicator(strategy(other=other), MemoryStore(), group="g", clock=lambda: 10**6)
        held = taker.attach("t", 0)
        identity = Identity(cluster="", group="g", topic="t", partition=0, id_spec=str(taker.strategy.keys))
        plan = plan_start(None, committed=COUNT, low=0, complete=True)
        _, note = outcome_of(start_from_snapshot(held, plan, [str(tmp_path / "snapshot")], identity, None))
        notes.append(note)
        if other is not None:
            assert judge_again(taker) == EXPECTED
    assert notes == [f"snapshot of {COUNT + 1} marks", "snapshot not taken"]


def test_a_snapshot_without_it_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `dedup backfill` makes them without --otherwise: completed IDs would be fresh to the second opinion."""
    first = Deduplicator(strategy(other=None), RocksStore(tmp_path / "store"), group="g")
    first.admit(LOG)
    first.complete(LOG)
    snapshot_store(list_partitions(tmp_path / "store"), tmp_path / "store", tmp_path / "snapshot")
    first.shut()
    taker = Deduplicator(strategy(), MemoryStore(), group="g")
    identity = Identity(cluster="", group="g", topic="t", partition=0, id_spec=str(taker.strategy.keys))
    plan = plan_start(None, committed=COUNT, low=0, complete=True)
    held, snapshot = taker.attach("t", 0), str(tmp_path / "snapshot")
    _, note = outcome_of(start_from_snapshot(held, plan, [snapshot], identity, None))
    assert note == "snapshot not taken"
    assert "none of the IDs that otherwise= looks up" in caplog.text
    assert "dedup backfill --otherwise header:other and the --otherwise-window of" in caplog.text


def test_a_replay_gives_the_same() -> None:
    """The dead letter included."""
    lived, replayed = MemoryStore(), MemoryStore()
    engine = live(lived)
    engine.partitions["t", 0].flush()
    folded = Deduplicator(strategy(), replayed, group="g", clock=lambda: 10**6)
    held = folded.attach("t", 0)
    held.start(plan_start(None, committed=COUNT, low=0, complete=True))
    for first in range(0, COUNT, 7):
        part = LOG[first : first + 7]
        keys = folded.strategy.keys.digests(RecordFields(part)).digests
        times = np.asarray([each.timestamp_ms for each in part], np.int64)
        held.fold([each.offset for each in part], times, keys, part[-1].offset + 1)
    held.flush()
    one, other = (fingerprint(each.partitions["t", 0].store.scan()) for each in (engine, folded))
    assert one == other
    assert judge_again(folded) == EXPECTED


@pytest.mark.parametrize("depth", [0, 1, 50])
def test_another_depth_keeps_it(depth: int) -> None:
    """IDs below the floor, or in doubt for the change, are looked up."""
    store = MemoryStore()
    live(store).shut()
    engine = Deduplicator(strategy(depth=depth), store, group="g", clock=lambda: 10**6)
    assert judge_again(engine) == EXPECTED


def test_a_store_of_another_second_opinion_is_refused() -> None:
    """Its marks are of other IDs, or missing."""
    store = MemoryStore()
    live(store).shut()
    for other in (None, "seq"):
        engine = Deduplicator(strategy(other=other), store, group="g")
        with pytest.raises(ForeignStoreError, match="otherwise"):
            engine.admit([record(COUNT, "1", "1")])
