"""Shared memories: in this process, in Redis, in Valkey, in PostgreSQL; each test has an empty one."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk.shared import MemoryClaimStore
from tests.support.databases import PostgreSQL
from tests.support.redis_servers import (
    HAS_REDIS,
    HAS_VALKEY,
    RedisClusterServers,
    RedisServer,
    redis_cluster,
    redis_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dedup_sdk.shared import ClaimStore

CONTAINER = pytest.param("container", marks=pytest.mark.container)
VALKEY = ["valkey"] if HAS_VALKEY else []
ANY_REDIS = ["installed" if HAS_REDIS else CONTAINER, *VALKEY]
"""A Redis, where its kind makes no difference, and Valkey."""
STORES = [
    "memory",
    pytest.param("redis in a container", marks=pytest.mark.container),
    *(["redis", "redis in buckets", "redis cluster", "redis cluster in buckets"] if HAS_REDIS else []),
    *VALKEY,
    pytest.param("postgresql", marks=pytest.mark.container),
]


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """Servers for all tests, by kind, each started when it is asked for first."""
    started: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def server(kind: str) -> RedisServer:
            if kind not in started:
                started[kind] = stack.enter_context(redis_server(kind, tmp_path_factory.mktemp("redis")))
            return started[kind]

        yield server


@pytest.fixture(params=ANY_REDIS)
def any_redis(request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]) -> RedisServer:
    """A server for all tests."""
    return redis_servers(request.param)


@pytest.fixture(params=ANY_REDIS)
def own_redis(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed."""
    with redis_server(request.param, tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterServers]:
    """A cluster for all tests that leave it whole."""
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def database_server() -> Iterator[PostgreSQL]:
    """A database server for all tests; who stops it has it go on."""
    with PostgreSQL() as started:
        yield started


@pytest.fixture(scope="session")
def postgresql_server(database_server: PostgreSQL) -> str:
    """The URL of a database server for all tests."""
    return database_server.url


@pytest.fixture(params=STORES)
def connect(
    request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]
) -> Iterator[Callable[[], ClaimStore]]:
    """Each kind of store, empty: each call connects to the same one anew."""
    if request.param == "memory":
        memory = MemoryClaimStore()
        yield lambda: memory
        return
    if request.param == "postgresql":
        engine = create_engine(request.getfixturevalue("postgresql_server"), pool_size=20)
        table = f"shared_{uuid.uuid4().hex[:12]}"
        patiently: dict[str, Any] = {"timeout": 30.0, "answer_timeout": 60.0}
        SharedStore(engine, table=table, **patiently).create()
        yield lambda: SharedStore(engine, table=table, **patiently)
        engine.dispose()
        return
    if "cluster" in request.param:
        url = request.getfixturevalue("cluster").url
    else:
        kind = "container" if "container" in request.param else "installed"
        url = redis_servers("valkey" if request.param == "valkey" else kind).url
    prefix, buckets = f"{uuid.uuid4()}:", 16 if "buckets" in request.param else 1
    made: list[ClaimStore] = []

    def redis() -> ClaimStore:
        made.append(RedisStore(url, prefix=prefix, buckets=buckets, timeout=30.0))
        return made[-1]

    yield redis
    for store in made:
        store.close()


@pytest.fixture
def store(connect: Callable[[], ClaimStore]) -> ClaimStore:
    """One store of each kind."""
    return connect()
