"""Asking a shared memory that may be away, and what it is owed meanwhile.

owed
    an ID that is completed here, which the shared store has not been told.
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

MOST_OWED: Final = 100_000
_OWNER_CHARACTERS: Final = 200


class Owed(NamedTuple):
    """What is to be told of a completed ID."""

    token: int
    timestamp_ms: int
    window_ms: int


class Acknowledgements:
    """Asks a shared store, which may be away, and tells it what is completed; what it did not take is *owed*.

    ``owner``: its name there, which no other consumer ever has: what it has claimed without hearing of it is completed by that name alone.

    For this consumer what is owed is a duplicate at once. Commits do not wait for it: at worst a copy elsewhere is
    handled again. It is not written to disk: the local store has these IDs, but not whether the shared store knows
    them, and that would take a second journal for a crash within an outage.
    """

    def __init__(self, shared: Shared, counters: Counters, clock: Callable[[], float]) -> None:
        self.store = shared.store
        self._shared = shared
        self._counters = counters
        self._clock = clock
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"[-_OWNER_CHARACTERS:]
        self._breaker = Breaker()
        self.owed: dict[bytes, Owed] = {}

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

    def close(self) -> None:
        """Tell the store what is owed a last time, whenever it was asked last; what it does not take is counted, and written to the log."""
        if self.owed:
            self.pay(at_once=True)
        if self.owed:
            logger.warning(
                "%d completed IDs are unknown to the shared store, which did not answer: where they come in a partition that another consumer "
                "has, they are handled again; `dedup backfill --shared` tells it of them",
                len(self.owed),
            )
            self.count("forgotten", len(self.owed))
            self.owed = {}

    def pay(self, *, at_once: bool = False) -> None:
        """Tell the store what is owed, where it may be asked."""
        if not self.owed or not (at_once or self._breaker.allows(self._clock())):
            self._forget_most()
            return
        owed = sorted(self.owed.items(), key=lambda item: item[1].window_ms)
        for window_ms, group in groupby(owed, key=lambda item: item[1].window_ms):
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
                    del self.owed[key]
                    if each.token and not was_taken:
                        self.count("refused")
            if not answered:
                break
        self._forget_most()

    def _forget_most(self) -> None:
        """Bound what is owed: what is given up may be handled again by others."""
        while len(self.owed) > MOST_OWED:
            del self.owed[next(iter(self.owed))]
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
