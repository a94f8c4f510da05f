"""The inbox in an `AsyncSession`: work and ID in one transaction, whatever is cancelled, with each driver."""

from __future__ import annotations

import asyncio
import gc
import itertools
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from dedup_adapters.sql import Inbox, InboxError
from dedup_sdk import ConfigurationError, Record
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS
from tests.integration.sql.test_inbox import WORK, message, wait_until_somebody_waits
from tests.support.awaits import cancelled_at
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from sqlalchemy import URL

pytestmark = BY_ASYNC_DRIVERS
# Where a connection is cancelled while SQLAlchemy opens or closes it, the driver's is left to the garbage collector.
LEAVES_CONNECTIONS = pytest.mark.filterwarnings("ignore:.*was deleted before being closed:ResourceWarning")


class World:
    """An inbox of the group "billing", a table for its work, and an engine for asyncio."""

    def __init__(self, engine: AsyncEngine, **settings: Any) -> None:
        self.engine = engine
        self.inbox = Inbox(engine, group="billing", **settings)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A session in a transaction."""
        async with AsyncSession(self.engine) as session, session.begin():
            yield session

    async def handle(self, *records: Record) -> list[bool]:
        """Handle records one by one, each in a transaction of its own; say which were first."""
        answers = []
        for record in records:
            async with self.session() as session, self.inbox.once(session, record) as first:
                answers.append(first)
                if first:
                    await session.execute(insert(WORK).values(body=body_of(record)))
        return answers

    async def worked(self, body: str | None = None) -> int:
        """How many rows of work there are."""
        async with self.engine.connect() as connection:
            counted = select(func.count()).select_from(WORK)
            if body is not None:
                counted = counted.where(WORK.c.body == body)
            return (await connection.execute(counted)).scalar_one()


def body_of(record: Record) -> str:
    """What its row of work says: its ID."""
    return (dict(record.headers)["dedup-id"] or b"").decode()


def live(url: URL, main: Callable[[World], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run a test in a world of its own."""

    async def run() -> None:
        engine = create_async_engine(url, **settings)
        world = World(engine)
        try:
            await world.inbox.create_async()
            async with engine.begin() as connection:
                await connection.run_sync(WORK.metadata.create_all)
            # Hundreds of connections are made, one after the other.
            await asyncio.wait_for(main(world), 2 * PATIENCE_S)
        finally:
            await engine.dispose()
            # aiosqlite 0.22 waits for ever for the end of a connection whose closing was cancelled, and asyncio.run for
            # the task that waits.
            gc.collect()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_an_id_is_first_once(async_url: URL, kind: str) -> None:
    """With an `AsyncSession` and an `AsyncConnection`, one by one and as a batch."""

    async def main(world: World) -> None:
        opens: Any = world.session if kind == "session" else world.engine.begin
        for expected in (True, False):
            async with opens() as given, world.inbox.once(given, message(b"a")) as first:
                assert first == expected
        batch = [message(each) for each in (b"a", b"b", b"b", None, b"c")]
        async with opens() as given, world.inbox.once_many(given, batch) as firsts:
            assert firsts == [False, True, False, True, True]
        async with opens() as given, world.inbox.once_many(given, batch[:3]) as firsts:
            assert firsts == [False] * 3
        counts = world.inbox.counts
        assert (counts.first, counts.duplicate, counts.unkeyed) == (3, 6, 1)

    live(async_url, main)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
def test_what_was_rolled_back_is_first_again(async_url: URL, error: type[BaseException]) -> None:
    """The ID goes with its work, in the block and behind it; who catches the error and commits, commits nothing."""

    async def fail(world: World, session: AsyncSession) -> None:
        async with world.inbox.once(session, message(b"a")) as first:
            assert first
            await session.execute(insert(WORK).values(body="half"))
            raise error

    async def main(world: World) -> None:
        with pytest.raises(error):
            async with world.session() as session:
                await fail(world, session)
        with pytest.raises(error):  # noqa: PT012 (it comes from behind the inner block)
            async with world.session() as session:
                async with world.inbox.once(session, message(b"a")) as first:
                    assert first
                raise error
        with pytest.raises(Exception, match="closed transaction"):  # noqa: PT012
            async with world.session() as session:
                with suppress(error):
                    await fail(world, session)
                await session.execute(insert(WORK).values(body="goes on"))
        async with AsyncSession(world.engine) as session:
            await session.begin()
            with suppress(error):
                await fail(world, session)
            await session.commit()
        assert await world.worked() == 0
        assert await world.handle(message(b"a"), message(b"a", 1)) == [True, False]

    live(async_url, main)


def test_savepoints_keep_the_rest_of_a_transaction(async_url: URL) -> None:
    """Work that fails inside a savepoint is rolled back to it, with its ID; earlier work stays."""

    async def main(world: World) -> None:
        if world.engine.dialect.name == "sqlite":
            # Python's driver begins no transaction before a savepoint: see SQLAlchemy's page on SQLite.
            begin_by_yourself(world.engine.sync_engine)
        async with world.session() as session:
            for each in (b"a", b"b", b"c"):
                with suppress(ZeroDivisionError):
                    async with session.begin_nested(), world.inbox.once(session, message(each)):
                        await session.execute(insert(WORK).values(body=each.decode()))
                        1 / (each != b"b")
        assert await world.worked() == 2
        assert await world.handle(message(b"a"), message(b"b"), message(b"c")) == [False, True, False]

    live(async_url, main, poolclass=NullPool)


