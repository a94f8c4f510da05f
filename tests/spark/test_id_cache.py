"""The rings of Artemis, rebuilt by the whole job: those of a consumer that lived, those of the broker's list, and what follows from them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from dedup_adapters import artemis
from dedup_sdk import Recovery, RocksStore, Window
from dedup_sdk.ids import digest_one
from dedup_sdk.store.backup import snapshot_store
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.snapshot import read_snapshot, verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.options import parse_options
from tests.support.consuming import make_consumer, poll_through, run_through, values
from tests.support.naive_fold import as_dictionary, live
from tests.support.naive_id_cache import NaiveIdCache
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.decision import Mark
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SIZE = 7
PARTITIONS = (0, 1)
IDLE_S = 0.5


def ids_of(count: int) -> list[list[bytes | None]]:
    """The IDs of each partition's messages: near and far duplicates, an empty one, and messages without any."""
    source = random.Random(7)
    usual = [f"id-{number}".encode() for number in range(2 * SIZE)]
    return [source.choices([*usual, b"", None], k=count) for _ in PARTITIONS]


def outgoing(ids: Sequence[Sequence[bytes | None]], header: str, first: int) -> list[Outgoing]:
    """The same as messages, from this offset on; the value is partition and offset."""
    return [
        Outgoing(
            value=f"{partition}/{first + at}".encode(),
            headers=[] if dedup_id is None else [(header, dedup_id)],
            partition=partition,
        )
        for partition, part in enumerate(ids)
        for at, dedup_id in enumerate(part)
    ]


def accepted(caches: Sequence[NaiveIdCache], ids: Sequence[Sequence[bytes | None]], first: int) -> list[str]:
    """The values of the messages that the broker would have taken."""
    found = []
    for partition, (cache, part) in enumerate(zip(caches, ids, strict=True)):
        for offset, dedup_id in enumerate(part, first):
            if cache.accepts(dedup_id):
                found.append(f"{partition}/{offset}")
    return found


def rings(folder: Path) -> list[tuple[dict[bytes, Mark], int]]:
    """The marks of each partition that are in its ring, and how many IDs were accepted."""
    found = []
    for entry in verify_snapshot(folder).partitions:
        marks = {
            key: mark for page in read_snapshot(folder, entry) for key, mark in as_dictionary(page).items()
        }
        found.append((live(marks, Window(count=SIZE), 0, entry.accepted), entry.accepted))
    return found


def test_a_consumers_rings_are_rebuilt(
    broker: Broker,
    spark: SparkSession,
    make_topic: Callable[..., str],
    produce: Callable[..., int],
    tmp_path: Path,
) -> None:
    """The same IDs with the same numbers, in the order of the broker's list, without what was given up; taken over, it answers as the list does."""
    topic = make_topic(len(PARTITIONS))
    group = f"{topic}-group"
    whole = ids_of(330)
    ids, more = [part[:300] for part in whole], [part[300:] for part in whole]
    produce(topic, outgoing(ids, artemis.DUPLICATE_ID, 0))
    caches = [NaiveIdCache(SIZE) for _ in PARTITIONS]
    dedup = artemis.duplicate_detection(addresses={topic: SIZE})
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.value().decode())

    with make_consumer(
        broker.bootstrap, group, tmp_path / "store", dedup=dedup, idle_timeout=IDLE_S
    ) as consumer:
        consumer.subscribe([topic])
        run_through(consumer, topic, handle)
    taken = accepted(caches, ids, 0)
    assert sorted(handled) == sorted(taken)

    folder = tmp_path / "snapshot"
    told = backfill(
        parse_options(
            [
                "--bootstrap", broker.bootstrap, "--topic", topic, "--group", group, "--id", f"header:{artemis.DUPLICATE_ID}",
                "--window", str(dedup.window_of(topic)), "--output", str(folder),
            ],
            print,
        ),
        lambda: spark,
    )  # fmt: skip
    assert told.records == 600
    snapshot_store(list_partitions(tmp_path / "store"), tmp_path / "store", tmp_path / "own")
    rebuilt = rings(folder)
    assert rebuilt == rings(tmp_path / "own")
    for (marks, _), cache in zip(rebuilt, caches, strict=True):
        in_order = sorted(marks, key=lambda key, marks=marks: marks[key].number)  # type: ignore[misc]
        assert in_order == [digest_one(dedup_id) for dedup_id in cache.ids]

    produce(topic, outgoing(more, artemis.DUPLICATE_ID, 300))
    options: dict[str, Any] = {"dedup": dedup, "recovery": Recovery(snapshot=folder)}
    with make_consumer(broker.bootstrap, group, RocksStore(tmp_path / "new"), **options) as consumer:
        consumer.subscribe([topic])
        came = values(poll_through(consumer, topic))
        assert [consumer._session.assigned[topic, number].replayed for number in PARTITIONS] == [0, 0]
        assert sorted(came) == sorted(accepted(caches, more, 300))
        assert consumer.counters.verdicts["duplicate"] > 0
        assert consumer.counters.verdicts["unverified"] == 0
