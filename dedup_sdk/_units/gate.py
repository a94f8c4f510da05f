"""The gate of a partition whose records may belong to units: their timeouts, and units that lie in two partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, cast

from dedup_sdk._core.flight import Chunk
from dedup_sdk._core.state import PartitionState
from dedup_sdk._engine.gates import Gate
from dedup_sdk._engine.partition import Partition
from dedup_sdk._masking import shown
from dedup_sdk._observe import PartitionEvent
from dedup_sdk._units.assembler import CROSSES, UNFINISHED
from dedup_sdk._units.memory import UnitMemory

logger = logging.getLogger("dedup_sdk")

QUIET_MS: Final = 60_000
"""Milliseconds between two log lines on overflowing units of one partition, at least."""


class UnitGate(Gate):
    """Looks after the units of one partition.

    A unit that is open in a fold is not waited for: waiting begins with the first record that is delivered.
    """

    def __init__(self, state: PartitionState, units: UnitMemory) -> None:
        self.units = units
        self._flight = state.flight
        self._partition: Partition | None = None
        self._all: Callable[[], Iterable[Partition]] = tuple
        self._unsaid = 0
        self._quiet_until_ms = 0

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """See `Gate`."""
        self._partition, self._all = partition, all_partitions
        self.units.assembler.ask_elsewhere(lambda name: bool(self._elsewhere(name)))

    # --- records ---------------------------------------------------------------------------------------------

    def takes(self, chunk: Chunk) -> bool:
        """See `Gate`. Units that failed because too much came behind them are logged once a minute, not once a unit."""
        del chunk
        overflowed = self.units.take_overflowed()
        self._unsaid += len(overflowed)
        partition = self._partition
        if not overflowed or partition is None or (now_ms := partition.now_ms()) < self._quiet_until_ms:
            return False
        unit, (name, offset) = self.units.keys.unit, overflowed[0]
        among = f" (one of {self._unsaid:,} since this was said last)" if self._unsaid > 1 else ""
        logger.warning(
            "%s[%d]: unit %s, begun at offset %d, is no longer waited for%s: more than %s records, or %s MB, came "
            "since, all of them in memory for it; it is delivered record by record, as unverified. Have its producer "
            "end it, or raise Unit(records=%d, megabytes=%d)",
            partition.topic, partition.partition, shown(name.decode(errors="backslashreplace")), offset, among,
            f"{self.units.most_behind:,}", f"{unit.megabytes:,}", unit.records, unit.megabytes,
            extra={"event": "unit-unfinished"},
        )  # fmt: skip
        self._unsaid = 0
        self._quiet_until_ms = now_ms + QUIET_MS
        return False

    # --- units that cross partitions ---------------------------------------------------------------------------

    def _elsewhere(self, name: bytes) -> list[tuple[Partition, int]]:
        """Return the other partitions with records of a unit that has not ended there, and the offset of its first one.

        That includes a unit that ended with too few records. Nobody can say in which order two partitions are read,
        so that such a unit is never whole.
        """
        found: list[tuple[Partition, int]] = []
        for other in self._all():
            gate = None if other is self._partition else other.gate(UnitGate)
            # A fold reads history: a unit that is open there may be over for long.
            first = None if gate is None or not gate.units.is_live else gate.units.assembler.first(name)
            if first is not None:
                found.append((other, first))
        return found

    def look_across(self) -> list[PartitionEvent]:
        """Let units of which this partition has had records fail in the others that have some.

        Return an event for each.

        No exception: a producer that does so would stop its consumers for good, and every record is delivered all
        the same.
        """
        events: list[PartitionEvent] = []
        partition = self._partition
        crossed = self.units.assembler.take_crossed() if self.units.is_live else {}
        for name, offset in crossed.items() if partition is not None else ():
            others = self._elsewhere(name)
            if not others or partition is None:
                continue
            beside, first = others[0]
            detail = (
                f"unit {shown(name.decode(errors='backslashreplace'))} has records in "
                f"{partition.topic}[{partition.partition}] from offset {offset} and in "
                f"{beside.topic}[{beside.partition}] from offset {first}: they are delivered one by one, as "
                "unverified; send a unit to one partition, e.g. with one key"
            )
            logger.error("%s", detail, extra={"event": "unit-crosses"})
            for other, _ in others:
                other.give_up(name, CROSSES)
            events.append(PartitionEvent(CROSSES, partition.topic, partition.partition, offset, detail))
        return events

    # --- time ------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """See `Gate`."""
        return self.units.is_live and self.units.assembler.waits

    def tick(self, now_ms: int, *, at_end: bool) -> list[bytes]:
        """Return the names of units begun too long ago.

        Only the time in which there was nothing more to read counts.
        """
        if not self.units.is_live:
            return []
        self.units.assembler.note_time(now_ms, at_end=at_end)
        return self.units.assembler.overdue(int(self.units.keys.unit.timeout * 1000))

    def give_up(self, name: bytes, reason: str, now_ms: int) -> None:
        """Let an open unit fail."""
        if self.units.is_live and name in self.units.assembler.open:
            self.units.fail_unit(name, reason or UNFINISHED, now_ms)

    # --- for the owner -----------------------------------------------------------------------------------------

    @property
    def needs_more(self) -> bool:
        """See `Gate`."""
        return self.units.needs_more

    def resumes_at(self, offset: int, queued: int | None) -> int:
        """See `Gate`.

        Reading does not resume inside a unit that is over: the rest would be waited for, or pass for all of it.
        """
        flight = self._flight
        if not self.units.is_live or offset > flight.position:
            return offset
        if offset <= flight.high:
            return self.units.over.before(offset)
        passes = self.units.waits_below(offset) or (queued is not None and queued < offset)
        return flight.high if passes else offset


def unit_gates(state: PartitionState) -> list[Gate]:
    """Return the gate of a partition whose state `dedup_sdk._units.memory.open_units` made."""
    return [UnitGate(state, cast("UnitMemory", state.memory))]
