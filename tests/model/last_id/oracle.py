"""The promises of compare-with-the-last-one, told from the whole log and from the handlers' work.

It judges lives from outside, where `tests.model.last_id.rule` predicts the answers: so it also judges a broken rule.

lost
    a record is taken for a duplicate, or for completed, and no handler did its work; a commit passes one that is
    not over; one is discarded below the floor that was not late by more than the depth.
doubled
    a record is delivered as fresh, although the group had completed its ID before.
doubted
    a record is delivered in doubt, although no reason for doubt is in the log.
repeated
    a record is delivered again by a disk that knew of its completion.
rebuilt otherwise
    the lived state and the one folded anew from the same log are not the same.
"""

from __future__ import annotations

from tests.model.last_id.host import Said, Sources, Store
from tests.model.last_id.rule import Answer, Ident, LastIdRule, Order, Sent, compare
from tests.support.broken_promise import BrokenPromiseError


class Oracle:
    """The fate of every record.

    ``exact``: nobody meddled with offsets and nothing left the log, so that doubts have to be in it. ``orderly``:
    the log keeps to the depth, so that also a source of which not all is known doubles nothing unseen.
    """

    def __init__(self, log: list[Sent], rule: LastIdRule, *, orderly: bool) -> None:
        self._log, self._rule, self._orderly = log, rule, orderly
        self.exact = True
        self.meddled = False
        self.handled: set[int] = set()
        self.settled: set[int] = set()

    # --- as it happens -----------------------------------------------------------------------------------------------

    def redelivered(self, offset: int) -> None:
        """Judge that a record was taken for completed."""
        if offset not in self.settled:
            raise BrokenPromiseError("lost", f"nobody completed {offset}, {self._log[offset]}")

    def answered(self, said: Said, *, on_disk: bool) -> None:
        """Judge the verdict on a record; ``on_disk``: this host's disk knows that it is completed."""
        offset, answer = said.offset, said.answer
        if answer is Answer.DUPLICATE:
            # Where the late are discarded, one that comes again after that is one more of them.
            discarded = self._rule.below_floor == "discard" and self._is_late(offset)
            if not discarded and not any(earlier in self.handled for earlier in self._earlier(offset)):
                raise BrokenPromiseError("lost", f"{offset}, {self._log[offset]}, is a duplicate of nothing")
            self.settled.add(offset)
            return
        if not self._rule.delivers(answer):
            if not self._is_late(offset):
                raise BrokenPromiseError(
                    "lost", f"{offset}, {self._log[offset]}, is discarded, and is not late"
                )
            self.settled.add(offset)
            return
        if on_disk and not self.meddled:
            raise BrokenPromiseError("repeated", f"{offset}, {self._log[offset]}")
        if answer is Answer.FRESH:
            self._fresh(said)
        elif not self._is_doubtful(said):
            raise BrokenPromiseError("doubted", f"{offset}, {self._log[offset]}, for {answer.name}")

    def ended(self, offset: int) -> None:
        """Note that a handler did its work, or that its dead letter arrived."""
        self.settled.add(offset)
        self.handled.add(offset)

    def committed(self, start: int, offset: int) -> None:
        """Judge a commit of a member that began at ``start``."""
        missing = set(range(start, offset)) - self.settled
        if missing:
            raise BrokenPromiseError("lost", f"the commit of {offset} passes {min(missing)}")

    def kept(self, store: Store) -> None:
        """Judge the state of a store."""
        if not self.exact:
            return
        sources: Sources = {}
        for offset in range(store.low, store.high):
            row = self._log[offset]
            state = self._rule.fold(sources.get(row.source), row.ident, whole=True)
            if state is not None:
                sources[row.source] = state
        if sources != store.sources:
            raise BrokenPromiseError(
                "rebuilt otherwise", f"{sources} before {store.high}, lived {store.sources}"
            )

    # --- facts of the log -------------------------------------------------------------------------------------------

    def _earlier(self, offset: int) -> list[int]:
        row = self._log[offset]
        same = [(each.source, each.ident) == (row.source, row.ident) for each in self._log[:offset]]
        return [earlier for earlier, is_same in enumerate(same) if is_same]

    def _newer_before(self, offset: int) -> set[Ident]:
        row = self._log[offset]
        return {
            other.ident
            for other in self._log[:offset]
            if other.source == row.source and compare(other.ident, row.ident) is Order.NEWER
        }

    def _is_late(self, offset: int) -> bool:
        return len(self._newer_before(offset)) > self._rule.reorder_depth

    def _fresh(self, said: Said) -> None:
        offset = said.offset
        whole = self.exact and not self._restarts(offset)
        if self.meddled or not (whole or self._orderly):
            return
        before = [each for each in self._earlier(offset) if each in self.handled]
        # Records that another member completed, and has not committed, this one cannot know.
        known = [each for each in before if each < said.high or each in said.ahead]
        if known:
            raise BrokenPromiseError("doubled", f"{offset}, {self._log[offset]}, was completed at {known[0]}")

    def _is_doubtful(self, said: Said) -> bool:
        offset, answer = said.offset, said.answer
        row = self._log[offset]
        if row.ident.number is None or self.meddled:
            return True
        if answer is Answer.BELOW_FLOOR:
            return self._is_late(offset)
        if not self.exact:
            return True  # its reason may have left the log
        passed = [
            other.ident
            for other in self._log[: said.high]
            if other.source == row.source and other.ident.number is not None
        ]
        if answer is Answer.UNCOMPARABLE:
            return bool(passed) and passed[-1].origin != row.ident.origin
        if not self._orderly:
            return True
        others = [place for place, ident in enumerate(passed) if ident.origin != row.ident.origin]
        return bool(others) and len({*passed[others[-1] :]}) - 1 < self._rule.enough

    def _restarts(self, offset: int) -> bool:
        row = self._log[offset]
        origins = {
            other.ident.origin
            for other in self._log[: offset + 1]
            if other.source == row.source and other.ident.number is not None
        }
        return len(origins) > 1
