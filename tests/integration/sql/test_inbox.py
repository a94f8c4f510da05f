"""The promises of an inbox, on each database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    inspect,
    select,
    text,
)

from dedup_adapters.sql import Inbox, InboxError
from dedup_sdk import ConfigurationError, Record, header
from dedup_sdk.ids import key
from tests.integration.sql.conftest import MYSQLS, SERVERS
from tests.support.databases import Statements

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


BY_MYSQL = pytest.mark.parametrize("server", MYSQLS, indirect=True)
WORK = Table(
    "work",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("body", String(200)),
)


def message(dedup_id: bytes | None, offset: int = 0, topic: str = "orders") -> Record:
    """A record that bears an ID."""
    headers = [] if dedup_id is None else [("dedup-id", dedup_id)]
    return Record(topic, 0, offset, value=b"x", headers=headers)


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    """An inbox of the group "billing", and a table for its work."""
    made = Inbox(engine, group="billing")
    made.create()
    WORK.metadata.create_all(engine)
    return made


def handle(engine: Engine, inbox: Inbox, *records: Record) -> list[bool]:
    """Handle records one by one, each in a transaction of its own; say which were first."""
    answers = []
    for record in records:
        with engine.begin() as connection, inbox.once(connection, record) as first:
            answers.append(first)
            if first:
                connection.execute(insert(WORK).values(body=str(record.offset)))
    return answers


def work_and_fail(connection: Connection, *, first: bool) -> None:
    """Begin the work of a message, which has to be first, and raise."""
    assert first
    connection.execute(insert(WORK).values(body="half"))
    raise ZeroDivisionError


@contextmanager
def failing_at_the_end() -> Iterator[None]:
    """Raise where the block ends."""
    yield
    raise ZeroDivisionError


def worked(engine: Engine) -> int:
    """How many rows of work there are."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(WORK)).scalar_one()


def test_an_id_is_first_once(engine: Engine, inbox: Inbox) -> None:
    """The second message with an ID is not first, whatever its offset and however long the ID.

    The work is done once.
    """
    ids = [b"a", b"\0", b"\0\0", b"\xff\xfe", b"", b"x" * 65_536, "ß".encode()]
    firsts = handle(engine, inbox, *(message(each, n) for n, each in enumerate(ids)))
    again = handle(engine, inbox, *(message(each, 100 + n) for n, each in enumerate(ids)))
    assert (firsts, again) == ([True] * len(ids), [False] * len(ids))
    assert worked(engine) == len(ids)
    assert (inbox.counts.first, inbox.counts.duplicate, inbox.counts.unkeyed) == (len(ids), len(ids), 0)


@pytest.mark.parametrize("scope", ["topic", "group"])
def test_what_another_id_spec_reads_is_another_id(engine: Engine, scope: Any) -> None:
    """Customer 1001 handled does not hide order 1001 in the same table; a spec written otherwise is the same."""
    by_key, by_header, by_text = (
        Inbox(engine, group="billing", id=each, scope=scope)
        for each in (key(), header("dedup-id"), " header:dedup-id ")
    )
    by_key.create()
    WORK.metadata.create_all(engine)
    handled = Record("orders", 0, 0, key=b"1001", headers=[("dedup-id", b"7")])
    other = Record("orders", 0, 1, key=b"1002", headers=[("dedup-id", b"1001")])
    assert handle(engine, by_key, handled, handled) == [True, False]
    assert handle(engine, by_header, other, other) == [True, False]
    assert handle(engine, by_text, other) == [False]


def test_a_message_without_an_id_is_first_and_counted(engine: Engine, inbox: Inbox) -> None:
    """No header, a null, and an ID of 100,000 bytes: each is handled each time, and the reason is counted."""
    null = Record("orders", 0, 2, headers=[("dedup-id", None)])
    records = [message(None), null, message(b"x" * 100_000)]
    assert handle(engine, inbox, *records, *records) == [True] * 6
    assert inbox.counts.unkeyed == 6
    assert inbox.counts.reasons == {"absent": 4, "oversized": 2}


