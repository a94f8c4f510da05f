"""The transactional outbox: a message is sent if, and only if, the transaction that wrote it was committed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from sqlalchemy import Connection, create_engine, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from dedup_adapters.sql_outbox import SqlOutbox
from dedup_sdk import ConfigurationError
from dedup_sdk.producer import OutboxError, OutboxFullError, OutboxLockedError, ProducerKey
from dedup_sdk.testing import MockKafka
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS, SERVERS
from tests.support.consuming import PATIENCE_S
from tests.support.outboxes import make_producer, poll_until, records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Engine


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    """A mock cluster with the topic "orders"."""
    with MockKafka() as mock:
        mock.create_topic("orders")
        yield mock


@pytest.fixture
def outbox(engine: Engine) -> SqlOutbox:
    """An outbox that is made."""
    made = SqlOutbox(engine)
    made.create()
    made.create()
    return made


def left(engine: Engine, outbox: SqlOutbox) -> list[tuple[Any, ...]]:
    """The rows of the table: keys and reasons."""
    columns = outbox.table.c
    with engine.connect() as connection:
        rows = connection.execute(select(columns.dedup_id, columns.refused).order_by(columns.id)).all()
    return [(bytes(key), reason) for key, reason in rows]


@BY_ASYNC_DRIVERS
def test_what_an_async_session_commits_is_sent_and_nothing_else(
    kafka: MockKafka, engine: Engine, async_url: URL
) -> None:
    """Added with `await`, by an outbox of an `AsyncEngine`; the producer sends with an `Engine`, and asks for one."""

    async def main() -> bytes:
        async_engine = create_async_engine(async_url)
        outbox = SqlOutbox(async_engine)
        await outbox.create_async()
        async with AsyncSession(async_engine) as session, session.begin():
            key = await outbox.add(session, "orders", "1", key="k", headers={"a": b"x"})
        async with async_engine.begin() as connection:
            await outbox.add(connection, "orders", b"2", dedup_id="order-2")
        with pytest.raises(asyncio.CancelledError):  # noqa: PT012 (the transaction is in it)
            async with AsyncSession(async_engine) as session, session.begin():
                await outbox.add(session, "orders", b"rolled back")
                raise asyncio.CancelledError
        with pytest.raises(ValueError, match="invalid message"):
            async with AsyncSession(async_engine) as session, session.begin():
                await outbox.add(session, "", b"3")
        with pytest.raises(ConfigurationError, match=r"await outbox\.create_async\(\)"):
            outbox.create()
        with pytest.raises(ConfigurationError, match=r"give it SqlOutbox\(create_engine"):
            make_producer(kafka.bootstrap, outbox)
        await async_engine.dispose()
        return key

    key = asyncio.run(main())
    outbox = SqlOutbox(engine)
    with make_producer(kafka.bootstrap, outbox) as producer:
        poll_until(producer, lambda: producer.counters.confirmed >= 2, "what was there")
        assert producer.counters.confirmed == 2
    seen = records(kafka.bootstrap, "orders")
    assert [(each.value, each.dedup_id) for each in seen] == [(b"1", key), (b"2", b"order-2")]
    assert left(engine, outbox) == []


def test_what_is_committed_is_sent_and_nothing_else(
    kafka: MockKafka, engine: Engine, outbox: SqlOutbox
) -> None:
    """With its key, headers and time, in order.

    A row goes when it is confirmed, and another process may add while the producer runs.
    """
    with engine.begin() as connection:
        key = outbox.add(
            connection, "orders", "1", key="k", headers={"a": b"x", "b": None}, timestamp=1_700_000_000_000
        )
        outbox.add(connection, "orders", b"2", dedup_id="order-2")
    with engine.connect() as connection:
        outbox.add(connection, "orders", b"rolled back")
        connection.rollback()
    assert ProducerKey.read(key)
    with make_producer(kafka.bootstrap, outbox) as producer:
        assert producer.counters.recovered == 2
        poll_until(producer, lambda: producer.counters.confirmed >= 2, "what was there")
        assert producer.counters.confirmed == 2
        with engine.begin() as connection:
            outbox.add(connection, "orders", b"3")
        poll_until(producer, lambda: producer.counters.confirmed >= 3, "what was added")
        assert producer.counters.confirmed == 3
    seen = records(kafka.bootstrap, "orders")
    assert [each.value for each in seen] == [b"1", b"2", b"3"]
    assert [each.dedup_id for each in seen[:2]] == [key, b"order-2"]
    assert (seen[0].key, seen[0].timestamp_ms, seen[0].headers) == (
        b"k",
        1_700_000_000_000,
        (("a", b"x"), ("b", None)),
    )
    assert left(engine, outbox) == []


def test_the_producers_own_messages_go_through_the_table_too(
    kafka: MockKafka, engine: Engine, outbox: SqlOutbox
) -> None:
    """The same interface.

    Its persist() returns when they are committed, and the next one sends messages that close() leaves, with the same
    keys.
    """
    kafka.set_broker_down()
    with make_producer(kafka.bootstrap, outbox, close_timeout=0) as producer:
        for number in range(700):
            producer.produce("orders", f"{number}", key=b"k")
        producer.persist(PATIENCE_S)
        before = left(engine, outbox)
        assert len(before) == len(producer) == 700
    assert left(engine, outbox) == before
    kafka.set_broker_up()
    with make_producer(kafka.bootstrap, SqlOutbox(engine)) as producer:
        poll_until(producer, lambda: producer.counters.confirmed >= 700, "what was left")
    seen = records(kafka.bootstrap, "orders")
    assert list(dict.fromkeys(each.value for each in seen)) == [b"%d" % number for number in range(700)]
    assert {each.dedup_id for each in seen} == {key for key, _ in before}
    assert left(engine, outbox) == []


@pytest.mark.parametrize("server", SERVERS, indirect=True, scope="session")
def test_a_row_that_appears_behind_later_ones_is_sent(
    kafka: MockKafka, engine: Engine, outbox: SqlOutbox
) -> None:
    """A long transaction took its number first and is committed last: a cursor over numbers would never see it."""
    with make_producer(kafka.bootstrap, outbox) as producer, engine.connect() as slow:
        outbox.add(slow, "orders", b"slow")
        with engine.begin() as quick:
            outbox.add(quick, "orders", b"quick")
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the later one")
        assert producer.counters.confirmed == 1
        slow.commit()
        poll_until(producer, lambda: producer.counters.confirmed >= 2, "the earlier one")
        assert producer.counters.confirmed == 2
    assert [each.value for each in records(kafka.bootstrap, "orders")] == [b"quick", b"slow"]


def test_one_producer_sends_at_a_time(kafka: MockKafka, url: str, outbox: SqlOutbox) -> None:
    """A second one is refused in one line, also from another engine; the next may when the first has ended."""
    other = create_engine(url)
    with make_producer(kafka.bootstrap, outbox):
        with pytest.raises(OutboxLockedError, match="is sent from elsewhere") as raised:
            make_producer(kafka.bootstrap, SqlOutbox(other))
        assert "\n" not in str(raised.value)
    make_producer(kafka.bootstrap, SqlOutbox(other)).close()
    other.dispose()


def test_the_next_producer_waits_for_the_lock(kafka: MockKafka, url: str, outbox: SqlOutbox) -> None:
    """The process before it may have been killed, and the database not have seen it yet."""
    other = create_engine(url)
    first = make_producer(kafka.bootstrap, outbox)
    ending = threading.Timer(0.3, first.close)
    ending.start()
    make_producer(kafka.bootstrap, SqlOutbox(other), lock_wait=30).close()
    ending.join()
    other.dispose()


def test_what_is_refused_stays_with_its_reason_until_the_next_start(
    kafka: MockKafka, engine: Engine, outbox: SqlOutbox
) -> None:
    """In this life it is not tried again."""
    # Of another topic: the client may refuse messages for this one by itself, until it has asked again.
    kafka.create_topic("others")
    kafka.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with engine.begin() as connection:
        outbox.add(connection, "orders", b"1", dedup_id="a")
    with make_producer(kafka.bootstrap, outbox) as producer:
        poll_until(producer, lambda: producer.counters.refused >= 1, "the refusal")
        assert producer.counters.refused == 1
        with engine.begin() as connection:
            outbox.add(connection, "others", b"2")
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the one behind it")
        assert producer.counters.confirmed == 1
        assert producer.counters.sent == 2
    [(key, reason)] = left(engine, outbox)
    assert key == b"a"
    assert reason.startswith("TOPIC_AUTHORIZATION_FAILED")
    with make_producer(kafka.bootstrap, outbox) as producer:
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the next attempt")
        assert producer.counters.confirmed == 1
    assert left(engine, outbox) == []


def test_the_next_producer_waits_for_no_end_of_a_connection(
    engine: Engine, outbox: SqlOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server notices that a connection has ended a moment later; the lock is free when the outbox is closed."""
    open_still: list[Connection] = []

    def keep(connection: Connection) -> None:
        open_still.append(connection)

    outbox.open()
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "close", keep)
        outbox.close()
    another = SqlOutbox(engine)
    another.open()
    another.close()
    for connection in open_still:
        connection.close()


