"""Gates: what may hold records of a partition back after they were judged, and be told of those that end. None by default.

A record that a gate holds back is not completed, so that its copies wait behind it, and the watermark before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from dedup_sdk.core.flight import Chunk, RecordRef
from dedup_sdk.marks import Marks
from dedup_sdk.observe import Hindrance, PartitionEvent
from dedup_sdk.window import Window

if TYPE_CHECKING:
    from dedup_sdk.engine.partition import Partition

Unseen = Callable[[Callable[["Partition", RecordRef], bool]], list[tuple["Partition", RecordRef]]]
"""Takes what the application has not been given yet out of the queues, as far as the function says so of it."""


class Gate:
    """A gate of one partition. By default it lets every record through; a gate overrides the steps that it needs.

    ``enter`` is called first, with the partition, and a function that returns all partitions of its engine.
    """

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """Belong to a partition from here on."""

    # --- records ---------------------------------------------------------------------------------------------

    def takes(self, chunk: Chunk) -> bool:
        """Take a chunk that was judged; True where its verdicts are not final, so that they are counted later."""
        del chunk
        return False

    def before_offer(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Return the records among those whose turn has come that may be offered now."""
        return offered

    def before_persist(self, marks: Marks) -> None:
        """Take note of completed records, before they are written."""

    def look_across(self) -> Sequence[PartitionEvent]:
        """Look at other partitions, after records of this one came; return what happened."""
        return ()

    # --- time ------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether time matters to it: `tick` is to be called now and then."""
        return False

    def tick(self, now_ms: int, *, at_end: bool) -> list[bytes]:
        """Say what time it is, and whether there is nothing more to read; return the names of what was waited for too long."""
        del now_ms, at_end
        return []

    def give_up(self, name: bytes, reason: str, now_ms: int) -> None:
        """Wait no longer for something of this name; ``reason`` is empty where that is the gate's own."""

    # --- what its owner asks -----------------------------------------------------------------------------------

    @property
    def needs_more(self) -> bool:
        """Whether more has to be read before the watermark can move."""
        return False

    @property
    def stands_still(self) -> bool:
        """Whether nothing behind what it holds back may be handed out."""
        return False

    def hindrances(self) -> Iterable[Hindrance]:
        """Return what keeps it closed, for people."""
        return ()

    def resumes_at(self, offset: int, queued: int | None) -> int:
        """Return where to read on, so that no record is passed which the application does not know of, where it wants to begin at ``offset``.

        ``queued``: the first offset that was offered and that it has not been given.
        """
        del queued
        return offset

    def leave(self) -> None:
        """Let the partition go."""


class Gatekeeper(Protocol):
    """Makes the gates of an engine's partitions to what other processes share with it, and asks for all of them at once."""

    def gate(self, topic: str, partition: int, window: Window, *, cluster: str, id_spec: str) -> Gate | None:
        """Return the gate of a partition that is about to open; None where it needs none."""

    @property
    def is_sure(self) -> bool:
        """Whether nobody else can have what was let through."""

    def admit(self, partitions: Sequence[Partition]) -> None:
        """Let what was judged through, by one question; what may not be handed out now is kept back."""

    def settle(self, partitions: Sequence[Partition]) -> None:
        """Ask again for what is kept back. What may be handed out is due."""

    def keep(self, unseen: Unseen) -> None:
        """Renew the claims of messages in flight; claim again those that wait to be handed out and that another consumer may have by now."""

    def holds(self, partition: Partition, place: RecordRef) -> bool:
        """Whether nobody else can have a message that was given out; else it is asked for again."""

    def rewound(self, topic: str, partition: int) -> None:
        """Take note that the group reads a partition again from an earlier offset than it had committed."""

    def close(self) -> None:
        """Send the other processes what is still unsent, and let everything go."""
