"""The interface between a partition and its memory, which judges records by their marks and says which marks to keep.

There are two memories: `dedup_sdk._core.lookup` looks IDs up, `dedup_sdk._core.last` compares them with the last ones
of their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from dedup_sdk._core.flight import Chunk, Flight, RecordRef
from dedup_sdk._core.ranges import Range
from dedup_sdk._core.reach import KnownRange
from dedup_sdk._marks import Find, Int64s, Marks, Progress

Live = Callable[[list[int], Int64s, Sequence[bytes | None]], None]
"""Admits records of a fold and completes them at once, as if they had been handled here."""
LastRecord = tuple[int, int, bytes | None]
"""Offset, timestamp (ms) and digest of a record."""


class JournalStep(NamedTuple):
    """Completed work that the store does not have yet: the new progress and the marks of the step."""

    progress: Progress
    marks: Marks


class Written(NamedTuple):
    """Marks of completed records, and which of these lie above the watermark."""

    marks: Marks
    done: list[Range]


class Taken(NamedTuple):
    """Marks that a flush is to write; ``find`` looks their IDs up, None where they have no index."""

    marks: Marks
    find: Find | None = None


class Memory(Protocol):
    """Judges the records of one partition, and remembers those that are completed.

    It moves the watermark where that brings verdicts. ``now_ms`` is always the present time: anything later lies in
    the future.
    """

    @property
    def flight(self) -> Flight:
        """The flight of the partition."""

    @property
    def reach(self) -> KnownRange:
        """How far back the marks are complete."""

    # --- records that come ---------------------------------------------------------------------------------

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return the digests that records with these digests have looked up."""

    def look_up(
        self, chunk: Chunk, missing: dict[int, str], find: Find, *, discard: bool, now_ms: int
    ) -> Any:
        """Run every step that can fail before records are judged; return the result for `judge`.

        When this raises, nothing but the chunk has changed. ``missing`` has, for every row without a digest, the
        reason; ``discard``: such records are kept from the application.
        """

    def judge(self, chunk: Chunk, known: Any) -> None:
        """Give the records of a chunk that was taken in their verdicts, or hold them back. Duplicates are completed."""

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        *,
        now_ms: int,
    ) -> int | None:
        """Return the first of some offsets (ascending) that counts as completed, but had another record; else None.

        That is known of remembered records inside the window, measured from the newest timestamp among the completed
        ones.
        """

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """Complete rows of a chunk that are offered; return the records to offer next.

        ``rows`` None: all that were offered with the chunk.
        """

    def together(self, place: RecordRef) -> list[RecordRef]:
        """Return the records that a record is completed with: itself as a rule."""

    # --- marks to keep -------------------------------------------------------------------------------------

    def marks(self) -> Written | None:
        """Return the marks of records completed since the last call; None when there is nothing to write."""

    def take_recent(self, clock_ms: int, find: Find) -> Taken:
        """Remove the marks that a flush is to write, and return those still inside the window at ``clock_ms``.

        A mark is left out where it lies before the window of every record that is not older than the clock; the
        reach records that. No mark is left out that hides an older mark of the store, because that may have a later
        timestamp.
        """

    def put_back(self, marks: Marks) -> None:
        """Take back marks that `take_recent` returned and that could not be stored."""

    @property
    def recent_count(self) -> int:
        """How many marks are in memory, those of IDs in flight included."""

    @property
    def looked_up(self) -> int:
        """How many of them, at least, are neither in the journal nor in flight.

        They were looked up, and a flush drops them.
        """

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """Take over the records of a chunk, completed by the group elsewhere, and all before ``end``.

        Only while nothing is in flight. Returns the last record that the watermark passes; None where the flight
        knows it.
        """

    def folded(self, chunk: Chunk) -> Marks:
        """Return the marks of the records folded last, once the watermark has passed them."""

    def forget_all(self) -> None:
        """Note that nothing is known before the next record."""

    def pass_uncounted(self, count: int) -> None:
        """Advance over up to ``count`` records whose outcome is unknown."""

    # --- for commits ---------------------------------------------------------------------------------------

    @property
    def committed_low(self) -> int:
        """The beginning of the history, as a commit of the watermark states it: a fold from there gives these marks."""

    @property
    def exact_from(self) -> int:
        """A fold that begins before this offset may give other marks; 0 where it never does."""

    def note_inexact_below(self, offset: int) -> None:
        """Note that the log before an offset does not decide all verdicts; nothing where each message is handled."""

    @property
    def written_since_ms(self) -> int | None:
        """The timestamp (ms) to write from which on all marks are known; None: from the beginning of the history.

        While a fold is under way, the value promises nothing of the fold: a crash may end the fold half way.
        """
