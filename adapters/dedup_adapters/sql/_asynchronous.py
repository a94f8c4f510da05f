"""asyncio: the synchronous functions of this package, run in a greenlet, in which the driver's queries are awaited.

So each statement stands in one place, for both kinds of programs. SQLAlchemy's own asyncio extension is built so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.util import await_only

from dedup_adapters.sql._errors import InboxError
from dedup_sdk import ConfigurationError

if TYPE_CHECKING:  # it imports SQLAlchemy's ORM
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

T = TypeVar("T")
Given = TypeVar("Given")


@asynccontextmanager
async def judging_async(
    session: AsyncSession | AsyncConnection, judge: Callable[[Connection, Given], T], given: Given
) -> AsyncIterator[T]:
    """Yield what ``judge`` returns in the session's transaction; an exception rolls the transaction back."""
    from sqlalchemy.ext.asyncio import AsyncConnection

    if not session.in_transaction():
        # session.connection() would begin one, which nobody commits.
        raise InboxError(
            f"the {type(session).__name__} has no open transaction: begin one, e.g. async with session.begin()"
        )
    try:
        connection = session if isinstance(session, AsyncConnection) else await session.connection()
        yield await connection.run_sync(judge, given)
    except BaseException as error:
        _drop_cursors(error)
        await _roll_back(session)
        raise


def _drop_cursors(error: BaseException | None) -> None:
    """Drop what the frames of a cancellation hold: SQLite's transaction stays open as long as a cursor has rows left.

    SQLAlchemy closes the connection of a cancelled statement, but that is not enough for SQLite, and the frames are a
    cycle with the exception: the database would be locked until the garbage collector comes.
    """
    while error is not None and not isinstance(error, Exception):
        clear_frames(error.__traceback__)
        error = error.__context__


async def _roll_back(session: AsyncSession | AsyncConnection) -> None:
    """Roll the innermost transaction back.

    Not shielded: the rollback would go on in a task of its own while the caller's ``async with`` ends the same
    transaction by the same connection. If this call is cancelled, SQLAlchemy closes the connection, which rolls back.
    """
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is not None:
        with suppress(Exception):  # asyncpg's errors are not all SQLAlchemy's
            await transaction.rollback()


def is_asynchronous(connection: object) -> TypeGuard[AsyncSession | AsyncConnection]:
    """Whether it is SQLAlchemy's ``AsyncSession`` or ``AsyncConnection``."""
    if isinstance(connection, Connection):
        return False
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    return isinstance(connection, AsyncSession | AsyncConnection)


def synchronous(engine: Any) -> Any:
    """Return the ``Engine`` inside an ``AsyncEngine``, and anything else as it is."""
    return getattr(engine, "sync_engine", engine)


def refuse_blocking(engine: Engine, instead: str) -> None:
    """Raise `ConfigurationError` if the engine's connections are to be awaited, and nobody does."""
    if engine.dialect.is_async:
        from sqlalchemy.util.concurrency import in_greenlet

        if not in_greenlet():
            raise ConfigurationError(f"the engine is an AsyncEngine: {instead}")


def beside_the_loop(engine: Engine, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that blocks; with an ``AsyncEngine`` in another thread, so that the event loop goes on."""
    if engine.dialect.is_async:
        return await_only(asyncio.to_thread(function, *arguments))
    return function(*arguments)


class Awaited:
    """A consumer whose methods are coroutines, as functions in a greenlet see it: each call awaits its coroutine."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Awaitable[Any]] = getattr(self._consumer, name)
        return lambda *arguments, **named: await_only(method(*arguments, **named))
