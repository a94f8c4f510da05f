"""The errors that an inbox raises, and the database errors after which a transaction can be retried."""

from __future__ import annotations

from traceback import walk_tb
from typing import Final

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dedup_sdk import DedupError

_STATES: Final = frozenset({"40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03"})
"""PostgreSQL's serialisation failure, deadlock, too many connections, lock timeout, and server ending or starting."""
_LOST: Final = "08"
"""The first two characters of the states of a connection that was lost or refused."""
_NUMBERS: Final = frozenset({1020, 1053, 1205, 1213, 2002, 2003})
"""The same of MySQL and MariaDB: changed row, lock timeout, deadlock, server shutting down or unreachable."""
_BUSY: Final = (5, 6)
"""SQLite's SQLITE_BUSY and SQLITE_LOCKED; extended codes contain them in their lowest byte."""
_LOWEST_BYTE: Final = 0xFF


class InboxError(DedupError):
    """The inbox cannot be used in this way; the transaction is rolled back."""


class OutOfOrderError(InboxError):
    """Offsets are kept in the database, and a message came before one that must be handled first."""


def is_retryable(error: BaseException) -> bool:
    """Whether the same transaction may succeed when you run it again.

    True for deadlocks, lock timeouts, serialisation failures, and connections that were lost or refused
    while the server restarts; in a statement of the inbox, in one of yours, or in ``COMMIT``. If the
    connection is lost during ``COMMIT`` the outcome is unknown: run the transaction again, and the inbox
    recognises a message that was committed.
    """
    if isinstance(error, PoolTimeoutError) or (isinstance(error, OSError) and _is_of_asyncpg(error)):
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
        or str(state).startswith(_LOST)
        or _is_away(error)
        or (isinstance(code, int) and code & _LOWEST_BYTE in _BUSY)
        or (isinstance(number, int) and number in _NUMBERS)
    )


def _is_of_asyncpg(error: OSError) -> bool:
    """Whether asyncpg raised it: refused and expired connections are plain errors there, which nobody wraps.

    The type does not tell: a file that is missing in a handler is an `OSError`, too.
    """
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.partition(".")[0] == "asyncpg" for module in modules)


def _is_away(error: DBAPIError) -> bool:
    """Whether PostgreSQL's client got no connection; such an error has no SQLSTATE."""
    states = [getattr(error.orig, name) for name in ("sqlstate", "pgcode") if hasattr(error.orig, name)]
    return (
        isinstance(error, OperationalError) and error.statement is None and bool(states) and not any(states)
    )
