"""A shared store for the consumers of one process: for tests, and the reference for the other stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from threading import Lock
from typing import NamedTuple

from dedup_sdk.shared._protocol import Claim, ClaimKind


class Claimed(NamedTuple):
    """A claim."""

    token: int
    owner: str
    until_ms: float


class Completed(NamedTuple):
    """A mark, with the token of the claim that completed it."""

    token: int
    seen_ms: int
    until_ms: float


class MemoryClaimStore:
    """A `ClaimStore` in a dictionary. ``clock`` returns seconds; only differences matter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._tokens = count(1)
        self._entries: dict[bytes, Claimed | Completed] = {}

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `ClaimStore`."""
        with self._lock:
            now_ms = self._now_ms()
            return [
                self._claim(key, Claimed(0, owner, now_ms + lease_ms), timestamp_ms, window_ms, now_ms)
                for key, timestamp_ms in zip(ids, timestamps_ms, strict=True)
            ]

    def _claim(self, key: bytes, wanted: Claimed, timestamp_ms: int, window_ms: int, now_ms: float) -> Claim:
        entry = self._live(key, now_ms)
        # An owner that asks again has lost the answer: the claim goes on under a new token.
        if isinstance(entry, Claimed) and entry.owner != wanted.owner:
            return Claim(ClaimKind.IN_FLIGHT, left_ms=max(1, round(entry.until_ms - now_ms)))
        if isinstance(entry, Completed) and abs(timestamp_ms - entry.seen_ms) <= window_ms:
            self._entries[key] = Completed(entry.token, max(entry.seen_ms, timestamp_ms), now_ms + window_ms)
            return Claim(ClaimKind.DUPLICATE, seen_ms=entry.seen_ms)
        token = next(self._tokens)
        self._entries[key] = wanted._replace(token=token)
        return Claim(ClaimKind.FRESH, token)

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """See `ClaimStore`."""
        with self._lock:
            now_ms = self._now_ms()
            kept = []
            for key, token in zip(ids, tokens, strict=True):
                entry = self._live(key, now_ms)
                # A lease that is over harms nobody as long as nobody has claimed the ID since.
                ours = entry is None or (isinstance(entry, Claimed) and entry.token == token)
                if ours:
                    self._entries[key] = Claimed(token, owner, now_ms + lease_ms)
                kept.append(ours)
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
        with self._lock:
            now_ms = self._now_ms()
            taken = []
            for key, token, timestamp_ms in zip(ids, tokens, timestamps_ms, strict=True):
                entry = self._live(key, now_ms)
                ours = entry is None or entry.token == token
                # Handled without an answer: the claim may have arrived all the same.
                if isinstance(entry, Claimed) and not token:
                    ours = entry.owner == owner
                if isinstance(entry, Completed):
                    self._entries[key] = Completed(
                        entry.token, max(entry.seen_ms, timestamp_ms), now_ms + window_ms
                    )
                elif ours:
                    self._entries[key] = Completed(token, timestamp_ms, now_ms + window_ms)
                taken.append(ours)
            return taken

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `ClaimStore`."""
        with self._lock:
            now_ms = self._now_ms()
            given = []
            for key, token in zip(ids, tokens, strict=True):
                entry = self._live(key, now_ms)
                ours = isinstance(entry, Claimed) and entry.token == token
                if ours:
                    del self._entries[key]
                given.append(ours)
            return given

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `ClaimStore`."""
        with self._lock:
            now_ms = self._now_ms()
            for key, timestamp_ms in zip(ids, timestamps_ms, strict=True):
                entry = self._live(key, now_ms)
                # A claim in flight leaves a newer mark than any that is loaded.
                if not isinstance(entry, Claimed):
                    known = Completed(0, timestamp_ms, 0.0) if entry is None else entry
                    until_ms = max(known.until_ms, now_ms + window_ms)
                    self._entries[key] = Completed(known.token, max(known.seen_ms, timestamp_ms), until_ms)

    def close(self) -> None:
        """See `ClaimStore`."""

    def _now_ms(self) -> float:
        return self._clock() * 1000

    def _live(self, key: bytes, now_ms: float) -> Claimed | Completed | None:
        entry = self._entries.get(key)
        if entry is not None and entry.until_ms <= now_ms:
            del self._entries[key]
            return None
        return entry
