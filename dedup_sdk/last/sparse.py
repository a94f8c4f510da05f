"""Where ranks lie anywhere: what was seen are the newest IDs themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.seen import Seen
from dedup_sdk.last.seen_bytes import encode_sparse, framed, unframed
from dedup_sdk.last.standing import Standing


class SparseSeen(Seen):
    """The ``depth + 1`` newest IDs of one origin, ``items`` (framed as they are stored) and ``ranks`` ascending; ``floor`` is an ID and its rank, or None."""

    __slots__ = ("_origin", "depth", "floor", "items", "ranks")

    def __init__(
        self, depth: int, origin: Any, items: list[bytes], ranks: list[Any], floor: tuple[bytes, Any] | None
    ) -> None:
        self.depth = depth
        self._origin = origin
        self.items = items
        self.ranks = ranks
        self.floor = floor

    @property
    def last_id(self) -> bytes:
        """The last ID, as it came."""
        return unframed(self.items[-1])

    @property
    def last_rank(self) -> Any:
        """The rank of the last ID."""
        return self.ranks[-1]

    @property
    def origin(self) -> Any:
        """The origin of the last ID."""
        return self._origin

    def standing(self, candidate: Candidate) -> Standing:
        """Say how an ID stands to those remembered."""
        place = candidate.place
        if place is None:
            return Standing.MALFORMED
        origin, rank = place
        if origin != self._origin:
            return Standing.UNCOMPARABLE
        if rank > self.ranks[-1]:
            return Standing.NEWER
        if self.ranks[bisect_left(self.ranks, rank)] == rank:
            return Standing.SEEN
        return Standing.UNSEEN if self.floor is None or rank > self.floor[1] else Standing.BELOW

    def take(self, candidate: Candidate) -> Standing:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        standing = self.standing(candidate)
        if standing is Standing.NEWER or standing is Standing.UNSEEN:
            rank: Any = None if candidate.place is None else candidate.place.rank
            at = len(self.ranks) if standing is Standing.NEWER else bisect_left(self.ranks, rank)
            self.items.insert(at, framed(candidate.id_bytes))
            self.ranks.insert(at, rank)
            self.forget_below_depth()
        return standing

    def take_run(self, ids: Sequence[bytes], ranks: Sequence[Any]) -> None:
        """Remember completed IDs of one origin, each newer than the one before."""
        self.items += map(framed, ids)
        self.ranks += ranks
        self.forget_below_depth()

    def forget_below_depth(self) -> None:
        """Forget what is more than ``depth`` IDs below the last one."""
        over = len(self.items) - self.depth - 1
        if over > 0:
            lost = unframed(self.items[over - 1]), self.ranks[over - 1]
            if self.floor is None or self.floor[1] < lost[1]:
                self.floor = lost
            del self.items[:over], self.ranks[:over]

    def copy(self) -> SparseSeen:
        """Return another one that remembers the same."""
        return SparseSeen(self.depth, self._origin, self.items.copy(), self.ranks.copy(), self.floor)

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_sparse(self.items, None if self.floor is None else self.floor[0])
