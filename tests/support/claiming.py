"""Consumers that claim the same IDs at one time, in threads or processes of their own."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from dedup_adapters.redis import RedisStore
from dedup_sdk.shared import ClaimKind, Shared
from dedup_sdk.shared._claims import ClaimGatekeeper
from tests.support import inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk._engine.gates import Gatekeeper
    from dedup_sdk._observe import Counters
    from dedup_sdk.shared import ClaimStore

WINDOW_MS = 3_600_000
PATIENCE_S = 60.0


def claims_of(consumer: DedupConsumer) -> ClaimGatekeeper:
    """The claims of a consumer."""
    claims = inside.gatekeeper_of(consumer)
    assert isinstance(claims, ClaimGatekeeper)
    return claims


@dataclass(frozen=True, slots=True)
class ClockedShared(Shared):
    """Settings of a shared memory, for a consumer that reads another clock (in seconds) for its leases and outages."""

    clock: Callable[[], float] = field(kw_only=True)

    def gatekeeper(self, counters: Counters, *, group: str, silence_s: float) -> Gatekeeper:
        """See `Shared.gatekeeper`."""
        return ClaimGatekeeper(self, counters, group=group, silence_s=silence_s, clock=self.clock)


class Outcome(NamedTuple):
    """The results of one of them: tokens of its claims by ID, and the IDs whose completion was taken."""

    claimed: dict[bytes, list[int]]
    completed: list[bytes]


def shared_ids(count: int) -> list[bytes]:
    """Some IDs, the same ones for all."""
    return [sha256(str(number).encode()).digest()[:16] for number in range(count)]


def contend(store: ClaimStore, seed: int, *, count: int, lease_ms: int, batch: int = 50) -> Outcome:
    """Claim all IDs in batches of some order, until each is known to be completed.

    Of its claims it completes the most, releases some, and sleeps over the lease of others, as one that was
    stopped does.
    """
    chance = random.Random(seed)
    claimed: dict[bytes, list[int]] = {}
    completed: list[bytes] = []
    open_ids = set(shared_ids(count))
    until = time.monotonic() + PATIENCE_S
    while open_ids:
        assert time.monotonic() < until, f"{len(open_ids)} IDs are never completed"
        asked = chance.sample(sorted(open_ids), min(batch, len(open_ids)))
        answers = store.claim(
            asked, f"owner-{seed}", lease_ms, timestamps_ms=[seed] * len(asked), window_ms=WINDOW_MS
        )
        given = []
        for key, answer in zip(asked, answers, strict=True):
            assert answer.kind is not ClaimKind.FOREIGN
            if answer.kind is ClaimKind.DUPLICATE:
                open_ids.discard(key)
            elif answer.kind is ClaimKind.FRESH:
                claimed.setdefault(key, []).append(answer.token)
                given.append((key, answer.token))
        what = chance.random()
        if what < 0.1:
            store.release([key for key, _ in given], [token for _, token in given])
            continue
        if what < 0.3:
            time.sleep(2 * lease_ms / 1000 if lease_ms < 1_000 else 0)
        taken = store.complete(
            [key for key, _ in given],
            [token for _, token in given],
            f"owner-{seed}",
            timestamps_ms=[seed] * len(given),
            window_ms=WINDOW_MS,
        )
        completed += [key for (key, _), was_taken in zip(given, taken, strict=True) if was_taken]
    return Outcome(claimed, completed)


def contend_in_redis(url: str, prefix: str, seed: int, count: int, lease_ms: int) -> Outcome:
    """The same, in a process that connects by itself."""
    store = RedisStore(url, prefix=prefix, timeout=30.0)
    try:
        return contend(store, seed, count=count, lease_ms=lease_ms)
    finally:
        store.close()
