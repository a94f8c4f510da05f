"""What a consumer needs of a memory that it shares with others: one small protocol, and one contract suite.

claim
    the right to handle one ID, held by one owner until it is completed, released, or its lease is over.
lease
    how long a claim holds without a word of its owner, by the store's own clock. A dead owner's claims end with it.
token
    the number of a claim, which rises with each claim of an ID. Who bears an older one than the store has (a *zombie*: its lease
    ended, and another owner claimed) is refused.
mark
    what is remembered of an ID that is completed: the timestamp of its newest record. It lasts for the window after it
    was written, by the store's clock, but is compared by the timestamps of records: a backlog of months is read in
    minutes, and an ID that comes again after its window must be handled also then.

IDs are 16 bytes each, and what they belong to is in them (`dedup_sdk.shared.scope`): a store knows no topics and no groups.

**A rebuild** is `ClaimStore.load`, in batches, in any order, as often as wanted: it adds what is completed, lets the newest record of an ID
count, shortens nothing, and leaves what is claimed to its owner. It needs, for each completed record, the ID as a consumer of that scope
makes it (`scoped_ids` of the scope's name and the record's digest), its timestamp, and the window. It must load only what the group completed:
below its committed offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

ID_BYTES = 16


class ClaimKind(StrEnum):
    """What the store says of one ID."""

    FRESH = "fresh"
    """Nobody has it, and it is not completed within the window: it is the caller's now."""
    DUPLICATE = "duplicate"
    """It was completed within the window."""
    IN_FLIGHT = "in-flight"
    """Another owner has it."""
    FOREIGN = "foreign"
    """Something that no store of this kind wrote stands in its place, and is left there."""


class Claim(NamedTuple):
    """The answer for one ID.

    ``token`` (above 0) is that of a fresh one, ``left_ms`` how long the other owner's lease lasts still, ``seen_ms`` the timestamp of the
    newest completed record of a duplicate.
    """

    kind: ClaimKind
    token: int = 0
    left_ms: int = 0
    seen_ms: int = -1


class ClaimStore(Protocol):
    """The shared memory. Used from any thread.

    Each call is for a batch, takes columns of one length, and answers in their order. IDs are 16 bytes, none twice in a batch; timestamps
    are milliseconds of records (-1: none), between -2**52 and 2**52. Calls may be repeated: what was done is done once.
    Raises `SharedStoreError` where the store cannot be asked, and `ConfigurationError` where it is another thing.
    """

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """Claim IDs for records with these timestamps, until ``lease_ms`` from now; of several owners exactly one gets an ID.

        A mark that is older than its record by more than the window does not count, nor one that is newer by more: partitions are read one before
        another, and an ID may have been used again. One that does moves to the record's timestamp, if that
        is newer, and lasts for another window. ``owner`` names who claims, at most 200 characters, never the same for two consumers, also one after the other: what it
        has claimed already it gets again, under a new token. So an owner keeps its own books of what it holds.

        Its own claim is given again because the answer to the first one may have been lost: to wait for its own lease
        would stop the partition for that long.
        """

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """Have claims last until ``lease_ms`` from now; False for those that are lost: another owner claimed or completed the ID."""

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """Remember IDs as completed, by records with these timestamps, for a window from now.

        False where that is refused, because another owner has claimed the ID since, or completed it. A lease that is over without that
        is no reason to refuse. A token of 0 is for what was handled without a claim, or without having heard of one: it completes what
        ``owner`` has claimed, under whatever token, and what nobody has.

        No other owner has that name, so that nobody else's claim is completed. And a late completion is true: the ID
        *was* completed.
        """

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """Give claims back, so that others get them at once; False for those that were not the caller's any more.

        There is no release by name alone: one that was delayed would release what the same owner has claimed since, in
        another partition.
        """

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """Remember IDs as completed that nobody has claimed (see *A rebuild*, above)."""

    def close(self) -> None:
        """Let connections go; what is stored stays."""
