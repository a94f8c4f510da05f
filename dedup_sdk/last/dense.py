"""Where neighbours usually differ by one: what was seen is a bit for each rank below the last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.seen import Seen
from dedup_sdk.last.seen_bytes import encode_dense
from dedup_sdk.last.standing import Standing
from dedup_sdk.orders import Place
from dedup_sdk.orders.place import ONLY_ORIGIN


@cache
def _mask(depth: int) -> int:
    """Return the bits of a memory: one number for all lanes, since it is as large as what they remember."""
    return (1 << depth + 1) - 1


class DenseSeen(Seen):
    """Bit ``i`` of ``bits`` says whether the rank ``last_rank - i`` was seen, for ``i`` from 0 to ``depth``."""

    __slots__ = ("_last_id", "_last_rank", "_mask", "_origin", "bits")

    def __init__(
        self,
        depth: int,
        last_id: bytes,
        place: Place,
        *,
        bits: int = 1,
        known: int | None = None,
        forgot: bool = False,
    ) -> None:
        super().__init__(depth, known=known, forgot=forgot)
        self._last_id = last_id
        self._origin = place.origin
        self._last_rank: Any = place.rank
        self.bits = bits
        self._mask = _mask(depth)

    @property
    def last_id(self) -> bytes:
        """The last ID, as it came."""
        return self._last_id

    @property
    def last_rank(self) -> Any:
        """The rank of the last ID."""
        return self._last_rank

    @property
    def origin(self) -> Any:
        """The origin of the last ID."""
        return self._origin

    def standing(self, candidate: Candidate) -> Standing:
        """Say how an ID stands to those remembered."""
        place = candidate.place
        if place is None:
            return Standing.MALFORMED
        rank: Any = place.rank
        if place.origin != self._origin:
            return Standing.UNCOMPARABLE
        below = self._last_rank - rank
        if below < 0:
            return Standing.NEWER
        if below <= self.depth:
            return Standing.SEEN if self.bits >> below & 1 else Standing.UNSEEN
        return Standing.BELOW if self.forgot else Standing.UNSEEN

    def take(self, candidate: Candidate) -> Standing:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        place = candidate[1]
        if place is None:
            return Standing.MALFORMED
        origin, rank = place
        if origin != self._origin:
            return Standing.UNCOMPARABLE
        below: Any = self._last_rank - rank
        if below < 0:
            self._move(-below)
            self._last_id, self._last_rank = candidate[0], rank
            self.bits |= 1
            self._count(1)
            return Standing.NEWER
        standing = self.standing(candidate)
        if standing is Standing.UNSEEN:
            if below <= self.depth:
                self.bits |= 1 << below
                self._count(1)
            else:
                self.forgot = True
        return standing

    def take_number(self, id_bytes: bytes, number: int) -> Standing:
        """As `take`; nearly all are newer than the last one, by little."""
        distance = number - self._last_rank
        if not 0 < distance <= self.depth or self._origin != ONLY_ORIGIN:
            return self.take(Candidate(id_bytes, Place(ONLY_ORIGIN, number)))
        moved = self.bits << distance | 1
        if moved > self._mask:
            kept = moved & self._mask
            self.forgot, moved = self.forgot or kept != moved, kept
        self.bits = moved
        self._last_id, self._last_rank = id_bytes, number
        if self.known is not None:
            self._count(1)
        return Standing.NEWER

    def remembers(self, rank: Any, newest: Any, taken: int) -> bool:
        """Whether a rank was seen, and is not too far below the newest."""
        del taken
        below = self._last_rank - rank
        return below >= 0 and newest - rank <= self.depth and bool(self.bits >> below & 1)

    def take_run(self, ids: Sequence[bytes], ranks: Sequence[Any]) -> None:
        """Remember completed IDs of one origin, each newer than the one before."""
        last = ranks[-1]
        start = bisect_left(ranks, last - self.depth)
        self._move(last - self._last_rank)
        self._last_id, self._last_rank = ids[-1], last
        self.forgot = self.forgot or start > 0
        first = ranks[start]
        if last - first == len(ranks) - 1 - start:
            self.bits |= (1 << (last - first + 1)) - 1
        else:
            seen = np.zeros(last - first + 1, np.uint8)
            seen[[last - rank for rank in ranks[start:]]] = 1
            self.bits |= int.from_bytes(np.packbits(seen, bitorder="little").tobytes(), "little")
        self._count(len(ranks))

    def _move(self, distance: int) -> None:
        """Let the last rank rise; what falls out at the bottom is forgotten. The new last one is not among the bits yet."""
        # Not shifted by a distance that a hostile ID may make as large as it likes.
        moved = self.bits << distance if distance <= self.depth else 0
        self.bits = moved & self._mask
        self.forgot = self.forgot or distance > self.depth or moved != self.bits

    def copy(self) -> DenseSeen:
        """Return another one that remembers the same."""
        place = Place(self._origin, self._last_rank)
        return DenseSeen(
            self.depth, self._last_id, place, bits=self.bits, known=self.known, forgot=self.forgot
        )

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_dense(self._last_id, self.bits, self.depth, self.known, self.forgot)
