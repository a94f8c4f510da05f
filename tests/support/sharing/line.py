"""A shared memory whose server can forget, and each consumer's connection to it, which can break."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

from dedup_sdk.shared import Claim, ClaimKind, MemoryClaimStore, SharedStoreError
from dedup_sdk.shared._memory import Claimed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LOST = float("-inf")
"""When the lease of another consumer's claim ended."""


class Memory(MemoryClaimStore):
    """The server. ``clock``: the world's seconds."""

    def backup(self) -> dict[bytes, object]:
        """The server's entries on its disk by now."""
        return dict(self._entries)

    def restart(self, kept: dict[bytes, object]) -> tuple[set[bytes], set[bytes]]:
        """Start again with the entries on the disk.

        Return the claims, and the marks, that it no longer knows as it did.
        """
        claims = self.claims()
        forgotten = {key for key, entry in self._entries.items() if kept.get(key) != entry}
        self._entries.clear()
        self._entries.update(kept)  # type: ignore[arg-type]
        return forgotten & claims, forgotten - claims

    def claims(self, owner: str | None = None) -> set[bytes]:
        """The IDs that somebody has claimed now, or an owner."""
        now_ms = self._now_ms()
        live = {key: self._live(key, now_ms) for key in list(self._entries)}
        held = {key: entry.owner for key, entry in live.items() if isinstance(entry, Claimed)}
        return {key for key, whose in held.items() if owner in (None, whose)}


class State(Enum):
    """The fate of a question."""

    UP = "answered"
    AWAY = "not carried out"
    DEAF = "carried out, and the answer is lost"
    DEAD = "of a process that is gone"


class Line:
    """`ClaimStore` of one consumer, which notes the calls that reached the server."""

    def __init__(self, memory: Memory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self.state = State.UP
        self.lease_ends: dict[bytes, float] = {}
        """ID -> when the lease ends that this consumer was promised last, in the world's seconds."""
        self.forgotten: set[bytes] = set()
        """IDs whose claims the server forgot, and was not told of since."""
        self.failed_at = float("-inf")
        """When a question was not answered last."""
        self.told: set[bytes] = set()
        """IDs that this consumer told the server of as completed, since somebody looked."""
        self.touched: dict[bytes, float] = {}
        """ID -> when the server was told of it, or asked for it as a duplicate."""
        self.calls: Counter[str] = Counter()

    def _reach(self, name: str) -> None:
        self.calls[name] += 1
        if self.state in (State.AWAY, State.DEAD):
            self.failed_at = self._clock()
            raise SharedStoreError("the shared store is away; start it")

    def _answer(self) -> None:
        if self.state is State.DEAF:
            self.failed_at = self._clock()
            raise SharedStoreError("the answer took too long; start it")

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `ClaimStore`."""
        assert len(set(ids)) == len(ids), "an ID twice in a batch"
        self._reach("claim")
        given = self._memory.claim(ids, owner, lease_ms, timestamps_ms=timestamps_ms, window_ms=window_ms)
        for key, answer in zip(ids, given, strict=True):
            if answer.kind is ClaimKind.DUPLICATE:
                self.touched[key] = self._clock()
        self._answer()
        for key, answer in zip(ids, given, strict=True):
            if answer.kind is ClaimKind.FRESH:
                self.forgotten.discard(key)
                self.lease_ends[key] = self._clock() + lease_ms / 1000
        return given

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """See `ClaimStore`."""
        self._reach("renew")
        kept = self._memory.renew(ids, tokens, owner, lease_ms)
        self._answer()
        self.forgotten.difference_update(ids)
        for key, is_kept in zip(ids, kept, strict=True):
            self.lease_ends[key] = self._clock() + lease_ms / 1000 if is_kept else LOST
        return kept

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """See `ClaimStore`."""
        self._reach("complete")
        taken = self._memory.complete(ids, tokens, owner, timestamps_ms=timestamps_ms, window_ms=window_ms)
        self.told.update(ids)
        # Not where it was refused, because another consumer has the ID in hand.
        self.touched.update(dict.fromkeys(set(ids) - self._memory.claims(), self._clock()))
        self._answer()
        return taken

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `ClaimStore`."""
        self._reach("release")
        given = self._memory.release(ids, tokens)
        self._answer()
        return given

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `ClaimStore`."""
        self._memory.load(ids, timestamps_ms=timestamps_ms, window_ms=window_ms)

    def close(self) -> None:
        """See `ClaimStore`."""
