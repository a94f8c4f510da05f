"""The memory that the workers of a run share.

A server that keeps its marks, is killed, stands still, and cuts connections.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

from redis import Redis
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk.shared import ClaimStore, Shared
from tests.chaos.bed import Bed
from tests.chaos.options import MemoryKind, WorkerOptions
from tests.support.databases import PostgreSQL, cut_connections, database_of
from tests.support.redis_servers import HAS_REDIS, RedisServer, redis_server

LEASE_S: Final = 5.0
"""How long a claim lasts without a word: longer than a group waits for a member, shorter than a stop."""
ANSWER_S: Final = 2.0
"""How long a worker waits for an answer, at most."""
_KEPT: Final = ("--appendonly", "yes", "--appendfsync", "always")


class Memory(Protocol):
    """A server; ``url`` stays the same when it is killed and started again."""

    url: str

    def kill(self) -> None:
        """SIGKILL; the data stays."""

    def start(self) -> None:
        """Start it again; return when it answers."""

    def pause(self) -> None:
        """SIGSTOP: connections stay, and nobody answers."""

    def resume(self) -> None:
        """SIGCONT."""

    def cut(self) -> None:
        """Cut the connections of all clients but this one."""


class RedisMemory:
    """All of a server of Redis, as a `Memory`."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url
        self.kill, self.start, self.pause, self.resume = (
            server.kill,
            server.start,
            server.pause,
            server.resume,
        )

    def cut(self) -> None:
        """See `Memory`."""
        with Redis.from_url(self.url) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


class SqlMemory:
    """A table in a database of PostgreSQL, as a `Memory`."""

    def __init__(self, server: PostgreSQL, url: str) -> None:
        self.url = url
        self.kill, self.start, self.pause, self.resume = (
            server.kill,
            server.start_again,
            server.pause,
            server.resume,
        )
        # Its server may be started anew: no connection is kept.
        self._engine = create_engine(url, poolclass=NullPool)
        with closing(SharedStore(self._engine, timeout=30.0)) as store:
            store.create()

    def cut(self) -> None:
        """See `Memory`."""
        cut_connections(self._engine)


@contextmanager
def shared_memory(kind: MemoryKind, folder: Path, bed: Bed) -> Iterator[Memory | None]:
    """Start one of a kind; None where none is wanted.

    Redis runs in a folder, where it is installed; PostgreSQL is that of all scenarios.
    """
    if kind == "redis":
        (folder / "redis").mkdir()
        with redis_server("installed" if HAS_REDIS else "container", folder / "redis", *_KEPT) as redis:
            yield RedisMemory(redis)
    elif kind == "postgresql":
        with database_of(bed.database.url, f"chaos_{uuid.uuid4().hex[:8]}") as url:
            yield SqlMemory(bed.database, url)
    else:
        yield None


def shared_of(options: WorkerOptions) -> Shared:
    """Return the scope that a worker shares with the others: all IDs of its topic, in whichever partition they come."""
    store: ClaimStore = (
        SharedStore(options.memory, answer_timeout=ANSWER_S)
        if options.memory.startswith("postgresql")
        else RedisStore(options.memory)
    )
    return Shared(store, lease=LEASE_S, on_outage=options.on_outage)
