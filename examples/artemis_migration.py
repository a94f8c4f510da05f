"""Move a queue from Apache ActiveMQ Artemis to Kafka, with the broker's own settings for duplicates.

The topic, the consumer and its restart are real, on librdkafka's mock cluster inside this process; nothing has to be
installed or started:

    python examples/artemis_migration.py

With the broker's file: ``dedup=artemis.from_broker_xml("broker.xml").lookup`` (extra ``[artemis]``).
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from confluent_kafka import Producer, TopicPartition

from dedup_adapters import artemis
from dedup_sdk import DedupConsumer
from dedup_sdk.testing import MockKafka

# As in broker.xml: <id-cache-size>20000</id-cache-size>, and address-settings for "orders.#" and "audit".
DEDUP = artemis.duplicate_detection(id_cache_size=20_000, addresses={"orders.#": 3, "audit": 0})


def main() -> None:
    """Handle messages, end, and go on with those that came meanwhile."""
    with MockKafka() as kafka, TemporaryDirectory() as store:
        for topic in ("orders.eu", "audit"):
            kafka.create_topic(topic)
        print("orders.eu remembers 3 IDs: the second A and the second C are duplicates")
        send(kafka.bootstrap, "orders.eu", "A", "B", "A", "C", "C")
        run(kafka.bootstrap, store, "orders.eu")
        print("a restart forgets nothing: A is found, D takes its slot, and A is new again")
        send(kafka.bootstrap, "orders.eu", "A", "D", "A")
        run(kafka.bootstrap, store, "orders.eu")
        print("audit remembers none: everything is delivered")
        send(kafka.bootstrap, "audit", "A", "A")
        run(kafka.bootstrap, store, "audit")


def run(bootstrap: str, store: str, topic: str) -> None:
    """Handle the topic's messages for the group, in the life of one process."""
    with (
        DedupConsumer(
            {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"},
            dedup=DEDUP,
            store=store,
            idle_timeout=1,  # seconds; a service leaves it out and runs for ever
        ) as consumer,
        consumer.stop_on_signals(),
    ):
        # A service subscribes; the mock cluster would keep whoever comes next waiting for the session of who left.
        consumer.assign([TopicPartition(topic, 0)])
        for message in consumer:
            print(f"  {(message.value() or b'').decode()} (offset {message.offset()})")
        print(f"  duplicates: {consumer.counters.verdicts['duplicate']}")


def send(bootstrap: str, topic: str, *ids: str) -> None:
    """Send messages as a bridge from the broker does: the duplicate ID is a header."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for dedup_id in ids:
        producer.produce(topic, f"order {dedup_id}", headers=[(artemis.DUPLICATE_ID, dedup_id.encode())])
    producer.flush()


if __name__ == "__main__":
    main()
