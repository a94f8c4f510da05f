"""The memory of a source: its last ID and those seen shortly below it; and the status of the next ID in it.

last
    the newest ID that was completed since the source began, or began anew
depth
    how much below the last one is remembered (``reorder_depth``): so many ranks where the order is dense, so many IDs
    elsewhere
floor
    the end of the remembered range. Below it some ID was forgotten, or came too late to be remembered (``forgot``), so
    nobody knows whether an ID there was seen; without a floor, everything is known.
known
    None where all completed records of the source are known, since the beginning of the group's own history. Else how
    many IDs were taken in since less was known: with enough of them, no earlier one can matter.

A memory is a fold over the completed records of a source in offset order, so that a source that lives, a replay and
the backfill come to the same one.

An order with places keeps the ``depth + 1`` newest IDs, whatever lies between them: a record that was overtaken by
at most ``depth`` others is never below the floor. Two kinds of order differ, towards doubt. A dense order
(neighbours differ by one) keeps a bit for each of the numbers below the last ID, which takes a few bytes; where IDs
leap, those further below are below the floor. An order that only compares (a function, GTID sets) keeps the IDs that
came last, because it cannot sort them. With a depth of 0 and ``below_floor="discard"`` the rule is the high-water
mark of the literature.

A source that began anew does not know its earlier IDs. To go on as if it did would double messages silently: after
B7, A1, B6 the last ID is B6, and B7 would pass for new. So until ``3 * depth + 1`` IDs were taken in, it says
unverified where it would say fresh. The same holds where the history of a source begins late (retention, a commit
without a text), and where the watermark moved over records that nobody folded. That number is enough: a record
completed before was overtaken by at most ``depth`` new IDs and as many repeated ones, so that it lies below all that
is remembered by then. An ID that is remembered makes a duplicate at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dedup_sdk._core.seen_bytes import (
    DENSE,
    PARTIAL,
    SPARSE,
    decode_seen,
    encode_dense,
    encode_partial,
    encode_sparse,
    framed,
    unframed,
)
from dedup_sdk._masking import shown
from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.orders import Comparison, Order, PartialOrder, SortKey
from dedup_sdk.orders._sort_key import ONLY_ORIGIN


class IdStatus(IntEnum):
    """The answers of `Seen.status`."""

    NEWER = 0
    """It comes after the last one."""
    UNSEEN = 1
    """It comes before the last one, where all that was seen is remembered, and it was not."""
    SEEN = 2
    """It is among those remembered."""
    BELOW = 3
    """It comes before the last one, and so far below that nobody remembers."""
    UNCOMPARABLE = 4
    """Nothing can be said of it and the last one."""
    MALFORMED = 5
    """The order cannot read it."""


class Candidate(NamedTuple):
    """An ID as it came, and its place; None where the order gives it none."""

    id_bytes: bytes
    place: SortKey | None

    @property
    def token(self) -> Any:
        """A value that is equal for equal IDs: the place, or the ID itself where there are no places."""
        return self.id_bytes if self.place is None else token_of(self.place)


def token_of(place: SortKey) -> Any:
    """Return a value that is equal for equal places only: the rank itself where that is a number of the only origin."""
    origin, rank = place
    return rank if type(rank) is int and origin == ONLY_ORIGIN else place


class Seen(ABC):
    """The remembered IDs of a source. Changes in place: `copy` it before it is shared.

    A candidate's place is None exactly where the order gives its IDs none (`dedup_sdk.orders.PartialOrder`).
    """

    __slots__ = ("depth", "forgot", "known")

    def __init__(self, depth: int, *, known: int | None, forgot: bool) -> None:
        self.depth = depth
        self.known = known
        self.forgot = forgot

    def _count(self, taken: int) -> None:
        """Note that so many IDs were taken in."""
        if self.known is not None:
            # New IDs overtake at most ``depth`` others, are overtaken by as many, and come again behind as many newer
            # ones: with so many known, earlier ones lie below all that is remembered.
            self.known = self.known + taken if self.known + taken <= 3 * self.depth else None

    def doubt(self) -> None:
        """Note that IDs may be missing which were completed since the source began."""
        self.known = 0

    @property
    @abstractmethod
    def last_id(self) -> bytes:
        """The last ID, as it came."""

    @abstractmethod
    def status(self, candidate: Candidate) -> IdStatus:
        """Say how an ID stands to those remembered."""

    def lacks(self, candidate: Candidate) -> bool:
        """Whether an ID was certainly not completed since the source began; False in doubt.

        Where IDs cannot always be compared (several origins, or an order without places), a source begins anew with
        the first that cannot, and has forgotten those before it: then a newer ID may be one of these.
        """
        begins_anew = candidate.place is None or candidate.place.origin != ONLY_ORIGIN
        return not (begins_anew and self.forgot) and self.status(candidate) in (
            IdStatus.NEWER,
            IdStatus.UNSEEN,
        )

    @abstractmethod
    def take(self, candidate: Candidate) -> IdStatus:
        """Remember a completed ID that is `IdStatus.NEWER` or `IdStatus.UNSEEN`; return its status.

        Any other ID changes nothing.
        """

    def take_run(self, ids: Sequence[bytes], ranks: Sequence[Any]) -> None:
        """Remember completed IDs of one origin, each newer than the one before, the first newer than the last one."""
        origin = self.origin
        for id_bytes, rank in zip(ids, ranks, strict=True):
            self.take(Candidate(id_bytes, SortKey(origin, rank)))

    def take_number(self, id_bytes: bytes, number: int) -> IdStatus:
        """As `take`, of an ID whose rank is a number of the only origin."""
        return self.take(Candidate(id_bytes, SortKey(ONLY_ORIGIN, number)))

    def remembers(self, rank: Any, newest: Any, taken: int) -> bool:
        """Whether a rank of this origin was seen, and stays remembered after ``taken`` newer IDs; False in doubt.

        ``newest`` is the highest rank of those IDs.
        """
        del rank, newest, taken
        return False

    @property
    @abstractmethod
    def origin(self) -> Any:
        """The origin of the last ID; None where the order knows none."""

    @property
    @abstractmethod
    def last_rank(self) -> Any:
        """The rank of the last ID; None where the order gives none."""

    @abstractmethod
    def copy(self) -> Seen:
        """Return another one that remembers the same."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return its bytes (`dedup_sdk._core.seen_bytes`); equal for equal memories, at least nine."""


