"""A count window whose size changes between two runs: smaller forgets for good, larger goes on from the marks there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.ids import RecordFields, key
from tests.support.disks import keeping
from tests.support.records import DAY_MS, record


@pytest.fixture(params=["memory", "rocks"])
def key_store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    """Each of the stores, empty."""
    return MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store")


def run(
    store: KeyStore, count: int, recent_marks: int, *names: str, begin: int, days: float = 0
) -> list[str]:
    """The verdicts of a run on records with these IDs."""
    strategy = Lookup(id=key(), window=Window(count=count, days=days) if days else Window(count=count))
    said = []
    with Deduplicator(strategy, keeping(recent_marks, store), clock=lambda: DAY_MS / 1000) as engine:
        engine.open("t", 0)
        for offset, name in enumerate(names, begin):
            one = record(offset, name)
            [verdict] = engine.admit([one])
            said.append(verdict.kind.value)
            engine.complete([one] if verdict.deliver else [])
    return said


@pytest.mark.parametrize("recent_marks", [1, 2, 1000])
def test_what_a_smaller_ring_forgot_stays_forgotten(recent_marks: int, key_store: KeyStore) -> None:
    """Five, then two, then five again.

    Of a, b, c, d, e the newest two are left, and the rest is delivered, and said to be in doubt.
    """
    assert run(key_store, 5, recent_marks, *"abcde", begin=0) == ["fresh"] * 5
    assert run(key_store, 2, recent_marks, *"de", begin=5) == ["duplicate"] * 2
    assert run(key_store, 5, recent_marks, *"edcba", begin=7) == ["duplicate"] * 2 + ["unverified"] * 3


@pytest.mark.parametrize("days", [0, 7], ids=["count", "both"])
@pytest.mark.parametrize("recent_marks", [1, 2, 1000])
def test_what_a_ring_let_go_is_no_larger_ring_s(recent_marks: int, days: float, key_store: KeyStore) -> None:
    """Three, then five: of a, b, c, d the newest three are in the larger one.

    That a is gone is no proof that it never came.
    """
    assert run(key_store, 3, recent_marks, *"abcd", begin=0, days=days) == ["fresh"] * 4
    assert run(key_store, 5, recent_marks, *"dcba", begin=4, days=days) == ["duplicate"] * 3 + ["unverified"]
    assert run(key_store, 5, recent_marks, *"aefghi", begin=8, days=days)[-1] == "fresh"


@pytest.mark.parametrize("recent_marks", [1, 2, 1000])
def test_a_history_that_is_read_again_forgets_the_same(recent_marks: int, key_store: KeyStore) -> None:
    """Records that the group completed elsewhere, above those of the store: the larger ring numbers what was forgotten.

    The newest of an ID's marks counts, whether it is in memory or in a file.
    """
    assert run(key_store, 5, recent_marks, *"abcde", begin=0) == ["fresh"] * 5
    assert run(key_store, 2, recent_marks, *"de", begin=5) == ["duplicate"] * 2
    strategy = Lookup(id=key(), window=Window(count=5))
    again = [record(offset, name) for offset, name in enumerate("eabe", 7)]
    with Deduplicator(strategy, keeping(recent_marks, key_store), clock=lambda: DAY_MS / 1000) as engine:
        held = engine.attach("t", 0)
        assert held.loaded is not None
        held.start(plan_start(held.loaded.progress, committed=11, low=0))
        times = np.asarray([each.timestamp_ms for each in again], np.int64)
        held.fold([7, 8, 9, 10], times, list(strategy.keys.digests(RecordFields(again)).digests), 11)
        # e is in, a and b were forgotten by the smaller ring; then e again, whose mark lies at 7 now.
        assert held.state.progress.known.accepted == 7
    assert run(key_store, 5, recent_marks, *"eabd", begin=11) == ["duplicate"] * 4
    assert run(key_store, 5, recent_marks, *"c", begin=15) == ["unverified"]


@pytest.mark.parametrize("recent_marks", [1, 2, 1000])
def test_a_larger_ring_keeps_all(recent_marks: int, key_store: KeyStore) -> None:
    """Three, then five: IDs that were in stay in until five were accepted after it."""
    assert run(key_store, 3, recent_marks, *"abc", begin=0) == ["fresh"] * 3
    assert run(key_store, 5, recent_marks, *"dabc", begin=3) == [
        "fresh",
        "duplicate",
        "duplicate",
        "duplicate",
    ]
    assert run(key_store, 5, recent_marks, *"efa", begin=7) == ["fresh", "fresh", "fresh"]


@pytest.mark.parametrize("recent_marks", [1, 2, 1000])
def test_a_ring_survives_restarts_in_order(recent_marks: int, key_store: KeyStore) -> None:
    """A restart changes nothing: an ID is found after n - 1 further ones, and gone after n."""
    assert run(key_store, 3, recent_marks, *"abc", begin=0) == ["fresh"] * 3
    assert run(key_store, 3, recent_marks, *"adb", begin=3) == ["duplicate", "fresh", "duplicate"]
    assert run(key_store, 3, recent_marks, *"a", begin=6) == ["fresh"]
    assert run(key_store, 3, recent_marks, *"cdb", begin=7) == ["duplicate", "duplicate", "fresh"]
