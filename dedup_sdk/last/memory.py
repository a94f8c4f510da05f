"""Making what a lane remembers: anew, and from its bytes."""

from __future__ import annotations

from typing import Any

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.dense import DenseSeen
from dedup_sdk.last.partial import PartialSeen
from dedup_sdk.last.seen import Seen
from dedup_sdk.last.seen_bytes import DENSE, PARTIAL, SPARSE, decode_seen, framed
from dedup_sdk.last.sparse import SparseSeen
from dedup_sdk.orders import Order, PartialOrder, Place


def begin(order: Order, depth: int, candidate: Candidate, *, knows_all: bool) -> Seen:
    """Return the memory of a lane whose first ID was completed; ``knows_all``: nothing of the lane came before it.

    Raises `ValueError` for an ID that has no place where the order gives places.
    """
    id_bytes, place = candidate
    known = None if knows_all or depth == 0 else 1
    # One ID is enough to be known, and nobody knows what came before it.
    forgot = not knows_all and depth == 0
    if place is not None:
        if order.dense:
            return DenseSeen(depth, id_bytes, place, known=known, forgot=forgot)
        return SparseSeen(depth, place.origin, [framed(id_bytes)], [place.rank], known=known, forgot=forgot)
    if isinstance(order, PartialOrder):
        return PartialSeen(depth, order, id_bytes, {id_bytes: None}, known=known, forgot=forgot)
    raise ValueError(f"{id_bytes[:80]!r} has no place in the order {order.name}")


def restore(order: Order, depth: int, record: bytes) -> Seen:
    """Return the memory whose bytes these are, under another depth perhaps: a smaller one forgets, a larger one keeps all.

    Raises `StoreCorruptError` for bytes that are not of this order.
    """
    read = decode_seen(record)
    if read.kind == PARTIAL and isinstance(order, PartialOrder):
        ids = dict.fromkeys(read.ids)
        return PartialSeen(depth, order, read.last_id, ids, known=read.known, forgot=read.forgot)
    if read.kind == DENSE and order.dense:
        bits = read.bits & ((1 << depth + 1) - 1)
        # Below what the bits reached nobody knows what was forgotten: they seem to say that nothing was seen.
        known = 1 if read.forgot and depth > read.depth else read.known
        return DenseSeen(
            depth, read.last_id, _place(order, read.last_id), bits=bits, known=known,
            forgot=read.forgot or bits != read.bits,
        )  # fmt: skip
    if read.kind == SPARSE and not order.dense and order.has_places:
        places = [_place(order, id_bytes) for id_bytes in read.ids]
        ranks: list[Any] = [place.rank for place in places]
        return SparseSeen(
            depth, places[-1].origin, [*map(framed, read.ids)], ranks, known=read.known, forgot=read.forgot
        )
    raise _of_another_order(order, read.last_id)


def _place(order: Order, id_bytes: bytes) -> Place:
    place = order.place(id_bytes)
    if place is None:
        raise _of_another_order(order, id_bytes)
    return place


def _of_another_order(order: Order, id_bytes: bytes) -> StoreCorruptError:
    return StoreCorruptError(
        f"a lane remembers {id_bytes[:80]!r}, which is none of the order {order.name}; rebuild the store, or use the order it was made with"
    )