def test_what_was_rolled_back_is_first_again(engine: Engine, inbox: Inbox) -> None:
    """The ID goes with its work, wherever the exception comes from.

    Inside the block, or after it in the transaction.
    """
    with (
        pytest.raises(ZeroDivisionError),
        engine.begin() as connection,
        inbox.once(connection, message(b"a")) as first,
    ):
        work_and_fail(connection, first=first)
    with (
        pytest.raises(ZeroDivisionError),
        engine.begin() as connection,
        failing_at_the_end(),
        inbox.once(connection, message(b"a")) as first,
    ):
        assert first
    assert worked(engine) == 0
    assert handle(engine, inbox, message(b"a"), message(b"a", 1)) == [True, False]


def test_an_exception_that_is_swallowed_leaves_no_id_without_its_work(engine: Engine, inbox: Inbox) -> None:
    """Who catches the error and commits, commits nothing."""
    with pytest.raises(Exception, match="closed transaction"), engine.begin() as connection:  # noqa: PT012
        try:
            with inbox.once(connection, message(b"a")) as first:
                work_and_fail(connection, first=first)
        except ZeroDivisionError:
            pass
        connection.execute(insert(WORK).values(body="goes on"))
    assert worked(engine) == 0
    assert handle(engine, inbox, message(b"a")) == [True]


def test_a_batch_is_one_statement(engine: Engine, inbox: Inbox) -> None:
    """Which messages of a batch are first is asked once, twins in it included.

    On MariaDB the time is asked before that, and the stored IDs behind it.
    """
    handle(engine, inbox, message(b"3"))
    batch = [message(b"%d" % (n % 8), n) for n in range(16)] + [message(None, 16)]
    statements = Statements(engine)
    with engine.begin() as connection, inbox.once_many(connection, batch) as first:
        assert first == [n < 8 and n != 3 for n in range(16)] + [True]
    assert len(statements.sent) == (3 if engine.dialect.name == "mysql" else 1)
    with engine.begin() as connection, inbox.once_many(connection, batch) as first:
        assert first == [False] * 16 + [True]
    with engine.begin() as connection, inbox.once_many(connection, []) as first:
        assert first == []


def test_a_large_batch(engine: Engine, inbox: Inbox) -> None:
    """More IDs than a statement may have parameters."""
    batch = [message(b"%d" % n, n) for n in range(12_000)]
    for expected in (True, False):
        with engine.begin() as connection, inbox.once_many(connection, batch) as first:
            assert first == [expected] * len(batch)


def test_groups_and_topics_are_apart(engine: Engine, inbox: Inbox) -> None:
    """Groups share a table and see nothing of each other, also where their names differ in case only.

    An ID of another topic is another one.
    """
    others = [Inbox(engine, group=name) for name in ("Billing", "shipping")]
    assert handle(engine, inbox, message(b"a"), message(b"a", topic="payments")) == [True, True]
    for other in others:
        assert handle(engine, other, message(b"a"), message(b"a", 1)) == [True, False]


def test_groups_whose_names_look_alike_are_apart(engine: Engine, inbox: Inbox) -> None:
    """No database takes two names for one.

    By case, accents, normal form, width, blanks, or characters that are not seen.
    """
    assert inbox.counts.first == 0
    alike = [
        "billing", "Billing", "BILLING", "billing.", "bil ling", "bil  ling", "bil\u00a0ling", "billing\u200b",
        "\ufeffbilling", "billing\x7f",
        "b\u0131lling", "b\u00edlling", "bi\u0301lling", "\uff42illing", "stra\u00dfe", "strasse", "\ufb01x", "fix",
        "\U0001f600", "\U0001f601",
    ]  # fmt: skip
    for name in alike:
        assert handle(engine, Inbox(engine, group=name), message(b"a"), message(b"a", 1)) == [True, False], (
            name
        )


