"""What one process knows of how far a partition is, and what follows from what the database says.

A transaction that moved the offset may have been committed or rolled back since: nobody tells. So each attempt is noted, and the value that
is found in the database tells which of them were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dedup_adapters.sql.errors import InboxError, OutOfOrderError


class Attempt(NamedTuple):
    """Messages that a transaction handled: the next offset before it, and theirs."""

    before: int
    offsets: frozenset[int]


class Step(NamedTuple):
    """What is to be done of a batch: move the offset from one value to another (not where both are the same), without those that were handled."""

    before: int
    after: int
    handled: frozenset[int]


@dataclass(slots=True)
class Progress:
    """One partition: ``last`` is the next offset if every attempt was committed, ``attempts`` those of the transaction that was last seen.

    A transaction that was committed though it seemed to fail is handled again by who does not know it: ``certain`` are offsets that were
    committed and may still come again, ``theirs`` those that another owner handled.
    """

    topic: str
    partition: int
    topic_id: str
    last: int
    attempts: list[Attempt] = field(default_factory=list)
    certain: frozenset[int] = frozenset()
    theirs: tuple[range, ...] = ()
    transaction: object = None
    version: int = 0
    """How often an attempt was noted."""

    def hopeful(self, offsets: list[int]) -> Step | None:
        """Return the step if every attempt so far was committed; None where the messages speak against it."""
        return Step(self.last, offsets[-1] + 1, frozenset()) if offsets[0] >= self.last else None

    def step(self, offsets: list[int], found: int | None) -> Step:
        """Return the step from what was found in the database (None: no row)."""
        if found is None:
            raise InboxError(
                f"{self.name}: its offset is not in the database any more; assign the partition again"
            )
        begin = self.attempts[0].before if self.attempts else self.last
        if found < self.last:
            self._check_order(offsets, found, begin)
        if found not in (self.last, *(each.before for each in self.attempts)):
            # Another owner of the partition handled them, in order: this one lost it, or got it while that one was not through.
            self.theirs = (*self.theirs, range(begin, found))
        done = self._done(found)
        handled = frozenset(
            each
            for each in offsets
            if each < found and (each in done or any(each in there for there in self.theirs))
        )
        late = next((each for each in offsets if each < found and each not in handled), None)
        if late is not None:
            raise OutOfOrderError(
                f"{self.name}: offset {late} came after what lies below {found} was handled; handle a partition's messages in their order (set "
                "the group back with inbox.offsets.move), or keep offsets in Kafka (without offsets=)"
            )
        return Step(found, max(offsets[-1] + 1, found), handled)

    def note(self, step: Step, offsets: list[int], transaction: object) -> None:
        """Note a step that was taken."""
        if transaction is not self.transaction:
            # What another transaction finds in the database was committed; what lies before its first message does not come again.
            done = self._done(step.before) | step.handled
            self.certain = frozenset(each for each in done if each >= offsets[0])
            self.theirs = tuple(there for there in self.theirs if there.stop > offsets[0])
            self.attempts, self.transaction = [], transaction
        elif step.before != self.last:
            self.attempts = [each for each in self.attempts if each.before < step.before]
        if step.after > step.before:
            self.attempts.append(Attempt(step.before, frozenset(offsets) - step.handled))
        self.last = step.after
        self.version += 1

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.topic}[{self.partition}]"

    def _done(self, found: int) -> frozenset[int]:
        """Return the offsets that were handled where the database stands there, of those that are known one by one."""
        return self.certain.union(*(each.offsets for each in self.attempts if each.before < found))

    def _check_order(self, offsets: list[int], found: int, begin: int) -> None:
        """Raise unless the first message is the first of those that were rolled back, or lies before it."""
        if found < begin:
            raise InboxError(
                f"{self.name}: its offset in the database was set back to {found}; assign the partition again"
            )
        undone = min(
            (offset for each in self.attempts for offset in each.offsets if offset >= found), default=found
        )
        if offsets[0] > undone:
            raise OutOfOrderError(
                f"{self.name}: offset {offsets[0]} came, but {undone} was rolled back and comes first; handle it, or keep offsets in Kafka "
                "(without offsets=)"
            )
