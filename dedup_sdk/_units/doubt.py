"""The limits of a fold of units: the log does not tell whether a unit was rejected, where its past is not known.

To reject is not monotonic: with one mark more or less, a unit is rejected that was accepted, or accepted that was
rejected. A mark of a record that nobody handled would hide its message for good. So a fold of units must be exact,
or say where it is not.

It is inexact before anything that depends on more than the log: a unit that failed (a clock), one that was accepted
while uncovered, a crash ahead of the commit. Commits name no ``low`` before that point, so that no fold begins
there. A unit that is not covered in a fold, or has an ID that may be known, is uncertain: it leaves no mark, and
coverage begins behind it.

With ``unit_mode="members"`` none of this is needed: whatever verdict a record got, its message was handled.
``tests/property/test_units.py`` has the histories that lose messages without each of these rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dedup_sdk._core.reach import KnownRange
from dedup_sdk._units.whole import CompleteUnit


class Doubt:
    """IDs that may have been completed at a time (ms), or not.

    There are none where ``all_or_nothing`` is false: then each record of a unit has its own verdict.

    ``exact_from``: from that offset on the log alone decides the verdicts. Before it a unit failed, or was accepted
    in doubt, which depends on more than the log. Where one more ID is remembered or one less, a later unit is
    rejected or not, so that a fold of that range could remember IDs that nobody has handled.
    """

    def __init__(self, reach: KnownRange, *, all_or_nothing: bool) -> None:
        self.all_or_nothing = all_or_nothing
        self.exact_from = 0
        self._reach = reach
        self._maybe: dict[bytes, int] = {}
        self._whole_from = 0

    # --- where the log does not tell -------------------------------------------------------------------------

    def note_inexact_below(self, offset: int) -> None:
        """Note that the log before an offset does not decide the verdicts."""
        if self.all_or_nothing:
            self.exact_from = max(self.exact_from, offset)

    def pass_below(self, high: int) -> None:
        """Note that the watermark moves."""
        # Watermarks lie outside of units: the first one that has passed the doubt is a place to begin.
        if self._whole_from < self.exact_from <= high:
            self._whole_from = high

    def committed_low(self, low: int, high: int) -> int:
        """Return the beginning of the history, as a commit states it.

        It is not inside a unit, whose rest would pass for all of it.
        """
        if not self.exact_from:
            return low
        return max(low, self._whole_from if self._whole_from >= self.exact_from else high)

    # --- IDs that may be known -------------------------------------------------------------------------------

    def written_since_ms(self) -> int | None:
        """Return from when on (ms) the marks are known, as it is written during a fold.

        The fold may not come to its end.
        """
        since_ms = self._reach.since_ms
        return max(max(self._maybe.values()) + 1, since_ms or 0) if self._maybe else since_ms

    def end(self) -> None:
        """Have the marks begin behind all doubt: from here on every verdict is known."""
        if self._maybe:
            self._reach.forgot_before(max(self._maybe.values()) + 1)
            self._maybe = {}

    def is_uncertain(self, unit: CompleteUnit, *, covered: bool) -> bool:
        """Whether a fold cannot know the verdict of a unit none of whose IDs it knows."""
        if not self.all_or_nothing or (len(unit.digests) == 1 and (covered or unit.sized)):
            # Whatever its verdict, its ID was handled, then or before. Of one with an end mark only the first records
            # may be missing.
            return False
        return not covered or any(self._may_be_known(digest, unit) for digest in unit.digests)

    def _may_be_known(self, digest: bytes, unit: CompleteUnit) -> bool:
        holds = self._reach.window.holds
        return digest in self._maybe and holds(unit.end_ms - self._maybe[digest], 0)

    def note_rejected(self, unit: CompleteUnit, duplicates: Collection[bytes], *, covered: bool) -> None:
        """Note the other IDs of a unit that a fold rejects: if they were known, their marks moved to its end then."""
        if not self.all_or_nothing:
            return
        for digest in unit.digests:
            if digest not in duplicates and (not covered or self._may_be_known(digest, unit)):
                self._maybe[digest] = max(unit.end_ms, self._maybe.get(digest, unit.end_ms))

    def note(self, digests: Iterable[bytes | None], timestamp_ms: int) -> None:
        """Note IDs (None: none) that may have been completed at a time (ms), or not."""
        if not self.all_or_nothing:
            return
        known = [digest for digest in digests if digest is not None]
        for digest in known:
            self._maybe[digest] = max(timestamp_ms, self._maybe.get(digest, timestamp_ms))
        count_window = self._reach.count_window
        if count_window is not None and known:
            count_window.pass_uncounted(len(known))
            self._reach.doubt_below(count_window.accepted)
