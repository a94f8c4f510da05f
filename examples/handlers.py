"""Handle orders on worker threads; one that fails for good becomes a dead letter, and is handled when sent back.

Runs against librdkafka's mock cluster inside this process:

    python examples/handlers.py
"""

from __future__ import annotations

import logging
from tempfile import TemporaryDirectory

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from dedup_sdk import DeadLetter, DedupConsumer, Lookup, Window, header
from dedup_sdk.testing import MockKafka

CLOSED = {"order-2"}


def main() -> None:
    """Give an order up while the bank is closed, and handle it when it is open."""
    logging.disable()  # retries and dead letters are logged as warnings
    with MockKafka() as kafka, TemporaryDirectory() as store:
        kafka.create_topic("orders")
        kafka.create_topic("given-up")
        send(kafka.bootstrap, "order-1", "order-2", "order-1", "order-3")
        with (
            DedupConsumer(
                {
                    "bootstrap.servers": kafka.bootstrap,
                    "group.id": "billing",
                    "auto.offset.reset": "earliest",
                },
                dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
                store=store,
                idle_timeout=1,  # seconds; a service leaves it out and runs until stop()
            ) as consumer,
            consumer.stop_on_signals(),
        ):
            consumer.subscribe(["orders"])
            consumer.run(
                charge, on_error="dead-letter", dead_letters="given-up", attempts=3, wait_initial=0.01
            )
            print(f"{consumer.counters.retried} retries, {consumer.counters.dead_lettered} dead letter")

            CLOSED.clear()
            send_back(kafka.bootstrap)
            consumer.run(charge, on_error="dead-letter", dead_letters="given-up")


def send_back(bootstrap: str) -> None:
    """Send dead letters back with their headers, as `dedup redrive` does; without them they would be duplicates."""
    producer = Producer({"bootstrap.servers": bootstrap})
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "re-drive"})
    reader.assign([TopicPartition("given-up", 0, OFFSET_BEGINNING)])
    while (message := reader.poll(1)) is not None:
        letter = DeadLetter.read(message)
        if letter is not None:
            print(f"offset {letter.offset} was given up: {letter.error}")
            producer.produce(letter.topic, message.value(), message.key(), headers=message.headers())
    producer.flush()
    reader.close()


def charge(message: Message) -> None:
    """Charge an order, if the bank is open."""
    order = (message.value() or b"").decode()
    if order in CLOSED:
        raise ConnectionError(f"{order}: the bank is closed")
    print(f"charge {order} (offset {message.offset()})")


def send(bootstrap: str, *orders: str) -> None:
    """Send orders; the ID is the value too."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for order in orders:
        producer.produce("orders", order, headers=[("dedup-id", order.encode())])
    producer.flush()


if __name__ == "__main__":
    main()
