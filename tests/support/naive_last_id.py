"""Comparing with the last one in the plainest way: the completed records of a source in a list, read again for every question.

Nothing here is taken from the code under test. An ID is an origin and a number; numbers of two origins cannot be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Sent(NamedTuple):
    """One record: its source, and its ID; None is an ID that nobody can read."""

    offset: int
    source: str
    origin: str
    number: int | None
    timestamp_ms: int = 0

    @property
    def id_bytes(self) -> bytes:
        """The ID as it travels."""
        return b"?" if self.number is None else f"{self.origin}/{self.number}".encode()


@dataclass(frozen=True)
class Remembered:
    """What a source remembers, worked out from its completed records.

    ``numbers`` ascending; ``forgot``: below them more was seen. ``known``: None where everything is, else how many were taken in.
    ``bottom``: the lowest number that would be remembered, where numbers are remembered as bits.
    """

    origin: str
    numbers: tuple[int, ...]
    forgot: bool
    known: int | None
    offset: int
    timestamp_ms: int
    bottom: int | None = None


def remember(completed: list[Sent], depth: int, *, dense: bool, window_ms: int) -> Remembered | None:
    """Return what the completed records of one source, in offset order, leave behind."""
    known: Remembered | None = None
    for sent in completed:
        known = after(known, sent, depth, dense=dense, window_ms=window_ms)
    return known


def after(
    known: Remembered | None, sent: Sent, depth: int, *, dense: bool, window_ms: int
) -> Remembered | None:
    """Return what one more completed record leaves behind."""
    if sent.number is None:
        return known
    if known is not None and is_over(sent, known, window_ms):
        known = None
    if known is None or known.origin != sent.origin:
        taken = None if known is None or depth == 0 else 1
        bottom = sent.number - depth if dense else None
        return Remembered(
            sent.origin,
            (sent.number,),
            known is not None and depth == 0,
            taken,
            sent.offset,
            sent.timestamp_ms,
            bottom,
        )
    new = verdict(sent, known, window_ms) in ("fresh", "uncovered")
    numbers = {*known.numbers, *([sent.number] if new else [])}
    top = max(numbers)
    newest = (
        [number for number in numbers if number >= top - depth] if dense else sorted(numbers)[-depth - 1 :]
    )
    count = known.known
    if count is not None and sorted(newest) != sorted(known.numbers):
        count = count + 1 if count + 1 <= 3 * depth else None
    return Remembered(
        sent.origin,
        tuple(sorted(newest)),
        known.forgot or len(newest) < len(numbers),
        count,
        sent.offset,
        max(sent.timestamp_ms, known.timestamp_ms),
        top - depth if dense else None,
    )


def verdict(sent: Sent, known: Remembered | None, window_ms: int) -> str:
    """Return what the rule says of a record: ``fresh``, ``duplicate``, or why it is in doubt."""
    if sent.number is None:
        return "malformed"
    if known is None or is_over(sent, known, window_ms):
        return "fresh"
    if known.origin != sent.origin:
        return "uncomparable"
    if sent.number in known.numbers:
        return "duplicate"
    if sent.number < known.numbers[0] and known.forgot and not is_within(sent.number, known):
        return "below-floor"
    return "fresh" if known.known is None else "uncovered"


def is_over(sent: Sent, known: Remembered, window_ms: int) -> bool:
    """Whether a source was silent for longer than its window; below zero is no time."""
    return (
        min(sent.timestamp_ms, known.timestamp_ms) >= 0 and sent.timestamp_ms - known.timestamp_ms > window_ms
    )


def is_within(number: int, known: Remembered) -> bool:
    """Whether a number lies among those that would be remembered; only bits remember a number below the lowest seen."""
    return known.bottom is not None and number >= known.bottom
