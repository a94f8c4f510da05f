"""How units end: what of them is remembered, and what a fold makes of one of which it does not know what became."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dedup_sdk.lane.unit_chunk import Whole
from dedup_sdk.lane.unit_state import UnitState


class UnitEnding(UnitState):
    """The half of such a lane that ends units. ``folding``: what comes was completed by the group, here or elsewhere."""

    folding = False

    def finish_unit(self, whole: Whole) -> list[bytes]:
        """Complete all records of a unit at once; return the IDs that nothing of it has in flight any more."""
        self._land(whole.marked, whole)
        self.end_rows(whole)
        return whole.digests

    def end_rows(self, whole: Whole) -> None:
        """Call all records of a unit completed, at once."""
        for chunk, row in whole.places:
            chunk.finish(row)
            self._note_dirty(chunk)
        self.note_over(whole.first, whole.end)
        del self.wholes[whole.end]

    def number_none(self, whole: Whole, digests: Iterable[bytes]) -> None:
        """Let IDs of a unit take no number; marks that the store has bear theirs on."""
        if self.ring is None:
            return
        for digest in digests:
            self.ring.forget(whole.end)
            if digest in whole.stored:
                self.ring.numbers.setdefault(digest, whole.stored[digest].number)

    # --- what a fold does not know -------------------------------------------------------------------------

    def is_uncertain(self, whole: Whole, *, covered: bool) -> bool:
        """Whether a fold does not know what became of a unit none of whose IDs it knows."""
        if not self.all_or_nothing or (len(whole.digests) == 1 and (covered or whole.sized)):
            # Whatever it was told, its ID was handled, then or before. Of one with an end mark only the first records may be missing.
            return False
        return not covered or any(self._is_maybe_known(digest, whole) for digest in whole.digests)

    def _is_maybe_known(self, digest: bytes, whole: Whole) -> bool:
        return digest in self._maybe and self.window.holds(whole.end_ms - self._maybe[digest], 0)

    def note_rejected(self, whole: Whole, duplicates: Collection[bytes], *, covered: bool) -> None:
        """Note of a unit that a fold rejects which other IDs of it may have been known: their marks moved to its end then."""
        if not self.all_or_nothing:
            return
        for digest in whole.digests:
            if digest not in duplicates and (not covered or self._is_maybe_known(digest, whole)):
                self._maybe[digest] = max(whole.end_ms, self._maybe.get(digest, whole.end_ms))

    def pass_unit(self, whole: Whole) -> None:
        """Pass a unit of which a fold does not know what became."""
        for digest in whole.digests:
            self.recent.drop(digest, whole.end)
        self.number_none(whole, whole.digests)
        self.note_maybe(whole.digests, whole.end_ms)
        self.end_rows(whole)

    def note_maybe(self, digests: Iterable[bytes], timestamp_ms: int) -> None:
        """Note IDs that may have been completed at a time, or not."""
        if not self.all_or_nothing:
            return
        known = list(digests)
        for digest in known:
            self._maybe[digest] = max(timestamp_ms, self._maybe.get(digest, timestamp_ms))
        if self.ring is not None and known:
            self.pass_uncounted(len(known))
            self.since_number = self.ring.accepted
