"""Offsets in the database: where a partition begins, and the calls that move them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from dedup_adapters.sql import Inbox, InboxError, KeptOffsets, OutOfOrderError
from dedup_sdk import ConfigurationError, MemoryStore, Record
from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import MockKafka
from tests.support.consuming import PATIENCE_S, commit_plainly, ending_with_the_log, make_consumer, values
from tests.support.databases import Statements
from tests.support.producing import Outgoing, produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

ONE_PARTITION = [TopicPartition("orders", 0)]


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A topic with ten records without IDs."""
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        produce(kafka.bootstrap, "orders", [Outgoing(value=b"%d" % n, partition=0) for n in range(10)])
        yield kafka.bootstrap


def keeping(engine: Engine, bootstrap: str, **settings: Any) -> Inbox:
    """An inbox of the group "g" that keeps its offsets; its tables are there."""
    inbox = Inbox(
        engine,
        group="g",
        offsets=KeptOffsets(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}), **settings),
    )
    inbox.create()
    return inbox


def plain(bootstrap: str) -> Consumer:
    """A plain client of the group."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "enable.auto.commit": False,
        }
    )


def handle(engine: Engine, inbox: Inbox, consumer: Any, count: int) -> list[str]:
    """Handle so many messages one by one; return those that were first."""
    got = []
    while count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "nothing comes"
        assert message.error() is None, message.error()
        with engine.begin() as connection, inbox.once(connection, message) as first:
            if first:
                got.append(message.value().decode())
        count -= 1
    return got


def life(engine: Engine, bootstrap: str, count: int, **settings: Any) -> list[str]:
    """Handle some messages in the life of one process."""
    inbox, consumer = keeping(engine, bootstrap, **settings), plain(bootstrap)
    try:
        consumer.assign(inbox.offsets.begin(consumer, ONE_PARTITION))
        return handle(engine, inbox, consumer, count)
    finally:
        consumer.close()


def kept(engine: Engine, topic: str = "orders") -> tuple[int, str]:
    """The next offset and the topic's ID, as the database has them."""
    table = Inbox(engine, group="g").metadata.tables["dedup_inbox_offsets"]
    with engine.connect() as connection:
        row = connection.execute(
            select(table.c.next_offset, table.c.topic_id).where(table.c.topic == topic)
        ).one()
    return row.next_offset, row.topic_id


@pytest.mark.parametrize("committed", [None, 1, 9])
def test_a_partition_begins_where_the_database_says(
    engine: Engine, bootstrap: str, committed: int | None
) -> None:
    """Whether Kafka's committed offset is ahead, behind, or none."""
    assert life(engine, bootstrap, 4) == ["0", "1", "2", "3"]
    if committed is not None:
        commit_plainly(bootstrap, "g", "orders", committed)
    assert life(engine, bootstrap, 3) == ["4", "5", "6"]
    assert kept(engine) == (7, "")


def test_a_partition_that_the_database_does_not_know_begins_where_the_group_stands(
    engine: Engine, bootstrap: str
) -> None:
    """And from then on where the database says, though nothing was handled: Kafka's offset may run ahead."""
    commit_plainly(bootstrap, "g", "orders", 3)
    assert life(engine, bootstrap, 0) == []
    commit_plainly(bootstrap, "g", "orders", 8)
    assert life(engine, bootstrap, 2) == ["3", "4"]


