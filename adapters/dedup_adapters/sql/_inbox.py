"""`Inbox`: the IDs of handled messages, in a table of your database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from sqlalchemy import Connection, Engine, MetaData, bindparam, delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from dedup_adapters.sql._asynchronous import is_asynchronous, judging_async, refuse_blocking, synchronous
from dedup_adapters.sql._errors import InboxError
from dedup_adapters.sql._offsets import KeptOffsets, place_of, topics_of
from dedup_adapters.sql._tables import (
    DIALECTS,
    GROUP_CHARACTERS,
    KEY_BYTES,
    check,
    clock_of,
    ddl,
    make_tables,
)
from dedup_adapters.sql._taking import taking
from dedup_sdk import ConfigurationError, IdSpec, Window, header, id_spec, ids_of
from dedup_sdk.errors import shown

if TYPE_CHECKING:  # it imports SQLAlchemy's ORM
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession


@dataclass(slots=True)
class InboxCounts:
    """Totals since the inbox was made; they count answers, also those of transactions that were rolled back.

    ``first`` and ``duplicate`` count messages with an ID, ``behind`` messages that lie before the offset in
    the database, ``unkeyed`` messages without an ID (they are first, too), ``reasons`` why they have none.
    """

    first: int = 0
    duplicate: int = 0
    behind: int = 0
    unkeyed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, *, first: int, duplicate: int, behind: int, reasons: Counter[str]) -> None:
        """Add the answers for some messages; from any thread."""
        with self._lock:
            self.first += first
            self.duplicate += duplicate
            self.behind += behind
            self.unkeyed += reasons.total()
            self.reasons.update(reasons)


Scope = Literal["topic", "group"]
T = TypeVar("T")
Given = TypeVar("Given")

_EXPIRED_AT_ONCE: Final = 10_000
"""Rows that one transaction deletes; few, so that other transactions do not wait long."""


class Inbox:
    """IDs of handled messages, in a table of your database.

    Args:
        engine: SQLAlchemy's `Engine` or `AsyncEngine`, of PostgreSQL, SQLite (3.35+), MySQL or MariaDB.
        group: the consumer group; groups may share a table, and do not see each other's IDs.
        id: the ID spec; IDs of two specs differ even if their bytes are equal.
        window: the minimum time for which an ID is remembered after its message was handled, by the clock
            of the database server; None: forever.
        scope: ``topic``: equal IDs in two topics are two messages; ``group``: they are one, e.g. in a topic
            and its retry topic.
        table: the table's name; the table of offsets has the suffix ``_offsets``.
        schema: the tables' schema; None: the connection's default.
        partitioned: keep the IDs in time partitions (PostgreSQL), so that `expire` drops tables instead of
            deleting rows.
        offsets: also keep the offsets in the database, so that a partition continues after the last
            committed transaction.

    Raises `ConfigurationError` for invalid settings. Safe for threads, if each uses a connection of its
    own.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        *,
        group: str,
        id: IdSpec | str = header("dedup-id"),  # noqa: A002, B008 (as `Lookup` has it; a value)
        window: Window | str | None = None,
        scope: Scope = "topic",
        table: str = "dedup_inbox",
        schema: str | None = None,
        partitioned: bool = False,
        offsets: KeptOffsets | None = None,
    ) -> None:
        self._engine: Engine = synchronous(engine)
        self._dialect = _dialect_of(self._engine)
        self._group = _group(group)
        self._spec = id_spec(id)
        self._window_ms = _window_ms(window)
        if scope not in ("topic", "group"):
            raise ConfigurationError(f"scope={shown(scope)}: choose topic or group")
        self._by_topic = scope == "topic"
        if partitioned and (self._dialect != "postgresql" or self._window_ms is None):
            raise ConfigurationError("partitioned=True needs PostgreSQL and a window=, e.g. Window(days=7)")
        self._tables = make_tables(
            table, schema, self._dialect, partitioned_ms=self._window_ms if partitioned else None
        )
        self._clock = clock_of(self._dialect)
        self._take = taking(self._tables, self._dialect, self._window_ms, self._clock)
        self._kept = offsets
        if offsets is not None:
            offsets.bind(self._engine, group, self._tables.offsets)
        self._checked = False
        self.counts = InboxCounts()

    # --- messages ------------------------------------------------------------------------------------------------

    @overload
    def once(self, connection: Connection, message: Any) -> AbstractContextManager[bool, None]: ...
    @overload
    def once(
        self, connection: AsyncSession | AsyncConnection, message: Any
    ) -> AbstractAsyncContextManager[bool, None]: ...

    def once(self, connection: Connection | AsyncSession | AsyncConnection, message: Any) -> Any:
        """Return whether a message is first, and store its ID in the connection's transaction.

        With an `AsyncSession` or `AsyncConnection`, for ``async with``. An exception in the block, also a
        cancellation, rolls the transaction back (with savepoints, the innermost one) before it propagates, so
        that an ID is never committed without its work. A message without an ID is first. If another open
        transaction has stored the ID, the call waits for its end. Raises the database's errors; `is_retryable`
        tells which can be retried.
        """
        return _judging(connection, self._judge_one, message)

    @overload
    def once_many(
        self, connection: Connection, messages: Sequence[Any]
    ) -> AbstractContextManager[list[bool], None]: ...
    @overload
    def once_many(
        self, connection: AsyncSession | AsyncConnection, messages: Sequence[Any]
    ) -> AbstractAsyncContextManager[list[bool], None]: ...

    def once_many(
        self, connection: Connection | AsyncSession | AsyncConnection, messages: Sequence[Any]
    ) -> Any:
        """Return for each message of a batch whether it is first, by one statement.

        Of two messages with the same ID the earlier is first. Otherwise as `once`.
        """
        return _judging(connection, self._judge, messages)

    @property
    def offsets(self) -> KeptOffsets:
        """The offsets in the database."""
        if self._kept is None:
            raise ConfigurationError(
                "this inbox keeps no offsets: make it with offsets=KeptOffsets(AdminClient({'bootstrap.servers': ...}))"
            )
        return self._kept

    def _judge_one(self, connection: Connection, message: Any) -> bool:
        return self._judge(connection, [message])[0]

    def _judge(self, connection: Connection, messages: Sequence[Any]) -> list[bool]:
        self._check(connection)
        topics = topics_of(messages)
        handled: set[int] = set()
        if self._kept is not None and topics:
            handled = self._kept.advance(connection, [place_of(message) for message in messages])
        digests, missing = ids_of(self._spec, messages)
        row_of: dict[bytes, int] = {}
        for index, key in enumerate(self._keys(topics, digests)):
            if key is not None and index not in handled:
                row_of.setdefault(key, index)
        # Every batch in the same order, so that two batches cannot deadlock.
        taken = self._take(connection, self._group, sorted(row_of)) if row_of else set()
        firsts = {row_of[key] for key in taken}
        reasons = Counter(reason for index, reason in missing.items() if index not in handled)
        answers = [index in firsts for index in range(len(topics))]
        for index in missing.keys() - handled:
            answers[index] = True
        duplicates = len(topics) - len(firsts) - len(handled) - reasons.total()
        self.counts.add(first=len(firsts), duplicate=duplicates, behind=len(handled), reasons=reasons)
        return answers

    def _keys(self, topics: list[str], digests: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the keys of the IDs in the table."""
        spec = _sized(str(self._spec))
        names = {topic: spec + (_sized(topic) if self._by_topic else b"") for topic in set(topics)}
        return [
            None if digest is None else sha256(names[topic] + digest).digest()[:KEY_BYTES]
            for topic, digest in zip(topics, digests, strict=True)
        ]

    def _check(self, connection: Connection) -> None:
        given: object = connection  # what callers without a type checker pass
        if not isinstance(given, Connection):
            raise ConfigurationError(
                f"{type(given).__name__} is not a SQLAlchemy connection; give the one of `with engine.begin() as "
                "connection`, session.connection(), or an AsyncSession"
            )
        if not connection.in_transaction():
            raise InboxError(
                "the connection has no open transaction: begin one, e.g. with engine.begin() as connection"
            )
        if _commits_each_statement(connection):
            raise InboxError(
                "the connection is in AUTOCOMMIT: an ID would be stored without its work; give one with transactions"
            )
        if not self._checked:
            for table in self._tables.all:
                if table is not self._tables.offsets or self._kept is not None:
                    check(connection, table)
            if self._tables.generations is not None:
                self._tables.generations.check(connection)
            self._checked = True

    # --- tables --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> MetaData:
        """The tables, for Alembic's ``target_metadata``."""
        return self._tables.metadata

    def ddl(self) -> str:
        """Return the statements that create the tables, for a migration, each with a semicolon."""
        return ";\n\n".join(ddl(self._tables, self._engine.dialect)) + ";\n"

    def create(self) -> None:
        """Create the missing tables; raises `InboxError` if a table of that name has another layout."""
        refuse_blocking(self._engine, "await inbox.create_async()")
        self._tables.metadata.create_all(self._engine)
        with self._engine.connect() as connection:
            for table in self._tables.all:
                check(connection, table)
        if self._tables.generations is not None:
            self._tables.generations.begin_first(self._engine, self._now_ms)

    async def create_async(self) -> None:
        """`create`, with an `AsyncEngine`."""
        await greenlet_spawn(self.create)

    def expire(self) -> int:
        """Delete the group's expired IDs, 10,000 per transaction; return how many.

        An expired ID counts as unknown also before it is deleted. In a partitioned table: drop the expired
        partitions of all groups, begin a new partition if it is due, and return how many were dropped. That
        waits at most two seconds for open transactions, and then raises a retriable error (`is_retryable`).
        """
        refuse_blocking(self._engine, "await inbox.expire_async()")
        if self._window_ms is None:
            return 0
        if self._tables.generations is not None:
            return self._tables.generations.turn(self._engine, self._now_ms)
        ids = self._tables.ids
        with self._engine.connect() as connection:
            horizon = self._now_ms(connection) - self._window_ms
        over = (ids.c.consumer_group == self._group) & (ids.c.seen_ms < horizon)
        find = select(ids.c.id).where(over).limit(_EXPIRED_AT_ONCE)
        remove = delete(ids).where(over & ids.c.id.in_(bindparam("ids", expanding=True)))
        total = 0
        while True:
            with self._engine.begin() as connection:
                found = list(connection.execute(find).scalars())
                if found:
                    total += connection.execute(remove, {"ids": found}).rowcount
            if len(found) < _EXPIRED_AT_ONCE:
                return total

    async def expire_async(self) -> int:
        """`expire`, with an `AsyncEngine`."""
        return await greenlet_spawn(self.expire)

    def _now_ms(self, connection: Connection) -> int:
        return int(connection.execute(select(self._clock)).scalar_one())


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4) + encoded


