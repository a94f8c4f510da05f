"""Positions in the logs of PostgreSQL and Oracle."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dedup_sdk.orders.decimals import MAX_UINT64, unsigned
from dedup_sdk.orders.order import Order
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_LSN = re.compile(rb"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@dataclass(frozen=True, slots=True)
class PostgresqlLsn(Order):
    """PostgreSQL's log sequence numbers; see `dedup_sdk.orders.postgresql_lsn`."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "postgresql-lsn"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of e.g. ``16/B374D848``."""
        found = _LSN.fullmatch(dedup_id)
        return found and Place(ONLY_ORIGIN, int(found[1], 16) << 32 | int(found[2], 16))


@dataclass(frozen=True, slots=True)
class OracleScn(Order):
    """Oracle's system change numbers; see `dedup_sdk.orders.oracle_scn`."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "oracle-scn"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of a decimal number of at most 64 bits."""
        number = unsigned(dedup_id, MAX_UINT64)
        return None if number is None else Place(ONLY_ORIGIN, number)
