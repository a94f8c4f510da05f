"""MySQL's global transaction identifiers: single ones, counted by each server, and sets of them, compared by inclusion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

from dedup_sdk.orders.comparison import Comparison
from dedup_sdk.orders.decimals import MAX_INT64, unsigned
from dedup_sdk.orders.order import Order
from dedup_sdk.orders.place import Place

MAX_SET_BYTES = 65_536
"""A longer text is no set: as long as an ID may be."""

Intervals: TypeAlias = tuple[tuple[int, int], ...]
GtidSet: TypeAlias = Mapping[str, Intervals]

_UUID = rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_TAG = rb"[A-Za-z_][A-Za-z0-9_]{0,31}"
_GTID = re.compile(rb"(%s(?::%s)?):([0-9]{1,20})" % (_UUID, _TAG))
_SERVER = re.compile(_UUID)
_TAG_ONLY = re.compile(_TAG)
_BLANKS = b" \t\r\n"
_SHORT_BYTES = 2_048
_SETS_KEPT = 128  # mostly the last of some lanes, which is asked for with every record


@dataclass(frozen=True, slots=True)
class MysqlGtid(Order):
    """Single GTIDs; see `dedup_sdk.orders.mysql_gtid`."""

    dense: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "mysql-gtid"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of ``uuid:23`` or ``uuid:tag:23``; the origin is what stands before the number, in lower case."""
        found = _GTID.fullmatch(dedup_id)
        if found is None:
            return None
        number = _transaction(found[2])
        return None if number is None else Place(found[1].lower().decode("ascii"), number)


def compare_gtid_sets(last: bytes, new: bytes) -> Comparison:
    """Return how a new GTID set stands to the last one: newer when it has all that the last one has, and more."""
    before, after = read_gtid_set(last), read_gtid_set(new)
    if before is None or after is None:
        return Comparison.UNCOMPARABLE
    if before == after:
        return Comparison.SAME
    if _is_within(before, after):
        return Comparison.NEWER
    return Comparison.OLDER if _is_within(after, before) else Comparison.UNCOMPARABLE


def read_gtid_set(text: bytes) -> GtidSet | None:
    """Return the intervals of each server (and tag), in order and apart from each other; None for what is no set."""
    if len(text) > MAX_SET_BYTES:
        return None
    return _read(text) if len(text) > _SHORT_BYTES else _read_short(text)


def _read(text: bytes) -> GtidSet | None:
    found: dict[str, list[tuple[int, int]]] = {}
    for one_server in text.split(b","):
        server, *rest = (part.strip(_BLANKS) for part in one_server.split(b":"))
        if not _SERVER.fullmatch(server) or not rest:
            return None
        origin = server.lower()
        tagged = origin
        for index, part in enumerate(rest):
            interval = _interval(part)
            if interval is not None:
                found.setdefault(tagged.decode("ascii"), []).append(interval)
            elif _TAG_ONLY.fullmatch(part) and index + 1 < len(rest) and _interval(rest[index + 1]):
                tagged = origin + b":" + part.lower()
            else:
                return None
    return {origin: _merged(intervals) for origin, intervals in found.items()}


# What is read takes some fifty times its text, so that long ones are not kept.
_read_short = lru_cache(maxsize=_SETS_KEPT)(_read)


def _interval(text: bytes) -> tuple[int, int] | None:
    """Return the first and the last number of ``5`` or ``5-9``; None for anything else, also one that ends before it begins."""
    left, dash, right = text.partition(b"-")
    first = _transaction(left.strip(_BLANKS))
    last = _transaction(right.strip(_BLANKS)) if dash else first
    return (first, last) if first and last and first <= last else None


def _transaction(text: bytes) -> int | None:
    """Return a transaction's number, which begins at 1; None for anything else."""
    return unsigned(text, MAX_INT64) or None


def _merged(intervals: list[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _is_within(inner: GtidSet, outer: GtidSet) -> bool:
    return all(
        origin in outer and _all_within(intervals, outer[origin]) for origin, intervals in inner.items()
    )


def _all_within(inner: Intervals, outer: Intervals) -> bool:
    """Whether each interval lies inside one of the others; both are in order, and gone through once."""
    around = iter(outer)
    begins, ends = next(around)
    for first, last in inner:
        while ends < last:
            following = next(around, None)
            if following is None:
                return False
            begins, ends = following
        if first < begins:
            return False
    return True
