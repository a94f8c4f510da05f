"""What holds for tasks, whoever runs them."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from spark_backfill.fold import PackedRows, Packing
from spark_backfill.ordered_rows import OrderedBlocks
from spark_backfill.slots import Slot, SlotPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_backfill.workers import Task

PLAN = SlotPlan((Slot(0, 0, 1),))
BATCH = 10_000
"""More objects than the collector waits for by itself, fewer than the messages of some batches."""


@contextmanager
def thresholds(*given: int) -> Iterator[None]:
    """The collector's thresholds inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(*given)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collections(reads: int, make: Any) -> int:
    """How often the collector ran while a task read batches of so many objects."""
    begun = list[str]()

    def read(_batches: Iterable[Any]) -> Iterator[Any]:
        gc.callbacks.append(note)
        try:
            for _ in range(reads):
                alive = [[number] for number in range(BATCH)]
                del alive
        finally:
            gc.callbacks.remove(note)
        yield from ()

    def note(phase: str, _about: object) -> None:
        begun.append(phase)

    task: Task = make(read)
    assert list(task([])) == []
    return begun.count("start")


@pytest.mark.parametrize(
    "make",
    [lambda read: PackedRows(Packing(PLAN), read), lambda read: OrderedBlocks(PLAN, read)],
    ids=["packed", "ordered"],
)
def test_the_collector_visits_no_batch(make: Any) -> None:
    """Reading takes twice as long where it does; afterwards it works as before, also behind an error."""
    with thresholds(700, 10, 10):
        assert collections(5, lambda read: read) > 10
        assert collections(5, make) == 0
        assert gc.get_threshold() == (700, 10, 10)

        def fail(_batches: Iterable[Any]) -> Iterator[Any]:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            list(make(fail)([]))
        assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("given", [(0, 10, 10), (1_000_000, 10, 10)], ids=["off", "rarer"])
def test_a_collector_that_is_off_or_rarer_stays_so(given: tuple[int, int, int]) -> None:
    """Whoever set it knows why."""
    seen = list[tuple[int, int, int]]()

    def read(_batches: Iterable[Any]) -> Iterator[Any]:
        seen.append(gc.get_threshold())
        yield from ()

    with thresholds(*given):
        list(OrderedBlocks(PLAN, read)([]))
    assert seen == [given]
