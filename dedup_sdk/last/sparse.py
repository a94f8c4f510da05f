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
    """The ``depth + 1`` newest IDs of one origin: ``items`` (framed as they are stored) and ``ranks``, ascending."""

    __slots__ = ("_origin", "items", "ranks")

    def __init__(
        self,
        depth: int,
        origin: Any,
        items: list[bytes],
        ranks: list[Any],
        *,
        known: int | None = None,
        forgot: bool = False,
    ) -> None:
        super().__init__(depth, known=known, forgot=forgot)
        self._origin = origin
        self.items = items
        self.ranks = ranks
        self._forget_below_depth()

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
        at = bisect_left(self.ranks, rank)
        if self.ranks[at] == rank:
            return Standing.SEEN
        return Standing.BELOW if at == 0 and self.forgot else Standing.UNSEEN

    def take(self, candidate: Candidate) -> Standing:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        standing = self.standing(candidate)
        if standing is Standing.NEWER or standing is Standing.UNSEEN:
            rank: Any = None if candidate.place is None else candidate.place.rank
            at = len(self.ranks) if standing is Standing.NEWER else bisect_left(self.ranks, rank)
            if at == 0 and len(self.ranks) > self.depth:
                self.forgot = True
                return standing
            self.items.insert(at, framed(candidate.id_bytes))
            self.ranks.insert(at, rank)
            self._forget_below_depth()
            self._count(1)
        return standing

    def take_run(self, ids: Sequence[bytes], ranks: Sequence[Any]) -> None:
        """Remember completed IDs of one origin, each newer than the one before."""
        self.items += map(framed, ids)
        self.ranks += ranks
        self._forget_below_depth()
        self._count(len(ranks))

    def remembers(self, rank: Any, newest: Any, taken: int) -> bool:
        """Whether a rank was seen, and is among the newest after so many more."""
        del newest
        at = bisect_left(self.ranks, rank)
        known = at < len(self.ranks) and self.ranks[at] == rank
        return known and len(self.ranks) - at + taken <= self.depth + 1

    def _forget_below_depth(self) -> None:
        over = len(self.items) - self.depth - 1
        if over > 0:
            self.forgot = True
            del self.items[:over], self.ranks[:over]

    def copy(self) -> SparseSeen:
        """Return another one that remembers the same."""
        return SparseSeen(
            self.depth,
            self._origin,
            self.items.copy(),
            self.ranks.copy(),
            known=self.known,
            forgot=self.forgot,
        )

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_sparse(self.items, known=self.known, forgot=self.forgot)
