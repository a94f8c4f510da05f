"""Consumers that start on a memory that was rebuilt.

Handled IDs are hidden, wherever they come again, and all else is delivered.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk import MemoryStore, Window
from dedup_sdk.shared import Shared
from tests.support.consuming import lookup, make_consumer, poll_through
from tests.support.databases import database_of
from tests.support.redis_servers import HAS_REDIS, redis_cluster, redis_server
from tests.support.shared_history import at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dedup_sdk.shared import ClaimStore
    from tests.support.shared_history import SharedHistory

CONTAINER = pytest.mark.container
KINDS = [*(["installed", "cluster"] if HAS_REDIS else [pytest.param("container", marks=CONTAINER)])]


@pytest.fixture(params=[*KINDS, pytest.param("postgresql", marks=CONTAINER)])
def memory_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty memory lies, of each kind."""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql_server")
        with database_of(server, f"memory_{uuid.uuid4().hex[:8]}") as url:
            yield url
    elif request.param == "cluster":
        with redis_cluster(tmp_path) as cluster:
            yield cluster.url
    else:
        with redis_server(request.param, tmp_path) as server:
            yield server.url


def connect(url: str) -> ClaimStore:
    """The store at a URL, as a consumer makes it."""
    if url.startswith("postgresql"):
        return SharedStore(url, timeout=30.0)
    return RedisStore(url, timeout=30.0)


@pytest.mark.slow
def test_a_consumer_goes_on_where_the_rebuilt_memory_ends(
    memory_url: str, shared_history: Callable[[str], SharedHistory]
) -> None:
    """Handled IDs that come again in another partition are duplicates there.

    IDs that are new, too old, given up or were not reached are delivered once.
    """
    history = shared_history(memory_url)
    history.run()
    # The IDs that came again since then, each in the partition that does not know it.
    history.send(
        at(b"a", 41, 1), at(b"b", 41, 1), at(b"new", 41, 1), at(b"given-up", 41, 1), at(b"old", 41, 1)
    )
    history.send(at(b"c", 41, 0), at(b"d", 41, 0))
    with (
        closing(connect(memory_url)) as store,
        make_consumer(
            history.broker.bootstrap,
            history.group,
            MemoryStore(),
            dedup=lookup(window=Window(days=1)),
            shared=Shared(store),
        ) as consumer,
    ):
        consumer.subscribe([history.topic])
        got = poll_through(consumer, history.topic)
        delivered = sorted(dict(message.headers())["dedup-id"] for message in got)
        assert delivered == [b"beyond", b"given-up", b"new", b"old"]
        # Of "a" the partition knows itself; "b", "c" and "d" are known elsewhere, and "beyond" comes in two partitions.
        assert consumer.counters.reasons["duplicate.shared"] == 4
    assert unknown(memory_url, history) == []


def unknown(url: str, history: SharedHistory) -> list[bytes]:
    """The IDs of the history that the memory does not know now."""
    names = [b"a", b"b", b"c", b"d", b"beyond", b"new", b"given-up", b"old"]
    with closing(connect(url)) as store:
        claims = store.claim(
            history.keys(*names),
            "next",
            60_000,
            timestamps_ms=[at(b"", 41, 0).timestamp_ms] * len(names),
            window_ms=86_400_000,
        )
    return [name for name, claim in zip(names, claims, strict=True) if claim.kind != "duplicate"]
