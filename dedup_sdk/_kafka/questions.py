"""The plain client's questions to brokers, for any thread, also while another one reads, and in callbacks.

The client lets one thread in at a time, in no order: beside a loop that waits for messages, a call of it may not begin
for minutes. So such a call never waits for the loop:

- Brokers are asked by a second client of the same settings (`Questions`), which is no member of the group. Its
  connections have no fetch that waits for records either, behind which a broker would answer half a second later.
- What we know ourselves, e.g. the assignment, is answered from our state.
- What only the client knows is asked between two of its calls, which are short (`dedup_sdk._kafka.guards.ClientLock`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

from confluent_kafka.cimpl import Consumer

from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.reader import MEETING_S, close_readers
from dedup_sdk._kafka.settings import ClientSettings, asking_settings

T = TypeVar("T")

_NO_LIMIT: Final = -1.0


class Questions:
    """Asks brokers for the application, by a client of its own, which is made for the first question. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        keep_in_children(self)
        self._settings = settings
        self._one_at_a_time = Lock()
        self.opened: Consumer | None = None
        """The client that asks; None until the first question."""
        self._has_met = False
        """Whether a broker has answered."""

    def ask(self, question: Callable[..., T], *arguments: Any, timeout: Any = _NO_LIMIT) -> T:
        """Return the answer of a method of the plain client; ``timeout`` as it takes it, in seconds.

        The first answer may take `dedup_sdk._kafka.reader.MEETING_S`: the client must connect first.
        """
        with self._one_at_a_time:
            client = self.opened
            if client is None:
                client, self._has_met = Consumer(asking_settings(self._settings)), False
                self.opened = client
            if not self._has_met and isinstance(timeout, int | float) and 0 <= timeout < MEETING_S:
                timeout = MEETING_S
            try:
                answer = question(client, *arguments, timeout=timeout)
                self._has_met = True
            finally:
                if self.opened is not client:
                    # Renewed, or closed, meanwhile.
                    close_readers(client)
            return answer

    def serve(self) -> None:
        """Have the client write its log lines, which it does only when polled; not while a question is asked."""
        client = self.opened
        if client is not None and self._one_at_a_time.acquire(blocking=False):
            try:
                client.poll(0)
            finally:
                self._one_at_a_time.release()

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on; if a question is being asked, a new client has them."""
        client = self.opened
        if client is not None and self._one_at_a_time.acquire(blocking=False):
            try:
                client.set_sasl_credentials(username, password)
            finally:
                self._one_at_a_time.release()
        else:
            self.opened = None

    def close(self, within_s: float) -> None:
        """Close the client; after ``within_s``, or behind a question that is being asked, in the background."""
        client, self.opened = self.opened, None
        if client is not None and self._one_at_a_time.acquire(blocking=False):
            try:
                close_readers(client, within_s=within_s)
            finally:
                self._one_at_a_time.release()
