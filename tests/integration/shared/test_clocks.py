"""A server whose clock is set back, or that restores an old file.

It would keep a claim for as much longer than its owner wanted.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk.shared import ClaimKind
from tests.integration.shared.conftest import ANY_REDIS
from tests.integration.shared.test_claim_contract import LEASE_MS, claim, complete, ids, until_fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dedup_sdk.shared import ClaimStore
    from tests.support.redis_servers import RedisServer

TOKEN = 5
YEAR_MS = 365 * 86_400_000


class Clocked(NamedTuple):
    """A store, and how to put a claim of the ID ``x`` into it that has this lease (ms), and ends in a year."""

    store: ClaimStore
    put: Callable[[int], object]


@pytest.fixture(params=[*ANY_REDIS, pytest.param("postgresql", marks=pytest.mark.container)])
def clocked(request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]) -> Iterator[Clocked]:
    """Each kind of store that goes by a clock which may be set."""
    name = uuid.uuid4().hex[:12]
    if request.param == "postgresql":
        engine = create_engine(request.getfixturevalue("postgresql_server"))
        store = SharedStore(engine, table=f"clocked_{name}", timeout=30.0, answer_timeout=60.0)
        store.create()

        def insert(lease_ms: int) -> None:
            claim(store, "x", lease_ms=LEASE_MS)
            with engine.begin() as connection:
                connection.execute(
                    text(
                        f"UPDATE clocked_{name} "  # noqa: S608 (a name of this test's own)
                        "SET token = :token, lease_ms = :lease_ms, until_ms = until_ms + :year_ms"
                    ),
                    {"token": TOKEN, "lease_ms": lease_ms, "year_ms": YEAR_MS},
                )

        yield Clocked(store, insert)
        engine.dispose()
        return
    url = redis_servers(request.param).url
    with Redis.from_url(url) as client:
        redis = RedisStore(url, prefix=f"{name}:", timeout=30.0)
        key = f"{name}:{{0}}".encode() + ids("x")[0]
        yield Clocked(redis, lambda lease_ms: client.set(key, f"c{TOKEN}:{lease_ms}:a", px=YEAR_MS))
        redis.close()


def test_a_claim_lasts_no_longer_than_its_lease(clocked: Clocked) -> None:
    """As whoever looks sees it; his own lease makes no difference, and the owner, who lives, keeps it."""
    clocked.put(LEASE_MS)
    [seen] = claim(clocked.store, "x", owner="b", lease_ms=1_000)
    assert seen.kind is ClaimKind.IN_FLIGHT
    assert 1_000 < seen.left_ms <= LEASE_MS
    [later] = claim(clocked.store, "x", owner="b", lease_ms=1_000)
    assert later.left_ms <= seen.left_ms
    assert clocked.store.renew(ids("x"), [TOKEN], "a", LEASE_MS) == [True]
    assert complete(clocked.store, "x", TOKEN, owner="a")


def test_a_dead_owners_claim_is_over_soon(clocked: Clocked) -> None:
    """Once somebody has looked; not in a year."""
    clocked.put(20)
    heir = until_fresh(clocked.store, "x", owner="b")
    assert complete(clocked.store, "x", heir.token, owner="b")


def test_a_claim_that_was_made_to_last_for_ever_ends(any_redis: RedisServer) -> None:
    """By hand, or with a copy that left out how long keys live."""
    name = uuid.uuid4().hex
    with Redis.from_url(any_redis.url) as client:
        client.set(f"{name}:{{0}}".encode() + ids("x")[0], f"c{TOKEN}:20:a")
    store = RedisStore(any_redis.url, prefix=f"{name}:", timeout=30.0)
    until_fresh(store, "x", owner="b")
    store.close()


def test_a_renewed_claim_ends_with_its_new_lease(clocked: Clocked) -> None:
    """Which takes the place of the one before."""
    clocked.put(20)
    assert clocked.store.renew(ids("x"), [TOKEN], "a", LEASE_MS) == [True]
    [seen] = claim(clocked.store, "x", owner="b")
    assert seen.kind is ClaimKind.IN_FLIGHT
    assert 20 < seen.left_ms <= LEASE_MS
