"""Read orders and write bills in Kafka transactions: each order has one bill, also when all orders are sent again.

Runs against librdkafka's mock cluster inside this process:

    python examples/exactly_once.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, Producer

from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.testing import MockKafka


def main() -> None:
    """Bill orders, some of which the topic holds twice; then the same orders once more."""
    with MockKafka() as kafka, TemporaryDirectory() as store:
        kafka.create_topic("orders")
        kafka.create_topic("bills")
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
            send(kafka.bootstrap, "order-1", "order-2", "order-1", "order-3")
            bill_all(consumer)
            send(kafka.bootstrap, "order-1", "order-2", "order-3", "order-4")
            bill_all(consumer)
        print("bills:", *read_bills(kafka.bootstrap))


def bill_all(consumer: DedupConsumer) -> None:
    """Write a bill for each order, in transactions, which also commit the offsets of the orders."""
    # The next process with this ID ends the transaction of a killed one at once.
    with consumer.transactions({"transactional.id": "billing-1"}) as transactions:
        for transaction in transactions:
            for message in transaction:
                order = (message.value() or b"").decode()
                print(f"bill {order} (offset {message.offset()})")
                transaction.produce("bills", order)


def read_bills(bootstrap: str) -> list[str]:
    """Return the bills that readers of committed records see."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.subscribe(["bills"])
    bills: list[str] = []
    while (message := reader.poll(3)) is not None:
        bills.append((message.value() or b"").decode())
    reader.close()
    return bills


def send(bootstrap: str, *orders: str) -> None:
    """Send orders; the ID is the value too."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for order in orders:
        producer.produce("orders", order, headers=[("dedup-id", order.encode())])
    producer.flush()


if __name__ == "__main__":
    main()
