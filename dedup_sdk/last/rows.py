"""What plain lanes remember, as rows of a table: where there are many, none of them is an object of its own.

plain
    a lane whose ranks are whole numbers of the only origin, with bits for those seen (`dedup_sdk.last.dense`), a short last ID, and nothing in doubt.
rank
    in two columns: ``high`` and ``low``, of 64 bits each, are one number, ``high`` with its sign.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.last.dense import DenseSeen
from dedup_sdk.last.rule import LaneMark
from dedup_sdk.last.seen_bytes import DENSE
from dedup_sdk.marks import DIGEST_BYTES, Int64s, Packed
from dedup_sdk.orders import Place
from dedup_sdk.orders.place import ONLY_ORIGIN

Rows: TypeAlias = NDArray[Any]
Uint64s: TypeAlias = NDArray[np.uint64]

ID_BYTES: Final = 24
"""A lane whose last ID is longer is not plain."""
MOST_DEPTH: Final = 1_023
"""Beyond it the bits of a lane would take more than the rest of it many times over, seen or not."""
ALL_KNOWN: Final = -1
"""In the column ``known``, as in the bytes that are stored."""
_WORD_BITS: Final = 64
_LOW: Final = 2**_WORD_BITS - 1
_HEAD_BYTES: Final = 16


@cache
def row_type(depth: int) -> np.dtype[Any]:
    """Return the layout of a lane's row; one of zeros is a lane of which nothing is remembered.

    From ``kind`` on it is what a store keeps of a dense memory (`dedup_sdk.last.seen_bytes`), but for what of the ID and the bits is not used.
    """
    words = depth // _WORD_BITS + 1
    return np.dtype(
        [
            ("digest", f"V{DIGEST_BYTES}"), ("high", "<i8"), ("low", "<u8"), ("offset", "<i8"), ("time", "<i8"),
            ("kind", "u1"), ("forgot", "u1"), ("zero", "<u2"), ("known", "<i4"), ("depth", "<u4"), ("size", "<u4"),
            ("id", f"V{ID_BYTES}"), ("bits", "<u8", (words,)),
        ]
    )  # fmt: skip


def split_ranks(ranks: list[Any]) -> tuple[Int64s, Uint64s] | None:
    """Return whole numbers as their two columns, shape ``(n,)`` each; None where one of them has more than 128 bits."""
    try:
        column = np.fromiter(ranks, np.int64, len(ranks))
    except OverflowError:
        try:
            high = np.fromiter((rank >> _WORD_BITS for rank in ranks), np.int64, len(ranks))
        except OverflowError:
            return None
        return high, np.fromiter((rank & _LOW for rank in ranks), np.uint64, len(ranks))
    return column >> (_WORD_BITS - 1), column.view(np.uint64)


def row_of(mark: LaneMark, digest: bytes) -> Rows | None:
    """Return what is remembered of a plain lane as its row, shape ``(1,)``, None of any other lane."""
    seen = mark.seen
    if not isinstance(seen, DenseSeen) or seen.known is not None or seen.origin != ONLY_ORIGIN:
        return None
    rank = seen.last_rank
    if len(seen.last_id) > ID_BYTES or not -(1 << 127) <= rank < 1 << 127:
        return None
    row = np.zeros(1, row_type(seen.depth))
    words = row["bits"].shape[1]
    row["digest"] = np.void(digest)
    row["high"], row["low"] = rank >> _WORD_BITS, rank & _LOW
    row["offset"], row["time"] = mark.offset, mark.timestamp_ms
    row["kind"], row["forgot"], row["known"], row["depth"] = DENSE, seen.forgot, ALL_KNOWN, seen.depth
    row["size"], row["id"] = len(seen.last_id), np.void(seen.last_id.ljust(ID_BYTES, b"\0"))
    row["bits"] = np.frombuffer(seen.bits.to_bytes(8 * words, "little"), np.uint64)
    return row


def mark_of(row: Any, depth: int) -> LaneMark | None:
    """Return what is remembered of the lane of one row; None where that is nothing."""
    if not row["kind"]:
        return None
    place = Place(ONLY_ORIGIN, (int(row["high"]) << _WORD_BITS) + int(row["low"]))
    seen = DenseSeen(
        depth,
        row["id"].tobytes()[: int(row["size"])],
        place,
        bits=int.from_bytes(row["bits"].tobytes(), "little"),
        known=None if row["known"] == ALL_KNOWN else int(row["known"]),
        forgot=bool(row["forgot"]),
    )
    return LaneMark(seen, int(row["offset"]), int(row["time"]))


def payloads_of(rows: Rows) -> Packed:
    """Return the bytes of what each row remembers (`DenseSeen.encode`), shape ``(n,)``; none of them may remember nothing."""
    rows = np.ascontiguousarray(rows)
    table = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    fields: Any = rows.dtype.fields
    head_at, bits_at = fields["kind"][1], fields["bits"][1]
    width = table.shape[1] - bits_at
    # Of each what is not used of its ID, and the bits above the last byte that has one, is left out.
    octets = width - (table[:, : bits_at - 1 : -1] != 0).argmax(axis=1)
    used = np.empty((len(rows), table.shape[1] - head_at), np.bool_)
    used[:, : bits_at - head_at] = _up_to(_HEAD_BYTES, ID_BYTES).take(rows["size"], axis=0)
    used[:, bits_at - head_at :] = _up_to(0, width).take(octets, axis=0)
    return Packed(table[:, head_at:][used].tobytes(), _HEAD_BYTES + rows["size"] + octets)


@cache
def _up_to(least: int, most: int) -> NDArray[np.bool_]:
    """Return in row ``n``, from 0 to ``most``, ``least + n`` times true, then false."""
    mask: NDArray[np.bool_] = np.arange(least + most) < least + np.arange(most + 1)[:, None]
    return mask
