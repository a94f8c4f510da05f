"""Several at one time: of all who want an ID one gets it, and what is completed is completed once."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from dedup_adapters.sql import SharedStore
from dedup_sdk import Claim, ClaimKind
from tests.support.claiming import Outcome, contend, contend_in_redis, shared_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dedup_sdk import ClaimStore
    from tests.support.redis_servers import RedisServer

THREADS = 6
COUNT = 300


def check(outcomes: Sequence[Outcome]) -> None:
    """No token was given twice for an ID, and each ID's completion was taken once."""
    for key in shared_ids(COUNT):
        tokens = [token for outcome in outcomes for token in outcome.claimed.get(key, [])]
        assert tokens
        assert len(set(tokens)) == len(tokens)
    assert Counter(key for outcome in outcomes for key in outcome.completed) == dict.fromkeys(
        shared_ids(COUNT), 1
    )


def test_of_all_who_claim_at_once_one_gets_it(connect: Callable[[], ClaimStore]) -> None:
    """Each ID of a batch has one owner, whoever was first in which."""
    stores = [connect() for _ in range(THREADS)]
    start = Barrier(THREADS)

    def claim(number: int) -> list[Claim]:
        asked = shared_ids(COUNT)[:: 1 if number % 2 else -1]
        start.wait(60)
        answers = stores[number].claim(
            asked, str(number), 600_000, timestamps_ms=[0] * COUNT, window_ms=600_000
        )
        return answers[:: 1 if number % 2 else -1]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(claim, range(THREADS)))
    for of_one_id in zip(*answers, strict=True):
        kinds = Counter(answer.kind for answer in of_one_id)
        assert kinds == {ClaimKind.FRESH: 1, ClaimKind.IN_FLIGHT: THREADS - 1}


@pytest.mark.parametrize("lease_ms", [5, 600_000])
def test_what_is_completed_is_completed_once(connect: Callable[[], ClaimStore], lease_ms: int) -> None:
    """Also where leases are so short that most owners outlive theirs, and speak up again as zombies."""
    stores = [connect() for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [
            pool.submit(contend, store, seed, count=COUNT, lease_ms=lease_ms)
            for seed, store in enumerate(stores)
        ]
        check([each.result() for each in asked])


def test_processes_race_as_threads_do(any_redis: RedisServer) -> None:
    """With a connection, an owner and a script cache of their own."""
    prefix = f"{uuid.uuid4()}:"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(contend_in_redis, any_redis.url, prefix, seed, COUNT, 20) for seed in range(3)]
        check([each.result() for each in asked])


@pytest.mark.container
@pytest.mark.parametrize("settings", [(), ("mergejoin",), ("mergejoin", "hashjoin"), ("nestloop",)])
def test_claims_are_given_back_in_the_order_in_which_others_wait(
    postgresql_server: str, settings: tuple[str, ...]
) -> None:
    """However the database goes about it, where its index is of no use to it: else two batches would wait for each other crosswise."""
    server, table = create_engine(postgresql_server), f"order_{uuid.uuid4().hex[:8]}"
    off = " ".join(f"-c enable_{name}=off" for name in ("indexscan", "bitmapscan", *settings))
    engine = create_engine(postgresql_server, connect_args={"options": off})
    store = SharedStore(engine, table=table)
    store.create()
    first, last = sorted(shared_ids(2))
    tokens = []
    for each in (last, first):
        [given] = store.claim([each], "a", 600_000, timestamps_ms=[0], window_ms=600_000)
        tokens.append(given.token)
    lock = text(f"SELECT 1 FROM {table} WHERE id = :id FOR UPDATE NOWAIT")  # noqa: S608
    waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :query")
    with ThreadPoolExecutor(1) as pool, server.connect() as other, server.connect() as watch:
        other.execute(lock, {"id": first})
        released = pool.submit(store.release, [last, first], tokens)
        until = time.monotonic() + 60
        while watch.scalar(waits, {"query": f"%DELETE%{table}%"}) != 1:
            assert time.monotonic() < until
            watch.rollback()
        other.execute(lock, {"id": last})
        other.rollback()
        assert released.result(60) == [True, True]
    engine.dispose()
    server.dispose()