def test_a_table_that_is_none_is_told(engine: Engine) -> None:
    """Missing, or of other columns: one line."""
    with pytest.raises(OutboxError, match=r"there is no table dedup_outbox: call create\(\)"):
        SqlOutbox(engine).open()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE dedup_outbox (id INTEGER PRIMARY KEY)"))
    with pytest.raises(OutboxError, match="is not an outbox of this version") as raised:
        SqlOutbox(engine).open()
    assert "\n" not in str(raised.value)
    assert "CREATE TABLE dedup_outbox" in SqlOutbox(engine).ddl()


def test_rows_of_another_program_are_sent_as_they_are_or_named(
    kafka: MockKafka, engine: Engine, outbox: SqlOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Any bytes are a key; a row that is no message stays with the reason, is counted, and holds up nobody."""
    good = {
        "dedup_id": b"\xff of another producer",
        "topic": "orders",
        "partition": -1,
        "value": b"good",
        "timestamp_ms": 1,
    }
    with engine.begin() as connection:
        connection.execute(insert(outbox.table), {**good, "topic": ""})
        connection.execute(insert(outbox.table), {**good, "partition": -7})
        connection.execute(insert(outbox.table), {**good, "headers": b"\xff\xff\xff"})
        connection.execute(insert(outbox.table), good)
    with make_producer(kafka.bootstrap, outbox) as producer:
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the one that is a message")
        assert producer.counters.confirmed == 1
        poll_until(producer, lambda: producer.counters.unreadable >= 3, "those that are none")
        assert producer.counters.unreadable == 3
    [sent] = records(kafka.bootstrap, "orders")
    assert (sent.dedup_id, sent.value) == (good["dedup_id"], b"good")
    assert [reason.split(":")[0] for _, reason in left(engine, outbox)] == ["unreadable"] * 3
    assert caplog.text.count("is not a message") == 3


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"partition": -2}, {"timestamp": -1}])
def test_what_is_no_message_is_refused_where_it_is_added(
    engine: Engine, outbox: SqlOutbox, wrong: dict[str, Any]
) -> None:
    """Not later, by the producer."""
    with engine.begin() as connection, pytest.raises(ValueError, match="invalid message"):
        outbox.add(connection, **{"topic": "orders", **wrong})
    assert left(engine, outbox) == []


@pytest.mark.parametrize("server", ["sqlite"], indirect=True, scope="session")
def test_a_database_that_is_busy_is_waited_for(
    kafka: MockKafka, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading and writing go on by themselves; persist() says why it did not, and one line of each is in the log."""
    engine = create_engine(url, connect_args={"timeout": 0})
    outbox = SqlOutbox(engine)
    outbox.create()
    with make_producer(kafka.bootstrap, outbox) as producer:
        with engine.connect() as other:
            other.exec_driver_sql("BEGIN EXCLUSIVE")
            producer.produce("orders", b"1")
            with pytest.raises(OutboxFullError, match=r"cannot be written .*locked"):
                producer.persist()
            poll_until(producer, lambda: "cannot be read" in caplog.text, "a look at the table")
            other.rollback()
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the delivery")
        assert producer.counters.confirmed == 1
    assert caplog.text.count("cannot be written") == 1
    engine.dispose()


def test_a_database_of_another_kind_is_refused() -> None:
    """With those that there are."""

    class Dialect:
        name = "oracle"

    class Other:
        dialect = Dialect()

    with pytest.raises(ConfigurationError, match="postgresql, sqlite, mysql, mariadb"):
        SqlOutbox(Other())  # type: ignore[arg-type]  # nothing of it is used
