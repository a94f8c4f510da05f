"""Solace's technique 1: the ID is looked up in the database of the work, and stored there by the same transaction.

The guide "Detecting Duplicate Messages" of Solace PubSub+ has it: look the ID up; if it is there acknowledge without
work, else do the work and store the ID with it. Here the look-up and the storing are one statement, and the drop-in
consumer in front knows most duplicates without a query.

The topic and the consumer are real, on librdkafka's mock cluster inside this process, and the database is SQLite in a
file; nothing has to be installed or started but the extra ``[sql]``:

    python examples/solace_database_lookup.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from confluent_kafka import Message, Producer, TopicPartition
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
)

from dedup_adapters import solace
from dedup_adapters.sql import Inbox
from dedup_sdk import DedupConsumer, Lookup, Window
from dedup_sdk.testing import MockKafka

PAYMENTS = Table(
    "payments", MetaData(), Column("number", Integer, primary_key=True), Column("message", String(100))
)


class CrashError(Exception):
    """The process ends here, as far as this example can show it."""


def main() -> None:
    """Handle the messages of a queue: with duplicates, a crash after a commit, and one before it."""
    with MockKafka() as kafka, TemporaryDirectory() as folder:
        kafka.create_topic("orders")
        engine = create_engine(f"sqlite:///{folder}/payments.db")
        inbox = Inbox(
            engine, group="billing", id=solace.replication_group_message_id(), window=Window(days=7)
        )
        inbox.create()
        PAYMENTS.metadata.create_all(engine)
        print(
            "the queue delivers 1 and 2, then both again: the consumer's own store knows them, without a query"
        )
        send(kafka.bootstrap, 1, 2, 1, 2)
        live(kafka.bootstrap, f"{folder}/store", engine, inbox)
        print(
            "a crash between the database's commit and the consumer's: 3 comes again, and its ID is in the database"
        )
        send(kafka.bootstrap, 3)
        live(kafka.bootstrap, f"{folder}/store", engine, inbox, crash="after the commit")
        live(kafka.bootstrap, f"{folder}/store", engine, inbox)
        print(
            "a crash before the commit: nothing of 4 is in the database, so that it is done when it comes again"
        )
        send(kafka.bootstrap, 4)
        live(kafka.bootstrap, f"{folder}/store", engine, inbox, crash="before the commit")
        live(kafka.bootstrap, f"{folder}/store", engine, inbox)
        with engine.connect() as connection:
            print("paid:", ", ".join(connection.execute(select(PAYMENTS.c.message)).scalars()))
        engine.dispose()


def live(bootstrap: str, store: str, engine: Engine, inbox: Inbox, *, crash: str = "") -> None:
    """Handle the topic's messages for the group, in the life of one process."""
    try:
        with (
            DedupConsumer(
                {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"},
                dedup=Lookup(id=solace.replication_group_message_id(), window=Window(days=7)),
                store=store,
                idle_timeout=1,  # seconds; a service leaves it out and runs for ever
            ) as consumer,
            consumer.stop_on_signals(),
        ):
            # A service subscribes; the mock cluster would keep whoever comes next waiting for the session of who left.
            consumer.assign([TopicPartition("orders", 0)])
            for message in consumer:
                with engine.begin() as connection, inbox.once(connection, message) as first:
                    if first:
                        pay(connection, message)
                    else:
                        print(f"  {text_of(message)} is in the database")
                    end_if(crash == "before the commit")
                end_if(crash == "after the commit")
    except CrashError:
        print(f"  crash {crash}")


def end_if(crashes: bool) -> None:  # noqa: FBT001 (it reads as a sentence)
    """End the life of a process where it crashes."""
    if crashes:
        raise CrashError


def pay(connection: Connection, message: Message) -> None:
    """Do the work, in the transaction of the ID."""
    connection.execute(insert(PAYMENTS).values(message=text_of(message)))
    print(f"  {text_of(message)} is paid")


def text_of(message: Message) -> str:
    """Return the body of a message."""
    return (message.value() or b"").decode()


def send(bootstrap: str, *message_ids: int) -> None:
    """Send messages as a connector does: the ID that the broker gave is a header."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for message_id in message_ids:
        dedup_id = str(solace.ReplicationGroupMessageId(0x3B20225D86A922C7, message_id))
        headers: list[tuple[str, str | bytes | None]] = [
            (solace.REPLICATION_GROUP_MESSAGE_ID, dedup_id.encode())
        ]
        producer.produce("orders", f"order {message_id}", headers=headers)
    producer.flush()


if __name__ == "__main__":
    main()
