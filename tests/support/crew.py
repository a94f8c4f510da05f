"""Several consumers of one group, and the messages handed to each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.consuming import PATIENCE_S, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer


class Crew:
    """Consumers that poll in turn. ``handled``: how often each value of each partition came."""

    def __init__(self, *members: DedupConsumer) -> None:
        self.members = [*members]
        self.handled: Counter[tuple[int, str]] = Counter()
        self._came: list[tuple[DedupConsumer, Any]] = []

    def turn(self) -> None:
        """Let each member poll a few times."""
        for member in self.members:
            for _ in range(5):
                message = member.poll(0.01)
                if message is not None and message.error() is None:
                    self.note(member, message)

    def note(self, member: DedupConsumer, message: Any) -> None:
        """A message came to a member."""
        self.handled[message.partition(), message.value().decode()] += 1
        self._came.append((member, message))

    def messages(self, member: DedupConsumer, partition: int) -> list[Any]:
        """The messages of a partition that a member was handed."""
        return [each for who, each in self._came if who is member and each.partition() == partition]

    def came_to(self, member: DedupConsumer, partition: int) -> list[str]:
        """Their values."""
        return values(self.messages(member, partition))

    def until(self, condition: Callable[[], object]) -> None:
        """Take turns until a condition holds."""
        for _ in range(round(PATIENCE_S / 0.05)):
            if condition():
                return
            self.turn()
        raise AssertionError(f"waited in vain; {sum(self.handled.values())} handled")

    def until_shared(self) -> None:
        """Take turns until each member has one partition."""
        self.until(lambda: all(len(member.assignment()) == 1 for member in self.members))
