"""The plain client's questions to brokers, for any thread, also while another one reads, and in callbacks.

The client lets one thread in at a time, in no order: beside a loop that waits for messages, a call of it may not begin
for minutes. So such a call never waits for the loop:

- Brokers are asked by other clients of the same settings (`Questions`), which are no members of the group. Their
  connections have no fetch that waits for records either, behind which a broker would answer half a second later.
  For the same reason each question that is asked now has a client to itself: none waits for another one.
- What we know ourselves, e.g. the assignment, is answered from our state.
- What only the client knows is asked between two of its calls, which are short; see
  `dedup_sdk._kafka.client.guards.ClientLock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final, TypeVar

from confluent_kafka.cimpl import Consumer

from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.client.closing import made_aside
from dedup_sdk._kafka.client.reader import MEETING_S, close_readers
from dedup_sdk._kafka.client.settings import ClientSettings, asking_settings

T = TypeVar("T")

_NO_LIMIT: Final = -1.0
_MOST_KEPT: Final = 8
"""Clients that are kept for later questions; more are open only while so many threads ask."""


@dataclass(slots=True)
class _Asking:
    """A client that asks."""

    client: Consumer
    login: int
    """The number of the credentials that it has."""
    meets_by: float
    """Until when (monotonic seconds) it may connect, whatever a question's timeout; 0: a broker has answered."""


class Questions:
    """Asks brokers for the application, by clients of its own, made when they are needed. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        keep_in_children(self)
        self._settings = settings
        self._lock = RLock()
        """For the state below; nobody waits for a broker while having it. A handler of a signal may ask, too."""
        self.idle: list[_Asking] = []
        """The clients that wait for a question."""
        self._login = 0
        """The number of the credentials."""
        self._is_closed = False

    def ask(self, question: Callable[..., T], *arguments: Any, timeout: Any = _NO_LIMIT) -> T:
        """Return the answer of a method of the plain client; ``timeout`` as it takes it, in seconds.

        A new client gets `dedup_sdk._kafka.client.reader.MEETING_S` for its first answer: it must connect first.
        """
        asking = self._take()
        try:
            if isinstance(timeout, int | float) and timeout >= 0:
                timeout = max(timeout, asking.meets_by - time.monotonic())
            answer = question(asking.client, *arguments, timeout=timeout)
            asking.meets_by = 0.0
        finally:
            self._give_back(asking)
        return answer

    def _take(self) -> _Asking:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("Consumer closed")
            if self.idle:
                return self.idle.pop()
            login = self._login
        # The number was read before the settings: whoever changes these meanwhile makes this client one of the past.
        client = made_aside(lambda: Consumer(asking_settings(self._settings)))
        return _Asking(client, login, time.monotonic() + MEETING_S)

    def _give_back(self, *asked: _Asking) -> None:
        """Keep clients for later questions; close those with old credentials, and all if the consumer has closed."""
        left: list[Consumer] = []
        with self._lock:
            for each in asked:
                is_good = each.login == self._login and not self._is_closed
                if is_good and len(self.idle) < _MOST_KEPT:
                    self.idle.append(each)
                else:
                    left.append(each.client)
        close_readers(*left)

    def _take_idle(self) -> list[_Asking]:
        with self._lock:
            idle, self.idle = self.idle, []
        return idle

    def serve(self) -> None:
        """Have idle clients write their log lines, which they do only when polled.

        One that asks lets no other thread in; it follows when its question is over.
        """
        idle = self._take_idle()
        try:
            for each in idle:
                each.client.poll(0)
        finally:
            self._give_back(*idle)

    def log_in(self, username: str, password: str) -> None:
        """Ask by clients with these credentials, which the settings have already. A question under way goes on."""
        with self._lock:
            self._login += 1
            for each in self.idle:
                each.client.set_sasl_credentials(username, password)
                each.login = self._login

    def close(self, within_s: float) -> None:
        """Close the idle clients, after ``within_s`` in the background; others close after their question."""
        with self._lock:
            self._is_closed = True
        close_readers(*(each.client for each in self._take_idle()), within_s=within_s)
