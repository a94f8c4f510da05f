"""Comparing with the last one in the plainest way: the completed records of a lane in a list, read again for every question.

Nothing here is taken from the code under test. An ID is an origin and a number; numbers of two origins cannot be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Sent(NamedTuple):
    """One record: its lane, and its ID; None is an ID that nobody can read."""

    offset: int
    lane: str
    origin: str
    number: int | None
    timestamp_ms: int = 0

    @property
    def id_bytes(self) -> bytes:
        """The ID as it travels."""
        return b"?" if self.number is None else f"{self.origin}/{self.number}".encode()


@dataclass(frozen=True)
class Remembered:
    """What a lane remembers, worked out from its completed records.

    ``numbers`` ascending; at or below ``floor`` more may have been seen; None: all there ever was is among the numbers.
    """

    origin: str
    numbers: tuple[int, ...]
    floor: int | None
    offset: int
    timestamp_ms: int


def remember(completed: list[Sent], depth: int, *, dense: bool, window_ms: int) -> Remembered | None:
    """Return what the completed records of one lane, in offset order, leave behind."""
    known: Remembered | None = None
    for sent in completed:
        if sent.number is None:
            continue
        if known is not None and sent.timestamp_ms - known.timestamp_ms > window_ms:
            known = None
        if known is None or known.origin != sent.origin:
            floor = None if known is None else sent.number
            known = Remembered(sent.origin, (sent.number,), floor, sent.offset, sent.timestamp_ms)
            continue
        numbers, floor = set(known.numbers), known.floor
        if sent.number > max(numbers) or floor is None or sent.number > floor:
            numbers.add(sent.number)
        top = max(numbers)
        kept = (
            {number for number in numbers if number >= top - depth}
            if dense
            else set(sorted(numbers)[-depth - 1 :])
        )
        lost = numbers - kept
        if dense and (lost or floor is not None):
            floor = max(top - depth - 1, top - depth - 1 if floor is None else floor)
        elif lost:
            floor = max(*lost, max(lost) if floor is None else floor)
        known = Remembered(sent.origin, tuple(sorted(kept)), floor, sent.offset, sent.timestamp_ms)
    return known


def verdict(sent: Sent, known: Remembered | None, window_ms: int) -> str:
    """Return what the rule says of a record: ``fresh``, ``duplicate``, or why it is in doubt."""
    if sent.number is None:
        return "malformed"
    if known is None or sent.timestamp_ms - known.timestamp_ms > window_ms:
        return "fresh"
    if known.origin != sent.origin:
        return "uncomparable"
    if sent.number in known.numbers:
        return "duplicate"
    if sent.number > known.numbers[-1] or known.floor is None or sent.number > known.floor:
        return "fresh"
    return "below-floor"
