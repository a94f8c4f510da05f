"""A partition whose opening or closing is interrupted, wherever: it opens again."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Lookup, MemoryStore, Record, Window
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.errors import StoreLockedError
from dedup_sdk.ids import key
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from collections.abc import Callable
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


def _handle(engine: Deduplicator, first: int) -> None:
    """Admit some records, complete them, and flush their marks."""
    records = [
        Record(
            topic="t",
            partition=0,
            offset=first + number,
            timestamp_ms=1_000,
            key=f"{first + number}".encode(),
        )
        for number in range(3)
    ]
    engine.admit(records)
    engine.complete(records)
    engine.partitions["t", 0].flush()


def _refuse(*_: object) -> None:
    raise ValueError("a signal")


def _be_late(*_: object) -> None:
    raise TimeoutError("a signal")


@pytest.mark.parametrize(("handler", "each"), [(None, 41), (_refuse, 37), (_be_late, 43)])
def test_an_error_that_somebody_keeps_holds_no_store_open(
    tmp_path: Path, handler: Callable[..., None] | None, each: int
) -> None:
    """Wherever it struck while records were judged, completed and flushed: another engine can open the store.

    Nor does an error hold itself, until a collection finds it: nobody keeps the last one.
    """
    number = None if handler is None else signal.SIGUSR1
    before = signal.signal(signal.SIGUSR1, handler or signal.SIG_DFL)
    rule = Lookup(id=key(), window=Window(days=1))
    kept: list[BaseException] = []
    for place in range(1, 4000, each):
        engine, other = Deduplicator(rule, RocksStore(tmp_path)), Deduplicator(rule, RocksStore(tmp_path))
        engine.open("t", 0)
        _handle(engine, 10 * place)
        interruption = InterruptedAt(place, by=number)
        try:
            with interruption:
                _handle(engine, 10 * place + 5)
        except (Interrupted, ValueError, TimeoutError) as error:
            kept.append(error)
        engine.lose("t", 0)
        try:
            other.open("t", 0)
        except StoreLockedError:
            raise AssertionError(interruption.where) from None
        other.close("t", 0)
        if not interruption.struck:
            break
    signal.signal(signal.SIGUSR1, before)
    assert len(kept) > 20
    assert not any(error in _led_to(error) for error in kept)


def _led_to(error: BaseException) -> list[BaseException | None]:
    return [error.__cause__, error.__context__]
