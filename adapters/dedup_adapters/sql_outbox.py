"""The transactional outbox: a message is a row in your database, added by the transaction of its work.

    outbox = SqlOutbox(engine)
    outbox.create()

    with engine.begin() as connection:                                  # anywhere, in any process
        connection.execute(insert(orders).values(...))
        outbox.add(connection, "orders", b"30 EUR", key=b"customer-7")

    with DedupProducer({...}, outbox=outbox) as producer:               # one process sends
        while running:
            producer.poll(1)

A transaction that is rolled back sends no message. Messages of a committed one are sent, also after a crash
of this process, with the same dedup key each time. For PostgreSQL, SQLite, MySQL and MariaDB, by SQLAlchemy
(extra ``[sql]``).

The sending process reads the table from its beginning, not behind a cursor: a row gets its number when it
is inserted, and becomes visible when its transaction is committed, so that a smaller number may appear
later. Rows that are being sent are skipped; they are few. Delivered rows are deleted.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, overload

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateTable
from sqlalchemy.util import greenlet_spawn

from dedup_adapters.sql._asynchronous import is_asynchronous, refuse_blocking, synchronous
from dedup_adapters.sql._tables import DIALECTS
from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown
from dedup_sdk.producer import (
    OutboxError,
    OutboxFullError,
    OutboxLockedError,
    Outgoing,
    ProducerKeys,
    Step,
    Stored,
    as_bytes,
    pack_headers,
    pairs,
    usable_id,
    why_unusable,
)

if TYPE_CHECKING:  # it imports SQLAlchemy's ORM
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

_TOPIC_CHARACTERS: Final = 249
_IDS_A_STATEMENT: Final = 500
_FIELDS: Final = Outgoing._fields
Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


class SqlOutbox:
    """An outbox in a table of your database, for `DedupProducer(outbox=...)`.

    One producer at a time sends from it.

    Args:
        engine: SQLAlchemy's `Engine`, of PostgreSQL, SQLite, MySQL or MariaDB. An `AsyncEngine` will do for `add`
            and `create_async`; the producer needs an `Engine`.
        table: the table's name.
        keys: makes the dedup keys of `add`; default `ProducerKeys()`.
    """

    shared = True

    def __init__(
        self, engine: Engine | AsyncEngine, *, table: str = "dedup_outbox", keys: Any = None
    ) -> None:
        if engine.dialect.name not in DIALECTS:
            raise ConfigurationError(
                f"engine of {engine.dialect.name} is not supported; give one of {', '.join(DIALECTS)}"
            )
        given: object = table  # what callers without a type checker pass
        if not isinstance(given, str) or not given:
            raise ConfigurationError(f"table={shown(table)}: give a table's name, e.g. 'dedup_outbox'")
        self._engine: Engine = synchronous(engine)
        self._keys = keys or ProducerKeys()
        self.table = _table(table)
        self._lock: _Lock | None = None

    def create(self) -> None:
        """Create the table if it is missing."""
        refuse_blocking(self._engine, "await outbox.create_async()")
        with self._errors("made"):
            self.table.create(self._engine, checkfirst=True)

    async def create_async(self) -> None:
        """`create`, with an `AsyncEngine`."""
        await greenlet_spawn(self.create)

    def ddl(self) -> str:
        """Return the statement that creates the table, for a migration."""
        return str(CreateTable(self.table).compile(dialect=self._engine.dialect)).strip()

    @overload
    def add(
        self,
        connection: Connection,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        timestamp: int = 0,
        headers: Headers | None = None,
        dedup_id: str | bytes | None = None,
    ) -> bytes: ...
    @overload
    def add(
        self,
        connection: AsyncSession | AsyncConnection,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        timestamp: int = 0,
        headers: Headers | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Coroutine[Any, Any, bytes]: ...

    def add(
        self,
        connection: Connection | AsyncSession | AsyncConnection,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        timestamp: int = 0,
        headers: Headers | None = None,
        dedup_id: str | bytes | None = None,
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Add a message in your transaction, and return its dedup key; it is sent after the commit.

        With an `AsyncSession` or `AsyncConnection`, await it. Raises `ValueError` for an invalid message, and the
        errors of SQLAlchemy.
        """
        message = Outgoing(
            usable_id(self._keys() if dedup_id is None else as_bytes("dedup_id", dedup_id)),
            topic, partition, as_bytes("key", key), as_bytes("value", value), timestamp or time.time_ns() // 1_000_000,
            pack_headers(pairs(headers)) if headers else None,
        )  # fmt: skip
        why = why_unusable(message)
        if why is not None:
            raise ValueError(f"invalid message: {why}")
        if is_asynchronous(connection):
            return self._add_async(connection, message)
        connection.execute(insert(self.table), message._asdict())
        return message.dedup_id

    async def _add_async(self, session: AsyncSession | AsyncConnection, message: Outgoing) -> bytes:
        await session.execute(insert(self.table), message._asdict())
        return message.dedup_id

    # --- for the producer
    # ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """See `Outbox`: holds a lock in the database until its connection ends."""
        refuse_blocking(self._engine, "a producer sends by an Engine; give it SqlOutbox(create_engine(...))")
        with self._errors("opened"):
            self._check()
            lock = _Lock(self._engine, self.table.name)
            if not lock.take():
                raise OutboxLockedError(
                    f"outbox {self.table.name} is sent from elsewhere; end that producer, or give each a "
                    "table of its own"
                )
            self._lock = lock
            # Messages that an earlier process found refused are sent again.
            with self._engine.begin() as connection:
                connection.execute(
                    update(self.table).values(refused=None).where(self.table.c.refused.is_not(None))
                )

    def apply(self, step: Step) -> Sequence[int]:
        """See `Outbox`."""
        with self._errors("written"), self._engine.begin() as connection:
            numbers = self._add(connection, step.added)
            for number, reason in step.refused:
                connection.execute(update(self.table).values(refused=reason).where(self.table.c.id == number))
            for ids in _pieces(step.removed):
                connection.execute(delete(self.table).where(self.table.c.id.in_(ids)))
        return numbers

    def after(self, last: int, most: int) -> list[Stored]:
        """See `Outbox`."""
        return self._read(
            select(self.table).where(self.table.c.id > last).order_by(self.table.c.id).limit(most)
        )

    def read(self, ids: Sequence[int]) -> list[Stored]:
        """See `Outbox`."""
        found: list[Stored] = []
        for some in _pieces(ids):
            found += self._read(select(self.table).where(self.table.c.id.in_(some)).order_by(self.table.c.id))
        return found

    def count(self) -> int:
        """See `Outbox`."""
        with self._errors("read"), self._engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(self.table)).scalar_one())

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """See `Outbox`.

        A row gets its number when it is inserted, and is visible after its commit: a smaller number may
        appear later. So the search starts at the beginning; delivered rows are deleted, so that few are
        read.
        """
        column = self.table.c.id
        query = select(column).where(self.table.c.refused.is_(None)).order_by(column).limit(len(known) + most)
        with self._errors("read"), self._engine.connect() as connection:
            there = connection.execute(query).scalars().all()
        taken = set(known)
        return self.read([number for number in there if number not in taken][:most])

    def close(self) -> None:
        """See `Outbox`."""
        if self._lock is not None:
            self._lock.give_back()
            self._lock = None

    def _check(self) -> None:
        inspector = inspect(self._engine)
        if not inspector.has_table(self.table.name):
            raise OutboxError(
                f"there is no table {self.table.name}: call create(), or add the result of ddl() to a migration"
            )
        found = sorted(column["name"] for column in inspector.get_columns(self.table.name))
        wanted = sorted(column.name for column in self.table.columns)
        if found != wanted:
            raise OutboxError(
                f"table {self.table.name} is not an outbox of this version: it has {', '.join(found)}, but needs "
                f"{', '.join(wanted)}; name another one"
            )

    def _add(self, connection: Connection, messages: Sequence[Outgoing]) -> list[int]:
        if not messages:
            return []
        rows = [message._asdict() for message in messages]
        if connection.dialect.insert_executemany_returning_sort_by_parameter_order:
            returning = insert(self.table).returning(self.table.c.id, sort_by_parameter_order=True)
            return [int(number) for number in connection.execute(returning, rows).scalars()]
        numbers = [connection.execute(insert(self.table), row).inserted_primary_key for row in rows]
        return [int(key[0]) for key in numbers if key is not None]

    def _read(self, query: Any) -> list[Stored]:
        with self._errors("read"), self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        found = [(row["id"], tuple(_plain(row[name]) for name in _FIELDS)) for row in rows]
        return [Stored(number, Outgoing(*row), why_unusable(row) or "") for number, row in found]

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Translate SQLAlchemy's errors; an unreachable database counts as temporary."""
        try:
            yield
        except SQLAlchemyError as error:
            said = " ".join(str(getattr(error, "orig", None) or error).split())
            away = isinstance(error, PoolTimeoutError | OperationalError) or (
                isinstance(error, DBAPIError) and error.connection_invalidated
            )
            if away and done != "opened":
                raise OutboxFullError(
                    f"outbox {self.table.name} cannot be {done} ({said}); it is tried again, and no message is sent "
                    "before it is in the outbox"
                ) from error
            raise OutboxError(
                f"outbox {self.table.name} cannot be {done} ({said}); check the database and its rights"
            ) from error


