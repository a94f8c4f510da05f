"""Making what a lane remembers: anew, and from its bytes."""

from __future__ import annotations

from typing import Any

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.dense import DenseSeen
from dedup_sdk.last.partial import PartialSeen
from dedup_sdk.last.seen import Seen
from dedup_sdk.last.seen_bytes import DENSE, PARTIAL, SPARSE, SeenBytes, decode_seen, framed
from dedup_sdk.last.sparse import SparseSeen
from dedup_sdk.orders import Order, PartialOrder, Place


def begin(order: Order, depth: int, candidate: Candidate, *, knows_all: bool) -> Seen:
    """Return the memory of a lane whose first ID was completed; ``knows_all``: nothing of the lane came before it.

    Raises `ValueError` for an ID that has no place where the order gives places.
    """
    id_bytes, place = candidate
    if isinstance(order, PartialOrder):
        return PartialSeen(depth, order, id_bytes, {id_bytes: None}, forgot=not knows_all)
    if place is None:
        raise ValueError(f"{id_bytes[:80]!r} has no place in the order {order.name}")
    if order.dense:
        return DenseSeen(depth, id_bytes, place, floor=None if knows_all else place.rank)
    floor = None if knows_all else (id_bytes, place.rank)
    return SparseSeen(depth, place.origin, [framed(id_bytes)], [place.rank], floor)


def restore(order: Order, depth: int, record: bytes) -> Seen:
    """Return the memory whose bytes these are, under another depth perhaps: a smaller one forgets, a larger one keeps all.

    Raises `StoreCorruptError` for bytes that are not of this order.
    """
    read = decode_seen(record)
    if read.kind == PARTIAL and isinstance(order, PartialOrder):
        kept = read.ids[-depth - 1 :]
        return PartialSeen(
            depth,
            order,
            read.last_id,
            dict.fromkeys(kept),
            forgot=read.has_floor or len(kept) < len(read.ids),
        )
    if read.kind == DENSE and order.dense:
        return _dense(order, depth, read)
    if read.kind == SPARSE and not order.dense:
        return _sparse(order, depth, read)
    raise _of_another_order(order, read.last_id)


def _dense(order: Order, depth: int, read: SeenBytes) -> DenseSeen:
    place = _place(order, read.last_id)
    rank: Any = place.rank
    bits = read.bits & ((1 << depth + 1) - 1)
    floor = rank - read.below if read.has_floor else None
    if bits != read.bits or (floor is not None and floor < rank - depth - 1):
        bottom = rank - depth - 1
        floor = bottom if floor is None else max(floor, bottom)
    return DenseSeen(depth, read.last_id, place, bits=bits, floor=floor)


def _sparse(order: Order, depth: int, read: SeenBytes) -> SparseSeen:
    places = [_place(order, id_bytes) for id_bytes in read.ids]
    floor = (read.floor_id, _place(order, read.floor_id).rank) if read.has_floor else None
    seen = SparseSeen(
        depth, places[-1].origin, [*map(framed, read.ids)], [place.rank for place in places], floor
    )
    seen.forget_below_depth()
    return seen


def _place(order: Order, id_bytes: bytes) -> Place:
    place = order.place(id_bytes)
    if place is None:
        raise _of_another_order(order, id_bytes)
    return place


def _of_another_order(order: Order, id_bytes: bytes) -> StoreCorruptError:
    return StoreCorruptError(
        f"a lane remembers {id_bytes[:80]!r}, which is none of the order {order.name}; rebuild the store, or use the order it was made with"
    )
