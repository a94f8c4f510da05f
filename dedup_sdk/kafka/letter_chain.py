"""What is on its way to the dead-letter topic, and what arrived: each letter of a partition names the message before it that was sent there."""

from __future__ import annotations

Coordinates = tuple[str, int]


class LetterChain:
    """The letters of one consumer, whoever sends them. Not thread-safe."""

    def __init__(self) -> None:
        self._under_way: dict[Coordinates, set[int]] = {}
        self._arrived: dict[Coordinates, int] = {}

    def before(self, coordinates: Coordinates, buried: int | None) -> int | None:
        """Return the offset after the last message of a partition whose letter was sent; ``buried``: as far as the group has noted.

        Those under way count: where the topic is made anew in between, only a later one tells of them.
        """
        under_way = max(self._under_way.get(coordinates, ()), default=-1) + 1
        return max(under_way, self._arrived.get(coordinates, 0), buried or 0) or None

    def sent(self, coordinates: Coordinates, offset: int) -> None:
        """Note that the letter of a message is under way."""
        self._under_way.setdefault(coordinates, set()).add(offset)

    def ended(self, coordinates: Coordinates, offset: int, *, arrived: bool) -> None:
        """Note what became of it. What did not arrive is named by none that comes later: it would be missed for ever."""
        self._under_way.get(coordinates, set()).discard(offset)
        if arrived:
            self._arrived[coordinates] = max(self._arrived.get(coordinates, 0), offset + 1)
