"""The memory that the workers of a run share: a Redis that keeps what it is told, is killed, and cuts connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from redis import Redis

from dedup_adapters.redis import RedisStore
from dedup_sdk import Shared
from tests.chaos.options import WorkerOptions
from tests.support.redis_servers import HAS_REDIS, RedisServer, redis_server

LEASE_S: Final = 5.0
"""How long a claim lasts without a word: longer than a group waits for a member, shorter than a stop."""
HAND_BACK_AFTER_S: Final = 0.3
"""How long a message waits before it is handed back, where it is: often, and not at once."""
_KEPT: Final = ("--appendonly", "yes", "--appendfsync", "always")


class Memory:
    """A server; ``url`` stays the same when it is killed and started again."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.url = server.url

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        self._server.kill()

    def start(self) -> None:
        """Start it again; return when it answers."""
        self._server.start()

    def cut(self) -> None:
        """Cut the connections of all clients but this one."""
        with Redis.from_url(self.url) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@contextmanager
def shared_memory(folder: Path, *, wanted: bool) -> Iterator[Memory | None]:
    """Start one, in a folder or in a container; None where none is wanted."""
    if not wanted:
        yield None
        return
    (folder / "redis").mkdir()
    with redis_server("installed" if HAS_REDIS else "container", folder / "redis", *_KEPT) as server:
        yield Memory(server)


def shared_of(options: WorkerOptions) -> Shared | None:
    """Return what a worker shares with the others: all IDs of its topic, in whichever partition they come."""
    if not options.memory:
        return None
    shared = Shared(RedisStore(options.memory), lease=LEASE_S, on_outage=options.on_outage)
    if not options.retries:
        return shared
    origins = {options.retries: options.topic}
    return replace(shared, in_flight="hand-back", hand_back_after=HAND_BACK_AFTER_S, origins=origins)