@cache
def _mask(depth: int) -> int:
    """Return a mask of ``depth + 1`` bits; all sources share one integer, which may be as large as a memory."""
    return (1 << depth + 1) - 1


class DenseSeen(Seen):
    """Bit ``i`` of ``bits`` says whether the rank ``last_rank - i`` was seen, for ``i`` from 0 to ``depth``."""

    __slots__ = ("_last_id", "_last_rank", "_mask", "_origin", "bits")

    def __init__(
        self,
        depth: int,
        last_id: bytes,
        place: SortKey,
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

    def status(self, candidate: Candidate) -> IdStatus:
        """Say how an ID stands to those remembered."""
        place = candidate.place
        if place is None:
            return IdStatus.MALFORMED
        rank: Any = place.rank
        if place.origin != self._origin:
            return IdStatus.UNCOMPARABLE
        below = self._last_rank - rank
        if below < 0:
            return IdStatus.NEWER
        if below <= self.depth:
            return IdStatus.SEEN if self.bits >> below & 1 else IdStatus.UNSEEN
        return IdStatus.BELOW if self.forgot else IdStatus.UNSEEN

    def take(self, candidate: Candidate) -> IdStatus:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        place = candidate[1]
        if place is None:
            return IdStatus.MALFORMED
        origin, rank = place
        if origin != self._origin:
            return IdStatus.UNCOMPARABLE
        below: Any = self._last_rank - rank
        if below < 0:
            self._move(-below)
            self._last_id, self._last_rank = candidate[0], rank
            self.bits |= 1
            self._count(1)
            return IdStatus.NEWER
        status = self.status(candidate)
        if status is IdStatus.UNSEEN:
            if below <= self.depth:
                self.bits |= 1 << below
                self._count(1)
            else:
                # There is no bit so far below: from now on nobody can tell which IDs were completed there.
                self.forgot = True
        return status

    def take_number(self, id_bytes: bytes, number: int) -> IdStatus:
        """As `take`; nearly all are newer than the last one, by little."""
        distance = number - self._last_rank
        if not 0 < distance <= self.depth or self._origin != ONLY_ORIGIN:
            return self.take(Candidate(id_bytes, SortKey(ONLY_ORIGIN, number)))
        moved = self.bits << distance | 1
        if moved > self._mask:
            kept = moved & self._mask
            self.forgot, moved = self.forgot or kept != moved, kept
        self.bits = moved
        self._last_id, self._last_rank = id_bytes, number
        if self.known is not None:
            self._count(1)
        return IdStatus.NEWER

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
        # A run longer than the depth forgets IDs of its own, which no bit ever showed.
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
        """Let the last rank rise; bits that fall out at the bottom are forgotten. The new last rank is not set yet."""
        # Not shifted by a distance that a hostile ID may make as large as it likes.
        moved = self.bits << distance if distance <= self.depth else 0
        self.bits = moved & self._mask
        self.forgot = self.forgot or distance > self.depth or moved != self.bits

    def copy(self) -> DenseSeen:
        """Return another one that remembers the same."""
        place = SortKey(self._origin, self._last_rank)
        return DenseSeen(
            self.depth, self._last_id, place, bits=self.bits, known=self.known, forgot=self.forgot
        )

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_dense(self._last_id, self.bits, self.depth, self.known, self.forgot)


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

    def status(self, candidate: Candidate) -> IdStatus:
        """Say how an ID stands to those remembered."""
        place = candidate.place
        if place is None:
            return IdStatus.MALFORMED
        origin, rank = place
        if origin != self._origin:
            return IdStatus.UNCOMPARABLE
        if rank > self.ranks[-1]:
            return IdStatus.NEWER
        at = bisect_left(self.ranks, rank)
        if self.ranks[at] == rank:
            return IdStatus.SEEN
        return IdStatus.BELOW if at == 0 and self.forgot else IdStatus.UNSEEN

    def take(self, candidate: Candidate) -> IdStatus:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        status = self.status(candidate)
        if status is IdStatus.NEWER or status is IdStatus.UNSEEN:
            rank: Any = None if candidate.place is None else candidate.place.rank
            at = len(self.ranks) if status is IdStatus.NEWER else bisect_left(self.ranks, rank)
            # Inserted, the ID would be the first to be forgotten: such an ID adds nothing to `known`.
            if at == 0 and len(self.ranks) > self.depth:
                self.forgot = True
                return status
            self.items.insert(at, framed(candidate.id_bytes))
            self.ranks.insert(at, rank)
            self._forget_below_depth()
            self._count(1)
        return status

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


_STANDINGS = {
    Comparison.NEWER: IdStatus.NEWER,
    Comparison.SAME: IdStatus.SEEN,
    Comparison.UNCOMPARABLE: IdStatus.UNCOMPARABLE,
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

    def status(self, candidate: Candidate) -> IdStatus:
        """Say how an ID stands to those remembered."""
        id_bytes = candidate.id_bytes
        # `ids` may have forgotten the newest ID, which came long before; equal bytes need no order.
        if id_bytes in self.ids or id_bytes == self._last_id:
            return IdStatus.SEEN
        comparison = self._order.compare(self._last_id, id_bytes)
        if comparison is Comparison.OLDER:
            return IdStatus.BELOW if self.forgot else IdStatus.UNSEEN
        return _STANDINGS[comparison]

    def take(self, candidate: Candidate) -> IdStatus:
        """Remember a completed ID that is newer or unseen; return how it stood."""
        status = self.status(candidate)
        if status not in (IdStatus.NEWER, IdStatus.UNSEEN):
            return status
        if status is IdStatus.NEWER:
            self._last_id = candidate.id_bytes
        self.ids[candidate.id_bytes] = None
        self._forget_oldest()
        self._count(1)
        return status

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


def begin(order: Order, depth: int, candidate: Candidate, *, knows_all: bool) -> Seen:
    """Return the memory of a source whose first ID was completed; ``knows_all``: nothing of the source came before it.

    Raises `ValueError` for an ID that has no place where the order gives places.
    """
    id_bytes, place = candidate
    known = None if knows_all or depth == 0 else 1
    # One ID is enough to be known, and nobody knows the IDs before it.
    forgot = not knows_all and depth == 0
    if place is not None:
        if order.dense:
            return DenseSeen(depth, id_bytes, place, known=known, forgot=forgot)
        return SparseSeen(depth, place.origin, [framed(id_bytes)], [place.rank], known=known, forgot=forgot)
    if isinstance(order, PartialOrder):
        return PartialSeen(depth, order, id_bytes, {id_bytes: None}, known=known, forgot=forgot)
    raise ValueError(f"{shown(id_bytes[:80])} has no place in the order {order.name}")


def restore(order: Order, depth: int, record: bytes) -> Seen:
    """Return the memory with these bytes, perhaps under another depth: a smaller one forgets, a larger one keeps all.

    Raises `StoreCorruptError` for bytes that are not of this order.
    """
    read = decode_seen(record)
    if read.kind == PARTIAL and isinstance(order, PartialOrder):
        ids = dict.fromkeys(read.ids)
        return PartialSeen(depth, order, read.last_id, ids, known=read.known, forgot=read.forgot)
    if read.kind == DENSE and order.dense:
        bits = read.bits & ((1 << depth + 1) - 1)
        # Below the old bits nobody knows which IDs were forgotten: the bits seem to say that none was seen.
        known = 1 if read.forgot and depth > read.depth else read.known
        return DenseSeen(
            depth, read.last_id, _place(order, read.last_id), bits=bits, known=known,
            forgot=read.forgot or bits != read.bits,
        )  # fmt: skip
    if read.kind == SPARSE and not order.dense and order.has_sort_keys:
        places = [_place(order, id_bytes) for id_bytes in read.ids]
        ranks: list[Any] = [place.rank for place in places]
        return SparseSeen(
            depth, places[-1].origin, [*map(framed, read.ids)], ranks, known=read.known, forgot=read.forgot
        )
    raise _of_another_order(order, read.last_id)


def _place(order: Order, id_bytes: bytes) -> SortKey:
    place = order.sort_key(id_bytes)
    if place is None:
        raise _of_another_order(order, id_bytes)
    return place


def _of_another_order(order: Order, id_bytes: bytes) -> StoreCorruptError:
    return StoreCorruptError(
        f"a source remembers {shown(id_bytes[:80])}, which is none of the order {order.name}; rebuild the store, or "
        "use the order it was made with"
    )
