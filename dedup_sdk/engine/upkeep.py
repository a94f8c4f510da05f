"""What an engine does for its partitions beside judging: memory and disk in bounds, and what a full disk refused."""

from __future__ import annotations

from dedup_sdk.engine.partition import Partition
from dedup_sdk.store.protocol import KeyStore


class Upkeep:
    """The half of an engine that looks after its open partitions.

    ``recent_marks``: marks in memory, over all partitions, before the fullest partition is flushed. ``forgets_unwritten``: four times
    as many that a full disk refused are given up.
    """

    def __init__(self, store: KeyStore, *, recent_marks: int, forgets_unwritten: bool) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._store = store
        self._recent_marks = recent_marks
        self._forgets_unwritten = forgets_unwritten

    def trim(self) -> None:
        """Flush partitions to sorted files while too many marks are in memory, or a journal is too long."""
        for held in self.partitions.values():
            if held.started and held.flush_due(self._recent_marks):
                held.flush()
        while sum(held.recent for held in self.partitions.values()) > self._recent_marks:
            fullest = max(self.partitions.values(), key=lambda held: held.recent)
            before = fullest.recent
            fullest.flush()
            if fullest.recent == before:
                break
        for held in self.partitions.values():
            if held.choked and self._forgets_unwritten and held.unwritten_weight > 4 * self._recent_marks:
                held.forget_unwritten()
        self._relieve()

    def _relieve(self) -> None:
        """While the store takes more room than it may, drop the oldest marks of the partition that remembers longest."""
        while self._store.excess_bytes():
            held = max(self.partitions.values(), key=lambda held: held.reach_ms, default=None)
            if held is None or not held.shed():
                return

    @property
    def gathers(self) -> bool:
        """Whether records of some partition wait for their units."""
        return any(held.gathers for held in self.partitions.values())

    @property
    def choked(self) -> bool:
        """Whether some partition's disk is full, so that what is completed is in memory only."""
        return any(held.choked for held in self.partitions.values())

    def write_again(self) -> bool:
        """Try to write what full disks refused; True when everything is written.

        Raises `StoreError` when a store cannot be opened again.
        """
        # All of them are tried: one that is still full says nothing of another's disk.
        written = [held.write_again() for held in self.partitions.values() if held.choked]
        return all(written)

    @property
    def effective_window_ms(self) -> int | None:
        """The shortest time in ms over which marks are known, of all open partitions; None without a window by time."""
        known = [held.effective_window_ms for held in self.partitions.values() if held.started]
        return min((window_ms for window_ms in known if window_ms is not None), default=None)