def begin_by_yourself(engine: Engine) -> None:
    """Have SQLAlchemy begin transactions of SQLite, in place of Python's driver."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def test_a_wrong_use_is_an_error(async_url: URL) -> None:
    """No transaction, one that commits each statement, another object, and functions that block the loop."""

    async def main(world: World) -> None:
        inbox, engine = world.inbox, world.engine
        async with AsyncSession(engine) as session:
            with pytest.raises(InboxError, match=r"AsyncSession has no open transaction.*session\.begin"):
                async with inbox.once(session, message(b"a")):
                    raise AssertionError("it was told")
            assert not session.in_transaction()
        by_itself: Any = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with AsyncSession(by_itself) as session:
            with pytest.raises(InboxError, match="AUTOCOMMIT"):
                async with session.begin(), inbox.once(session, message(b"a")):
                    raise AssertionError("it was told")
        async with engine.connect() as connection:
            with pytest.raises(InboxError, match="AsyncConnection has no open transaction"):
                async with inbox.once(connection, message(b"a")):
                    raise AssertionError("it was told")
            given: Any = connection.sync_connection
            with (
                pytest.raises(ConfigurationError, match=r"not a SQLAlchemy connection.*AsyncSession"),
                inbox.once(given.connection, message(b"a")),
            ):
                raise AssertionError("it was told")
        for blocks in (inbox.create, inbox.expire):
            with pytest.raises(ConfigurationError, match=r"await inbox\.\w+_async\(\)"):
                blocks()
        assert await world.handle(message(b"a")) == [True]

    live(async_url, main)


@pytest.mark.parametrize("commits", [True, False])
def test_a_second_transaction_waits_for_the_first(async_url: URL, engine: Engine, *, commits: bool) -> None:
    """The event loop goes on meanwhile. The second one is first if the first was rolled back."""

    async def main(world: World) -> None:
        async with AsyncSession(world.engine) as session:
            transaction = await session.begin()
            async with world.inbox.once(session, message(b"a")) as first:
                assert first
            second = asyncio.create_task(world.handle(message(b"a", 1)))
            if engine.dialect.name == "postgresql":
                await asyncio.to_thread(wait_until_somebody_waits, engine)
            else:
                await asyncio.sleep(0.2)
            assert not second.done()
            await (transaction.commit() if commits else transaction.rollback())
            assert await second == [not commits]

    live(async_url, main)


def test_expired_ids_are_deleted(async_url: URL) -> None:
    """By `expire_async`, with time partitions, too."""

    async def main(world: World) -> None:
        short = Inbox(world.engine, group="billing", window="1h")
        await world.handle(message(b"a"), message(b"b"))
        async with world.engine.begin() as connection:
            await connection.execute(text("UPDATE dedup_inbox SET seen_ms = seen_ms - 3601000"))
        await world.handle(message(b"c"))
        assert await short.expire_async() == 2
        if world.engine.dialect.name == "postgresql":
            parts = Inbox(world.engine, group="billing", window="1h", partitioned=True, table="parts")
            await parts.create_async()
            assert await parts.expire_async() == 0
            for expected in (True, False):
                async with world.session() as session, parts.once(session, message(b"a")) as first:
                    assert first == expected

    live(async_url, main)


@LEAVES_CONNECTIONS
@pytest.mark.parametrize("pool", ["kept", "new"])
@pytest.mark.parametrize("ends", ["in order", "by an error"])
def test_a_cancellation_at_any_await_leaves_both_or_nothing(
    async_url: URL, engine: Engine, pool: str, ends: str
) -> None:
    """Cancelled at each await, and once more some awaits later: in the rollback, in the closing of the connection.

    No transaction stays open, and no connection is lost. ``pool``: connections are kept, or made for each session.
    """

    async def work(world: World, dedup_id: str) -> None:
        async with world.session() as session, world.inbox.once(session, message(dedup_id.encode())) as first:
            if first:
                # With rows that nobody has fetched, a transaction of SQLite outlives its connection.
                await session.execute(insert(WORK).returning(WORK.c.number), {"body": dedup_id})
            if ends == "by an error":
                raise ZeroDivisionError

    async def main(world: World) -> None:
        for again in (None, *range(1, 9)):
            for place in itertools.count():
                dedup_id = f"{place}-{again}"
                places = [place] if again is None else [place, place + again]
                was_cancelled = False
                with suppress(ZeroDivisionError):
                    was_cancelled = await cancelled_at(work(world, dedup_id), *places)
                await world.handle(message(dedup_id.encode()))
                assert await world.worked(dedup_id) == 1, dedup_id
                assert getattr(world.engine.pool, "checkedout", lambda: 0)() == 0
                assert open_transactions(engine) == 0
                if not was_cancelled:
                    break
            assert place > 3, "there is more to await"

    kinds: dict[str, Any] = {"kept": {}, "new": {"poolclass": NullPool}}
    live(async_url, main, **kinds[pool], connect_args=IMPATIENT[async_url.drivername])


IMPATIENT: dict[str, dict[str, Any]] = {
    "sqlite+aiosqlite": {"timeout": 0.5},
    "postgresql+asyncpg": {"server_settings": {"lock_timeout": "500"}},
    "postgresql+psycopg": {"options": "-c lock_timeout=500"},
}
"""A transaction that was left open is an error half a second later."""


def open_transactions(engine: Engine) -> int:
    """How many of PostgreSQL's do nothing, and are not over."""
    if engine.dialect.name == "sqlite":
        return 0
    idle = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    )
    with engine.connect() as connection:
        return int(connection.execute(text(idle)).scalar_one())
