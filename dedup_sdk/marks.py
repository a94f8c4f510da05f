"""Marks as columns: how they travel between memories, stores, snapshots and the backfill.

A mark's offset is that of its record in the partition that has the mark. One below zero marks a sighting *elsewhere*, in a partition
where records of the same key went before the topic had more of them: see `elsewhere`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16

Int64s = NDArray[np.int64]


class Packed(Sequence[bytes]):
    """Payloads that stand one after the other in ``joined``; ``sizes`` are theirs, shape ``(n,)``. Nothing is cut before it is asked for."""

    __slots__ = ("_cut", "joined", "sizes")

    def __init__(self, joined: bytes, sizes: Int64s) -> None:
        self.joined = joined
        self.sizes = sizes
        self._cut: list[bytes] | None = None

    def cut(self) -> list[bytes]:
        """Return each by itself."""
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

    ``digests`` is ``16 * n`` bytes, one digest after the other; ``offsets`` and ``timestamps`` (ms) have shape ``(n,)``.
    ``numbers`` are acceptance numbers, shape ``(n,)``, or None where there is no count window. ``payloads`` has for each mark
    what is kept with it, bytes that mean nothing here (b"": nothing), or is None where no mark has any; many are `Packed`.
    """

    digests: bytes
    offsets: Int64s
    timestamps: Int64s
    numbers: Int64s | None = None
    payloads: Sequence[bytes] | None = None

    @property
    def count(self) -> int:
        """How many marks these are."""
        return len(self.offsets)

    @property
    def bear_payloads(self) -> bool:
        """Whether any of them has a payload."""
        return self.payload_bytes > 0

    @property
    def payload_sizes(self) -> Int64s:
        """How many bytes each payload has, shape ``(n,)``."""
        payloads = self.payloads or ()
        if isinstance(payloads, Packed):
            return payloads.sizes
        return np.fromiter(map(len, payloads), np.int64, len(payloads))

    @property
    def payload_bytes(self) -> int:
        """How many bytes all payloads have together."""
        payloads = self.payloads or ()
        return len(payloads.joined) if isinstance(payloads, Packed) else sum(map(len, payloads))

    @property
    def payloads_joined(self) -> bytes:
        """All payloads, one after the other."""
        return self.payloads.joined if isinstance(self.payloads, Packed) else b"".join(self.payloads or ())


def elsewhere(cut: int) -> int:
    """Return the offset of a mark whose record lies in another partition, and counts for the records at or after ``cut`` here.

    It is its own inverse: ``elsewhere(mark.offset)`` is the cut. Always below zero, so that any sighting in the partition itself
    takes its place.

    It is ``~cut`` and not ``cut - 1``. That would pass for the offset of a record of this partition: where the log is
    compared with its marks, and in the rule that a negative age lies inside the window.
    """
    return ~cut


NO_MARKS = Marks(b"", np.empty(0, np.int64), np.empty(0, np.int64))


class Found(NamedTuple):
    """The answer to a look-up of many digests: only those that were found.

    ``indexes`` are positions among the digests asked for, ascending; the other columns are parallel to it. ``payloads`` is None
    where none of them has one.
    """

    indexes: list[int]
    offsets: list[int]
    timestamps: list[int]
    numbers: list[int] | None = None
    payloads: Sequence[bytes] | None = None


NONE_FOUND = Found([], [], [])


def join_marks(pages: Sequence[Marks]) -> Marks:
    """Return the pages as one; a page without numbers among others that have them gets zeros, one without payloads b""."""
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
    """Return the digests at some indexes, in that order, or where a mask is true, one after the other."""
    taken: bytes = np.frombuffer(digests, f"V{DIGEST_BYTES}")[where].tobytes()
    return taken


def cut_digests(digests: bytes) -> list[bytes]:
    """Return the digests that stand one after the other."""
    each: list[bytes] = np.frombuffer(digests, f"V{DIGEST_BYTES}").tolist()
    return each


def take_payloads(payloads: Sequence[bytes] | None, where: NDArray[Any]) -> list[bytes] | None:
    """Return the payloads at some indexes, in that order, or where a mask is true; None of None."""
    if payloads is None:
        return None
    each = payloads.cut() if isinstance(payloads, Packed) else payloads
    return [each[index] for index in np.arange(len(payloads))[where].tolist()]