def test_a_blank_at_the_end_of_a_name_counts(engine: Engine, inbox: Inbox) -> None:
    """`Inbox` refuses such a group; rows of one that another program added are not taken for another group's."""
    ids = inbox.metadata.tables["dedup_inbox"]
    more = {"attempt": bytes(8)} if "attempt" in ids.c else {}
    with engine.begin() as connection:
        for group in ("a", "a "):
            row = {"consumer_group": group, "id": bytes(16), "seen_ms": 1, **more}
            connection.execute(insert(ids).values(row))
        for group in ("a", "a "):
            found = connection.execute(select(ids.c.consumer_group).where(ids.c.consumer_group == group))
            assert found.scalars().all() == [group]


@pytest.mark.parametrize("name", ["billing ", " billing", "billing\0", "billing\t", "bil\ud800ling"])
def test_a_group_name_that_a_database_could_change_is_refused(engine: Engine, name: str) -> None:
    """Blanks around it, a null character, and a text without UTF-8."""
    with pytest.raises(ConfigurationError, match="group=") as raised:
        Inbox(engine, group=name)
    assert "\n" not in str(raised.value)


_OLD_TABLES = """\
CREATE TABLE dedup_inbox (
  consumer_group VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, id BINARY(16) NOT NULL, \
seen_ms BIGINT NOT NULL,
  attempt BINARY(8) NOT NULL, CONSTRAINT dedup_inbox_key PRIMARY KEY (id, consumer_group)) ENGINE=InnoDB;
CREATE INDEX dedup_inbox_seen ON dedup_inbox (seen_ms);
CREATE TABLE dedup_inbox_offsets (
  consumer_group VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  topic VARCHAR(249) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, partition_number INTEGER NOT NULL, \
next_offset BIGINT NOT NULL,
  topic_id VARCHAR(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  CONSTRAINT dedup_inbox_offsets_key PRIMARY KEY (consumer_group, topic, partition_number)) ENGINE=InnoDB"""
"""As versions made them that compared names by a collation."""


@BY_MYSQL
def test_a_table_whose_character_set_is_converted_keeps_groups_apart(engine: Engine, inbox: Inbox) -> None:
    """The usual migration to utf8mb4 gives every column of text the default collation.

    That ignores case and blanks at the end.
    """
    with engine.begin() as connection:
        for table in ("dedup_inbox", "dedup_inbox_offsets"):
            connection.execute(
                text(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
            )
    assert handle(engine, inbox, message(b"a")) == [True]
    assert handle(engine, Inbox(engine, group="BILLING"), message(b"a"), message(b"a")) == [True, False]


@BY_MYSQL
def test_a_table_that_compares_names_by_a_collation_is_refused_with_the_statement_to_run(
    engine: Engine,
) -> None:
    """In one line, by `create` and by the first message; after the statement its IDs are known as before."""
    earlier, inbox = Inbox(engine, group="billing"), Inbox(engine, group="billing")
    earlier.create()
    with engine.begin() as connection:
        with earlier.once(connection, message(b"a")) as first:
            assert first
        known = connection.execute(text("SELECT id FROM dedup_inbox")).scalar_one()
    earlier.metadata.drop_all(engine)
    with engine.begin() as connection:
        for each in _OLD_TABLES.split(";"):
            connection.execute(text(each))
        row = {"known": known, "attempt": bytes(8)}
        connection.execute(text("INSERT INTO dedup_inbox VALUES ('billing', :known, 1, :attempt)"), row)
    with pytest.raises(InboxError, match="made by an earlier version"):
        handle(engine, inbox, message(b"a"))
    for _ in range(2):
        with pytest.raises(InboxError, match=r"run: ALTER TABLE \S+ MODIFY") as raised:
            inbox.create()
        assert "\n" not in str(raised.value)
        with engine.begin() as connection:
            connection.execute(text(str(raised.value).partition("run: ")[2]))
    inbox.create()
    WORK.metadata.create_all(engine)
    assert handle(engine, inbox, message(b"a"), message(b"b")) == [False, True]


def test_a_group_wide_scope_joins_topics(engine: Engine, inbox: Inbox) -> None:
    """With scope="group" the ID is the same message in each topic; another ID spec is another message."""
    wide = Inbox(engine, group="wide", scope="group")
    assert handle(engine, wide, message(b"a"), message(b"a", topic="orders.retry")) == [True, False]
    by_key = Inbox(engine, group="wide", id=key(), scope="group")
    assert handle(engine, by_key, Record("orders", 0, 0, key=b"k"), Record("other", 0, 9, key=b"k")) == [
        True,
        False,
    ]
    assert inbox.counts.first == 0


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_host_whose_clock_runs_ahead_forgets_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window goes by the database server's clock, which all consumers share."""
    inbox = Inbox(engine, group="billing", window="7d")
    inbox.create()
    WORK.metadata.create_all(engine)
    handle(engine, inbox, message(b"1"))
    days_ahead_ns = 8 * 86_400 * 10**9
    told = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: told() + days_ahead_ns)
    assert handle(engine, inbox, message(b"1")) == [False]
    assert inbox.expire() == 0


