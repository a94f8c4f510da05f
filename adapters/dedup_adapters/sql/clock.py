"""What time it is, by the database where that is a server: hosts whose clocks differ have one window."""

from __future__ import annotations

import time
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, literal_column

_SERVERS: Final = {  # by no time zone: of the hour that comes twice in autumn nobody could tell which it is
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
}


def clock_of(dialect: str) -> Any:
    """Return the expression for the time in ms; SQLite is in this process, and has its clock."""
    if dialect == "sqlite":
        return bindparam("now_ms", callable_=_now_ms, type_=BigInteger)
    return literal_column(_SERVERS["mysql" if dialect == "mariadb" else dialect], BigInteger)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
