"""A memory that consumers share in one process, which a test watches, and whose IDs others claim."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING

from dedup_sdk.shared import Claim, MemoryClaimStore, SharedStoreError, scope_name, scoped_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dedup_sdk import DedupConsumer

LEASE_MS = 60_000
WINDOW_MS = 7 * 86_400_000


class Watched(MemoryClaimStore):
    """A memory whose clock the test moves, and that counts questions.

    ``away``: it answers nothing. ``deaf``: it takes claims all the same, and the answers are lost.
    """

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s)
        self.now_s = 0.0
        self.away = self.deaf = False
        self.asked: dict[str, list[int]] = {"claim": [], "renew": [], "complete": [], "release": []}

    def _note(self, name: str, ids: Sequence[bytes]) -> None:
        self.asked[name].append(len(ids))
        if self.away and not (self.deaf and name == "claim"):
            raise SharedStoreError("the shared store is away; start it")

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """Count, and answer."""
        self._note("claim", ids)
        given = super().claim(ids, owner, lease_ms, timestamps_ms=timestamps_ms, window_ms=window_ms)
        if self.deaf:
            raise SharedStoreError("the answer took too long; start it")
        return given

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """Count, and answer."""
        self._note("renew", ids)
        return super().renew(ids, tokens, owner, lease_ms)

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """Count, and answer."""
        self._note("complete", ids)
        return super().complete(ids, tokens, owner, timestamps_ms=timestamps_ms, window_ms=window_ms)

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """Count, and answer."""
        self._note("release", ids)
        return super().release(ids, tokens)


def shared_id(name: str) -> list[bytes]:
    """The name of an ID in the scope ``global``."""
    return scoped_ids(scope_name("global", id_spec="header:dedup-id"), [sha256(name.encode()).digest()[:16]])


def now_ms() -> int:
    """The timestamp of records sent now."""
    return round(time.time() * 1000)


def claim_as(store: MemoryClaimStore, name: str, owner: str = "another") -> Claim:
    """Claim an ID of the scope ``global`` for another consumer."""
    [given] = MemoryClaimStore.claim(
        store,
        shared_id(name),
        owner,
        LEASE_MS,
        timestamps_ms=[round(time.time() * 1000)],
        window_ms=WINDOW_MS,
    )
    return given


def complete_as(store: MemoryClaimStore, name: str, given: Claim, timestamp_ms: int | None = None) -> bool:
    """Complete that claim."""
    [taken] = MemoryClaimStore.complete(
        store,
        shared_id(name),
        [given.token],
        "another",
        timestamps_ms=[now_ms() if timestamp_ms is None else timestamp_ms],
        window_ms=WINDOW_MS,
    )
    return taken


def hindrances(consumer: DedupConsumer) -> tuple[str, ...]:
    """The hindrances of the only partition."""
    [status] = consumer.partition_statuses
    return status.hindrances
