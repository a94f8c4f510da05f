"""Calls to a shared store that may be away, and the completions that it has not taken yet.

pending
    the completion of an ID that is completed here and not in the shared store.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final, NamedTuple

from dedup_sdk.errors import SharedStoreError
from dedup_sdk.observe import Counters
from dedup_sdk.shared.breaker import Breaker
from dedup_sdk.shared.settings import Shared

logger = logging.getLogger("dedup_sdk")

MOST_PENDING: Final = 100_000
_OWNER_CHARACTERS: Final = 200


class PendingAck(NamedTuple):
    """A completion that the shared store has not taken yet."""

    token: int
    timestamp_ms: int
    window_ms: int


class Acknowledgements:
    """Calls a shared store, which may be away; completions that it did not take are *pending*.

    ``owner``: its name there, which no other consumer ever has: what it has claimed without hearing of it is completed by that name alone.

    For this consumer an ID whose completion is pending is a duplicate at once. Commits do not wait for it: at worst a copy elsewhere is
    handled again. Pending completions are not written to disk: the local store has these IDs, but not whether the shared store knows
    them, and that would take a second journal for a crash within an outage.
    """

    def __init__(self, shared: Shared, counters: Counters, clock: Callable[[], float]) -> None:
        self.store = shared.store
        self._shared = shared
        self._counters = counters
        self._clock = clock
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"[-_OWNER_CHARACTERS:]
        self._breaker = Breaker()
        self.pending: dict[bytes, PendingAck] = {}

    @property
    def is_out(self) -> bool:
        """Whether the store did not answer last."""
        return self._breaker.is_open

    @property
    def pauses(self) -> bool:
        """Whether nothing is handed out for that."""
        return self._breaker.is_open and self._shared.on_outage == "pause"

    def may_ask(self) -> bool:
        """Whether the store may be asked now: where it is away, that is seldom."""
        return self._breaker.allows(self._clock())

    def enqueue(self, key: bytes, ack: PendingAck) -> None:
        """Note a completion that is to be sent."""
        self.pending[key] = ack

    def close(self) -> None:
        """Send the pending completions a last time, whenever the store was asked last; those that it does not take are counted and logged."""
        if self.pending:
            self.send_pending(at_once=True)
        if self.pending:
            logger.warning(
                "%d completed IDs are unknown to the shared store, which did not answer: where they come in a partition that another consumer "
                "has, they are handled again; `dedup backfill --shared` tells it of them",
                len(self.pending),
            )
            self.count("forgotten", len(self.pending))
            self.pending = {}

    def send_pending(self, *, at_once: bool = False) -> None:
        """Send the pending completions, if the store may be asked."""
        if not self.pending or not (at_once or self._breaker.allows(self._clock())):
            self._forget_most()
            return
        pending = sorted(self.pending.items(), key=lambda item: item[1].window_ms)
        for window_ms, group in groupby(pending, key=lambda item: item[1].window_ms):
            part = list(group)
            with self.answered() as answered:
                taken = self.store.complete(
                    [key for key, _ in part],
                    [each.token for _, each in part],
                    self.owner,
                    timestamps_ms=[each.timestamp_ms for _, each in part],
                    window_ms=window_ms,
                )
                answered.append(True)
                for (key, each), was_taken in zip(part, taken, strict=True):
                    del self.pending[key]
                    if each.token and not was_taken:
                        self.count("refused")
            if not answered:
                break
        self._forget_most()

    def _forget_most(self) -> None:
        """Bound the pending completions: the ID of one that is dropped may be handled again by another consumer."""
        while len(self.pending) > MOST_PENDING:
            del self.pending[next(iter(self.pending))]
            self.count("forgotten")

    @contextmanager
    def answered(self) -> Iterator[list[bool]]:
        """Ask in here; an outage ends it. The list is for the block, to say that it came to its end."""
        try:
            yield []
        except SharedStoreError as error:
            self._note_failure(error)
        else:
            self._note_answer()

    def _note_failure(self, error: SharedStoreError) -> None:
        """Count that the store did not answer, and ask less often."""
        self.count("outages")
        if not self._breaker.is_open:
            does = "wait for it" if self._shared.on_outage == "pause" else "are delivered as unverified"
            logger.warning("%s; new messages %s meanwhile", error, does)
        self._breaker.failed(self._clock())

    def _note_answer(self) -> None:
        """Note that the store answered."""
        if self._breaker.is_open:
            logger.warning("the shared store answers again")
        self._breaker.answered()

    def count(self, name: str, count: int = 1) -> None:
        """Count what became of IDs."""
        if count:
            self._counters.shared[name] = self._counters.shared.get(name, 0) + count
