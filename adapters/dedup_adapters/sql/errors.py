"""What an inbox raises on purpose, and which errors of a database pass when the transaction is tried again."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dedup_sdk import DedupError

_STATES: Final = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL's serialisation failure, deadlock, and a lock that was not to be had in time."""
_NUMBERS: Final = frozenset({1020, 1053, 1205, 1213, 2002, 2003})
"""The same of MySQL and MariaDB: a row that changed since it was read, a lock that took too long, a deadlock; a server that ends, or is not there."""
_BUSY: Final = (5, 6)
"""SQLite's SQLITE_BUSY and SQLITE_LOCKED; its extended codes have them in their lowest byte."""
_LOWEST_BYTE: Final = 0xFF


class InboxError(DedupError):
    """The inbox cannot be used as it was asked to; nothing of the transaction is kept."""


class OutOfOrderError(InboxError):
    """Offsets are kept in the database, and a message of a partition came before another one that has to be handled first."""


def is_retryable(error: BaseException) -> bool:
    """Whether the same transaction may succeed when it is begun anew.

    So do deadlocks, locks that took too long, serialisation failures, and connections that were lost, or
    cannot be had while the server is started anew; be it in a statement of the inbox, in one of yours, or
    in ``COMMIT``. What became of a transaction whose connection was lost in its commit nobody knows; begun
    anew, the inbox tells.
    """
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    if error.connection_invalidated:
        return True
    original = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    code = getattr(original, "sqlite_errorcode", None)
    number = original.args[0] if original.args else None
    return (
        state in _STATES
        or _is_away(error)
        or (isinstance(code, int) and code & _LOWEST_BYTE in _BUSY)
        or (isinstance(number, int) and number in _NUMBERS)
    )


def _is_away(error: DBAPIError) -> bool:
    """Whether PostgreSQL's client got no connection: then nobody gives a state."""
    states = [getattr(error.orig, name) for name in ("sqlstate", "pgcode") if hasattr(error.orig, name)]
    return (
        isinstance(error, OperationalError) and error.statement is None and bool(states) and not any(states)
    )
