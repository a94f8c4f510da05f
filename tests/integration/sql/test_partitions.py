"""Time partitions of PostgreSQL: as exact as one key, and forgotten by the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import BigInteger, bindparam, event, text
from sqlalchemy.exc import DBAPIError

from dedup_adapters.sql import Inbox, InboxError, is_retryable
from dedup_adapters.sql import _inbox as module
from dedup_sdk import ConfigurationError, Record
from tests.integration.sql.conftest import SERVERS
from tests.support.databases import Statements

if TYPE_CHECKING:
    from sqlalchemy import Engine

pytestmark = pytest.mark.parametrize("server", [SERVERS[0]], indirect=True)
HOUR_MS = 3_600_000


class Clock:
    """The time of the inbox, in ms."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        """Return it."""
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock of the test's own."""
    made = Clock()
    asked = bindparam("now_ms", callable_=made, type_=BigInteger)
    monkeypatch.setattr(module, "clock_of", lambda _: asked)
    return made


@pytest.fixture
def inbox(engine: Engine, clock: Clock) -> Inbox:
    """A partitioned inbox with a window of eight hours."""
    assert clock.now_ms
    made = Inbox(engine, group="billing", window="8h", partitioned=True)
    made.create()
    return made


def message(dedup_id: str) -> Record:
    """A record that bears an ID."""
    return Record("orders", 0, 0, headers=[("dedup-id", dedup_id.encode())])


def handle(engine: Engine, inbox: Inbox, *ids: str) -> list[bool]:
    """Handle messages in one transaction."""
    with engine.begin() as connection, inbox.once_many(connection, [message(each) for each in ids]) as first:
        return first


def partitions(engine: Engine) -> int:
    """How many there are."""
    with engine.connect() as connection:
        return int(
            connection.execute(
                text("SELECT count(*) FROM pg_inherits WHERE inhparent = 'dedup_inbox'::regclass")
            ).scalar_one()
        )


def test_an_id_is_known_across_partitions(engine: Engine, inbox: Inbox, clock: Clock) -> None:
    """Each is first once in its window, exactly, whatever partition it is in.

    Partitions go whole, and their number is bounded.
    """
    assert handle(engine, inbox, "0", "0") == [True, False]
    for hour in range(1, 30):
        clock.now_ms += HOUR_MS
        assert inbox.expire() == (hour > 9), hour
        live = [str(each) for each in range(max(0, hour - 8), hour)]
        assert handle(engine, inbox, *live) == [False] * len(live), hour
        assert handle(engine, inbox, str(hour), str(hour)) == [True, False]
        assert partitions(engine) <= 11
    assert handle(engine, inbox, "20", "21") == [True, False]
    assert handle(engine, inbox, "20") == [False]


def test_no_partition_begins_beside_an_open_transaction(engine: Engine, inbox: Inbox, clock: Clock) -> None:
    """Else another one would store the same ID in the new one, and both were first.

    Who waits too long is told that it passes.
    """
    clock.now_ms += HOUR_MS
    for ends, expected in (("rollback", True), ("commit", False)):
        with engine.connect() as connection:
            transaction = connection.begin()
            with inbox.once(connection, message("a")) as first:
                assert first
            with pytest.raises(DBAPIError) as raised:
                inbox.expire()
            assert is_retryable(raised.value)
            getattr(transaction, ends)()
        before = partitions(engine)
        inbox.expire()
        assert partitions(engine) == before + 1
        with engine.connect() as connection, connection.begin() as later:
            with inbox.once(connection, message("a")) as first:
                assert first is expected
            later.rollback()
        clock.now_ms += HOUR_MS


def test_the_lock_is_taken_before_the_statement_that_looks(
    engine: Engine, inbox: Inbox, clock: Clock
) -> None:
    """A transaction that has it holds a new partition up though it has not touched the table yet.

    The view of its next statement is decided.
    """
    handle(engine, inbox, "a")
    clock.now_ms += HOUR_MS
    locked: list[str] = []

    def expire_meanwhile(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if locked:
            return
        locked.append(statement)
        with pytest.raises(DBAPIError) as raised:
            inbox.expire()
        assert is_retryable(raised.value)

    event.listen(engine, "after_cursor_execute", expire_meanwhile)
    handle(engine, inbox, "b")
    statements = Statements(engine)
    handle(engine, inbox, "c")
    assert statements.sent[:1] == locked
    assert ["INSERT" in each for each in statements.sent] == [False, True]


def test_other_levels_of_isolation_are_refused(engine: Engine, inbox: Inbox) -> None:
    """A transaction that sees the past does not see IDs stored in an older partition since."""
    with (
        engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection,
        connection.begin(),
        pytest.raises(InboxError, match=r"at REPEATABLE READ.*use READ COMMITTED"),
        inbox.once(connection, message("a")),
    ):
        raise AssertionError("it was told")


def test_groups_that_share_it_have_one_window(engine: Engine, inbox: Inbox) -> None:
    """A shorter one would drop IDs of others; tables of the other kind are told, too."""
    assert handle(engine, Inbox(engine, group="shipping", window="8h", partitioned=True), "a") == [True]
    assert handle(engine, inbox, "a") == [True]
    for other, what in (
        (
            Inbox(engine, group="other", window="1h", partitioned=True),
            r"has the window 8h, not 1h: groups that share",
        ),
        (Inbox(engine, group="other", window="8h"), r"is not an inbox of this version"),
    ):
        with pytest.raises(InboxError, match=what):
            other.create()
        with pytest.raises(InboxError, match=what):
            handle(engine, other, "a")
    with pytest.raises(ConfigurationError, match="needs PostgreSQL and a window="):
        Inbox(engine, group="other", partitioned=True)


def test_tables_of_a_migration_get_their_first_partition(engine: Engine, clock: Clock) -> None:
    """Until then a message is an error, and is not lost."""
    assert clock.now_ms
    inbox = Inbox(engine, group="billing", window="8h", partitioned=True)
    with engine.begin() as connection:
        for each in inbox.ddl().split(";"):
            if each.strip():
                connection.execute(text(each))
    with pytest.raises(
        InboxError, match=r"has no partition yet: call inbox\.create\(\), or inbox\.expire\(\)"
    ):
        handle(engine, inbox, "a")
    assert inbox.expire() == 0
    assert handle(engine, inbox, "a", "a") == [True, False]
