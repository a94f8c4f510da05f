"""The shared store that a URL names: a server of Redis, a cluster of them, or a table of PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from dedup_sdk._masking import redacted_url
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.shared import ClaimStore

_REDIS: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_TIMEOUT_S: Final = 30.0
"""How long an answer is waited for: a server that is busy with many batches is no outage."""
_BATCH_S: Final = 4 * _TIMEOUT_S
"""The same for a batch that may wait for locks of others."""


class ServerStore(ClaimStore, Protocol):
    """A shared store of a server."""

    def incarnation(self) -> str:
        """Return a text that changes when the server restarts, or another one takes over; empty where unknown."""


class OpenServer(NamedTuple):
    """A store, not asked yet; ``shown``: its URL without secrets.

    ``prepare`` asks it for the first time, sets it up, and returns a line about that, None where nothing was to do. It
    raises `SharedStoreError` or `ConfigurationError` where the store cannot be used.
    """

    store: ServerStore
    shown: str
    prepare: Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedServer:
    """Where a shared store lies.

    ``keys`` and ``buckets`` are ``prefix`` and ``buckets`` of `RedisStore`, ``table`` and ``schema`` those of
    `SharedStore`; None: the store's own default.
    """

    url: str = field(repr=False)
    keys: str | None = None
    buckets: int | None = None
    table: str | None = None
    schema: str | None = None

    def connect(self) -> OpenServer:
        """Return the store.

        Raises:
            ConfigurationError: no store is reached by such a URL, an option does not go with it, or its library is not
                installed.
        """
        scheme, found, _ = self.url.partition("://")
        if found and scheme in _REDIS and _is_whole(self.url):
            return self._redis(f"{scheme}://")
        if found and scheme.partition("+")[0] == "postgresql":
            return self._sql(f"{scheme}://")
        if found and scheme.partition("+")[0] == "postgres":
            raise ConfigurationError("postgres://...: SQLAlchemy calls it postgresql+psycopg://; write it so")
        said = redacted_url(self.url) if found and _is_whole(self.url) else "***"
        raise ConfigurationError(
            f"{said} is no URL of a shared store: give e.g. redis://localhost:6379/0, or "
            "postgresql+psycopg://localhost/work"
        )

    def _redis(self, scheme: str) -> OpenServer:
        self._refuse(
            scheme, ("table", "schema"), "Redis has keys: give --keys and --buckets, or leave it out"
        )
        with _installed(scheme):
            from dedup_adapters.redis import RedisStore
        buckets = 1 if self.buckets is None else self.buckets
        named = {} if self.keys is None else {"prefix": self.keys}
        store = RedisStore(self.url, buckets=buckets, timeout=_TIMEOUT_S, **named)

        def prepare() -> None:
            # Claims that nobody has, one a bucket: each has to be where it is asked for.
            asked = [bucket.to_bytes(4) + bytes(12) for bucket in range(buckets)]
            store.release(asked, [0] * len(asked))

        return OpenServer(store, redacted_url(self.url), prepare)

    def _sql(self, scheme: str) -> OpenServer:
        self._refuse(
            scheme,
            ("keys", "buckets"),
            "PostgreSQL has a table: give --table and --schema, or leave it out",
        )
        with _installed(scheme):
            from dedup_adapters.sql import SharedStore
            from dedup_adapters.sql._engines import shown_url
        named = {} if self.table is None else {"table": self.table}
        store = SharedStore(
            self.url, schema=self.schema, timeout=_TIMEOUT_S, answer_timeout=_BATCH_S, **named
        )
        shown = shown_url(self.url)

        def prepare() -> str | None:
            if not store.create():
                return None
            name = ", ".join(store.metadata.tables)
            return f"made the table {name} in {shown}, which was not there: is that where the consumers look?"

        return OpenServer(store, shown, prepare)

    def _refuse(self, scheme: str, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigurationError(f"--{name} does not go with {scheme}: {why}")


def _is_whole(url: str) -> bool:
    """Whether a URL's parts lie where they seem to; else the seeming host may be part of a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme == "unix" or "@" not in f"{parts.path}{parts.fragment}"


@contextmanager
def _installed(scheme: str) -> Generator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{scheme}: {error}") from None
