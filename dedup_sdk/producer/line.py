"""Messages whose partition is not known yet stand in line: what comes behind them in their topic waits as well, so that nothing overtakes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class Lines:
    """A line for each topic in which a message waits, by the messages' numbers, ascending. For one thread."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[int]] = {}

    def has_turn(self, topic: str, number: int) -> bool:
        """Whether nothing stands before a message of a topic."""
        line = self._lines.get(topic)
        return line is None or number <= line[0]

    def join(self, topic: str, number: int) -> None:
        """Have a message wait. One that comes late, with a number of the middle, need not be noted: it waits for those before it anyway."""
        line = self._lines.setdefault(topic, deque())
        if not line or number > line[-1]:
            line.append(number)
        elif number < line[0]:
            line.appendleft(number)

    def leave(self, topic: str, number: int) -> None:
        """Note that a message waits no more: it was given to the client, or refused."""
        line = self._lines.get(topic)
        if line is not None and line[0] == number:
            line.popleft()
            if not line:
                del self._lines[topic]

    def drop(self, gone: Collection[int]) -> None:
        """Note that messages are not there any more."""
        for topic, line in list(self._lines.items()):
            left = deque(number for number in line if number not in gone)
            self._lines[topic] = left
            if not left:
                del self._lines[topic]
