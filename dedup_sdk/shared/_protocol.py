"""The protocol between a consumer and a shared store; all stores pass one contract suite.

claim
    the right to handle one ID. One owner has it until it completes or releases the ID, or the lease ends.
lease
    how long a claim lasts without renewal, by the store's clock. The claims of a dead owner end with it.
token
    the number of a claim; each new claim of an ID gets a higher one. A caller with an older token than the
    store has (a *zombie*: its lease ended, and another owner claimed the ID) is refused.
mark
    the record of a completed ID: the timestamp of its newest record. It expires one window after it was
    written, by the store's clock. It is *compared* by record timestamps: a consumer reads a backlog of months
    in minutes, and must still handle an ID that comes again after its window.

IDs are 16 bytes each and already include their scope (`dedup_sdk.shared._scope`): a store knows neither
topics nor groups.

**A rebuild** calls `ClaimStore.load` in batches, in any order, any number of times. It adds completed IDs, keeps the
newest timestamp of each, never shortens an expiry, and leaves claims to their owners. For each completed record it
needs the scoped ID (`scoped_ids` of the scope's name and the record's digest), the timestamp, and the window. It must
load only records that the group completed, that is, records below its committed offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

ID_BYTES = 16


class ClaimKind(StrEnum):
    """The store's answer for one ID."""

    FRESH = "fresh"
    """Neither claimed nor completed within the window: the caller has claimed it now."""
    DUPLICATE = "duplicate"
    """It was completed within the window."""
    IN_FLIGHT = "in-flight"
    """Claimed by another owner."""
    FOREIGN = "foreign"
    """The key holds a value that no store of this kind wrote; the store leaves it alone."""


class Claim(NamedTuple):
    """The answer for one ID.

    ``token`` (above 0) is set for a fresh ID, ``left_ms`` (the rest of the other owner's lease) for one in
    flight, and ``seen_ms`` (the timestamp of the newest completed record) for a duplicate.
    """

    kind: ClaimKind
    token: int = 0
    left_ms: int = 0
    seen_ms: int = -1


class ClaimStore(Protocol):
    """A shared store. Thread-safe.

    Each call takes a batch as columns of equal length and answers in their order. IDs are 16 bytes, each at
    most once in a batch; timestamps are those of records, in milliseconds (-1: none), between -2**52 and
    2**52. Every call is idempotent. Raises `SharedStoreError` when the store cannot be reached, and
    `ConfigurationError` when it is not such a store.
    """

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """Claim IDs for records with these timestamps, for ``lease_ms``; of several owners exactly one gets an ID.

        A mark counts only if its timestamp and the record's are at most one window apart, in either
        direction: partitions are read one before another, and an ID may have been used again. A mark that
        counts takes the record's timestamp if that is newer, and lasts for another window.

        ``owner`` identifies the consumer: at most 200 characters, and never used by another consumer, not
        even a later one. IDs that the owner has claimed already are given to it again under a new token, so
        that it need not wait for its own lease when the first answer was lost. The owner must therefore
        track which IDs it has in hand.
        """

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """Extend claims to ``lease_ms`` from now; False for IDs that another owner has claimed or completed."""

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """Mark IDs as completed by records with these timestamps, for one window from now.

        False where the store refuses because another owner has claimed or completed the ID since. An
        expired lease alone is no reason to refuse: the ID *was* completed.

        Use token 0 for an ID that was handled without a claim, or whose claim was never answered: it
        completes any claim of ``owner``, and IDs that nobody has claimed. Owner names are unique, so this
        never completes a claim of somebody else.
        """

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """Release claims, so that others get them at once; False for IDs that the caller no longer held.

        Releasing by owner name alone is not offered: a delayed call would release an ID that the same owner
        has claimed since, in another partition.
        """

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """Mark IDs as completed without a claim (see *A rebuild*, above)."""

    def close(self) -> None:
        """Close connections; stored data stays."""
