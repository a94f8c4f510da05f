"""Which errors of a database pass when the transaction is begun anew."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from dedup_adapters.sql import Inbox, is_retryable
from dedup_sdk.testing import free_port
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS, SERVERS
from tests.integration.sql.test_inbox import handle, message
from tests.integration.sql.test_inbox import inbox as inbox  # noqa: PLC0414 (a fixture of the tests here)
from tests.support.consuming import PATIENCE_S
from tests.support.databases import PostgreSQL, cut_connections

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import URL, Engine


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


@BY_ASYNC_DRIVERS
def test_what_passes_in_an_async_session(async_url: URL, engine: Engine, inbox: Inbox) -> None:
    """A lock that takes too long, a connection that the server ended, a server that is away; a wrong table does not.

    asyncpg's errors of a connection are no errors of SQLAlchemy. Errors of the same type from elsewhere do not pass.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    impatient = {
        "sqlite+aiosqlite": {"timeout": 0.1},
        "postgresql+asyncpg": {"server_settings": {"lock_timeout": "100"}},
        "postgresql+psycopg": {"options": "-c lock_timeout=100"},
    }[async_url.drivername]

    async def once(url: URL, statement: str = "", **settings: Any) -> BaseException:
        late = create_async_engine(url, connect_args=impatient, **settings)
        try:
            async with AsyncSession(late) as session, session.begin(), inbox.once(session, message(b"a")):
                if statement == "cut":
                    cut_connections(engine)
                    statement = "SELECT 1"
                await session.execute(text(statement))
        except (DBAPIError, OSError) as error:
            return error
        finally:
            await late.dispose()
        raise AssertionError("it was told")

    def passes(url: URL, statement: str = "") -> bool:
        return is_retryable(asyncio.run(once(url, statement)))

    with engine.begin() as connection, inbox.once(connection, message(b"a")):
        assert passes(async_url)
    assert not passes(async_url, "SELECT * FROM nowhere")
    if not is_sqlite:
        assert passes(async_url, "cut")
        assert passes(async_url.set(port=free_port()))
        assert passes(async_url.set(host="no.such.host.invalid"))
        refused = ConnectionRefusedError(f"[Errno 111] Connect call failed {async_url.host}")
        assert not is_retryable(refused)


@pytest.mark.slow
@pytest.mark.container
@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg"])
def test_a_server_that_restarts_comes_back_for_coroutines(driver: str) -> None:
    """Killed under a statement, away, and starting: each error passes, until the ID is stored."""

    async def main(server: PostgreSQL) -> set[str]:
        engine = create_async_engine(make_url(server.url).set(drivername=driver))
        inbox, told = Inbox(engine, group="billing"), set[str]()
        await inbox.create_async()
        restart = asyncio.create_task(asyncio.to_thread(restart_of, server))
        async with asyncio.timeout(PATIENCE_S):
            for number in itertools.count():
                try:
                    given = message(b"%d" % number)
                    async with (
                        AsyncSession(engine) as session,
                        session.begin(),
                        inbox.once(session, given) as first,
                    ):
                        assert first
                        await session.execute(text("SELECT pg_sleep(0.05)"))
                    if restart.done():
                        break
                except (DBAPIError, OSError) as error:
                    if not is_retryable(error):
                        raise
                    told.add(getattr(getattr(error, "orig", None), "sqlstate", None) or type(error).__name__)
        await engine.dispose()
        return told

    def restart_of(server: PostgreSQL) -> None:
        time.sleep(0.5)
        server.kill()
        time.sleep(0.5)
        server.start_again()

    with PostgreSQL() as server:
        told = asyncio.run(main(server))
    expected = {"ConnectionRefusedError"} if driver.endswith("asyncpg") else {"OperationalError"}
    assert expected <= told


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
