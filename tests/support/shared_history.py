"""A history that a group handled in part, to be rebuilt into a memory that consumers share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._kafka.commit_text import sealed
from dedup_sdk.ids import digest_one
from dedup_sdk.shared._scope import scope_name, scoped_ids
from tests.support.consuming import commit_text
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk.shared._scope import Scope
    from tests.support.brokers import Broker

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BASE_MS: Final = 1_700_000_000_000
NEWEST_MS: Final = BASE_MS + 40 * HOUR_MS
HANDLED: Final = {b"a": 40, b"b": 30, b"c": 20, b"d": 39}
"""The IDs that the group handled within the last day of its history, and the hour of their last sighting."""


def at(name: bytes | None, hour: int, partition: int) -> Outgoing:
    """A record of an hour of the history; None: without an ID."""
    headers = {} if name is None else {"dedup-id": name}
    return Outgoing(headers=headers, partition=partition, timestamp_ms=BASE_MS + hour * HOUR_MS)


class SharedHistory:
    """A topic of two partitions with everything that may not be shared.

    Records that are old (``old``) or not committed (``beyond``).
    """

    def __init__(
        self,
        broker: Broker,
        spark: SparkSession,
        topic: str,
        group: str,
        url: str,
        folder: Path,
    ) -> None:
        self.topic, self.group, self.folder = topic, group, folder
        self.spark = spark
        self.broker, self.url = broker, url
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.cluster: str = str(admin.list_topics(timeout=30).cluster_id)
        self.send(at(b"old", 1, 0), at(b"b", 2, 0), at(b"old", 3, 0), at(b"b", 30, 0), at(None, 31, 0))
        self.send(at(b"a", 40, 0), at(b"beyond", 40, 0), at(b"a", 40, 0))
        self.send(at(b"a", 19, 1), at(b"c", 20, 1), at(b"d", 39, 1), at(b"beyond", 39, 1))
        self.commit(group, {0: 6, 1: 3})

    def send(self, *records: Outgoing) -> None:
        """Send records to the topic."""
        produce(self.broker.bootstrap, self.topic, records)

    def commit(self, group: str, ends: dict[int, int]) -> None:
        """Commit as a consumer of ours does that began at the beginning."""
        client = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": group})
        offsets = [
            TopicPartition(self.topic, number, end, sealed(commit_text(end), group, self.topic, number))
            for number, end in ends.items()
        ]
        client.commit(offsets=offsets, asynchronous=False)
        client.close()

    def arguments(self, *more: str) -> list[str]:
        """The command line of a run for the group's memory."""
        usual = ["--bootstrap", self.broker.bootstrap, "--topic", self.topic, "--id", "header:dedup-id"]
        return [*usual, "--window", "1d", "--group", self.group, "--shared", self.url, *more]

    def run(self, *more: str, **others: Any) -> dict[str, Any]:
        """Rebuild, and return the report."""
        from spark_backfill.backfill import backfill
        from spark_backfill.options import parse_options

        options = parse_options(self.arguments(*more), print)
        return dict(json.loads(str(backfill(options, lambda: self.spark, **others))))

    def keys(
        self, *names: bytes, partition: int = 0, scope: Scope = "topic", group: str = "", prefix: str = ""
    ) -> list[bytes]:
        """A store's names for IDs."""
        name = scope_name(
            scope,
            id_spec="header:dedup-id",
            cluster=self.cluster,
            prefix=prefix,
            group=group or self.group,
            topic=self.topic,
            partition=partition,
        )
        return scoped_ids(name, map(digest_one, names))


def expected() -> dict[bytes, int | None]:
    """The marks that the memory is to have: timestamps of last sightings."""
    return {name: BASE_MS + hour * HOUR_MS for name, hour in HANDLED.items()}
