"""SQLAlchemy engines made of a PostgreSQL URL, with bounded waits; and the URL without its secrets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import URL, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown

EXAMPLE: Final = "postgresql+psycopg://user:password@host/database"
LIBPQ: Final = ("psycopg", "psycopg2")
"""Drivers whose connections expose their sockets, and accept libpq's settings."""
_LEAST_CONNECT_S: Final = 2
"""libpq's minimum."""
_KEEPALIVES: Final = 3


def engine_of(url: str, timeout_s: float, made: Callable[[Any], None]) -> Engine:
    """Return an engine that connects on its first use; time limits in the URL's query take precedence.

    ``timeout_s``: the time limit for connecting, and for a sign of life of the server's machine. ``made``
    is called with each new connection of the driver before its first query.

    Raises:
        ConfigurationError: it is not a URL of PostgreSQL, or its driver is not installed; the message shows
            no password.
    """
    parsed = _parsed(url)
    whose = f"the URL of the shared store, {shown_url(url)}"
    try:
        dialect = parsed.get_dialect()
        if dialect.is_async:
            raise ConfigurationError(
                f"{whose}, names a driver for asyncio; give one that is not, e.g. {EXAMPLE}"
            )
        engine = create_engine(parsed, connect_args=_waits(parsed, timeout_s))
    except NoSuchModuleError:
        raise ConfigurationError(
            f"{whose}, names a driver that SQLAlchemy does not know; give e.g. {EXAMPLE}"
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{whose}, needs a driver that is not installed ({error}); install it, or name another one, e.g. {EXAMPLE}"
        ) from None

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Dialect, _record: Any, given: list[Any], named: dict[str, Any]) -> Any:
        connection = dialect.connect(*given, **named)
        made(connection)
        return connection

    return engine


def shown_url(url: str) -> str:
    """Return a URL of PostgreSQL without user, password and query.

    Raises:
        ConfigurationError: it is not such a URL.
    """
    parsed = _parsed(url)
    return URL.create(
        parsed.drivername, host=parsed.host, port=parsed.port, database=parsed.database
    ).render_as_string()


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"the URL of the shared store is not a URL of SQLAlchemy; give e.g. {EXAMPLE}"
        ) from None
    if parsed.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"the URL of the shared store is one of {shown(parsed.get_backend_name())}, and not of PostgreSQL; "
            f"give e.g. {EXAMPLE}"
        )
    return parsed


def _waits(url: URL, timeout_s: float) -> dict[str, Any]:
    """Return libpq's time limits: without them a wait for a dead machine takes hours."""
    if url.get_driver_name() not in LIBPQ:
        return {}
    idle_s = max(1, math.ceil(timeout_s / _KEEPALIVES))
    waits = {
        "connect_timeout": max(_LEAST_CONNECT_S, math.ceil(timeout_s)),
        "keepalives_idle": idle_s,
        "keepalives_interval": idle_s,
        "keepalives_count": _KEEPALIVES,
        "tcp_user_timeout": math.ceil(timeout_s * 1000),
    }
    return {name: value for name, value in waits.items() if name not in url.query}
