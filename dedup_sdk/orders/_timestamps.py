"""Orders of timestamps: texts of RFC 3339, and numbers since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders._numbers import digits_only
from dedup_sdk.orders._order import NamedOrder, Order
from dedup_sdk.orders._sort_key import ONLY_ORIGIN, SortKey

_NS_DIGITS = 9
_NS = 10**_NS_DIGITS
_LAST_HOUR = 23
_LAST_MINUTE = 59
_LEAP_SECOND = 60
_MINUTES_A_DAY = 1440
_SECONDS_A_DAY = 86_401  # one more than usual, so that a leap second has a sort key of its own

_MOMENT = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    rb"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


@dataclass(frozen=True, slots=True)
class Rfc3339(NamedOrder):
    """Timestamps of RFC 3339; see `dedup_sdk.orders.rfc3339`.

    The rank is a number of nanoseconds in days of 86,401 seconds: it is not a Unix time, but has room for
    leap seconds.
    """

    kind: ClassVar[str] = "rfc3339"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a timestamp such as ``1990-12-31T15:59:60-08:00``."""
        found = _MOMENT.fullmatch(dedup_id)
        if found is None:
            return None
        until_minute, second_text, fraction, zone = found.groups()
        begins = _minute(until_minute, zone)
        second = int(second_text)
        if begins is None or second > (_LEAP_SECOND if begins.may_leap else _LEAP_SECOND - 1):
            return None
        return SortKey(
            ONLY_ORIGIN, (begins.second + second) * _NS + int((fraction or b"").ljust(_NS_DIGITS, b"0"))
        )


def rfc3339() -> Order:
    """Timestamps of RFC 3339: ``1985-04-12T23:20:50.52Z``, ``1996-12-19T16:39:57-08:00``.

    Compared as moments, whatever their offset; ``-00:00`` is UTC (section 4.3), and ``t``, ``z`` and a
    blank for the ``T`` are accepted (section 5.6). A fraction of a second has at most nine digits; more are
    malformed, because cutting them could make two timestamps equal. A leap second (``:60``) is valid only
    at the end of a month in UTC (5.7), and lies between :59 and the next day.
    """
    return Rfc3339()


class _Minute(NamedTuple):
    """The beginning of a minute, in seconds of days that have 86,401 of them, and whether it may have 61 seconds."""

    second: int
    may_leap: bool


@lru_cache(maxsize=1024)  # neighbours are of one minute, and the calendar costs ten times the rest
def _minute(text: bytes, zone: bytes) -> _Minute | None:
    """Return the minute ``1990-12-31T23:59`` of a zone; None for an invalid date or time."""
    hour, minute = int(text[11:13]), int(text[14:])
    ahead, more = (int(zone[1:3]), int(zone[4:6])) if len(zone) > 1 else (0, 0)
    if max(hour, ahead) > _LAST_HOUR or max(minute, more) > _LAST_MINUTE:
        return None
    try:
        day = int(np.datetime64(text[:10].decode("ascii"), "D").astype(np.int64))
    except ValueError:
        return None
    offset = (ahead * 60 + more) * (-1 if zone.startswith(b"-") else 1)
    carry, minutes = divmod(hour * 60 + minute - offset, _MINUTES_A_DAY)
    day += carry
    ends_a_month = minutes == _MINUTES_A_DAY - 1 and str(np.datetime64(day + 1, "D")).endswith("-01")
    return _Minute(day * _SECONDS_A_DAY + minutes * 60, ends_a_month)


_MOST_DIGITS = 20
_UNIT_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
_UNIX = {
    unit: re.compile(rb"-?[0-9]{1,%d}" % _MOST_DIGITS + (rb"(?:\.[0-9]{1,%d})?" % digits if digits else b""))
    for unit, digits in _UNIT_DIGITS.items()
}


@dataclass(frozen=True, slots=True)
class UnixTime(NamedOrder):
    """Numbers of a unit of time since 1970; see `dedup_sdk.orders.unix_time`."""

    kind: ClassVar[str] = "unix-time"

    unit: str

    def __post_init__(self) -> None:
        """Refuse an unknown unit."""
        unit: object = self.unit
        if not isinstance(unit, str) or unit not in _UNIT_DIGITS:
            raise ConfigurationError(f"unit={shown(self.unit)} is unknown; choose s, ms, us or ns")

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a number such as ``1700000000.25``: the rank is in nanoseconds."""
        if not _UNIX[self.unit].fullmatch(dedup_id):
            return None
        whole, _, fraction = dedup_id.partition(b".")
        return SortKey(ONLY_ORIGIN, int(whole + fraction.ljust(_UNIT_DIGITS[self.unit], b"0")))

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, if all are whole and none has a sign."""
        texts = digits_only(dedup_ids, _MOST_DIGITS)
        unit_ns = 10 ** _UNIT_DIGITS[self.unit]
        return None if texts is None else [int(each) * unit_ns for each in texts]


def unix_time(*, unit: Literal["s", "ms", "us", "ns"]) -> Order:
    """Decimal numbers of ``unit`` since 1970: ``1700000000.25``; a minus and a fraction down to 1 ns are allowed."""
    return UnixTime(unit)
