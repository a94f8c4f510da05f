"""Lease renewal: claims are renewed while their consumer is alive, whatever its handlers do.

alive
    the group still waits for the consumer: its last poll was at most ``max.poll.interval.ms`` ago. A thread renews
    until then, so that a slow handler loses no claim. A handler that hangs does not keep its messages for ever.
sure
    no other consumer can own the claimed IDs: less than one lease has passed since all of them were renewed. After
    a process was stopped, or cut off from the store, for longer than a lease, that is false until the store answers.
lost
    a claim that another consumer took over: its message may be handled there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, RLock, Thread
from typing import Final
from weakref import ref

from dedup_sdk.shared._acknowledgements import Acknowledgements
from dedup_sdk.shared._gate import ClaimGate
from dedup_sdk.shared._settings import Shared

logger = logging.getLogger("dedup_sdk")

RENEWALS: Final = 3
"""Renewals per lease."""
_CHECK_AGAIN_S: Final = 0.1
"""Seconds between two checks whether an unreachable store may be called again."""


class Leases:
    """Renews the claims of all partitions of a consumer.

    ``lock``: hold it to read or change claims, because the renewal thread does so at any time. Take it
    after the consumer's own lock, never before. ``silence_s``: how long the group waits for a consumer that
    does not poll, in seconds.

    The thread exists because one poll claims up to a thousand IDs, and a handler may be slow with the
    first. It never takes the consumer's lock, which a rebalance callback may hold for long. A renewal calls
    the store while it holds ``lock``: if it arrived after the release of its claim, it would claim the ID
    for nobody.
    """

    def __init__(
        self, shared: Shared, acks: Acknowledgements, clock: Callable[[], float], *, silence_s: float
    ) -> None:
        self.lock = RLock()
        self.gates: set[ClaimGate] = set()
        self._shared = shared
        self._acks = acks
        self._clock = clock
        self._silence_s = silence_s
        self._stopped = Event()
        self._thread: Thread | None = None
        self._alive_until = self._clock() + silence_s
        self._sure_until = self._clock() + shared.lease
        self._renew_at = self._clock() + shared.lease / RENEWALS
        self._lost = False

    def enter(self, gate: ClaimGate) -> None:
        """Renew the claims of a partition from here on."""
        self.gates.add(gate)

    def leave(self, gate: ClaimGate) -> None:
        """Renew the claims of a partition no more."""
        self.gates.discard(gate)

    @property
    def is_sure(self) -> bool:
        """Whether no other consumer can own the claimed IDs."""
        return not self._lost and self.is_valid

    @property
    def is_valid(self) -> bool:
        """Whether less than one lease has passed since all claims were renewed."""
        return self._clock() < self._sure_until

    def note_alive(self) -> None:
        """Note that the consumer polls, and renew if due."""
        self._alive_until = self._clock() + self._silence_s
        self.renew_if_due()

    def refresh_lost(self) -> None:
        """Recompute whether any claim is lost; call it after lost claims were released."""
        self._lost = any(each.lost for gate in self.gates for each in gate.owned.values())

    def stop(self) -> None:
        """Stop renewing."""
        self._stopped.set()

    def start_renewing(self) -> None:
        """Start the renewal thread, if it does not run yet."""
        running = self._thread is not None and self._thread.is_alive()
        if not running and not self._stopped.is_set():
            stopped = self._stopped
            # A weak reference: the thread must not keep a consumer alive that nobody closes, nor renew its claims.
            arguments = ref(self, lambda _: stopped.set()), stopped
            self._thread = Thread(target=_renew_all, args=arguments, name="dedup-leases", daemon=True)
            self._thread.start()

    def renew_if_due(self) -> None:
        """Renew all claims, if it is time."""
        if self._clock() >= self._renew_at:
            self.renew()

    def renew_while_alive(self) -> float:
        """Renew if due, unless the group has given the consumer up; return the seconds until the next check."""
        with self.lock:
            now = self._clock()
            if self._stopped.is_set() or now >= self._alive_until:
                return self._shared.lease / RENEWALS
            self.renew_if_due()
            return max(self._renew_at - self._clock(), _CHECK_AGAIN_S)

    def renew(self) -> None:
        """Renew all claims and mark the lost ones; where the store does not answer, the next call tries again."""
        # Before the call: the store counts the lease from then on, at the earliest.
        began = self._clock()
        given = [
            (gate, digest, each)
            for gate in self.gates
            for digest, each in gate.owned.items()
            if each.token and not each.lost
        ]
        if given:
            if not self._acks.may_call():
                return
            keys, tokens = [each.key for _, _, each in given], [each.token for _, _, each in given]
            with self._acks.answered() as answered:
                kept = self._acks.store.renew(keys, tokens, self._acks.owner, self._shared.lease_ms)
                for (gate, digest, _), is_kept in zip(given, kept, strict=True):
                    if not is_kept:
                        gate.note_lost(digest)
                        self._lost = True
                        self._acks.count("lapsed")
                # An error of the store ends the block in silence: only this tells that its end was reached.
                answered.append(True)
            if not answered:
                return
        self._sure_until = began + self._shared.lease
        self._renew_at = began + self._shared.lease / RENEWALS


def _renew_all(of: ref[Leases], stopped: Event) -> None:
    wait_s = 0.0
    while not stopped.wait(wait_s):
        leases = of()
        if leases is None:
            return
        try:
            wait_s = leases.renew_while_alive()
        # Not repeated here: the next claim starts another thread.
        except Exception:
            logger.exception(
                "lease renewal failed; the next poll tries again", extra={"event": "lease-renewal-failed"}
            )
            return
        # Not held while waiting: the reference would keep the consumer alive.
        del leases
