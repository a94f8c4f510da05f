"""The history of a run, as plain values: all that the oracle judges by.

Times are nanoseconds of the machine's monotonic clock, which all processes of a run share. Offsets of commits are "the
next one".

run
    one life of one worker process, from its start to its end, however it ended.
call
    one finished call of a handler, written with fsync before the worker asks for more.
crash
    the end of a run that was not in order: killed, or ended by an error.
takeover
    others may have got the partitions of a run that lives on: stopped, cut off, or busy for too long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class LogRecord(NamedTuple):
    """A record of the topic as a plain reader sees it; ``ident`` is None where it bears no ID.

    ``rejected``: it says that it belongs to a unit which is a duplicate. The log tells, not the sender: of a batch
    whose answer was lost that does not know where it is.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    ident: bytes | None
    rejected: bool = False


class Call(NamedTuple):
    """A call of a handler that returned.

    ``verdict`` is for those who look for a cause; all that is judged by it is whether a message was handled
    without a claim, late, because a shared memory had been away.
    """

    run: str
    partition: int
    offset: int
    began_ns: int
    ended_ns: int
    verdict: str = ""


class Notice(NamedTuple):
    """The partitions given to a rebalance callback of a run.

    ``refused``: the commit that belonged to it failed. ``aborted``: those of a transaction whose messages come again.
    """

    run: str
    kind: Literal["assigned", "revoked", "lost", "refused", "aborted"]
    partitions: frozenset[int]
    at_ns: int


class Delivery(NamedTuple):
    """A record that a poll gave to its reader: a run, or the reader of the output.

    Polls are numbered. Where ``key`` is not empty, only the order of records with this key is kept.
    """

    reader: str
    poll: int
    partition: int
    offset: int
    at_ns: int
    key: str = ""


class End(NamedTuple):
    """The end of a write of a run, as its consumer was told; a run's transactions are numbered."""

    write: Call
    transaction: int
    is_committed: bool


class Line(NamedTuple):
    """A line that a run's consumer logged; evidence, no more."""

    at_ns: int
    run: str
    text: str


class Sample(NamedTuple):
    """The group's commits at a moment, at the latest."""

    at_ns: int
    partition: int
    offset: int


Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A run ended out of order; ``committed`` by partition where its successors have another disk, else None."""

    run: str
    at_ns: int
    committed: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """From ``at_ns`` until ``until_ns`` a run could not know whether its partitions were its own any more."""

    run: str
    at_ns: int
    until_ns: int
    committed: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """From ``at_ns`` until ``until_ns`` a run could not write its completions, nor be sure that it had."""

    run: str
    at_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """From ``at_ns`` until ``until_ns`` the memory that runs share did not answer them all, or was not asked again."""

    at_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """An operator had ``[low, high)`` of a partition handled again."""

    partition: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Records before ``offset`` of a partition cannot be known any more: their duplicates after that are in doubt."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """An operator, or retention, kept ``[low, high)`` of a partition from being handled.

    ``taken_back``: an operator went back over it later, so that it is to be handled after all.
    """

    partition: int
    low: int
    high: int
    taken_back: bool = False

    def concerns(self, place: Place) -> bool:
        """Whether a record lies in it."""
        return self.partition == place[0] and self.low <= place[1] < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ByKey:
    """Workers may have taken their key for the ID of the records in ``[low, high)`` of a partition."""

    partition: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The output of runs that copy messages in transactions, to the partition with the same number.

    Attributes:
        log: the committed records of the output, by place.
        polls: of a reader of committed records that read it from its first moment on.
        ends: of the runs' writes.
        deliveries: to the runs.
    """

    log: Mapping[Place, Call]
    polls: Sequence[Delivery] = ()
    ends: Sequence[End] = ()
    deliveries: Sequence[Delivery] = ()


Excuse = Crash | Takeover | Outage | Away | Rewind | Forget


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that was seen of one run of a scenario.

    Attributes:
        log: all records that a consumer could see, in any order.
        calls: of all runs.
        window_ms: how long an ID is remembered after its last sighting.
        notices: of all runs.
        samples: the commits, over time.
        excuses: faults that may have made a handler be called twice.
        skips: messages that need not be handled.
        by_key: messages that may have been hidden for their key.
        given_up: records that became dead letters: committed, and not handled.
        settled: the commits by partition when nothing was left to do; None: nobody looked.
        ordered: whether the order of each key is promised.
        threads: whether handlers ran on threads of their own, so that a partition may go in the middle of a call.
        exactly: whether work and ID are in one transaction, so that no fault explains that something is there
            twice, and one who has lost a partition may begin work that it cannot end.
        now_ms: the wall clock when the last record had been handled: later timestamps count as this one.
        told: the log lines of the runs' consumers.
        persisted: the IDs that were ever in the sender's outbox, or that bridges had to bring; None: there are none.
        copies: how often the log may have each ID; None: as often as it likes.
        unit_span: how many offsets a unit reaches over, at most; 0: there are none.
        everywhere: whether an ID is one message in all partitions, because their consumers share a memory.
        copied: the output of transactions; None: there is none.
    """

    log: Sequence[LogRecord]
    calls: Sequence[Call]
    window_ms: int
    notices: Sequence[Notice] = ()
    samples: Sequence[Sample] = ()
    excuses: Sequence[Excuse] = ()
    skips: Sequence[Skip] = ()
    by_key: Sequence[ByKey] = ()
    given_up: Collection[tuple[int, int]] = ()
    settled: Mapping[int, int] | None = None
    ordered: bool = True
    threads: bool = False
    exactly: bool = False
    now_ms: int = 2**62
    told: Sequence[Line] = ()
    persisted: Collection[bytes] | None = None
    copies: Mapping[bytes, int] | None = None
    unit_span: int = 0
    everywhere: bool = False
    copied: Copies | None = None


EARLIER = 1_000
"""Added to the partitions of a topic that was deleted since, for each time that it was made anew."""
BEFORE_A_RESTORE = 1_000_000
"""Added to the partitions of records that the broker lost in a restore, times the number of that restore.

In a restore a backup of its disk is put back. An ID in such a partition is the same message as in the one that is
there now.
"""
