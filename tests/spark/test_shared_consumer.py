"""Consumers that start on a shared store into which a rebuilt snapshot was loaded.

Handled IDs are hidden, wherever they come again, and all else is delivered.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk import MemoryStore, Window
from dedup_sdk._cli.app import run as dedup
from dedup_sdk._commit_text import sealed
from dedup_sdk.shared import Shared
from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.consuming import commit_text, lookup, make_consumer, poll_through
from tests.support.databases import database_of, postgresql
from tests.support.producing import Outgoing, produce
from tests.support.redis_servers import HAS_REDIS, redis_cluster, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.shared import ClaimStore
    from tests.support.brokers import Broker

CONTAINER = pytest.mark.container
KINDS = [*(["installed", "cluster"] if HAS_REDIS else [pytest.param("container", marks=CONTAINER)])]
BASE_MS = 1_700_000_000_000


@pytest.fixture(params=[*KINDS, pytest.param("postgresql", marks=CONTAINER)])
def memory_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty store lies, of each kind."""
    if request.param == "postgresql":
        with postgresql() as database, database_of(database, f"memory_{uuid.uuid4().hex[:8]}") as url:
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


def at(name: bytes | None, hour: int, partition: int) -> Outgoing:
    """A record of an hour of the history; None: without an ID."""
    headers = {} if name is None else {"dedup-id": name}
    return Outgoing(headers=headers, partition=partition, timestamp_ms=BASE_MS + hour * 3_600_000)


@pytest.mark.slow
def test_a_consumer_goes_on_where_the_loaded_store_ends(
    memory_url: str,
    broker: Broker,
    spark: SparkSession,
    make_topic: Callable[..., str],
    group: str,
    tmp_path: Path,
) -> None:
    """Handled IDs that come again in another partition are duplicates there.

    IDs that are new, too old, or were not reached are delivered once.
    """
    topic = make_topic(2)
    produce(
        broker.bootstrap,
        topic,
        [at(b"old", 1, 0), at(b"b", 2, 0), at(b"old", 3, 0), at(b"b", 30, 0), at(None, 31, 0),
         at(b"a", 40, 0), at(b"beyond", 40, 0), at(b"a", 40, 0),
         at(b"a", 19, 1), at(b"c", 20, 1), at(b"d", 39, 1), at(b"beyond", 39, 1)],
    )  # fmt: skip
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    ends = {0: 6, 1: 3}
    offsets = [
        TopicPartition(topic, number, end, sealed(commit_text(end), group, topic, number))
        for number, end in ends.items()
    ]
    client.commit(offsets=offsets, asynchronous=False)
    client.close()
    snapshot = str(tmp_path / "snapshot")
    given = ["--bootstrap", broker.bootstrap, "--topic", topic, "--id", "header:dedup-id", "--window", "1d"]
    backfill(parse_options([*given, "--group", group, "--output", snapshot], print), on_spark(lambda: spark))
    assert dedup(["snapshots", "load", snapshot, memory_url]) == 0
    # The IDs that came again since then, each in the partition that does not know it.
    again = [at(name, 41, 1) for name in (b"a", b"b", b"new", b"old")]
    produce(broker.bootstrap, topic, [*again, at(b"c", 41, 0), at(b"d", 41, 0)])
    with (
        closing(connect(memory_url)) as store,
        make_consumer(
            broker.bootstrap, group, MemoryStore(), dedup=lookup(window=Window(days=1)), shared=Shared(store)
        ) as consumer,
    ):
        consumer.subscribe([topic])
        got = poll_through(consumer, topic)
        delivered = sorted(dict(message.headers())["dedup-id"] for message in got)
        assert delivered == [b"beyond", b"new", b"old"]
        # Of "a" the partition knows itself; "b", "c" and "d" are known elsewhere, and "beyond" comes in two partitions.
        assert consumer.counters.reasons["duplicate.shared"] == 4