def test_the_latest_by_choice(engine: Engine, bootstrap: str) -> None:
    """reset= says where a partition begins that nobody knows."""
    inbox, consumer = keeping(engine, bootstrap, reset="latest"), plain(bootstrap)
    [begun] = inbox.offsets.begin(consumer, ONE_PARTITION)
    assert begun.offset == 10
    consumer.close()
    with pytest.raises(ConfigurationError, match="choose earliest, latest or error"):
        KeptOffsets(
            AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}),
            reset="newest",  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_an_offset_that_the_log_does_not_have(
    engine: Engine, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log ends before it: the partition begins anew, with a warning, or it is an error.

    IDs are known all the same.
    """
    produce(bootstrap, "orders", with_ids("a"))
    assert life(engine, bootstrap, 11)[-1] == "a"
    move(engine, bootstrap, 500)
    with pytest.raises(
        InboxError,
        match=r"orders\[0\]: group 'g' has no usable offset \(the topic has offsets from 0 to 11\), and reset=error",
    ):
        life(engine, bootstrap, 1, reset="error")
    with caplog.at_level(logging.WARNING, "dedup_adapters"):
        assert life(engine, bootstrap, 11) == [str(n) for n in range(10)]
    assert (
        "offset 500 of group g in the database is unusable, because the topic has offsets from 0 to 11; continuing at 0"
        in caplog.text
    )
    assert kept(engine) == (11, "")


def move(engine: Engine, bootstrap: str, offset: int) -> None:
    """Set the group elsewhere."""
    with engine.begin() as connection:
        keeping_nothing = keeping(engine, bootstrap)
        keeping_nothing.offsets.move(connection, [TopicPartition("orders", 0, offset)])


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_group_is_set_back(engine: Engine, bootstrap: str) -> None:
    """By `move`: messages without an ID are handled again. A running reader is told to begin again."""
    inbox, consumer = keeping(engine, bootstrap), plain(bootstrap)
    consumer.assign(inbox.offsets.begin(consumer, ONE_PARTITION))
    assert handle(engine, inbox, consumer, 3) == ["0", "1", "2"]
    move(engine, bootstrap, 1)
    with pytest.raises(
        InboxError,
        match=r"orders\[0\]: its offset in the database was set back to 1; assign the partition again",
    ):
        handle(engine, inbox, consumer, 1)
    consumer.assign(inbox.offsets.begin(consumer, ONE_PARTITION))
    assert handle(engine, inbox, consumer, 3) == ["1", "2", "3"]
    consumer.close()
    with engine.connect() as connection:
        assert inbox.offsets.positions(connection) == {("orders", 0): 4}
    for offset, what in ((-1, "offset -1 is below 0"), (3, "begin the partition first")):
        with pytest.raises((ConfigurationError, InboxError), match=what), engine.begin() as connection:
            inbox.offsets.move(connection, [TopicPartition("orders", 1 if offset > 0 else 0, offset)])


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_what_was_rolled_back_has_to_come_first(engine: Engine, bootstrap: str) -> None:
    """Else the offset would pass it, and a restart would lose it."""
    inbox, consumer = keeping(engine, bootstrap), plain(bootstrap)
    consumer.assign(inbox.offsets.begin(consumer, ONE_PARTITION))
    one, two = consumer.consume(2, 10)
    with pytest.raises(ZeroDivisionError), engine.begin() as connection, inbox.once(connection, one):
        raise ZeroDivisionError
    with (
        pytest.raises(OutOfOrderError, match=r"offset 1 came, but 0 was rolled back"),
        engine.begin() as connection,
        inbox.once(connection, two),
    ):
        raise AssertionError("it was told")
    with engine.begin() as connection, inbox.once_many(connection, [one, two]) as first:
        assert first == [True, True]
    with engine.begin() as connection, inbox.once(connection, Record("orders", 0, 3)) as first:
        assert first
    with (
        pytest.raises(OutOfOrderError, match="offset 2 came after"),
        engine.begin() as connection,
        inbox.once(connection, Record("orders", 0, 2)),
    ):
        pass
    with (
        pytest.raises(InboxError, match="do not ascend"),
        engine.begin() as connection,
        inbox.once_many(connection, [two, one]),
    ):
        pass
    with (
        pytest.raises(InboxError, match=r"payments\[0\] was not begun: subscribe with"),
        engine.begin() as connection,
        inbox.once(connection, Record("payments", 0, 0)),
    ):
        pass
    consumer.close()


def test_who_lost_a_partition_handles_nothing_twice(engine: Engine, bootstrap: str) -> None:
    """Two owners at once, messages without IDs: each follows the database."""
    old, new = keeping(engine, bootstrap), keeping(engine, bootstrap)
    consumer = plain(bootstrap)
    for inbox in (old, new):
        consumer.assign(inbox.offsets.begin(consumer, ONE_PARTITION))
    messages = consumer.consume(4, 10)
    for inbox, part, expected in (
        (old, messages[:2], [True, True]), (new, messages[:3], [False, False, True]),
        (old, messages[2:], [False, True]),
    ):  # fmt: skip
        with engine.begin() as connection, inbox.once_many(connection, part) as first:
            assert first == expected
    assert (new.counts.behind, old.counts.behind) == (2, 1)
    consumer.close()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_an_inbox_without_offsets_says_so(engine: Engine, bootstrap: str) -> None:
    """And offsets belong to one inbox."""
    inbox = Inbox(engine, group="g")
    with pytest.raises(ConfigurationError, match="this inbox keeps no offsets"):
        _ = inbox.offsets
    kept_offsets = KeptOffsets(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}))
    Inbox(engine, group="g", offsets=kept_offsets)
    with pytest.raises(ConfigurationError, match="belong to another inbox"):
        Inbox(engine, group="h", offsets=kept_offsets)
    with pytest.raises(ConfigurationError, match="give an AdminClient"):
        KeptOffsets("localhost:9092")  # type: ignore[arg-type]


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.parametrize("drop_in", [True, False])
def test_a_subscription_begins_there_too(engine: Engine, bootstrap: str, *, drop_in: bool) -> None:
    """With the drop-in consumer and the plain one; a rebalance later the same."""
    for expected in (["0", "1", "2"], ["3", "4", "5"]):
        inbox = keeping(engine, bootstrap)
        quick = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 100, "enable.auto.commit": False}
        consumer: Any = (
            make_consumer(bootstrap, "g", MemoryStore(), quick)
            if drop_in
            else Consumer(
                {
                    **quick,
                    "bootstrap.servers": bootstrap,
                    "group.id": "g",
                    "auto.offset.reset": "latest",
                    "log_level": 0,
                }
            )
        )
        consumer.subscribe(["orders"], on_assign=inbox.offsets.on_assign)
        assert handle(engine, inbox, consumer, 3) == expected
        consumer.close()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_known_duplicate_costs_no_query(engine: Engine, bootstrap: str) -> None:
    """IDs in the drop-in consumer's own store never come to the inbox."""
    produce(bootstrap, "orders", with_ids("a", "b", "a", "b", "a", "end"))
    inbox = Inbox(engine, group="g")
    inbox.create()
    consumer = make_consumer(bootstrap, "g", MemoryStore())
    consumer.assign([TopicPartition("orders", 0, 10)])
    statements = Statements(engine)
    came = []
    with ending_with_the_log(consumer):
        for message in consumer:
            came.append(message)
            with engine.begin() as connection, inbox.once(connection, message) as first:
                assert first
    assert values(came) == ["a", "b", "end"]
    assert sum("INSERT" in each for each in statements.sent) == 3
    assert (inbox.counts.first, inbox.counts.duplicate) == (3, 0)
    consumer.close()


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_released_message_comes_again(engine: Engine, bootstrap: str) -> None:
    """Work that was rolled back is done when the consumer offers the message again."""
    inbox = Inbox(engine, group="g")
    inbox.create()
    consumer = make_consumer(bootstrap, "g", MemoryStore(), completion="explicit")
    consumer.assign([TopicPartition("orders", 0)])
    attempts: list[tuple[int | None, bool]] = []
    while len(attempts) < 3:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        with (
            suppress(DBAPIError),
            consumer.once(message),
            engine.begin() as connection,
            inbox.once(connection, message) as first,
        ):
            attempts.append((message.offset(), first))
            if len(attempts) == 1:
                connection.execute(text("SELECT * FROM nowhere"))
    assert attempts == [(0, True), (0, True), (1, True)]
    consumer.close()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_topic_made_anew_begins_anew(
    engine: Engine, broker: Broker, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """By the topic's ID, also where the new log is longer than the old one was: nothing of it is passed over.

    Known IDs are known.
    """
    name = make_topic(partitions=1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def handled(count: int) -> list[str]:
        inbox, consumer = keeping(engine, broker.bootstrap), plain(broker.bootstrap)
        try:
            consumer.assign(inbox.offsets.begin(consumer, [TopicPartition(name, 0)]))
            return handle(engine, inbox, consumer, count)
        finally:
            consumer.close()

    produce(broker.bootstrap, name, with_ids("a", "b"))
    assert handled(2) == ["a", "b"]
    _, old_id = kept(engine, name)
    admin.delete_topics([name])[name].result(30)
    make_again(broker, name)
    produce(broker.bootstrap, name, with_ids("c", "a", "d", "e"))
    with caplog.at_level(logging.WARNING, "dedup_adapters"):
        assert handled(4) == ["c", "d", "e"]
    assert (
        f"{name}[0]: offset 2 of group g in the database is unusable, because the topic was created again; "
        "continuing at 0"
    ) in caplog.text
    offset, new_id = kept(engine, name)
    assert (offset, bool(old_id), bool(new_id), old_id != new_id) == (4, True, True, True)


def make_again(broker: Broker, name: str) -> None:
    """Create a topic that is being deleted, as soon as it can be."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            broker.create_topic(name)
        except (KafkaException, KafkaHelperError):
            assert time.monotonic() < until, f"{name} cannot be made again"
        else:
            return
