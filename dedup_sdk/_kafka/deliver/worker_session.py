"""A worker session: messages for other threads, each of which ends by its own call.

`DedupConsumer.run` is written over it, and another pool of workers could be. One thread polls, and it alone makes
changes:

    poll            the next message
    complete        messages are handled, or dead-lettered
    give_back       a message is not handled: it is delivered again when the session is over
    keep_alive      the group hears from the consumer while no message can be taken
    Handlers        is notified when partitions are revoked or lost: inside `poll` and `keep_alive`, and in `exclusive`

While a session is open, asking for more completes nothing, whatever ``completion`` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import Condition
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from dedup_sdk._kafka.client.client_errors import handle_error
from dedup_sdk._kafka.deliver.handover import Handlers
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk._kafka.deliver.poller import Poller
from dedup_sdk._observe import Counters

HEARTBEAT_S: Final = 0.5
"""Seconds in which the group hears from the consumer while no message can be taken."""


class InFlight(NamedTuple):
    """A message in flight: how often it was handed out, and the digest of its ID (16 bytes, None without an ID)."""

    attempt: int
    digest: bytes | None


class WorkerSession:
    """One session, from `begin` to `end`.

    ``counters`` are the consumer's. ``deadline_s``: seconds that running handlers may be waited for in a rebalance.
    ``doubt`` has the next `poll` open all partitions again: a message may be in no place.
    No context manager: an exception of a signal could leave that half entered, for as long as its traceback is kept.
    """

    def __init__(
        self,
        poll: Callable[[float], Message | None],
        poller: Poller,
        in_hand: InHand,
        *,
        idle: IdleClock,
        counters: Counters,
        deadline_s: float,
        doubt: Callable[[], None],
    ) -> None:
        self.counters, self.deadline_s, self.doubt = counters, deadline_s, doubt
        self._poll, self._poller, self._in_hand, self._idle = poll, poller, in_hand, idle
        self._alive_at = time.monotonic()
        self._returned: list[Any] = []
        """Messages to be delivered again when the session is over."""

    def begin(self, listener: Handlers) -> None:
        """Begin: complete messages of earlier calls, if asking for more does so; from here on it completes nothing.

        ``listener`` is notified when partitions are revoked or lost.
        """
        self._in_hand.begin_explicit(listener)

    def end(self) -> None:
        """End: asking for more completes again, as ``completion`` says. Harmless when repeated."""
        self._in_hand.end_explicit()

    # --- messages ------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Message | None:
        """Return the next message, None when none came in time; raise fatal errors of the client, log others."""
        message = self._poll(timeout_s)
        self._alive_at = time.monotonic()
        if message is None:
            return None
        if not isinstance(message, Message):
            # Of an overridden `poll`: no other call would recognise it.
            raise TypeError(
                f"poll() returned a {type(message).__name__}: run() needs the client's own messages"
            )
        self._idle.heard()
        error = message.error()
        if error is None:
            return message
        handle_error(error)
        return None

    def keep_alive(self) -> None:
        """Let the group hear from the consumer, and do its other work, if `poll` was not called for `HEARTBEAT_S`."""
        if time.monotonic() > self._alive_at + HEARTBEAT_S:
            self._poller.heartbeat()
            self._alive_at = time.monotonic()

    def is_idle(self, *, busy: bool) -> bool:
        """Whether no message has come for ``idle_timeout``; time in which handlers are ``busy`` does not count."""
        if busy:
            self._idle.heard()
            return False
        return self._idle.is_up

    def in_flight(self, message: Any) -> InFlight | None:
        """Return how a message stands; None if it ended, or its partition was revoked or lost. In `exclusive`."""
        found = self._in_hand.in_flight(message)
        if found is None:
            return None
        partition, (chunk, row) = found
        return InFlight(chunk.attempts.get(row, 1), partition.keys.name_of(chunk.digests[row]))

    def is_delivered(self, message: Any) -> bool:
        """Whether a message that `poll` returned is to be handled; not if its partition was revoked or moved since.

        In `exclusive`.
        """
        return self._in_hand.is_delivered(message)

    # --- how messages end ----------------------------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[object]:
        """Return a context in which no other thread changes what is in flight. `Handlers` are called in such a one."""
        return self._in_hand.exclusive()

    def ending(self) -> AbstractContextManager[None]:
        """Return a context for ending messages: an exception in it has all partitions opened again. In `exclusive`.

        An error of the store is no exception here: the next `poll` handles it.
        """
        return self._in_hand.ending()

    def wait(self, timeout_s: float) -> None:
        """Let other threads have the consumer for some seconds; for listeners, which are called in `exclusive`."""
        Condition(self._in_hand.exclusive()).wait(timeout_s)

    def complete(self, messages: Iterable[Message], *, dead_lettered: bool = False) -> None:
        """Complete messages, and write that to the store; ``dead_lettered``: count them as such."""
        self._in_hand.complete(messages, dead_lettered=dead_lettered)

    def give_back(self, message: Message) -> None:
        """Release a message that was not handled; it is delivered again when the session is over. In `exclusive`."""
        self._returned += self._in_hand.release_quietly(message)

    def keep_back(self, messages: Iterable[Message]) -> None:
        """Have messages whose handling never began delivered again when the session is over. In `exclusive`."""
        self._returned += messages

    def deliver_again(self) -> None:
        """Queue the messages that were given back, by offset, before all others; the client may fetch again."""
        self._poller.fetch_again()
        self._in_hand.deliver_again(self._returned)
        self._returned = []
