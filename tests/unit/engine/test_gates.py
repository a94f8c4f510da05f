"""Gates plug in: the engine knows none of them, and passes records by any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dedup_sdk._core.flight import FRESH
from dedup_sdk._engine.gates import Gate
from dedup_sdk._observe import PartitionEvent
from dedup_sdk._window import Window
from tests.support.records import engine, kinds, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dedup_sdk._core.flight import Chunk, RecordRef
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._marks import Marks

WINDOW = Window(milliseconds=10)


class Barrier(Gate):
    """Keeps every record whose turn comes, and notes its calls."""

    def __init__(self) -> None:
        self.partition: Partition | None = None
        self.kept: list[RecordRef] = []
        self.persisted: list[int] = []
        self.left = False

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """Note the partition, which is one of those that are open."""
        assert partition in all_partitions()
        self.partition = partition

    def takes(self, chunk: Chunk) -> bool:
        """Leave the verdicts uncounted."""
        return bool(chunk.offsets)

    def before_offer(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Hold all of them back."""
        for chunk, row in offered:
            chunk.hold(row, "in-flight")
        self.kept += offered
        return []

    def before_persist(self, marks: Marks) -> None:
        """Note the offsets."""
        self.persisted += marks.offsets.tolist()

    def look_across(self) -> Sequence[PartitionEvent]:
        """Tell an event."""
        return [PartitionEvent("unit-crosses", "t", 0, 0, "")]

    def leave(self) -> None:
        """Note that."""
        self.left = True


class Keeper:
    """Makes one barrier for each partition."""

    is_sure = True

    def __init__(self) -> None:
        self.gates: list[Barrier] = []

    def gate(self, *_: Any, **__: Any) -> Barrier:
        """See `Gatekeeper`."""
        self.gates.append(Barrier())
        return self.gates[-1]

    def admit(self, *_: Any) -> None:
        """See `Gatekeeper`."""

    retry = keep = rewound = admit

    def holds(self, *_: Any) -> bool:
        """See `Gatekeeper`."""
        return True

    def close(self) -> None:
        """See `Gatekeeper`."""


def test_what_a_gate_holds_back_is_in_flight() -> None:
    """A released ID waits at the gate.

    Its copies wait behind it, the watermark before it, until the gate lets it through.
    """
    keeper = Keeper()
    deduplicator = engine()
    deduplicator.share(keeper)
    assert kinds(deduplicator.admit([record(0, "a"), record(1, "a"), record(2, "b")])) == [
        "fresh",
        "parked",
        "fresh",
    ]
    [gate] = keeper.gates
    assert deduplicator.counters.verdicts["fresh"] == 0
    assert deduplicator.counters.events == {"unit-crosses": 1}
    assert kinds(deduplicator.complete([record(0, "a"), record(2, "b")])) == ["duplicate"]
    assert sorted(gate.persisted) == [0, 1, 2]
    assert gate.kept == []
    deduplicator.shut()
    assert gate.left


def test_a_record_whose_turn_comes_passes_the_gate() -> None:
    """Its copy before it lies outside of the window when it is over, so that it would be offered."""
    keeper = Keeper()
    deduplicator = engine(WINDOW)
    deduplicator.share(keeper)
    first, later = record(0, "a", timestamp_ms=0), record(1, "a", timestamp_ms=100)
    deduplicator.admit([first, later])
    [gate] = keeper.gates
    assert deduplicator.complete([first]) == []
    [place] = gate.kept
    assert (place.offset, deduplicator.next_offset("t", 0)) == (1, 1)
    assert gate.partition is not None
    place.chunk.unhold(place.row)
    place.chunk.verdicts[place.row] = FRESH
    gate.partition.settle(place, due=True)
    assert [settled.record.offset for settled in deduplicator.settle_units()] == [1]
    deduplicator.complete([later])
    assert deduplicator.next_offset("t", 0) == 2
