"""The limits of who reads a unit again: the log does not tell whether it was rejected, where its past is not known.

To reject is not monotonic: with one mark more or less, a unit is rejected that was accepted, or accepted that was
rejected. A mark of a record that nobody handled would hide its message for good. So there is one rule, for a fold and
for records that a commit's text reports as completed: **a unit that is read again leaves marks only if the reader
knows for certain that it was accepted.** Else its IDs are in doubt: it leaves no mark, and coverage begins behind it.

Two sides keep the rule. Whoever judges a unit first (the *owner*) has commits name no ``low`` before a verdict that
depends on more than the log from ``low`` on: of a unit that failed (a clock), was accepted without knowing its whole
window, was rejected for marks from before ``low`` only, or was completed by a process that crashed ahead of the
commit. Whoever reads it again takes it for accepted if none of its IDs is known or in doubt, and everything that its
window could hold is. Where the marks begin with the first record that was left in the log, records before that may
have a later timestamp, so that for units the window is known `AHEAD_MS` later.

With ``unit_mode="members"`` none of this is needed: whatever verdict a record got, its message was handled.
``tests/property/test_units.py`` has the histories that lose messages without each of these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dedup_sdk._core.reach import KnownRange
from dedup_sdk._decision import Mark
from dedup_sdk._units.unit import UnitMode
from dedup_sdk._units.whole import CompleteUnit
from dedup_sdk._window import Window

AHEAD_MS: Final = 3_600_000
"""How far (ms) a timestamp may be ahead: Kafka's default of ``message.timestamp.after.max.ms``.

In a shorter window as far as that.
"""


def ahead_ms_of(window: Window, mode: UnitMode) -> int:
    """Return how much later (ms) coverage begins than the first record that is known, where units are rejected."""
    return min(AHEAD_MS, window.time_ms or 0) if mode == "all-or-nothing" else 0


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
        """Whether nobody can know the first verdict of a unit none of whose IDs is known here."""
        if not self.all_or_nothing:
            return False
        if unit.end < self.exact_from:
            # It may have failed, even.
            return True
        if len(unit.digests) == 1 and (covered or unit.sized):
            # Whatever its verdict, its ID was handled, then or before. Of one with an end mark only the first records
            # may be missing.
            return False
        return not covered or any(self._may_be_known(digest, unit) for digest in unit.digests)

    def _may_be_known(self, digest: bytes, unit: CompleteUnit) -> bool:
        holds = self._reach.window.holds
        return digest in self._maybe and holds(unit.end_ms - self._maybe[digest], 0)

    def note_rejected(
        self, unit: CompleteUnit, duplicates: Mapping[bytes, Mark], *, covered: bool, low: int, again: bool
    ) -> None:
        """Note a unit that is rejected for these marks; ``again``: it had its verdict before.

        The history begins at ``low``.
        """
        if not self.all_or_nothing:
            return
        others = [digest for digest in unit.digests if digest not in duplicates]
        if not again:
            if others and all(mark.offset < low for mark in duplicates.values()):
                self.note_inexact_below(unit.end + 1)
            return
        if unit.end < self.exact_from or not any(
            mark.offset >= low and digest not in self._maybe for digest, mark in duplicates.items()
        ):
            # Perhaps it was accepted then.
            self.note(unit.digests if others else (), unit.end_ms)
            return
        in_doubt = others
        if covered:
            in_doubt = [digest for digest in others if self._may_be_known(digest, unit)]
        # If they were known, their marks moved to its end then.
        for digest in in_doubt:
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
