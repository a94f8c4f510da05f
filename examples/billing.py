"""Charge each order once, although the topic holds some of them twice.

Runs against librdkafka's mock cluster inside this process, so that no broker has to be there. After ``pip install
dedup-sdk``, or with ``.venv/bin/python`` after ``make setup``:

    python3 examples/billing.py

With a real broker, only ``bootstrap.servers`` changes: ``BOOTSTRAP_SERVERS=localhost:9092`` names one, and
``docker compose up`` brings one. Run it twice: the second time, no order is charged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # type checkers do not find it in admin

from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.testing import MockKafka

ORDERS = {"order-1": 30, "order-2": 12, "order-3": 99}
SENT = ["order-1", "order-2", "order-1", "order-3", "order-2", "order-1"]


def main() -> None:
    """Send six records of three orders, and charge three."""
    with broker() as bootstrap, TemporaryDirectory() as store:
        send_orders(bootstrap)
        with (
            DedupConsumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": "billing",
                    "auto.offset.reset": "earliest",
                },
                dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
                store=store,
                idle_timeout=1,  # seconds; a service leaves it out and runs for ever
            ) as consumer,
            consumer.stop_on_signals(),
        ):
            consumer.subscribe(["orders"])
            for message in consumer:  # each logical message once
                charge(message)
            duplicates = consumer.counters.verdicts["duplicate"]
        print(f"{len(SENT)} records, {duplicates} of them duplicates")


@contextmanager
def broker() -> Iterator[str]:
    """Yield the address of the broker that the environment names, else of a mock cluster in this process."""
    if bootstrap := os.environ.get("BOOTSTRAP_SERVERS"):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [created] = admin.create_topics([NewTopic("orders")]).values()
        with suppress(KafkaException):  # it is there already
            created.result()
        yield bootstrap
        return
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        yield kafka.bootstrap


def charge(message: Message) -> None:
    """Charge an order."""
    order = json.loads(message.value() or b"{}")
    print(f"charge {order['id']}: {order['amount']} (offset {message.offset()})")


def send_orders(bootstrap: str) -> None:
    """Send the orders as an application does that retries: the same ID may come at several offsets."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for order in SENT:
        producer.produce(
            "orders",
            key=order,
            value=json.dumps({"id": order, "amount": ORDERS[order]}),
            headers=[("dedup-id", order.encode())],
        )
    producer.flush()


if __name__ == "__main__":
    main()
