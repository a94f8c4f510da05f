"""The stored state of a partition: marks, and the group's progress (`Progress`), which are written together.

Marks are columns, and travel in this form between memories, stores, snapshots and the backfill. A mark's
offset is that of its record in the partition that has the mark. An offset below zero marks a sighting
*elsewhere*: in the partition that records of the same key went to before partitions were added to the
topic; see `elsewhere`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._core.ranges import merged

DIGEST_BYTES = 16

Int64s = NDArray[np.int64]


class Digests(Sequence[bytes]):
    """Digests joined in ``joined``, 16 bytes each; they are split on demand."""

    __slots__ = ("joined",)

    def __init__(self, joined: bytes) -> None:
        self.joined = joined

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.joined) // DIGEST_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return iter(cut_digests(self.joined))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Digests: ...
    def __getitem__(self, index: int | slice) -> bytes | Digests:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return Digests(b"".join(list(self)[index]))
            return Digests(self.joined[DIGEST_BYTES * start : DIGEST_BYTES * stop])
        row = range(len(self))[index]
        return self.joined[DIGEST_BYTES * row : DIGEST_BYTES * (row + 1)]


class Packed(Sequence[bytes]):
    """Payloads joined in ``joined``; ``sizes`` are their sizes in bytes, shape ``(n,)``.

    They are split on the first access.
    """

    __slots__ = ("_cut", "joined", "sizes")

    def __init__(self, joined: bytes, sizes: Int64s) -> None:
        self.joined = joined
        self.sizes = sizes
        self._cut: list[bytes] | None = None

    def cut(self) -> list[bytes]:
        """Return the payloads as a list."""
        if self._cut is None:
            ends = self.sizes.cumsum().tolist()
            self._cut = [self.joined[start:end] for start, end in pairwise([0, *ends])]
        return self._cut

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.cut() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.cut())

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self.cut()[index]


@dataclass(frozen=True, slots=True)
class Marks:
    """``n`` marks, column by column.

    ``digests`` is ``16 * n`` bytes, the joined digests; ``offsets`` and ``timestamps`` (ms) have shape
    ``(n,)``. ``numbers`` are acceptance numbers, shape ``(n,)``, or None where there is no count window.
    ``payloads`` has the opaque bytes stored with each mark (b"": none), or is None where no mark has any;
    many are `Packed`.
    """

    digests: bytes
    offsets: Int64s
    timestamps: Int64s
    numbers: Int64s | None = None
    payloads: Sequence[bytes] | None = None

    @property
    def count(self) -> int:
        """The number of marks."""
        return len(self.offsets)

    @property
    def bear_payloads(self) -> bool:
        """Whether any of them has a payload."""
        return self.payload_bytes > 0

    @property
    def payload_sizes(self) -> Int64s:
        """The size of each payload in bytes, shape ``(n,)``."""
        payloads = self.payloads or ()
        if isinstance(payloads, Packed):
            return payloads.sizes
        return np.fromiter(map(len, payloads), np.int64, len(payloads))

    @property
    def payload_bytes(self) -> int:
        """The total size of all payloads in bytes."""
        payloads = self.payloads or ()
        return len(payloads.joined) if isinstance(payloads, Packed) else sum(map(len, payloads))

    @property
    def payloads_joined(self) -> bytes:
        """All payloads joined."""
        return self.payloads.joined if isinstance(self.payloads, Packed) else b"".join(self.payloads or ())


def elsewhere(cut: int) -> int:
    """Return the offset of a mark whose record lies in another partition, and counts here from ``cut`` on.

    It is its own inverse: ``elsewhere(mark.offset)`` is the cut. Always below zero, so that any sighting in
    the partition itself replaces it.

    It is ``~cut`` and not ``cut - 1``, which would look like the offset of a record of this partition:
    where the log is compared with its marks, and in the rule that a negative age lies inside the window.
    """
    return ~cut


NO_MARKS = Marks(b"", np.empty(0, np.int64), np.empty(0, np.int64))


class Found(NamedTuple):
    """The answer to a lookup of many digests: only those that were found.

    ``indexes`` are positions among the requested digests, ascending; the other columns are parallel to it.
    ``payloads`` is None where none of them has one.
    """

    indexes: list[int]
    offsets: list[int]
    timestamps: list[int]
    numbers: list[int] | None = None
    payloads: Sequence[bytes] | None = None


Find = Callable[[bytes, int], Found]
"""Looks up so many joined digests (16 bytes each)."""


NONE_FOUND = Found([], [], [])


def join_marks(pages: Sequence[Marks]) -> Marks:
    """Return the pages as one; missing numbers become zeros, and missing payloads b"", if another page has them."""
    if len(pages) <= 1:
        return pages[0] if pages else NO_MARKS
    numbers = None
    if any(page.numbers is not None for page in pages):
        numbers = np.concatenate(
            [np.zeros(page.count, np.int64) if page.numbers is None else page.numbers for page in pages]
        )
    payloads = None
    if any(page.payloads is not None for page in pages):
        sizes = [page.payload_sizes if page.payloads else np.zeros(page.count, np.int64) for page in pages]
        payloads = Packed(b"".join(page.payloads_joined for page in pages), np.concatenate(sizes))
    return Marks(
        b"".join(page.digests for page in pages),
        np.concatenate([page.offsets for page in pages]),
        np.concatenate([page.timestamps for page in pages]),
        numbers,
        payloads,
    )


def cut_marks(marks: Marks, start: int, end: int) -> Marks:
    """Return the marks at positions ``[start, end)``."""
    return Marks(
        marks.digests[DIGEST_BYTES * start : DIGEST_BYTES * end],
        marks.offsets[start:end],
        marks.timestamps[start:end],
        None if marks.numbers is None else marks.numbers[start:end],
        None if marks.payloads is None else marks.payloads[start:end],
    )


def select_marks(marks: Marks, where: NDArray[Any]) -> Marks:
    """Return the marks at some indexes, in that order, or where a mask is true."""
    return Marks(
        take_digests(marks.digests, where),
        marks.offsets[where],
        marks.timestamps[where],
        None if marks.numbers is None else marks.numbers[where],
        take_payloads(marks.payloads, where),
    )


def take_digests(digests: bytes, where: NDArray[Any]) -> bytes:
    """Return the joined digests at some indexes, in that order, or where a mask is true."""
    taken: bytes = np.frombuffer(digests, f"V{DIGEST_BYTES}")[where].tobytes()
    return taken


def cut_digests(digests: bytes) -> list[bytes]:
    """Return joined digests as a list."""
    each: list[bytes] = np.frombuffer(digests, f"V{DIGEST_BYTES}").tolist()
    return each


def take_payloads(payloads: Sequence[bytes] | None, where: NDArray[Any]) -> list[bytes] | None:
    """Return the payloads at some indexes, in that order, or where a mask is true; None of None."""
    if payloads is None:
        return None
    each = payloads.cut() if isinstance(payloads, Packed) else payloads
    return [each[index] for index in np.arange(len(payloads))[where].tolist()]


CHECK_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Witness:
    """One record that was completed. If the log has another record at its offset, it is another log.

    ``check``: 16 hexadecimal digits of the SHA-256 of the digest of its ID, zeros where it has no ID.

    A broker that was restored from a backup has other records at the same offsets in the same leader epoch,
    so that the epoch alone shows nothing. If the store is ahead of the group's commit, the log must still
    have the witness (`dedup_sdk._kafka.recover.log_check`). A record that replaced another one may be equal to the
    witness by chance. That is found when the records around it are read: where a mark is missing
    (`dedup_sdk._decision.is_contradicted`), everything from there on is judged anew.
    """

    offset: int
    timestamp_ms: int
    check: str

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, digest: bytes | None) -> Witness:
        """Return the witness of a record, from the digest of its ID."""
        check = "0" * CHECK_DIGITS if digest is None else sha256(digest).hexdigest()[:CHECK_DIGITS]
        return cls(offset, timestamp_ms, check)


NOTHING_KNOWN: Final = 2**62
"""As ``since_ms``: no mark is known yet; the next record's timestamp takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """How far back the marks of a partition go, in time and in numbers.

    - ``since_ms``: the marks know every sighting at or after this record timestamp; None: of the group's whole history.
    - ``accepted``: the rank of the last accepted record below the watermark; ``since_number``: the rank where
      the marks begin.
    - ``newest_ms``: the newest record timestamp seen below the watermark, -1 before the first.
    - ``dropped_to``: some marks of offsets below it were dropped for their age, so that a record there
      without a mark proves nothing: an ID that came in time may have come once more with an old time, and
      its mark went with that.
    - ``floor_number``: IDs numbered up to it are outside of the window by count, or were outside of one
      before, and stay outside of any.
    """

    since_ms: int | None = None
    since_number: int | None = None
    accepted: int = 0
    newest_ms: int = -1
    dropped_to: int = 0
    floor_number: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the marks go back to the beginning of the group's own history."""
        return self.since_ms is None and self.since_number is None

    def nothing_before(self) -> Known:
        """Return the same of marks that know nothing before the next record."""
        return replace(self, since_ms=NOTHING_KNOWN, since_number=self.accepted)


NO_HISTORY: Final = Known()
"""That of a group without a history: no record lacks its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The part of a partition's state that is written with every step, in the same atomic write as its marks.

    - ``low``: the beginning of the range of the log that this group has processed without a gap.
    - ``high``: every offset in ``[low, high)`` is completed ("the next one", as Kafka's committed offsets).
    - ``done``: the offsets completed above ``high``, as ascending half-open ranges ``(start, end)``; with
      ``delta`` only those completed since the step before (see `latest`): thousands of gaps must not be
      written with every step.
    - ``committed``: the last offset this store knows to be committed, None before the first commit.
    - ``era``: changes when an operator rewinds on purpose, so that every host recognises it.
    - ``known``: how far back the marks go.
    - ``epoch``: the partition's leader epoch when the last completed record was read, None where nobody
      said: by it the broker tells whether its log still has that.
    - ``witness``: the last record that is completed, None where nobody knows it.
    """

    low: int
    high: int
    done: tuple[tuple[int, int], ...] = ()
    committed: int | None = None
    era: str = ""
    known: Known = NO_HISTORY
    epoch: int | None = None
    delta: bool = False
    witness: Witness | None = None

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
