"""Which errors of a database pass when the transaction is begun anew."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from dedup_adapters.sql import Inbox, is_retryable
from dedup_sdk.testing import free_port
from tests.integration.sql.conftest import SERVERS
from tests.integration.sql.test_inbox import handle, message
from tests.integration.sql.test_inbox import inbox as inbox  # noqa: PLC0414 (a fixture of the tests here)

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_deadlock_is_told_as_one_that_passes(engine: Engine, inbox: Inbox) -> None:
    """Two transactions that take two IDs crosswise.

    One goes through, the other's error is retryable, and its messages come again.
    """
    barrier = threading.Barrier(2)

    def crosswise(*ids: bytes) -> str:
        try:
            with engine.begin() as connection:
                for place, each in enumerate(ids):
                    with inbox.once(connection, message(each)):
                        if place == 0:
                            barrier.wait(30)
        except DBAPIError as error:
            return "again" if is_retryable(error) else repr(error)
        return "through"

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(crosswise, b"a", b"b"), pool.submit(crosswise, b"b", b"a")]
        assert sorted(each.result(60) for each in ends) == ["again", "through"]
    assert handle(engine, inbox, message(b"a"), message(b"b")) == [False, False]


@pytest.mark.parametrize("server", [SERVERS[0]], indirect=True)
def test_a_serialisation_failure_passes(engine: Engine, inbox: Inbox) -> None:
    """At REPEATABLE READ an ID that was committed since the snapshot is no duplicate that could be seen.

    It is an error, which passes.
    """
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        with connection.begin():
            connection.execute(text("SELECT 1 FROM dedup_inbox"))
            handle(engine, inbox, message(b"a"))
            with pytest.raises(DBAPIError) as raised, inbox.once(connection, message(b"a")):
                raise AssertionError("it was told")
            assert is_retryable(raised.value)
        with connection.begin(), inbox.once(connection, message(b"a")) as first:
            assert not first


def test_a_lock_that_takes_too_long_passes(url: str, engine: Engine, inbox: Inbox) -> None:
    """Also SQLite's: one writer at a time."""
    impatient = {
        "sqlite": {"timeout": 0.1},
        "postgresql": {"options": "-c lock_timeout=100"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout=1"},
    }[engine.dialect.name]
    other = create_engine(url, connect_args=impatient)
    late = Inbox(other, group="billing")
    with (
        engine.begin() as connection,
        inbox.once(connection, message(b"a")),
        pytest.raises(DBAPIError) as raised,
        other.begin() as second,
        late.once(second, message(b"a")),
    ):
        raise AssertionError("it was told")
    assert is_retryable(raised.value)
    other.dispose()


def test_other_errors_do_not_pass(engine: Engine, inbox: Inbox) -> None:
    """A statement that is wrong stays wrong."""
    with (
        pytest.raises(DBAPIError) as raised,
        engine.begin() as connection,
        inbox.once(connection, message(b"a")),
    ):
        connection.execute(text("SELECT * FROM nowhere"))
    assert not is_retryable(raised.value)
    assert not is_retryable(ValueError("40001"))


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_server_that_is_away_comes_back(driver: str) -> None:
    """It is started anew: until it listens again nobody gets a connection."""
    engine = create_engine(f"{driver}://user@127.0.0.1:{free_port()}/work")
    with pytest.raises(DBAPIError) as raised:
        engine.connect()
    assert is_retryable(raised.value)


def test_a_database_that_cannot_be_opened_does_not_pass(tmp_path: Path) -> None:
    """A wrong path stays wrong."""
    with pytest.raises(DBAPIError) as raised:
        create_engine(f"sqlite:///{tmp_path}/nowhere/work.db").connect()
    assert not is_retryable(raised.value)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_stopped_owner_is_put_out_by_the_server(
    url: str, server: str, engine: Engine, inbox: Inbox
) -> None:
    """With the settings of the page the next owner does not wait for a process that stands still in its transaction.

    That one is told to begin anew.
    """
    postgresql = server.startswith("postgresql")
    bounds = {"options": "-c idle_in_transaction_session_timeout=500"} if postgresql else {}
    bounded = create_engine(url, connect_args=bounds)
    with bounded.connect() as stopped:
        if not postgresql:
            # MySQL has none for transactions alone.
            idle = "idle_transaction" if getattr(engine.dialect, "is_mariadb", False) else "wait"
            stopped.execute(text(f"SET {idle}_timeout = 1"))
            stopped.commit()
        transaction = stopped.begin()
        with inbox.once(stopped, message(b"a")) as first:
            assert first
        assert handle(engine, inbox, message(b"a")) == [True]
        with pytest.raises(DBAPIError) as raised:
            stopped.execute(text("SELECT 1"))
        assert is_retryable(raised.value)
        transaction.close()
    bounded.dispose()
    assert handle(engine, inbox, message(b"a")) == [False]
