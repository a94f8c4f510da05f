"""Keeping claims: they are renewed while their consumer lives, whatever its handlers do.

alive
    the group still waits for the consumer: it asked for messages at most ``max.poll.interval.ms`` ago. A thread of its own renews
    until then, so that a slow handler costs no claim, and one that hangs does not keep its messages from others for ever.
sure
    nobody else can have what is claimed: no lease has passed since all of it was renewed. A process that was stopped, or cut off from
    the store, for longer than a lease is not, until the store has answered.
lost
    a claim that another consumer has, or had: its message may be handled there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, RLock, Thread
from typing import Final
from weakref import ref

from dedup_sdk.shared.acknowledgements import Acknowledgements
from dedup_sdk.shared.gate import ClaimGate
from dedup_sdk.shared.settings import Shared

logger = logging.getLogger("dedup_sdk")

RENEWALS: Final = 3
"""So often in a lease it is renewed."""
_LOOK_AGAIN_S: Final = 0.1
"""Seconds between two looks at whether a store that is away may be asked again."""


class Leases:
    """Renews what is claimed in a shared store, for all partitions of a consumer.

    ``lock``: whoever reads or changes what is claimed has it, because the thread that renews comes in between. It is taken after the
    consumer's own, never before. ``silence_s``: how long the group waits for a consumer that does not ask for messages.

    The thread is there because one poll claims up to a thousand IDs, and a handler may be slow with the first. It never
    takes the consumer's lock, which a rebalance callback may hold for long. A renewal asks the store while it has
    ``lock``: one that arrived after the release of its claim would claim the ID for nobody.
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
        """Whether nobody else can have what is claimed here."""
        return not self._lost and self.is_in_time

    @property
    def is_in_time(self) -> bool:
        """Whether no lease has passed since all of it was renewed."""
        return self._clock() < self._sure_until

    def note_alive(self) -> None:
        """Note that the consumer asks for messages, and renew what is due."""
        self._alive_until = self._clock() + self._silence_s
        self.renew_if_due()

    def note_given_back(self) -> None:
        """Note that what was lost has been given back, but for what the application has."""
        self._lost = any(each.lost for gate in self.gates for each in gate.owned.values())

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()

    def keep_renewed(self) -> None:
        """Have a thread renew what is claimed from here on."""
        running = self._thread is not None and self._thread.is_alive()
        if not running and not self._stopped.is_set():
            stopped = self._stopped
            # It must not keep alive what nobody closes, nor what is claimed there.
            arguments = ref(self, lambda _: stopped.set()), stopped
            self._thread = Thread(target=_renew_all, args=arguments, name="dedup-leases", daemon=True)
            self._thread.start()

    def renew_if_due(self) -> None:
        """Renew all that is held, where it is time."""
        if self._clock() >= self._renew_at:
            self.renew()

    def renew_while_alive(self) -> float:
        """Renew what is due, unless the group has given the consumer up; return the seconds until the next look."""
        with self.lock:
            now = self._clock()
            if self._stopped.is_set() or now >= self._alive_until:
                return self._shared.lease / RENEWALS
            self.renew_if_due()
            return max(self._renew_at - self._clock(), _LOOK_AGAIN_S)

    def renew(self) -> None:
        """Ask for another lease for all that is held, and note what is lost; where the store does not answer, that is tried again."""
        began = self._clock()
        given = [
            (gate, digest, each)
            for gate in self.gates
            for digest, each in gate.owned.items()
            if each.token and not each.lost
        ]
        if given:
            if not self._acks.may_ask():
                return
            keys, tokens = [each.key for _, _, each in given], [each.token for _, _, each in given]
            with self._acks.answered() as answered:
                kept = self._acks.store.renew(keys, tokens, self._acks.owner, self._shared.lease_ms)
                for (gate, digest, _), is_kept in zip(given, kept, strict=True):
                    if not is_kept:
                        gate.note_lost(digest)
                        self._lost = True
                        self._acks.count("lapsed")
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
        except Exception:
            logger.exception("claims could not be renewed; the next call for messages tries again")
            return
        del leases
