"""Records of many plain lanes, taken in at once: what `dedup_sdk.last.dense.DenseSeen` does for one ID after the other, as columns.

A lane's records are looked at from its last rank before them (``relative`` ranks), so that no sum leaves its 64 bits whatever an ID is. What
is not plain about a record makes its lane one of the ``odd``: of these nothing is said, they are left to the rule for single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.last.rows import ALL_KNOWN, ID_BYTES, Rows, Uint64s
from dedup_sdk.last.seen_bytes import DENSE
from dedup_sdk.marks import Int64s

Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

FARTHEST: Final = 2**31
"""A rank that is further above the last one of its lane is left to the rule for single records."""
LONGEST_WINDOW_MS: Final = 2**40
_RANK_BITS: Final = 33
_TIME_BITS: Final = 40
_WORD_BITS: Final = 64


def begins_of(lanes: Places) -> Bools:
    """Return where in an ascending column another value begins, shape as given."""
    begins = np.ones(len(lanes), np.bool_)
    np.not_equal(lanes[1:], lanes[:-1], out=begins[1:])
    return begins


@dataclass(slots=True)
class Records:
    """``n`` records that take part, ascending by lane and then by offset; columns of shape ``(n,)``.

    ``at`` is the number of a record's lane among those of the records (from 0 to ``lanes - 1``), ``rows`` its row in its chunk, ``first`` the positions
    where a lane begins.
    """

    at: Places
    first: Places
    rows: Places
    high: Int64s
    low: Uint64s
    offsets: Int64s
    times: Int64s

    def without(self, odd: Bools) -> Records:
        """Return the records of the other lanes; ``odd`` has shape ``(lanes,)``."""
        kept = ~odd[self.at]
        at = (np.cumsum(~odd) - 1)[self.at[kept]]
        first = np.flatnonzero(begins_of(at))
        return Records(
            at, first, self.rows[kept], self.high[kept], self.low[kept], self.offsets[kept], self.times[kept]
        )

    def ends(self) -> Places:
        """Return the position of the last record of each lane."""
        ends = np.empty_like(self.first)
        ends[:-1] = self.first[1:]
        ends[-1:] = len(self.at)
        return ends - 1


@dataclass(slots=True)
class Taken:
    """What came of it: ``after`` are the lanes' rows with the records taken in; ``seen`` the positions of records whose ID was remembered before.

    These were seen last at ``seen_offsets`` and ``seen_ms``: offset and newest timestamp of the lane's last record before.
    """

    after: Rows
    seen: Places
    seen_offsets: Int64s
    seen_ms: Int64s


def take_many(
    before: Rows, records: Records, ids: Sequence[Any], *, depth: int, window_ms: int, parts_twins: bool
) -> Taken | Bools:
    """Take records in, on top of what their lanes remember (``before``, shape ``(lanes,)``); or return which lanes are odd, if any is.

    ``ids`` has the ID of each row of the chunk. With ``parts_twins`` a lane is odd also where an ID comes a second time that was not remembered before.
    """
    at = records.at
    base = _base_of(before, records)
    relative, age_ms, odd = _looked_at(before, base, records, depth, window_ms)
    if odd.any():
        return odd
    lane = at << _RANK_BITS
    risen = np.maximum.accumulate(lane + np.maximum(relative, 0)) - lane
    late, seen, wrong = _standing(before, records, relative, risen, depth=depth, parts_twins=parts_twins)
    if wrong.any():
        odd[at[late[wrong]]] = True
        return odd
    after = _bytes_of(before).copy().view(before.dtype)
    ends = records.ends()
    distance = risen[ends]
    newest = relative == distance[at]
    newest[late] = False
    newest[records.first[base.new & (distance == 0)]] = True
    if not _name(after, records, ids, np.flatnonzero(newest), odd):
        return odd
    if base.new.any():
        after["kind"][base.new], after["known"][base.new], after["depth"][base.new] = DENSE, ALL_KNOWN, depth
    after["high"] = base.high
    after["low"] = base.low + distance.view(np.uint64)
    after["offset"] = records.offsets[ends]
    _move(after, before, distance, depth)
    _mark(after, at, distance[at] - relative, depth)
    early = at << _TIME_BITS
    latest = np.maximum.accumulate(early + np.maximum(age_ms, 0)) - early
    after["time"] = base.times + latest[ends]
    return Taken(after, *_sightings(base, records, latest, late[seen]))


def _looked_at(
    before: Rows, base: _Base, records: Records, depth: int, window_ms: int
) -> tuple[Int64s, Int64s, Bools]:
    """Return the relative ranks of records, their ages (ms) as seen from their lanes, and which lanes are odd: then the others say nothing."""
    at, low, base_low = records.at, records.low, base.low[records.at]
    ups = low >= base_low
    up, down = low - base_low, base_low - low
    age_ms = records.times - base.times[at]
    wrong = np.where(ups, up > FARTHEST, down > depth)
    wrong |= records.high != base.high[at]
    wrong |= age_ms > window_ms
    wrong |= records.offsets <= base.offsets[at]
    # Where there is no time, or none that can be, no age says anything.
    odd = (base.times < -1) | (before["known"] != ALL_KNOWN) & ~base.new
    odd[at[wrong]] = True
    # What is below wraps around, to what it is with a sign.
    return up.view(np.int64), age_ms, odd


def _standing(
    before: Rows, records: Records, relative: Int64s, risen: Int64s, *, depth: int, parts_twins: bool
) -> tuple[Places, Bools, Bools]:
    """Return the positions of records that are not newer than all before, and of these which were seen, and which are not plain.

    ``risen``: the highest relative rank of its lane up to each record, or 0.
    """
    at, first = records.at, records.first
    highest = np.empty_like(risen)
    highest[1:] = risen[:-1]
    highest[first] = 0
    late = np.flatnonzero(relative <= highest)
    seen = np.zeros(len(late), np.bool_)
    wrong = highest[late] - relative[late] > depth
    places = -relative[late]
    known = np.flatnonzero((places >= 0) & ~wrong)
    asked = places[known]
    bit = (asked & (_WORD_BITS - 1)).view(np.uint64)
    words = before["bits"][at[late[known]], asked // _WORD_BITS]
    seen[known] = (words >> bit & np.uint64(1)).astype(np.bool_)
    if parts_twins:
        wrong |= _twins(relative, at, first, late, seen)
    return late, seen, wrong


def _name(after: Rows, records: Records, ids: Sequence[Any], newest: Places, odd: Bools) -> bool:
    """Set the last IDs of the lanes whose newest record came, at these positions; False where one is too long: its lane is odd."""
    last_ids = list(map(ids.__getitem__, records.rows[newest].tolist()))
    sizes = np.fromiter(map(len, last_ids), np.uint32, len(last_ids))
    moved = records.at[newest]
    if int(sizes.max(initial=0)) > ID_BYTES:
        odd[moved] = sizes > ID_BYTES
        return False
    after["id"][moved] = np.array(last_ids, f"S{ID_BYTES}").view(f"V{ID_BYTES}")
    after["size"][moved] = sizes
    return True


def _sightings(
    base: _Base, records: Records, latest: Int64s, repeats: Places
) -> tuple[Places, Int64s, Int64s]:
    """Return records whose ID was seen, with offset and newest timestamp of the record before, at ``latest`` ms after the base."""
    at = records.at[repeats]
    follow = records.first[at] != repeats
    offsets = np.where(follow, records.offsets[repeats - 1], base.offsets[at])
    return repeats, offsets, base.times[at] + np.where(follow, latest[repeats - 1], 0)


def _bytes_of(rows: Rows) -> NDArray[Any]:
    """Return rows as bytes: of others numpy copies field by field."""
    return rows.view(f"V{rows.dtype.itemsize}")


@dataclass(slots=True)
class _Base:
    """From where the records of each lane are looked at: its last rank, offset and time, or those of the first record where it is ``new``."""

    new: Bools
    high: Int64s
    low: Uint64s
    offsets: Int64s
    times: Int64s


def _base_of(before: Rows, records: Records) -> _Base:
    new = before["kind"] == 0
    base = _Base(
        new, before["high"].copy(), before["low"].copy(), before["offset"].copy(), before["time"].copy()
    )
    if new.any():
        begins = records.first[new]
        base.high[new], base.low[new] = records.high[begins], records.low[begins]
        base.offsets[new], base.times[new] = records.offsets[begins] - 1, records.times[begins]
    return base


def _twins(relative: Int64s, at: Places, first: Places, late: Places, seen: Bools) -> Bools:
    """Return which of the late records may bear an ID that an earlier one of these records bears."""
    doubtful = ~seen
    doubtful &= first[at[late]] != late
    if not doubtful.any():
        return doubtful
    lanes = np.zeros(len(first), np.bool_)
    lanes[at[late[doubtful]]] = True
    among = np.flatnonzero(lanes[at])
    ranks = (at[among] << _RANK_BITS + 1) + relative[among]
    ranks.sort()
    again = np.zeros(len(first), np.bool_)
    again[(ranks[1:][ranks[1:] == ranks[:-1]] + FARTHEST) >> _RANK_BITS + 1] = True
    return doubtful & again[at[late]]


def _move(after: Rows, before: Rows, distance: Int64s, depth: int) -> None:
    """Let the last ranks rise by a distance each; what falls out at the bottom is forgotten."""
    rest = (distance & (_WORD_BITS - 1)).view(np.uint64)
    back = np.uint64(_WORD_BITS - 1) - rest
    one = np.uint64(1)
    top = np.uint64((1 << depth % _WORD_BITS + 1) - 1)
    if int(distance.max()) >= _WORD_BITS:
        _move_words(after, before, distance, depth)
    else:
        # Word by word, as columns without gaps.
        bits = np.ascontiguousarray(before["bits"].T)
        words = len(bits)
        moved = np.empty_like(bits)
        for word in range(words):
            np.left_shift(bits[word], rest, out=moved[word])
            if word:
                moved[word] |= bits[word - 1] >> back >> one
        lost = (moved[-1] & ~top) | bits[-1] >> back >> one
        after["forgot"] |= (lost != 0).view(np.uint8)
        after["bits"] = moved.T
    after["bits"][:, -1] &= top


def _move_words(after: Rows, before: Rows, distance: Int64s, depth: int) -> None:
    """Let bits rise by more than a word."""
    bits = before["bits"]
    count, words = bits.shape
    aware = np.flatnonzero((before["forgot"] == 0) & (distance > 0) & (before["kind"] != 0))
    if aware.size:
        forgets = distance[aware] + _highest_bit(bits[aware]) > depth
        after["forgot"][aware[forgets]] = 1
    padded = np.zeros((count, 2 * words + 1), np.uint64)
    padded[:, words + 1 :] = bits
    whole = np.minimum(distance // _WORD_BITS, words)
    rest = (distance & (_WORD_BITS - 1)).view(np.uint64)
    back = np.uint64(_WORD_BITS - 1) - rest
    lanes = np.arange(count)
    for word in range(words):
        upper, under = padded[lanes, words + 1 + word - whole], padded[lanes, words + word - whole]
        after["bits"][:, word] = upper << rest | under >> back >> np.uint64(1)


def _highest_bit(bits: Uint64s) -> Int64s:
    """Return which is the highest bit of each row that is set; one is."""
    octets = np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), -1)
    octet = octets.shape[1] - 1 - (octets[:, ::-1] != 0).argmax(axis=1)
    value = octets[np.arange(len(bits)), octet].astype(np.float64)
    highest: Int64s = 8 * octet + np.frexp(value)[1] - 1
    return highest


def _mark(after: Rows, at: Places, below: Int64s, depth: int) -> None:
    """Note the ranks that lie so far below the last one of their lane as seen."""
    kept = below <= depth
    if not kept.all():
        after["forgot"][at[~kept]] = 1
        at, below = at[kept], below[kept]
    words = after["bits"].shape[1]
    bits = np.ascontiguousarray(after["bits"])
    ones = np.uint64(1) << (below & (_WORD_BITS - 1)).view(np.uint64)
    np.bitwise_or.at(bits.reshape(-1), at * words + below // _WORD_BITS, ones)
    after["bits"] = bits
