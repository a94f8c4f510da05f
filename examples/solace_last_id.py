"""Handle a queue of Solace PubSub+ that a connector brings to Kafka, by comparing each message's ID with the last one.

The topic, the consumer and its restart are real, on librdkafka's mock cluster inside this process; nothing has to be
installed or started:

    python examples/solace_last_id.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from confluent_kafka import Producer, TopicPartition

from dedup_adapters import solace
from dedup_sdk import DedupConsumer, LastId
from dedup_sdk.testing import MockKafka

DEDUP = LastId(id=solace.replication_group_message_id(), order=solace.order())
BROKER, MATE = 0x3B20225D86A922C7, 0x24C78197D007757C


def main() -> None:
    """Handle messages of the queue, end, and go on: after a restart, and after a fail-over to the replication mate."""
    with MockKafka() as kafka, TemporaryDirectory() as store:
        kafka.create_topic("orders")
        print("the connector lost an acknowledgement: the queue delivered 1 and 2 twice, and 3 came late")
        send(kafka.bootstrap, BROKER, 1, 2, 1, 2, 4, 3)
        run(kafka.bootstrap, store)
        print("after a restart the last ID is still 4: what the queue delivers again is found")
        send(kafka.bootstrap, BROKER, 3, 4, 5)
        run(kafka.bootstrap, store)
        print(
            "the mate counts by itself: its first ID is uncomparable, so that it is handled, "
            "and the next ones go on from there"
        )
        send(kafka.bootstrap, MATE, 1, 2, 2)
        run(kafka.bootstrap, store)


def run(bootstrap: str, store: str) -> None:
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
        consumer.assign([TopicPartition("orders", 0)])
        for message in consumer:
            print(f"  {(message.value() or b'').decode()} (offset {message.offset()})")
        uncomparable = consumer.counters.reasons.get("unverified.uncomparable", 0)
        print(f"  duplicates: {consumer.counters.verdicts['duplicate']}, uncomparable: {uncomparable}")


def send(bootstrap: str, spooler_id: int, *message_ids: int) -> None:
    """Send messages as a connector does: the ID that the broker gave is a header."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for message_id in message_ids:
        dedup_id = str(solace.ReplicationGroupMessageId(spooler_id, message_id))
        producer.produce(
            "orders",
            f"order {message_id}",
            headers=[(solace.REPLICATION_GROUP_MESSAGE_ID, dedup_id.encode())],
        )
    producer.flush()


if __name__ == "__main__":
    main()
