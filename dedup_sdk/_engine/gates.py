"""Gates: optional steps between the verdict of a record and its delivery. A gate may hold records back.

A record that a gate holds back is not completed: its duplicates wait behind it, and the watermark stays before it.
Units and shared memories are gates. A partition has none by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from dedup_sdk._core.flight import Chunk, RecordRef
from dedup_sdk._marks import Marks
from dedup_sdk._metrics import Hindrance
from dedup_sdk._observe import PartitionEvent
from dedup_sdk._window import Window

if TYPE_CHECKING:
    from dedup_sdk._engine.partition import Partition

TakeBack = Callable[[Callable[["Partition", RecordRef], bool]], list[tuple["Partition", RecordRef]]]
"""Takes the undelivered records out of the queues for which the function is true, and returns them."""


class Gate:
    """A gate of one partition. By default it lets every record through; a gate overrides the steps that it needs.

    `enter` is called first.
    """

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """Belong to this partition from here on. The function returns all partitions of its engine."""

    # --- records ---------------------------------------------------------------------------------------------

    def takes(self, chunk: Chunk) -> bool:
        """Take a judged chunk; True if its verdicts are not final, so that they are counted later."""
        del chunk
        return False

    def before_offer(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Return the records of those whose turn has come that may be delivered now; hold the others back."""
        return offered

    def before_persist(self, marks: Marks) -> None:
        """Take the marks of completed records before they are written to the store."""

    def take_over(self, marks: Marks) -> None:
        """Take the marks of records of which only the group's commit says that they are completed.

        They count from the next `before_persist` on: before, the log may turn out to be another one.
        """

    def look_across(self) -> Sequence[PartitionEvent]:
        """Look at the other partitions after records of this one came; return events to report."""
        return ()

    # --- time ------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it waits for time, so that `tick` must be called now and then."""
        return False

    def tick(self, now_ms: int, *, at_end: bool) -> list[bytes]:
        """Learn the time, and whether the log is read to its end; return the names that it has waited for too long."""
        del now_ms, at_end
        return []

    def give_up(self, name: bytes, reason: str, now_ms: int) -> None:
        """Stop waiting for a name; ``reason`` is empty for the gate's default reason."""

    # --- questions of its partition ----------------------------------------------------------------------------

    @property
    def needs_more(self) -> bool:
        """Whether more records must be read before the watermark can move."""
        return False

    @property
    def stands_still(self) -> bool:
        """Whether no record behind the held-back ones may be delivered."""
        return False

    def hindrances(self) -> Iterable[Hindrance]:
        """Return the reasons why it holds records back, for the status."""
        return ()

    def resumes_at(self, offset: int, queued: int | None) -> int:
        """Return where to read on when the application seeks to ``offset``, so that no held-back record is skipped.

        ``queued``: the lowest offset that is queued and not delivered, None without one.
        """
        del queued
        return offset

    def leave(self) -> None:
        """End, with the partition."""


class Gatekeeper(Protocol):
    """Makes gates to a resource that other processes share, and asks for all partitions of an engine at once."""

    def gate(self, topic: str, partition: int, window: Window, *, cluster: str, id_spec: str) -> Gate | None:
        """Return the gate of a partition that is about to open, None if it needs none."""

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have a record that was let through."""

    def admit(self, partitions: Sequence[Partition]) -> None:
        """Ask for the judged records by one question; records that may not be delivered now are held back."""

    def retry(self, partitions: Sequence[Partition]) -> None:
        """Ask again for the held-back records; those that may be delivered now are due."""

    def keep(self, take_back: TakeBack) -> None:
        """Renew the claims of records in flight; claim undelivered ones again that another process may have by now."""

    def holds(self, partition: Partition, place: RecordRef) -> bool:
        """Whether no other process can have a delivered record; else it is held back, and asked for again."""

    def rewound(self, topic: str, partition: int) -> None:
        """Take note that the group reads a partition again from an earlier offset than it had committed."""

    def close(self) -> None:
        """Send the other processes the completions that are still unsent, and release all claims."""