def test_an_id_is_first_again_when_its_window_is_over(engine: Engine, inbox: Inbox) -> None:
    """Exactly so, whether it was deleted or not; deleted rows are of this group and over."""
    short = Inbox(engine, group="billing", window="1h")
    handle(engine, short, message(b"old"), message(b"older"))
    handle(engine, Inbox(engine, group="other"), message(b"old"))
    with engine.begin() as connection:
        # A little more than an hour goes by.
        connection.execute(text("UPDATE dedup_inbox SET seen_ms = seen_ms - 3601000"))
    handle(engine, short, message(b"new"))
    with (
        engine.begin() as connection,
        inbox.once_many(connection, [message(b"old"), message(b"new")]) as first,
    ):
        assert first == [False, False], "without a window an ID is known for ever"
    assert handle(engine, short, message(b"old"), message(b"old"), message(b"new")) == [True, False, False]
    assert (short.expire(), inbox.expire()) == (1, 0)
    assert handle(engine, short, message(b"older"), message(b"old")) == [True, False]
    with engine.connect() as connection:
        assert (
            connection.execute(
                text("SELECT count(*) FROM dedup_inbox WHERE consumer_group = 'other'")
            ).scalar()
            == 1
        )


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize("commits", [True, False])
def test_a_second_transaction_waits_for_the_first(engine: Engine, inbox: Inbox, *, commits: bool) -> None:
    """Two insert one ID at once.

    The second is told when the first has ended, and is first if that one was rolled back.
    """
    began, answers = threading.Event(), []

    def second() -> None:
        with engine.begin() as connection:
            began.set()
            with inbox.once(connection, message(b"a", 1)) as first:
                answers.append(first)

    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as connection:
            transaction = connection.begin()
            with inbox.once(connection, message(b"a")) as first:
                assert first
            waiting = pool.submit(second)
            began.wait()
            wait_until_somebody_waits(engine)
            assert answers == []
            transaction.commit() if commits else transaction.rollback()
        waiting.result(30)
    assert answers == [not commits]


def wait_until_somebody_waits(engine: Engine) -> None:
    """Return when a transaction waits for another one's lock."""
    waits = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }[engine.dialect.name]
    for _ in range(2_000):
        with engine.connect() as connection:
            if connection.execute(text(waits)).scalar():
                return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits")


