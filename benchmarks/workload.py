"""The workload: a seeded topic, and the records that a correct consumer hands to its loop.

record
    a 200-byte JSON value, a 36-character UUID in the header ``dedup-id``, the creation time as timestamp.
duplicate
    one record in twenty bears the ID of a record at most 50,000 before it in the same partition; the value is its own.
first sighting
    a record that is the first of its ID: the only ones that a deduplicating loop may see.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

TOPIC = "orders"
HEADER = "dedup-id"
PARTITIONS = 4
VALUE_BYTES = 200
DUPLICATE_SHARE = 0.05
REACH_RECORDS = 50_000

_UUID_BYTES = 16
_FILLER_BYTES = 1 << 16
_TIMEOUT_S = 60.0
_CONTACT_S = 5.0


class WorkloadError(Exception):
    """The topic could not be filled, or holds something else; one line with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``records`` records; the same ``seed`` gives the same IDs, duplicates and values, on any machine.

    Record ``i`` goes to partition ``i % 4``, so that its offset is ``i // 4``.
    """

    records: int
    seed: int = 1

    def sources(self) -> NDArray[np.int64]:
        """Shape ``(records,)``.

        For each record the number of the first one with its ID (its own number if it is first).
        """
        sources = np.arange(self.records, dtype=np.int64)
        rng = np.random.default_rng(self.seed)
        # The last of each partition is a first sighting, so that whoever handled all of them has read everything.
        candidates = np.arange(PARTITIONS, self.records - PARTITIONS, dtype=np.int64)
        wanted = min(round(self.records * DUPLICATE_SHARE), len(candidates))
        chosen = np.sort(rng.choice(candidates, wanted, replace=False))
        reach = np.minimum(chosen // PARTITIONS, REACH_RECORDS)
        earlier = chosen - PARTITIONS * rng.integers(1, reach, endpoint=True)
        # In log order: the record looked back to may be a duplicate itself.
        for record, back in zip(chosen.tolist(), earlier.tolist(), strict=True):
            sources[record] = sources[back]
        return sources

    def first_sightings(self) -> list[NDArray[np.int64]]:
        """The ascending offsets of the first sightings, one array a partition."""
        sources = self.sources()
        return [
            np.flatnonzero(sources[partition::PARTITIONS] == np.arange(partition, self.records, PARTITIONS))
            for partition in range(PARTITIONS)
        ]

    def ids(self) -> Iterator[bytes]:
        """The dedup IDs in record order: 36 characters, the form of a random UUID."""
        digits = np.random.default_rng((self.seed, 1)).bytes(_UUID_BYTES * self.records).hex()
        width = 2 * _UUID_BYTES
        for source in self.sources().tolist():
            h = digits[source * width : (source + 1) * width]
            yield f"{h[:8]}-{h[8:12]}-4{h[13:16]}-a{h[17:20]}-{h[20:]}".encode()

    def values(self) -> Iterator[bytes]:
        """JSON objects of exactly 200 bytes in record order, compressible to a part, as text is."""
        rng = random.Random(self.seed)
        filler = rng.randbytes(_FILLER_BYTES // 2).hex()
        for number in range(self.records):
            start = (
                f'{{"order": {number}, "customer": {number % 9973}, "amount": {number % 997}.25, "note": "'
            )
            room = VALUE_BYTES - len(start) - 2
            at = rng.randrange(_FILLER_BYTES - VALUE_BYTES)
            yield f'{start}{filler[at : at + room]}"}}'.encode()


def ensure_topic(bootstrap: str, topic: str, workload: Workload) -> float | None:
    """Send the workload to a new topic and return the seconds it took; None where the topic holds it already."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    seconds = None
    try:
        topics = admin.list_topics(timeout=_CONTACT_S).topics
    except KafkaException as error:
        raise WorkloadError(
            f"{bootstrap} does not answer ({error}): name a broker that runs, or none"
        ) from None
    if topic not in topics:
        for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            created.result(_TIMEOUT_S)
        seconds = _produce(bootstrap, topic, workload)
    _verify_length(bootstrap, topic, workload)
    return seconds


def _produce(bootstrap: str, topic: str, workload: Workload) -> float:
    # Idempotent, because a producer's own duplicate would make the generator's word on the offsets wrong.
    settings = {"compression.type": "lz4", "enable.idempotence": True}
    # The coordinator of a broker that has just started is not at home at once; librdkafka asks again by itself.
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 3, **settings})
    began = time.perf_counter()
    for number, (dedup_id, value) in enumerate(zip(workload.ids(), workload.values(), strict=True)):
        headers: list[tuple[str, str | bytes | None]] = [(HEADER, dedup_id)]
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(_TIMEOUT_S)
    if left:
        raise WorkloadError(
            f"{left} records were not taken within {_TIMEOUT_S:.0f} s by {bootstrap}: look at the broker"
        )
    return time.perf_counter() - began


def _verify_length(bootstrap: str, topic: str, workload: Workload) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark-verify"})
    try:
        for partition in range(PARTITIONS):
            expected = len(range(partition, workload.records, PARTITIONS))
            limits = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
            if limits != (0, expected):
                raise WorkloadError(
                    f"{topic}/{partition} holds offsets {limits}, not (0, {expected}): delete the topic"
                )
    finally:
        consumer.close()
