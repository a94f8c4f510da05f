"""The promises where IDs are compared, told from the handlers' work and from the whole log.

Beside those of `Oracle`:

doubted
    a record was delivered in doubt, although nothing in the log makes it doubtful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk._record import VerdictKind
from tests.model.last_id.rule import Answer
from tests.model.worlds.compared import LogRow, read_compared
from tests.model.worlds.oracle import Oracle
from tests.model.worlds.world import LONG, WALL_CLOCK_MS
from tests.support.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from tests.model.worlds.broker import Entry
    from tests.model.worlds.compared import Compared, Fact


class ComparedOracle(Oracle):
    """The oracle of a world with `Compared`."""

    def names(self, entry: Entry) -> set[str]:
        """See `Oracle`: its ID within its source, and the one that a second opinion looks up."""
        source, compared, other = entry.ident.split("|")
        names = set() if compared == "?" else {f"{source}|{compared}"}
        return names | ({other} if self._compared.second is not None else set())

    @property
    def _compared(self) -> Compared:
        assert self._world.compared is not None
        return self._world.compared

    def may_be_duplicate(self, group: str, partition: int, entry: Entry) -> bool:
        """See `Oracle`: a late record may be discarded."""
        return self._compared.below_floor == "discard" or super().may_be_duplicate(group, partition, entry)

    def judge_verdicts(self, group: str, entries: dict[int, Entry], gone: set[int]) -> None:
        """See `Oracle`."""
        present = {s: e for s, e in entries.items() if s not in gone}
        rows = [LogRow(e.offset, e.ident, e.timestamp_ms) for e in present.values()]
        facts = dict(read_compared(rows, self._compared, self._world.window, WALL_CLOCK_MS))
        known: set[str] = set()
        for serial, entry in sorted(present.items(), key=lambda each: each[1].offset):
            fact, last = facts[entry.offset], self.last.get((group, serial))
            if last is VerdictKind.DUPLICATE and not self._is_duplicate(entry, fact, known):
                raise BrokenPromiseError("lost", f"{entry} was called a duplicate, and is none: {fact}")
            again = not known.isdisjoint(self.names(entry))
            self._judge_delivered(entry, fact, last, again=again)
            known |= self.names(entry)

    def _is_duplicate(self, entry: Entry, fact: Fact, known: set[str]) -> bool:
        """Whether it is one by the log; in flight more is known than a source remembers."""
        discarded = fact.compared is Answer.BELOW_FLOOR and self._compared.below_floor == "discard"
        return fact.expected is Answer.DUPLICATE or discarded or not known.isdisjoint(self.names(entry))

    def _judge_delivered(self, entry: Entry, fact: Fact, last: VerdictKind | None, *, again: bool) -> None:
        # A source begins anew where its origin changes, and where a wild time ends its window. An older ID is then
        # fresh by completed records, and below the floor by the log only because of those in flight when it was
        # judged.
        begins_anew = len(set(self._compared.origins)) > 1 or self._world.times == "wild"
        began_anew = begins_anew and self._compared.reorder_depth > 0
        trusted = fact.expected is Answer.FRESH or (fact.expected is Answer.BELOW_FLOOR and began_anew)
        # A source whose records have no time, or which misses some, is in doubt; a second opinion is asked then,
        # whose window is a shorter one.
        may_doubt = self._world.times == "wild" or not self._world.knows_everything
        asked = may_doubt and fact.looked_up is Answer.FRESH
        if last is VerdictKind.FRESH and again and not (trusted or asked):
            raise BrokenPromiseError("doubled", f"{entry} is a duplicate: {fact}")
        # An ID forgotten for its age is in doubt when its source goes on, and wild times age everything.
        remembers = self._world.times != "wild" and (self._world.window.time_ms or 0) >= (LONG.time_ms or 0)
        certain = (
            remembers and self._world.knows_everything and fact.expected in (Answer.FRESH, Answer.DUPLICATE)
        )
        if last is VerdictKind.UNVERIFIED and certain:
            raise BrokenPromiseError("doubted", f"{entry} is certain: {fact}")
