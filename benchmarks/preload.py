"""A key store that knows other IDs before the first record: as after a week of traffic.

The store is made once per comparison and copied for every run. The consumer takes it for its own: same cluster,
group, topic and ID spec, and the group has committed the offset at which the store stands (0: the topic's own
records are all to come).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.contender import strategy
from benchmarks.store_size import compact
from benchmarks.workload import PARTITIONS, WorkloadError
from dedup_sdk._commit_text import CommitMetadata, sealed
from dedup_sdk._marks import DIGEST_BYTES, Marks, Progress
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.protocol import DIGEST_NAME, Identity
from dedup_sdk._store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk._strategy import Strategy

FLUSH_MARKS = 100_000

_TIMEOUT_S = 30.0
_SEED = 2
_MS_PER_DAY = 86_400_000
_DAYS = 6
"""Spread over so much of the window of seven, so that nothing expires while the benchmark runs."""


def preload(folder: Path, ids: int, *, bootstrap: str, group: str, topic: str) -> float:
    """Make a store below `folder` with `ids` marks over all partitions; return the seconds it took."""
    began = time.perf_counter()
    cluster, topic_id = names(bootstrap, topic)
    store = RocksStore(folder)
    try:
        for partition in range(PARTITIONS):
            identity = Identity(
                cluster=cluster, group=group, topic=topic, partition=partition, topic_id=topic_id,
                id_spec=str(strategy().id),
            )  # fmt: skip
            held = store.open(identity, strategy().window_of(topic))
            progress = Progress(low=0, high=0, committed=0)
            held.reset(progress)
            for marks in _pages(len(range(partition, ids, PARTITIONS)), partition):
                held.flush(progress, marks)
            held.close()
        for entry in list_partitions(folder):
            # Over a week the store would have merged its files; here it must not do so while others are measured.
            compact(entry.path)
    finally:
        store.close()
    return time.perf_counter() - began


def beginning_text(offset: int, dedup: Strategy, group: str, topic: str, partition: int) -> str:
    """Return the text beside this offset of a group that has handled all before it, from the beginning of the log."""
    rule = rule_digits(dedup.keys, dedup.window_of(topic), digest=DIGEST_NAME, isolation="read_committed")
    return sealed(CommitMetadata(low=0, complete=True, rule=rule).text(offset), group, topic, partition)


def commit_beginning(bootstrap: str, group: str, topic: str) -> None:
    """Let the group stand where its preloaded store does.

    That is offset 0, with the metadata of a group that is new there.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        offsets = [
            TopicPartition(topic, partition, 0, beginning_text(0, strategy(), group, topic, partition))
            for partition in range(PARTITIONS)
        ]
        for each in consumer.commit(offsets=offsets, asynchronous=False):
            if each.error is not None:
                raise WorkloadError(
                    f"offset 0 of {topic}/{each.partition} was not committed: {each.error}; try again"
                )
    finally:
        consumer.close()


def _pages(count: int, partition: int) -> Iterator[Marks]:
    rng = np.random.default_rng((_SEED, partition))
    ends_ms = int(time.time() * 1000)
    starts_ms = ends_ms - _DAYS * _MS_PER_DAY
    for start in range(0, count, FLUSH_MARKS):
        # A digest is as good as random, so that random bytes stand for it.
        offsets = np.arange(start, min(start + FLUSH_MARKS, count), dtype=np.int64)
        timestamps = starts_ms + offsets * (ends_ms - starts_ms) // count
        # They lie before the first record of the topic, as the IDs in a store lie before those that come.
        yield Marks(rng.bytes(DIGEST_BYTES * len(offsets)), offsets - count, timestamps)


def names(bootstrap: str, topic: str) -> tuple[str, str]:
    """Return the cluster's and the topic's IDs, as the consumer asks for them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    cluster = str(admin.list_topics(timeout=_TIMEOUT_S).cluster_id)
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
    return cluster, str(described.result().topic_id or "")
