"""A defect of the broker's that no client can do anything about, told by the broker's log.

When a broker loses the leadership of ``__consumer_offsets`` and gets it back while its group coordinator loads,
the end of the first load is taken for that of the second (Kafka 4.1): the coordinator goes to work knowing older
offsets or none, puts all members out, and writes records that may never be loaded again, so that nobody answers for the
group any more. It notices at its first write, or when its own load comes to an end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NOTICED: Final = (
    b"is out of sync with the underlying log",
    b"Ignored load completion from __consumer_offsets",
)
LOGGER: Final = "org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime"
"""Says the second at the level INFO."""
SAID: Final = "the broker's group coordinator went to work before it had loaded what it knew"


class ForgetfulBrokerError(RuntimeError):
    """A run went wrong, and its broker says that it has forgotten the group's commits: nobody can judge it."""

    def __init__(self, found: str, notes: Iterable[str] = ()) -> None:
        super().__init__(SAID)
        for note in (f"found: {found}", *notes):
            self.add_note(note)


def is_forgetful(logged: bytes) -> bool:
    """Whether a coordinator noticed, by the broker's log, that it has lost commits."""
    return any(each in logged for each in NOTICED)