def test_a_table_that_is_another_one_is_told_in_a_line(engine: Engine) -> None:
    """With the columns that are there and those that are wanted; a missing one names the method to call."""
    fresh = Inbox(engine, group="billing")
    with (
        pytest.raises(InboxError, match=r"there is no table dedup_inbox: call inbox\.create\(\)") as raised,
        engine.begin() as connection,
        fresh.once(connection, message(b"a")),
    ):
        pass
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE dedup_inbox (id INTEGER PRIMARY KEY, body VARCHAR(10))"))
    for use in (fresh.create, lambda: handle(engine, fresh, message(b"a"))):
        with pytest.raises(
            InboxError,
            match=r"table dedup_inbox is not an inbox of this version: it has id \(int\), body \(str\), key "
            r"id, but needs .* name another one with table=",
        ) as raised:
            use()
        assert "\n" not in str(raised.value)
    elsewhere = Inbox(engine, group="billing", table="handled")
    elsewhere.create()
    elsewhere.create()
    assert handle_without_work(engine, elsewhere) == [True, False]


def test_a_key_that_leaves_the_group_out_is_told(engine: Engine) -> None:
    """The same columns with another key would mix groups."""
    inbox = Inbox(engine, group="billing")
    made = inbox.ddl().split(";")[0].replace("PRIMARY KEY (id, consumer_group)", "PRIMARY KEY (id)")
    with engine.begin() as connection:
        connection.execute(text(made))
    with pytest.raises(InboxError, match=r"key id, but needs .*key id, consumer_group"):
        inbox.create()


def test_the_ddl_makes_what_create_makes(engine: Engine) -> None:
    """The printed statements, run one after the other."""
    inbox = Inbox(engine, group="billing")
    statements = [each for each in inbox.ddl().split(";") if each.strip()]
    with engine.begin() as connection:
        for each in statements:
            connection.execute(text(each))
    inbox.create()
    assert len(statements) == 3
    assert set(inspect(engine).get_table_names()) == {"dedup_inbox", "dedup_inbox_offsets"}
    assert handle_without_work(engine, inbox) == [True, False]


def handle_without_work(engine: Engine, inbox: Inbox) -> list[bool]:
    """Two messages of one ID."""
    with (
        engine.begin() as connection,
        inbox.once_many(connection, [message(b"a"), message(b"a", 1)]) as first,
    ):
        return first


def test_a_connection_that_commits_by_itself_is_refused(url: str, engine: Engine, inbox: Inbox) -> None:
    """Else the ID would be kept without its work; and so is one without a transaction, and another object."""
    careless = create_engine(url, isolation_level="AUTOCOMMIT")
    for connection in (careless.connect(), engine.connect().execution_options(isolation_level="AUTOCOMMIT")):
        with (
            connection,
            connection.begin(),
            pytest.raises(InboxError, match="AUTOCOMMIT"),
            inbox.once(connection, message(b"a")),
        ):
            pass
    careless.dispose()
    with engine.connect() as connection:
        with pytest.raises(InboxError, match="no open transaction"), inbox.once(connection, message(b"a")):
            pass
        below: Any = connection.connection.dbapi_connection
        with (
            pytest.raises(ConfigurationError, match=r"not a SQLAlchemy connection.*session\.connection"),
            inbox.once(below, message(b"a")),
        ):
            pass
    assert handle(engine, inbox, message(b"a")) == [True]


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_savepoints_keep_the_rest_of_a_transaction(engine: Engine, inbox: Inbox) -> None:
    """Work that fails inside a savepoint is rolled back to it, with its ID; earlier work stays."""
    with engine.begin() as connection:
        for each in (b"a", b"b", b"c"):
            try:
                with connection.begin_nested(), inbox.once(connection, message(each)):
                    connection.execute(insert(WORK).values(body=each.decode()))
                    1 / (each != b"b")
            except ZeroDivisionError:
                pass
    assert worked(engine) == 2
    assert handle(engine, inbox, message(b"a"), message(b"b"), message(b"c")) == [False, True, False]
