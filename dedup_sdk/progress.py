"""What a group is known to have completed of a partition, and what the marks beside it cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from dedup_sdk.core.ranges import merged

CHECK_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Witness:
    """One record that was completed. Where the log has another record at its offset, it is another log.

    ``check``: 16 hexadecimal digits of the SHA-256 of what is read of it in place of its ID (its digest), zeros where it has no ID.

    A broker that was restored from a backup has other records at the same offsets in the same leader epoch, so that the
    epoch alone shows nothing. Where the store knows more than the group has committed, the log must still have the
    witness (`dedup_sdk.kafka.log_check`). A record that replaced another one may be equal to the witness by chance.
    That is found when the records around it are read: where a mark is missing (`dedup_sdk.decision.is_contradicted`),
    everything from there on is judged anew.
    """

    offset: int
    timestamp_ms: int
    check: str

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, digest: bytes | None) -> Witness:
        """Return the witness of a record by what is read of it."""
        check = "0" * CHECK_DIGITS if digest is None else sha256(digest).hexdigest()[:CHECK_DIGITS]
        return cls(offset, timestamp_ms, check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The part of a partition's state that is written with every step, in the same atomic write as its marks.

    - ``low``: where the stretch of log begins that this group has processed without a gap.
    - ``high``: every offset in ``[low, high)`` is completed ("the next one", as Kafka's committed offsets).
    - ``done``: what is completed above ``high``, as ascending half-open ranges ``(start, end)``; with ``delta`` only what was
      completed since the step before (see `latest`): thousands of gaps must not be written with every step.
    - ``committed``: the last offset this store knows to be committed, None before the first commit.
    - ``era``: changes when an operator rewinds on purpose, so that every host recognises it.
    - ``since_ms``: the marks know every sighting at or after this record timestamp; None: of the group's whole history.
    - ``accepted``: the rank of the last accepted record below ``high``; ``since_number``: the rank where the marks begin.
    - ``epoch``: the partition's leader epoch when the last of what is completed was read, None where nobody said: by it the broker tells
      whether its log still has that.
    - ``witness``: the last record that is completed, None where nobody knows it.
    - ``newest_ms``: the newest record timestamp seen below ``high``, -1 before the first.
    - ``dropped_to``: some marks of offsets below it were dropped for their age, so that a record there without a mark proves nothing: an ID
      that came in time may have come once more with an old time, and its mark went with that.
    - ``floor_number``: IDs numbered up to it are outside of the window by count, or were outside of one before, and stay outside of any.
    """

    low: int
    high: int
    done: tuple[tuple[int, int], ...] = ()
    committed: int | None = None
    era: str = ""
    since_ms: int | None = None
    accepted: int = 0
    since_number: int | None = None
    newest_ms: int = -1
    epoch: int | None = None
    delta: bool = False
    witness: Witness | None = None
    floor_number: int = 0
    dropped_to: int = 0

    @property
    def completed_end(self) -> int:
        """The offset after the last one that is completed; only of a whole progress."""
        # Ascending and apart: the last one ends last.
        return max(self.high, self.done[-1][1]) if self.done else self.high

    @property
    def begun(self) -> bool:
        """Whether anything is known to be completed or committed, so that ``low`` says where the history begins."""
        return self.high > self.low or bool(self.done) or self.committed is not None


def latest(steps: Iterable[Progress]) -> Progress | None:
    """Return the whole progress after consecutive steps, of which the first is whole; None without any."""
    ranges: list[tuple[int, int]] = []
    last = None
    for last in steps:
        if not last.delta:
            ranges.clear()
        ranges += last.done
    if last is None:
        return None
    done = merged(each for each in ranges if each[1] > last.high) if ranges else ()
    return replace(last, delta=False, done=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What is known of a partition when it opens: offsets ``[low, high)`` and where its marks begin in time.

    ``complete`` says that the marks go back to the beginning of the group's own history; ``since_ms`` is the record
    timestamp (ms) from which they are known otherwise.
    """

    low: int
    high: int
    since_ms: int | None
    complete: bool
