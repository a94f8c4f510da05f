"""A cluster of Redis.

Each script is in one slot, whichever node has it; and the errors for a server that is no cluster, or one of
several.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.cluster import RedisCluster
from redis.crc import key_slot

from dedup_adapters.redis import RedisStore
from dedup_sdk import ConfigurationError
from dedup_sdk.shared import Claim, ClaimKind, SharedStoreError
from tests.support.claiming import shared_ids
from tests.support.redis_servers import HAS_REDIS, redis_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.shared import ClaimStore
    from tests.support.redis_servers import RedisClusterServers, RedisServer

FOREVER_MS = 3_600_000
COUNT = 100
installed = pytest.mark.parametrize("kind", ["installed"] if HAS_REDIS else [])


def claim(store: ClaimStore, owner: str = "a") -> list[Claim]:
    """Claim the IDs that all tests share."""
    return store.claim(shared_ids(COUNT), owner, FOREVER_MS, timestamps_ms=[0] * COUNT, window_ms=FOREVER_MS)


@pytest.fixture
def prefix() -> str:
    """A prefix that nobody else has."""
    return f"{uuid.uuid4()}:"


@installed
@pytest.mark.parametrize("buckets", [1, 16])
def test_a_client_that_was_given_is_used(
    kind: str, cluster: RedisClusterServers, prefix: str, buckets: int
) -> None:
    """As one that is made of a URL is: they have one memory. It stays open."""
    assert kind
    node = Redis.from_url(cluster.nodes[1].url).connection_pool.connection_kwargs
    with RedisCluster(host=node["host"], port=node["port"]) as client:
        given = RedisStore(client, prefix=prefix, buckets=buckets)
        made = RedisStore(cluster.url, prefix=prefix, buckets=buckets, timeout=30.0)
        tokens = [answer.token for answer in claim(given)]
        assert {answer.kind for answer in claim(made, owner="b")} == {ClaimKind.IN_FLIGHT}
        taken = made.complete(shared_ids(COUNT), tokens, "a", timestamps_ms=[0] * COUNT, window_ms=FOREVER_MS)
        assert taken == [True] * COUNT
        assert {answer.kind for answer in claim(given)} == {ClaimKind.DUPLICATE}
        assert given.incarnation() == made.incarnation()
        assert len(made.incarnation().split()) == len(cluster.nodes)
        given.close()
        made.close()
        assert client.ping()


@installed
def test_a_node_that_is_away_is_an_outage_and_is_found_again(kind: str, tmp_path: Path, prefix: str) -> None:
    """Also by a store that is made meanwhile; and its identity is another one when it comes back."""
    assert kind
    with redis_cluster(tmp_path) as own:
        store = RedisStore(own.url, prefix=prefix, buckets=16, timeout=5.0)
        claim(store)
        before = store.incarnation()
        own.nodes[1].kill()
        late = RedisStore(own.url, prefix=prefix, buckets=16, timeout=5.0)
        for each in (store, store, late):
            with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: ") as caught:
                claim(each)
            assert caught.value.passes
            assert "\n" not in str(caught.value)
        own.nodes[1].start()
        answers: list[Claim] = []
        until = time.monotonic() + 60
        while not answers:
            try:
                answers = claim(late, owner="b")
            except SharedStoreError:
                assert time.monotonic() < until
                time.sleep(0.05)
        # The node has forgotten its entries; the others have not.
        assert {answer.kind for answer in answers} == {ClaimKind.FRESH, ClaimKind.IN_FLIGHT}
        assert len(set(before.split()) & set(late.incarnation().split())) == 2
        own.kill()
        with pytest.raises(SharedStoreError, match="start it, or correct the URL") as caught:
            claim(RedisStore(own.url, prefix=prefix))
        assert caught.value.passes
        store.close()
        late.close()


@installed
def test_a_slot_that_moves_is_followed(kind: str, tmp_path: Path, prefix: str) -> None:
    """A client that knows the old place is sent on."""
    assert kind
    with redis_cluster(tmp_path) as own:
        store = RedisStore(own.url, prefix=prefix, timeout=30.0)
        # The client has its map of the slots from here on.
        store.incarnation()
        slot = key_slot(f"{prefix}{{0}}".encode())
        nodes: list[Any] = [Redis.from_url(node.url) for node in own.nodes]
        names = [bytes(node.execute_command("CLUSTER", "MYID", NEVER_DECODE=True)).decode() for node in nodes]
        target = 0 if slot >= 16_384 // 3 else 2
        for node in (nodes[target], *nodes):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target])
        assert {answer.kind for answer in claim(store)} == {ClaimKind.FRESH}
        assert {answer.kind for answer in claim(store, owner="b")} == {ClaimKind.IN_FLIGHT}
        for node in nodes:
            node.close()
        store.close()


@installed
def test_a_node_that_is_taken_for_a_server_is_told(
    kind: str, cluster: RedisClusterServers, prefix: str
) -> None:
    """Which of the URLs would find the IDs; nobody waits for that."""
    assert kind
    for node in cluster.nodes:
        store = RedisStore(node.url, prefix=prefix, buckets=16)
        with pytest.raises(
            SharedStoreError, match=r"one node of a cluster.*give redis\+cluster://"
        ) as caught:
            claim(store)
        assert not caught.value.passes
        store.close()


def test_a_server_that_is_taken_for_a_cluster_is_told(any_redis: RedisServer) -> None:
    """And nothing is asked before the first question."""
    store = RedisStore(any_redis.url.replace("redis://", "redis+cluster://app:secret@"))
    with pytest.raises(SharedStoreError) as caught:
        claim(store)
    assert "secret" not in str(caught.value)
    store = RedisStore(any_redis.url.replace("redis://", "redis+cluster://"))
    with pytest.raises(SharedStoreError, match="Cluster mode is not enabled on this node"):
        claim(store)
    store.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+cluster://h:1/2", "names database 2, and a cluster has one only: leave it out"),
        ("redis+cluster://h:port", "is none of Redis"),
        ("unix+cluster:///run/redis.sock", "is none of Redis"),
    ],
)
def test_a_url_that_is_none_of_a_cluster_is_refused(url: str, told: str) -> None:
    """At once, in one line."""
    with pytest.raises(ConfigurationError, match=told):
        RedisStore(url)