class _Lock:
    """A lock in the database that other producers respect; it is released when its connection ends."""

    def __init__(self, engine: Engine, table: str) -> None:
        self._engine, self._name = engine, f"dedup-outbox {table}"
        self._connection: Connection | None = None
        self._file: int | None = None

    def take(self) -> bool:
        """Return whether the lock was free, and is held now."""
        dialect = self._engine.dialect.name
        if dialect == "sqlite":
            return self._take_file()
        # Detached from the pool: it stays open and idle, and no other code may get it.
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()
        asked = (
            select(func.pg_try_advisory_lock(func.hashtext(self._name)))
            if dialect == "postgresql"
            else select(func.get_lock(self._name, 0))
        )
        taken = bool(self._connection.execute(asked).scalar_one())
        if not taken:
            self.give_back()
        return taken

    def give_back(self) -> None:
        """Release the lock."""
        if self._connection is not None:
            free = (
                func.pg_advisory_unlock_all()
                if self._engine.dialect.name == "postgresql"
                else func.release_lock(self._name)
            )
            with suppress(SQLAlchemyError):
                # The server notices the end of a connection a moment later: the next producer would be refused.
                self._connection.execute(select(free))
            with suppress(SQLAlchemyError):
                self._connection.close()
            self._connection = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take_file(self) -> bool:
        path = self._engine.url.database
        if not path or path == ":memory:":
            return True
        self._file = os.open(f"{path}.outbox-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.give_back()
            return False
        return True


def _table(name: str) -> Table:
    number = BigInteger().with_variant(Integer, "sqlite")  # SQLite increments INTEGER keys only
    content = LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb")
    # No statement compares topics, and none is in a key: the collation pads, but what is stored comes back as it is.
    exact = mysql.VARCHAR(_TOPIC_CHARACTERS, charset="utf8mb4", collation="utf8mb4_bin")
    return Table(
        name, MetaData(),
        Column("id", number, primary_key=True, autoincrement=True),
        Column("dedup_id", content, nullable=False),
        Column("topic", String(_TOPIC_CHARACTERS).with_variant(exact, "mysql", "mariadb"), nullable=False),
        Column("partition", Integer, nullable=False),
        Column("key", content),
        Column("value", content),
        Column("timestamp_ms", BigInteger, nullable=False),
        Column("headers", content),
        Column("refused", Text),
        mysql_engine="InnoDB", mariadb_engine="InnoDB",
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(ids), _IDS_A_STATEMENT):
        yield ids[begin : begin + _IDS_A_STATEMENT]
