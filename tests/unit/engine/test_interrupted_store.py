"""A partition whose opening or closing is interrupted, wherever: it opens again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Lookup, MemoryStore, Window
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.ids import key
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("step", ["open", "close", "lose"])
@pytest.mark.parametrize(("made", "each"), [("memory", 1), ("rocks", 17)])
def test_a_store_opens_again_after_any_interruption(made: str, each: int, step: str, tmp_path: Path) -> None:
    """Neither an error that somebody keeps nor the store's own lists hold it open.

    Every 17th place of RocksDB's, to save time.
    """
    store = MemoryStore() if made == "memory" else RocksStore(tmp_path)
    engine = Deduplicator(Lookup(id=key(), window=Window(days=1)), store)
    kept: list[BaseException] = []
    for place in range(1, 700, each):
        if step != "open":
            engine.open("t", 0)
        interruption = InterruptedAt(place)
        try:
            with interruption:
                getattr(engine, step)("t", 0)
        except Interrupted as error:
            kept.append(error)
        engine.lose("t", 0)
        engine.open("t", 0)
        engine.close("t", 0)
        if not interruption.struck:
            break
    assert len(kept) >= 4
    engine.shut()


def test_a_partition_that_is_lost_twice_is_closed(tmp_path: Path) -> None:
    """Where the first time was interrupted, at any place: another engine can open its store."""
    rule = Lookup(id=key(), window=Window(days=1))
    engine, other = Deduplicator(rule, RocksStore(tmp_path)), Deduplicator(rule, RocksStore(tmp_path))
    struck = 0
    for place in range(1, 200, 7):
        engine.open("t", 0)
        interruption = InterruptedAt(place)
        with suppress(Interrupted), interruption:
            engine.lose("t", 0)
        engine.lose("t", 0)
        other.open("t", 0)
        other.close("t", 0)
        struck += interruption.struck
        if not interruption.struck:
            break
    assert struck > 4
