"""Where an order only compares: what was seen are the IDs that came last."""

from __future__ import annotations

from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.seen import Seen
from dedup_sdk.last.seen_bytes import encode_partial
from dedup_sdk.last.standing import Standing
from dedup_sdk.orders import Comparison, Order

_STANDINGS = {
    Comparison.NEWER: Standing.NEWER,
    Comparison.SAME: Standing.SEEN,
    Comparison.UNCOMPARABLE: Standing.UNCOMPARABLE,
}


class PartialSeen(Seen):
    """The last ID and, in the order of their coming, the ``depth + 1`` that came last."""

    __slots__ = ("_last_id", "_order", "ids")

    def __init__(
        self,
        depth: int,
        order: Order,
        last_id: bytes,
        ids: dict[bytes, None],
        *,
        known: int | None = None,
        forgot: bool = False,
    ) -> None:
        super().__init__(depth, known=known, forgot=forgot)
        self._order = order
        self._last_id = last_id
        self.ids = ids
        self._forget_oldest()

    @property
    def last_id(self) -> bytes:
        """The last ID, as it came."""
        return self._last_id

    @property
    def last_rank(self) -> None:
        """There is none."""
        return

    @property
    def origin(self) -> None:
        """There is none."""
        return

    def standing(self, candidate: Candidate) -> Standing:
        """Say how an ID stands to those remembered."""
        id_bytes = candidate.id_bytes
        if id_bytes in self.ids or id_bytes == self._last_id:
            return Standing.SEEN
        comparison = self._order.compare(self._last_id, id_bytes)
        if comparison is Comparison.OLDER:
            return Standing.BELOW if self.forgot else Standing.UNSEEN
        return _STANDINGS[comparison]

    def take(self, candidate: Candidate) -> Standing:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        standing = self.standing(candidate)
        if standing not in (Standing.NEWER, Standing.UNSEEN):
            return standing
        if standing is Standing.NEWER:
            self._last_id = candidate.id_bytes
        self.ids[candidate.id_bytes] = None
        self._forget_oldest()
        self._count(1)
        return standing

    def _forget_oldest(self) -> None:
        while len(self.ids) > self.depth + 1:
            del self.ids[next(iter(self.ids))]
            self.forgot = True

    def copy(self) -> PartialSeen:
        """Return another one that remembers the same."""
        return PartialSeen(
            self.depth, self._order, self._last_id, self.ids.copy(), known=self.known, forgot=self.forgot
        )

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_partial(self._last_id, list(self.ids), known=self.known, forgot=self.forgot)
