"""Several at one time: of all who want an ID one gets it, and each is completed once."""

from __future__ import annotations

import multiprocessing
import random
import time
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from dedup_adapters.sql import SharedStore
from dedup_sdk.shared import Claim, ClaimKind
from tests.support.claiming import Outcome, contend, contend_in_redis, shared_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dedup_sdk.shared import ClaimStore
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


def test_rebuilds_beside_consumers_take_nothing_from_them(connect: Callable[[], ClaimStore]) -> None:
    """Two load all IDs again and again, in other orders and with other lives, while consumers claim.

    Each claim is completed by its owner or given back by it.
    """
    consumers, stop, start = 3, Event(), Barrier(5)
    stores = [connect() for _ in range(consumers + 2)]

    def rebuild(seed: int) -> int:
        chance, loads = random.Random(seed), 0
        start.wait(60)
        while not stop.is_set():
            part = chance.sample(shared_ids(COUNT), 100)
            stores[seed].load(part, timestamps_ms=[seed] * 100, window_ms=chance.choice([1, 600_000]))
            loads += 1
        return loads

    def consume(seed: int) -> Counter[ClaimKind]:
        chance, store, seen = random.Random(seed), stores[seed], Counter[ClaimKind]()
        start.wait(60)
        for _ in range(40):
            asked = chance.sample(shared_ids(COUNT), 60)
            # Two windows apart: marks of the time before do not count, so that there is always something
            # to claim.
            times: dict[str, Any] = {"timestamps_ms": [chance.choice([0, 10**6])] * 60, "window_ms": 10**5}
            answers = store.claim(asked, str(seed), 600_000, **times)
            seen.update(answer.kind for answer in answers)
            ours = [(key, answer.token) for key, answer in zip(asked, answers, strict=True) if answer.token]
            keys, tokens = [key for key, _ in ours], [token for _, token in ours]
            assert store.renew(keys, tokens, str(seed), 600_000) == [True] * len(ours)
            if chance.random() < 0.3:
                assert store.release(keys, tokens) == [True] * len(ours)
            else:
                times = {"timestamps_ms": times["timestamps_ms"][: len(ours)], "window_ms": 600_000}
                assert store.complete(keys, tokens, str(seed), **times) == [True] * len(ours)
        return seen

    with ThreadPoolExecutor(len(stores)) as pool:
        rebuilds = [pool.submit(rebuild, consumers + number) for number in range(2)]
        try:
            lives = [
                each.result(120) for each in [pool.submit(consume, number) for number in range(consumers)]
            ]
        finally:
            stop.set()
        assert all(each.result(60) for each in rebuilds)
    assert all(seen[ClaimKind.FRESH] and seen[ClaimKind.DUPLICATE] for seen in lives)
    # Loaded marks shorten no completed one: all of it is known.
    stores[-1].load(shared_ids(COUNT), timestamps_ms=[0] * COUNT, window_ms=600_000)
    stores[-1].load(shared_ids(COUNT), timestamps_ms=[0] * COUNT, window_ms=1)
    known = stores[0].claim(
        shared_ids(COUNT), "next", 600_000, timestamps_ms=[10**6] * COUNT, window_ms=10**6
    )
    assert {answer.kind for answer in known} == {ClaimKind.DUPLICATE}


@pytest.mark.container
@pytest.mark.parametrize("settings", [(), ("mergejoin",), ("mergejoin", "hashjoin"), ("nestloop",)])
def test_claims_are_given_back_in_the_order_in_which_others_wait(
    postgresql_server: str, settings: tuple[str, ...]
) -> None:
    """However the database goes about it, where its index is of no use to it.

    Else two batches would wait for each other crosswise.
    """
    server, table = create_engine(postgresql_server), f"order_{uuid.uuid4().hex[:8]}"
    off = " ".join(f"-c enable_{name}=off" for name in ("indexscan", "bitmapscan", *settings))
    engine = create_engine(postgresql_server, connect_args={"options": off})
    store = SharedStore(engine, table=table, timeout=120.0, answer_timeout=120.0)
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
