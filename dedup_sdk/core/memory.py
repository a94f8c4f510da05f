"""What a partition needs of a memory: who judges its records by what was completed, and says what is to be kept of them.

There are two: `dedup_sdk.core.lookup` looks IDs up, `dedup_sdk.core.last` compares them with the last ones of their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from dedup_sdk.core.flight import Chunk, Flight, RecordRef
from dedup_sdk.core.ranges import Range
from dedup_sdk.core.reach import Reach
from dedup_sdk.marks import Found, Int64s, Marks, Progress

Find = Callable[[bytes, int], Found]
"""Looks so many digests (16 bytes each) up among older marks."""
Live = Callable[[list[int], Int64s, list[bytes | None]], None]
"""Admits records of a fold and completes them at once, as if they had been handled here."""
LastRecord = tuple[int, int, bytes | None]
"""Offset, timestamp (ms) and digest of a record."""


class Step(NamedTuple):
    """Completed work that the store does not have yet: the new progress and the marks of the step."""

    progress: Progress
    marks: Marks


class Written(NamedTuple):
    """Marks of completed records, and which of these lie above the watermark."""

    marks: Marks
    done: list[Range]


class Memory(Protocol):
    """Judges the records of one partition, and remembers what is completed; it moves the watermark where that brings verdicts.

    ``now_ms`` is always the time now: what is later lies in the future.
    """

    @property
    def flight(self) -> Flight:
        """The flight of the partition."""

    @property
    def reach(self) -> Reach:
        """How far back the marks know what was completed."""

    # --- records that come ---------------------------------------------------------------------------------

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return what records with these digests have looked up."""

    def look_up(
        self, chunk: Chunk, missing: dict[int, str], find: Find, *, discard: bool, now_ms: int
    ) -> Any:
        """Do what may fail before records are judged; return what `judge` needs. When this raises, nothing but the chunk has changed.

        ``missing`` has, for every row without a digest, the reason; ``discard``: such records are kept from the application.
        """

    def judge(self, chunk: Chunk, known: Any) -> None:
        """Give the records of a chunk that was taken in their verdicts, or hold them back. What is judged a duplicate is completed."""

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        *,
        now_ms: int,
    ) -> int | None:
        """Return the first of some offsets (ascending) that counts as completed, and at which another record was; None as a rule.

        That is known of what is remembered, inside the window, measured from the newest timestamp among what is completed.
        """

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """Complete rows of a chunk that are offered (None: all that were offered with it); return what is to be delivered next."""

    def together(self, place: RecordRef) -> list[RecordRef]:
        """Return the records that a record is completed with: itself as a rule."""

    # --- what is kept --------------------------------------------------------------------------------------

    def marks(self) -> Written | None:
        """Return what was completed since the last call, None when it leaves nothing to write."""

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """Remove what is in memory only for a flush, and return what is still inside the window at ``clock_ms``.

        What is left out lies before the window of every record that is not older than the clock; the reach says so. Nothing is left out that
        hides an older mark of the store, whose timestamp may be a later one.
        """

    def put_back(self, marks: Marks) -> None:
        """Take back what `take_recent` gave out and nobody could store."""

    @property
    def recent_count(self) -> int:
        """How many marks are in memory, those of IDs in flight included."""

    @property
    def looked_up(self) -> int:
        """How many of them, at least, are neither in the journal nor in flight: they were looked up, and a flush lets them go."""

    # --- what others completed -----------------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """Take over the records of a chunk, completed by the group elsewhere, and what lies before ``end``; only while nothing is in flight.

        Returns the last record that the watermark passes, None where the flight tells.
        """

    def folded(self, chunk: Chunk) -> Marks:
        """Return the marks of what was folded last, when the watermark has passed it."""

    def forget_all(self) -> None:
        """Note that nothing is known before the next record."""

    def pass_uncounted(self, count: int) -> None:
        """Advance over up to ``count`` records whose outcome is unknown."""

    # --- what a commit tells -------------------------------------------------------------------------------

    @property
    def committed_low(self) -> int:
        """Where the history begins, as a commit of the watermark tells it: a fold of the log from there gives these marks."""

    @property
    def exact_from(self) -> int:
        """A fold that begins before this offset may give other marks; 0 where it never does."""

    @property
    def written_since_ms(self) -> int | None:
        """From when the marks are known, as it is written: a fold that is under way may not come to its end."""
