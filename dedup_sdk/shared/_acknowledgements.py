"""Calls to a shared store that may be unreachable, and the completions that it has not confirmed yet.

pending
    an ID that this consumer completed, and whose completion the shared store has not confirmed.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from time import perf_counter
from typing import Final, NamedTuple

from dedup_sdk._metrics import SharedName
from dedup_sdk._observe import Counters
from dedup_sdk.errors import SharedStoreError
from dedup_sdk.shared._breaker import Breaker
from dedup_sdk.shared._settings import Shared

logger = logging.getLogger("dedup_sdk")

MAX_PENDING: Final = 100_000
_OWNER_CHARACTERS: Final = 200


class PendingAck(NamedTuple):
    """A completion that the shared store has not confirmed yet."""

    token: int
    timestamp_ms: int
    window_ms: int


class Acknowledgements:
    """Calls the shared store; completions that it did not confirm are *pending* and sent again.

    ``owner`` is this consumer's unique name in the store. It alone completes claims whose answer was lost.

    For this consumer an ID with a pending completion is a duplicate at once. Commits do not wait for the
    store: at worst a copy is handled again elsewhere. Pending completions are kept in memory only. The
    local store has these IDs, but not whether the shared store knows them; a crash during an outage loses
    that. Keeping it would need a second journal.
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
    def is_down(self) -> bool:
        """Whether the last call failed."""
        return self._breaker.is_open

    @property
    def pauses(self) -> bool:
        """Whether delivery is paused until the store answers again."""
        return self._breaker.is_open and self._shared.on_outage == "pause"

    def may_call(self) -> bool:
        """Whether to call the store now; during an outage calls are rare."""
        return self._breaker.allows(self._clock())

    def enqueue(self, key: bytes, ack: PendingAck) -> None:
        """Note a completion that is to be sent."""
        self.pending[key] = ack

    def close(self) -> None:
        """Send pending completions a last time, without backoff; log and count those that are not confirmed."""
        if self.pending:
            self.send_pending(at_once=True)
        if self.pending:
            logger.warning(
                "shared store unreachable: %d completed IDs were not stored there; "
                "other consumers may handle them again until you load them with `dedup snapshots load`",
                len(self.pending),
                extra={"event": "shared-completions-unsent"},
            )
            self.count("forgotten", len(self.pending))
            self.pending = {}

    def send_pending(self, *, at_once: bool = False) -> None:
        """Send pending completions, if the backoff allows it or ``at_once`` is set."""
        if not self.pending or not (at_once or self._breaker.allows(self._clock())):
            self._drop_excess_pending()
            return
        # `groupby` joins neighbours only, and each window is a call.
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
                    # One by one: an interruption leaves the rest pending; to complete twice does no harm.
                    del self.pending[key]
                    if each.token and not was_taken:
                        self.count("refused")
            if not answered:
                break
        self._drop_excess_pending()

    def _drop_excess_pending(self) -> None:
        """Drop the oldest completions above `MAX_PENDING`: another consumer may handle their IDs again."""
        while len(self.pending) > MAX_PENDING:
            del self.pending[next(iter(self.pending))]
            self.count("forgotten")

    @contextmanager
    def answered(self) -> Iterator[list[bool]]:
        """Call the store in this block; `SharedStoreError` ends it. The block must append to the list at its end."""
        began = perf_counter()
        try:
            yield []
        except SharedStoreError as error:
            self._record_failure(error)
        else:
            self._counters.shared_call.observe(perf_counter() - began)
            self._record_success()

    def _record_failure(self, error: SharedStoreError) -> None:
        """Count a failed call and back off."""
        self.count("outages")
        if not self._breaker.is_open:
            effect = "are held back" if self._shared.on_outage == "pause" else "are delivered as unverified"
            logger.warning(
                "%s; until it answers, new messages %s", error, effect, extra={"event": "shared-outage"}
            )
        self._breaker.failed(self._clock())

    def _record_success(self) -> None:
        """End the backoff."""
        if self._breaker.is_open:
            logger.warning("the shared store answers again", extra={"event": "shared-outage-ended"})
        self._breaker.answered()

    def count(self, name: SharedName, count: int = 1) -> None:
        """Add to a counter under ``shared.``."""
        if count:
            self._counters.shared[name] = self._counters.shared.get(name, 0) + count
