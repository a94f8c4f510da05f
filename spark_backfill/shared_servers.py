"""Where a memory that consumers share lies, as the command line says it.

A server of Redis, a cluster of them, or a table of PostgreSQL.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from dedup_sdk._store.snapshot_source import redacted_url
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.shared._protocol import ClaimStore
from spark_backfill.client_config import secrets_of

if TYPE_CHECKING:
    from dedup_adapters.redis import RedisStore
    from dedup_adapters.sql import SharedStore

SERVER_OPTIONS: Final = ("shared_keys", "shared_buckets", "shared_table", "shared_schema")
"""As the parser has them: the options that say where in a server the memory is."""
_OF_REDIS: Final = ("shared_keys", "shared_buckets")
_OF_SQL: Final = ("shared_table", "shared_schema")
_REDIS: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_SQL: Final = ("postgresql", "postgres")
_EXAMPLE: Final = "redis://localhost:6379/0"
_TIMEOUT_S: Final = 30.0
"""Time that a task waits for an answer: a server that is busy with many of them is no outage."""
_BATCH_S: Final = 4 * _TIMEOUT_S
"""The same for a batch that may wait for locks of others."""


class SharedServer(Protocol):
    """Where a shared memory lies; goes to Spark's tasks."""

    @property
    def shown(self) -> str:
        """The URL, without its secrets."""

    @property
    def secrets(self) -> frozenset[str]:
        """Values that no line may show."""

    def connect(self) -> ClaimStore:
        """Return the store, which is not asked yet.

        Raises:
            ConfigurationError: no store is reached by such a URL, or its library is not installed.
        """

    def prepare(self) -> str | None:
        """Ask for the first time, and set up the store.

        Return a line on the set-up, None where there was none.

        Raises:
            SharedStoreError, ConfigurationError: it cannot be used.
        """

    def incarnation(self) -> str:
        """Return the value that changes when the server is started anew, or another one takes over.

        It may have forgotten marks then.

        Raises:
            SharedStoreError: it cannot be asked.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """``keys`` and ``buckets`` are ``prefix`` and ``buckets`` of `RedisStore`."""

    url: str = field(repr=False)
    keys: str | None
    buckets: int

    @property
    def shown(self) -> str:
        """See `SharedServer`."""
        return redacted_url(self.url)

    @property
    def secrets(self) -> frozenset[str]:
        """See `SharedServer`."""
        parts = urlsplit(self.url)
        found = {parts.password or "", parts.query, unquote(parts.password or "")}
        return frozenset(found - {""}) | secrets_of(dict(parse_qsl(parts.query)))

    def connect(self) -> RedisStore:
        """See `SharedServer`."""
        with _installed(self.shown):
            from dedup_adapters.redis import RedisStore
        named = {} if self.keys is None else {"prefix": self.keys}
        return RedisStore(self.url, buckets=self.buckets, timeout=_TIMEOUT_S, **named)

    def prepare(self) -> str | None:
        """See `SharedServer`."""
        with closing(self.connect()) as store:
            # ClaimGatekeeper that nobody has, one a bucket: whether each is where it is asked for is known before
            # a history is read for nothing.
            asked = [bucket.to_bytes(4) + bytes(12) for bucket in range(self.buckets)]
            store.release(asked, [0] * len(asked))
        return None

    def incarnation(self) -> str:
        """See `SharedServer`."""
        with closing(self.connect()) as store:
            return store.incarnation()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlServer:
    """``table`` and ``schema`` are those of `SharedStore`, None: its own ones."""

    url: str = field(repr=False)
    table: str | None
    schema: str | None

    @property
    def shown(self) -> str:
        """See `SharedServer`."""
        with _installed(_scheme(self.url)):
            from dedup_adapters.sql._engines import shown_url
        return shown_url(self.url)

    @property
    def secrets(self) -> frozenset[str]:
        """See `SharedServer`."""
        with _installed(_scheme(self.url)):
            from dedup_adapters.sql._engines import hidden_in
        return secrets_of(hidden_in(self.url))

    def connect(self) -> SharedStore:
        """See `SharedServer`."""
        with _installed(_scheme(self.url)):
            from dedup_adapters.sql import SharedStore
        named = {} if self.table is None else {"table": self.table}
        return SharedStore(self.url, schema=self.schema, timeout=_TIMEOUT_S, answer_timeout=_BATCH_S, **named)

    def prepare(self) -> str | None:
        """See `SharedServer`: the table is made where it is not there."""
        with closing(self.connect()) as store:
            if not store.create():
                return None
            name = ", ".join(store.metadata.tables)
        return (
            f"made the table {name} in {self.shown}, which was not there: is that where the consumers look?"
        )

    def incarnation(self) -> str:
        """See `SharedServer`."""
        with closing(self.connect()) as store:
            return store.incarnation()


def add_server_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add("--shared-keys", metavar="TEXT", help="With --shared: RedisStore(prefix=...), if it is given there.")
    add(
        "--shared-buckets",
        type=int,
        metavar="N",
        help="With --shared: RedisStore(buckets=...), if it is given there.",
    )
    add("--shared-table", metavar="NAME", help="With --shared: SharedStore(table=...), if it is given there.")
    add(
        "--shared-schema",
        metavar="NAME",
        help="With --shared: SharedStore(schema=...), if it is given there.",
    )


def read_server(given: argparse.Namespace) -> SharedServer:
    """Read the options beside ``--shared``; nothing is asked.

    Raises:
        ConfigurationError: one line on the error of the URL, or the option that does not go with it.
    """
    url: str = given.shared
    scheme, found, _ = url.partition("://")
    server: SharedServer
    if found and scheme in _REDIS and _is_whole(url):
        _refuse(given, _OF_SQL, "Redis has keys: give --shared-keys and --shared-buckets, or leave it out")
        buckets = 1 if given.shared_buckets is None else given.shared_buckets
        server = RedisServer(url=url, keys=given.shared_keys, buckets=buckets)
    elif found and scheme.partition("+")[0] in _SQL:
        if scheme.partition("+")[0] == "postgres":
            raise ConfigurationError(
                "--shared postgres://...: SQLAlchemy calls it postgresql+psycopg://; write it so"
            )
        _refuse(
            given,
            _OF_REDIS,
            "PostgreSQL has a table: give --shared-table and --shared-schema, or leave it out",
        )
        server = SqlServer(url=url, table=given.shared_table, schema=given.shared_schema)
    else:
        said = redacted_url(url) if found and _is_whole(url) else "***"
        raise ConfigurationError(
            f"--shared {said} is no URL of a shared memory: give e.g. {_EXAMPLE}, or "
            "postgresql+psycopg://localhost/work"
        )
    # Whatever is wrong is told before anything is asked.
    server.connect().close()
    return server


def _refuse(given: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(given, name) is not None:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} does not go with --shared {_scheme(given.shared)}: {why}"
            )


def _is_whole(url: str) -> bool:
    """Whether a URL's parts lie where they seem to; else the seeming host may be part of a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme == "unix" or "@" not in f"{parts.path}{parts.fragment}"


def _scheme(url: str) -> str:
    return f"{url.partition('://')[0]}://"


@contextmanager
def _installed(what: str) -> Generator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"--shared {what}: {error}") from None
