"""A program that copies a topic in transactions, to be killed or frozen anywhere; and broken ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaException, Producer, TopicPartition

from dedup_sdk import DedupConsumer
from dedup_sdk.errors import TransactionError
from tests.support.consuming import lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from confluent_kafka import Message

IDLE_S: Final = 2.0
SESSION_S: Final = 6.0
_WORK_S: Final = 0.004
_BETWEEN_S: Final = 0.25
"""Seconds that a broken program takes between two steps that should be one."""


class Job(NamedTuple):
    """What a worker does.

    ``kind``: "block", "run" or "own" are right; "early" completes before the commit, "textless" commits offsets of its
    own, "late" takes the group's metadata when it sends the offsets.
    """

    bootstrap: str
    topic: str
    out: str
    group: str
    store: str
    protocol: dict[str, Any]
    member: str
    kind: str = "block"


def main(pipe: Connection, job: Job) -> None:
    """Copy until nothing has come for `IDLE_S`; tell the pipe of the first message, and of the end."""
    config = {
        "bootstrap.servers": job.bootstrap, "group.id": job.group, "auto.offset.reset": "earliest", "log_level": 0,
        **job.protocol,
    }  # fmt: skip
    if "group.protocol" not in config:
        # The next life need not wait for the session of one that was killed. By KIP-848 the broker keeps the ID longer.
        config["group.instance.id"] = job.member
    if job.kind not in {"block", "run"}:
        config["enable.auto.commit"] = False
    with DedupConsumer(config, dedup=lookup(), store=job.store, idle_timeout=IDLE_S) as consumer:
        consumer.subscribe([job.topic])
        copies = {"block": _copy, "run": _run, "own": _copy_by_hand}
        copies.get(job.kind, _copy_badly)(consumer, job, pipe)
    pipe.send("over")


def _handled(messages: Iterable[Message], pipe: Connection) -> Iterable[Message]:
    for message in messages:
        yield message
        time.sleep(_WORK_S)
        pipe.send("at work")


def _copy(consumer: DedupConsumer, job: Job, pipe: Connection) -> None:
    producer = {"transactional.id": f"{job.group}-{job.member}"}
    with consumer.transactions(producer, max_messages=20, seconds=0.1) as transactions:
        for transaction in transactions:
            for message in _handled(transaction, pipe):
                transaction.produce(job.out, message.value())


def _run(consumer: DedupConsumer, job: Job, pipe: Connection) -> None:
    def handle(message: Message, produce: Callable[..., None]) -> None:
        produce(job.out, message.value())
        time.sleep(_WORK_S)
        pipe.send("at work")

    producer = {"transactional.id": f"{job.group}-{job.member}"}
    # One worker: a pipe is for one thread.
    consumer.run(handle, transactions=consumer.transactions(producer, max_messages=20, seconds=0.1))


def _batches(consumer: DedupConsumer) -> Iterator[list[Message]]:
    heard_at = time.monotonic()
    while time.monotonic() < heard_at + IDLE_S + 1:
        messages = [each for each in consumer.consume(20, 0.1) if each.error() is None]
        if messages:
            yield messages
            heard_at = time.monotonic()


def _producer(job: Job) -> Producer:
    settings = {
        "bootstrap.servers": job.bootstrap,
        "transactional.id": job.group + job.member,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions()
    return producer


def _copy_by_hand(consumer: DedupConsumer, job: Job, pipe: Connection) -> None:
    producer = _producer(job)
    for messages in _batches(consumer):
        member = consumer.consumer_group_metadata()
        producer.begin_transaction()
        for message in _handled(messages, pipe):
            producer.produce(job.out, message.value())
        try:
            offsets = consumer.transaction_offsets(messages)
            producer.send_offsets_to_transaction(offsets, member)
        except (TransactionError, KafkaException):
            try:
                producer.abort_transaction()
            except KafkaException:
                # Fenced: the broker has ended the transaction.
                producer = _producer(job)
            consumer.transaction_aborted(messages)
            continue
        producer.commit_transaction()
        consumer.transaction_committed(messages, offsets)


def _copy_badly(consumer: DedupConsumer, job: Job, pipe: Connection) -> None:
    producer = _producer(job)
    for messages in _batches(consumer):
        producer.begin_transaction()
        for message in _handled(messages, pipe):
            producer.produce(job.out, message.value())
        if job.kind == "late":
            # Its partitions may have gone, and come back.
            consumer.consume(0)
            while not consumer.memberid():
                consumer.consume(0)
            offsets = consumer.transaction_offsets([each for each in messages if consumer.holds(each)])
        else:
            offsets = consumer.transaction_offsets(messages)
        if job.kind == "early":
            consumer.transaction_committed(messages, offsets)
            pipe.send("between")
            time.sleep(_BETWEEN_S)
        elif job.kind == "textless":
            offsets = [TopicPartition(tp.topic, tp.partition, tp.offset) for tp in offsets]
        if offsets:
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()
        if job.kind == "late":
            consumer.transaction_committed(messages, offsets)
        if job.kind == "textless":
            pipe.send("between")
            time.sleep(_BETWEEN_S)
            consumer.transaction_committed(messages, offsets)
