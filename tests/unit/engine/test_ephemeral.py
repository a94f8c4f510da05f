"""A lookup that does not persist: completions are stored, their IDs are forgotten at each start."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.ephemeral import EphemeralStore
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreError
from dedup_sdk.ids import key
from tests.support.disks import keeping
from tests.support.marks import marks, progress, write_snapshot
from tests.support.records import DAY_MS, record
from tests.support.steps import finish

WINDOWS = [Window(count=3), Window(hours=1), Window(hours=1, count=3)]


@pytest.fixture(params=["memory", "rocks"])
def key_store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    """Each of the stores, empty."""
    return MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store", generation_marks=1)


def started(store: KeyStore, window: Window, *, persist: bool = False, recent_marks: int = 2) -> Deduplicator:
    """An engine that flushes early."""
    strategy = Lookup(id=key(), window=window, persist=persist)
    return Deduplicator(strategy, keeping(recent_marks, store), clock=lambda: DAY_MS / 1000)


def judged(deduplicator: Deduplicator, *names: str, begin: int = 0) -> list[str]:
    """The verdicts of records with these IDs, each completed before the next comes."""
    said = []
    for offset, name in enumerate(names, begin):
        one = record(offset, name)
        [verdict] = deduplicator.admit([one])
        said.append(verdict.kind.value)
        deduplicator.complete([one] if verdict.deliver else [])
    return said


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_run_remembers_and_the_next_one_does_not(window: Window, key_store: KeyStore) -> None:
    """To forget is wanted, so that nothing is unverified for it; completed offsets stay completed."""
    first = started(key_store, window)
    assert judged(first, "a", "b", "a", "c", "b") == ["fresh", "fresh", "duplicate", "fresh", "duplicate"]
    first.shut()
    second = started(key_store, window)
    assert judged(second, "b", begin=4) == ["redelivered"]
    assert judged(second, "a", "b", "a", begin=5) == ["fresh", "fresh", "duplicate"]
    assert second.partitions["t", 0].covered


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_what_was_stored_before_is_deleted(window: Window, key_store: KeyStore) -> None:
    """Once a run did not persist, a later one that does finds nothing of before, and says so."""
    before = started(key_store, window, persist=True)
    judged(before, "a", "b")
    before.shut()
    without = started(key_store, window)
    assert judged(without, "a", begin=2) == ["fresh"]
    without.shut()
    after = started(key_store, window, persist=True)
    assert judged(after, "a", "b", begin=3) == ["unverified", "unverified"]
    assert judged(after, "a", begin=5) == ["duplicate"]


def test_what_a_group_completed_elsewhere_is_no_doubt(key_store: KeyStore) -> None:
    """Nothing of it is missed."""
    deduplicator = started(key_store, Window(count=3))
    deduplicator.open("t", 0, low=0, committed=50)
    assert judged(deduplicator, "a", begin=50) == ["fresh"]


def test_no_id_is_on_the_disk(tmp_path: Path) -> None:
    """The store below gets where the partition stands, and no mark."""
    store = RocksStore(tmp_path)
    deduplicator = started(store, Window(count=100), recent_marks=10)
    judged(deduplicator, *(f"id-{number}" for number in range(40)))
    assert deduplicator.partitions["t", 0].store.stats().marks > 0
    deduplicator.shut()
    kept = store.open(
        Identity(cluster="", group="", topic="t", partition=0, id_spec="key"), Window(count=100)
    )
    loaded = kept.load()
    assert loaded is not None
    assert (loaded.progress.high, loaded.recent.count, list(kept.scan())) == (40, 0, [])
    kept.close()


def test_the_store_around_a_store(key_store: KeyStore, tmp_path: Path) -> None:
    """Its own rules: no snapshot is taken over, nothing is dropped for want of room, and closing closes both."""
    identity, window = Identity(cluster="c", group="g", topic="t", partition=0), Window(count=5)
    store = EphemeralStore(key_store.open(identity, window), identity, window)
    store.reset(progress(0))
    store.append(progress(1), marks(("a", 0, 10, 1)))
    store.flush(progress(1), marks(("a", 0, 10, 1)))
    assert (store.oldest_ms, store.evict(), store.stats().marks) == (None, None, 1)
    assert [page.count for page in store.scan()] == [1]
    assert (store.expires_to_ms(10), store.expires_to_ms(11)) == (None, 10)
    manifest = write_snapshot(tmp_path / "snapshot", marks(("a", 0, 10)))
    with pytest.raises(StoreError, match="keeps its marks in memory only"):
        finish(store.install_steps("snapshot", progress(1), manifest=manifest))
    store.close()
    with pytest.raises(StoreError):
        store.load()
    key_store.open(identity, window).close()