def _dialect_of(engine: object) -> str:
    if not isinstance(engine, Engine):
        raise ConfigurationError(
            f"engine={shown(engine)}: give SQLAlchemy's Engine or AsyncEngine, e.g. "
            "create_engine('postgresql+psycopg://...')"
        )
    name = engine.dialect.name
    if name not in DIALECTS:
        raise ConfigurationError(f"an inbox cannot be in {name}; these can: {', '.join(DIALECTS)}")
    if name == "sqlite" and not engine.dialect.insert_returning:
        raise ConfigurationError("this SQLite has no RETURNING; 3.35 is the oldest that can hold an inbox")
    return name


def _group(group: object) -> str:
    if (
        not isinstance(group, str)
        or not 0 < len(group) <= GROUP_CHARACTERS
        or group != group.strip()
        or "\0" in group
        or not _is_utf8(group)
    ):
        raise ConfigurationError(
            f"group={shown(group)}: give the group's name, at most {GROUP_CHARACTERS} characters without blanks "
            f"around them"
        )
    return group


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _window_ms(window: Window | str | None) -> int | None:
    if window is None:
        return None
    parsed = Window.parse(window) if isinstance(window, str) else window
    given: object = parsed  # what callers without a type checker pass
    if not isinstance(given, Window) or parsed.count is not None or parsed.time_ms is None:
        raise ConfigurationError(
            f"window={shown(window)}: an inbox forgets by time only; give e.g. Window(days=7), or None"
        )
    return parsed.time_ms


def _commits_each_statement(connection: Connection) -> bool:
    """Whether the database commits each statement by itself."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    below = connection.connection.dbapi_connection
    # With your own BEGIN (see SQLAlchemy's page on SQLite) one is open though the driver begins none.
    if below is None or getattr(connection.connection.driver_connection, "in_transaction", False):
        return False
    return connection.dialect.detect_autocommit_setting(below)


def _judging(connection: Any, judge: Callable[[Connection, Any], Any], given: Any) -> Any:
    return (judging_async if is_asynchronous(connection) else _judging_at_once)(connection, judge, given)


@contextmanager
def _judging_at_once(
    connection: Connection, judge: Callable[[Connection, Given], T], given: Given
) -> Iterator[T]:
    """Yield what ``judge`` returns in the connection's transaction; an exception rolls the transaction back."""
    try:
        yield judge(connection, given)
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: object) -> None:
    if not isinstance(connection, Connection) or connection.closed:
        return
    transaction = connection.get_nested_transaction() or connection.get_transaction()
    if transaction is not None and transaction.is_active:
        with suppress(SQLAlchemyError):
            transaction.rollback()
