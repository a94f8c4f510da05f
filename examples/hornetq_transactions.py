"""Move a queue from HornetQ to Kafka, with its producers' transactions: one duplicate rejects a whole transaction.

The topic, the consumer and its restart are real, on librdkafka's mock cluster inside this process; nothing has to be
installed or started:

    python examples/hornetq_transactions.py

With the broker's file: ``dedup=hornetq.from_configuration_xml("hornetq-configuration.xml", unit="header:tx").lookup``
(extra ``[artemis]``).
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from confluent_kafka import Producer, TopicPartition

from dedup_adapters import hornetq
from dedup_sdk import DedupConsumer, header
from dedup_sdk.testing import MockKafka

TOPIC = "jms.queue.orders"
DEDUP = hornetq.duplicate_detection(unit=header("tx"))


def main() -> None:
    """Handle transactions, end in the middle of one, and go on."""
    with MockKafka() as kafka, TemporaryDirectory() as store:
        kafka.create_topic(TOPIC)
        print("transaction 1 is handled; 2 has a duplicate of it in it, and is rejected with all that it has")
        send(kafka.bootstrap, "1", "A", "B")
        send(kafka.bootstrap, "2", "C", "A")
        run(kafka.bootstrap, store)
        print("of transaction 3 one half has come when the consumer ends: it waits for the other")
        send(kafka.bootstrap, "3", "C", whole=False)
        run(kafka.bootstrap, store)
        print("and so does the next consumer; C was rejected before, not handled, so that it is new")
        send(kafka.bootstrap, "3", "D")
        run(kafka.bootstrap, store)


def run(bootstrap: str, store: str) -> None:
    """Handle the topic's messages for the group, in the life of one process."""
    with (
        DedupConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            },
            dedup=DEDUP,
            store=store,
            idle_timeout=1,  # seconds; a service leaves it out and runs for ever
        ) as consumer,
        consumer.stop_on_signals(),
    ):
        # A service subscribes; the mock cluster would keep whoever comes next waiting for the session of who left.
        consumer.assign([TopicPartition(TOPIC, 0)])
        for message in consumer:
            print(f"  {(message.value() or b'').decode()} (offset {message.offset()})")
        print(f"  rejected: {consumer.counters.verdicts['duplicate']}")


def send(bootstrap: str, transaction: str, *ids: str, whole: bool = True) -> None:
    """Send messages as a bridge does: ID and transaction are headers, and the last message of one says so."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for place, dedup_id in enumerate(ids, start=1):
        headers: list[tuple[str, str | bytes | None]] = [
            (hornetq.DUPLICATE_ID, dedup_id.encode()),
            ("tx", transaction.encode()),
        ]
        if whole and place == len(ids):
            headers.append(("dedup-unit-end", b""))
        producer.produce(TOPIC, f"order {dedup_id}", headers=headers)
    producer.flush()


if __name__ == "__main__":
    main()
