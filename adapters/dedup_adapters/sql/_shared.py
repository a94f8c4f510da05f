"""A memory that consumers share, as a table of PostgreSQL.

    store = SharedStore(create_engine("postgresql+psycopg://localhost/work"))
    store.create()

A row is a claim or a mark, and is valid until ``until_ms`` by the database's clock. An expired row counts
as absent, and `SharedStore.expire` deletes it. If the clock is set back a claim would last longer by the
same amount. So a caller that finds a claim with more time left than its ``lease_ms`` shortens it to that
lease, from now. It does not end the claim at once: the owner may be alive, and its next renewal restores
the claim.

The IDs of a batch travel as one value of bytes, which the server splits. New IDs are stored twice as fast
as from an array, and as fast as by ``COPY`` into a temporary table, for which each driver has its own
interface. Every statement locks its rows in the order of the IDs, deletions too: a plain join would lock
them in the order of the table, and could deadlock with claims.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    inspect,
    text,
)
from sqlalchemy import Sequence as Numbers
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable

from dedup_adapters.sql import _statements as statements
from dedup_adapters.sql._engines import EXAMPLE, LIBPQ, engine_of
from dedup_adapters.sql._errors import is_retryable
from dedup_adapters.sql._query_timeout import Query, QueryTimeout
from dedup_adapters.sql._tables import difference
from dedup_sdk import ConfigurationError
from dedup_sdk.errors import shown
from dedup_sdk.shared import Claim, ClaimKind, SharedStoreError

logger = logging.getLogger("dedup_adapters")

_Answer = TypeVar("_Answer")

ATTEMPT_BYTES: Final = 8
ID_BYTES: Final = 16
OWNER_CHARACTERS: Final = 200
_EXPIRED_AT_ONCE: Final = 10_000
_LEAST_IDLE_MS: Final = 1_000
"""The time that a busy client may need between two statements of a transaction."""


class SharedStore:
    """A `dedup_sdk.shared.ClaimStore` in a table of PostgreSQL (9.6 or newer); a call is one statement.

    Args:
        engine: SQLAlchemy's, or a URL (``postgresql+psycopg://...``). For an engine of yours you must set
            connection time limits yourself (``connect_args``); ``pool_pre_ping`` is not needed.
        table: the table's name; its sequence has the suffix ``_tokens``.
        schema: their schema; None: the connection's default.
        timeout: the most seconds to wait for a lock; with a URL also for a connection, or a sign of life of
            the server's machine.
        answer_timeout: the most seconds to wait for an answer, while the consumer waits too; then the
            connection is cut (with psycopg and psycopg2).

    Raises `ConfigurationError` for invalid settings. Connects with the first call.
    """

    def __init__(
        self,
        engine: Engine | str,
        *,
        table: str = "dedup_shared",
        schema: str | None = None,
        timeout: float = 2.0,
        answer_timeout: float = 10.0,
    ) -> None:
        for name, value in (("table", table), ("schema", schema)):
            word: object = value
            if not (word is None and name == "schema") and (
                not isinstance(word, str) or not word or set(word) & set("':\\\0")
            ):
                raise ConfigurationError(
                    f"{name}={shown(value)}: give a name without quotes, colons and backslashes, e.g. 'dedup_shared'"
                )
        lock_ms = math.ceil(1000 * _seconds("timeout", timeout))
        self._lock_ms, self._idle_ms = str(lock_ms), str(max(_LEAST_IDLE_MS, lock_ms // 2))
        self._timeout = QueryTimeout(_seconds("answer_timeout", answer_timeout))
        self._ours = engine_of(engine, timeout, self._timeout.watch) if isinstance(engine, str) else None
        given: object = self._ours or engine  # what callers without a type checker pass
        if not isinstance(given, Engine) or given.dialect.name != "postgresql":
            raise ConfigurationError(
                f"engine={shown(engine)}: give SQLAlchemy's Engine of PostgreSQL, e.g. "
                "create_engine('postgresql+psycopg://...'), or its URL"
            )
        if given.dialect.driver not in LIBPQ:
            logger.warning(
                "the driver %s does not expose its sockets: while the server does not answer, the consumer waits "
                "without a time limit; use another driver, e.g. %s",
                given.dialect.driver, EXAMPLE,
                extra={"event": "sql-without-time-limit"},
            )  # fmt: skip
        # Each statement is a transaction, and must see all rows committed before it.
        self._engine = given.execution_options(isolation_level="READ COMMITTED")
        self.metadata = MetaData(schema=schema)
        """The table, for Alembic's ``target_metadata``."""
        self._numbers = Numbers(f"{table}_tokens", metadata=self.metadata)
        self._table = Table(
            table, self.metadata,
            Column("id", LargeBinary(ID_BYTES), primary_key=True),
            Column("token", BigInteger, nullable=False),
            Column("owner", String(OWNER_CHARACTERS), nullable=False),
            Column("attempt", LargeBinary(ATTEMPT_BYTES), nullable=False),
            Column("claimed", Boolean, nullable=False),
            Column("lease_ms", BigInteger, nullable=False),
            Column("seen_ms", BigInteger, nullable=False),
            Column("before_ms", BigInteger, nullable=False),
            Column("until_ms", BigInteger, nullable=False),
        )  # fmt: skip
        # Rows are added in the order of their times: a block range index suffices, and costs nearly nothing.
        Index(f"{table}_until", self._table.c.until_ms, postgresql_using="brin")
        quote = given.dialect.identifier_preparer
        names = {
            "table": quote.format_table(self._table),
            "numbers": quote.format_sequence(self._numbers),
            "now": statements.NOW,
            "rows": statements.ROWS,
            "columns": statements.COLUMNS,
            "at_once": _EXPIRED_AT_ONCE,
        }
        self._claim, self._renew, self._complete, self._release, self._load, self._expire = (
            text(statement.format(**names))
            for statement in (
                statements.CLAIM,
                statements.RENEW,
                statements.COMPLETE,
                statements.RELEASE,
                statements.LOAD,
                statements.EXPIRE,
            )
        )
        self._checked = False

    # --- the protocol --------------------------------------------------------------------------------------------

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `dedup_sdk.shared.ClaimStore`."""
        rows = self._run(
            self._claim,
            ids,
            timestamps_ms=timestamps_ms,
            owner=_storable(owner),
            lease_ms=lease_ms,
            window_ms=window_ms,
        )
        found = {bytes(row[0]): _as_claim(*row[1:]) for row in rows}
        return [found[key] for key in ids]

    def renew(self, ids: Sequence[bytes], tokens: Sequence[int], owner: str, lease_ms: int) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(self._renew, ids, tokens, owner=_storable(owner), lease_ms=lease_ms)

    def complete(
        self,
        ids: Sequence[bytes],
        tokens: Sequence[int],
        owner: str,
        *,
        timestamps_ms: Sequence[int],
        window_ms: int,
    ) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(
            self._complete,
            ids,
            tokens,
            timestamps_ms=timestamps_ms,
            owner=_storable(owner),
            window_ms=window_ms,
        )

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `dedup_sdk.shared.ClaimStore`."""
        return self._flags(self._release, ids, tokens)

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `dedup_sdk.shared.ClaimStore`."""
        self._run(self._load, ids, timestamps_ms=timestamps_ms, window_ms=window_ms)

    def close(self) -> None:
        """See `dedup_sdk.shared.ClaimStore`; an engine of yours stays open."""
        self._timeout.close()
        if self._ours is not None:
            self._ours.dispose()

    # --- the table -----------------------------------------------------------------------------------------------

    def ddl(self) -> str:
        """Return the statements that create table and sequence, for a migration, each with a semicolon."""
        made: list[Any] = [
            CreateSequence(self._numbers),
            CreateTable(self._table),
            *map(CreateIndex, self._table.indexes),
        ]
        return ";\n\n".join(str(each.compile(dialect=self._engine.dialect)).strip() for each in made) + ";\n"

    def create(self) -> bool:
        """Create table and sequence if they are missing, and return whether the table was missing.

        Several processes may call it at once. Raises `ConfigurationError` if a table of that name has
        another layout.
        """
        with self._answers(), self._begin() as connection:
            # The lock makes a process that waited see the table that another one has created.
            connection.execute(statements.ONE_AFTER_THE_OTHER, {"name": self._table.fullname})
            made = not inspect(connection).has_table(self._table.name, self._table.schema)
            self.metadata.create_all(connection)
            self._check(connection)
            return made

    def expire(self) -> int:
        """Delete expired rows, 10,000 per transaction; return how many. Undeleted ones count as absent, too."""
        total = 0
        with self._answers():
            with self._begin() as connection:
                horizon_ms = connection.execute(text(f"SELECT {statements.NOW}")).scalar_one()
            while True:
                with self._begin() as connection:
                    gone = connection.execute(self._expire, {"horizon_ms": horizon_ms}).rowcount
                total += gone
                if gone < _EXPIRED_AT_ONCE:
                    return total

    def incarnation(self) -> str:
        """Return a text that changes when the server restarts, or another one takes over."""
        return self._ask(lambda connection: str(connection.scalar(statements.STARTED)))

    # --- how -----------------------------------------------------------------------------------------------------

    def _flags(self, statement: Any, ids: Sequence[bytes], tokens: Sequence[int], **given: Any) -> list[bool]:
        """Run a statement, and return for each ID whether it has the expected token and state.

        The statement returns rows of ID, current token, and whether the state is the expected one; other
        IDs are left out.
        """
        found = {
            bytes(key): (token, fits)
            for key, token, fits in self._run(statement, ids, tokens=tokens, **given)
        }
        return [found.get(key) == (token, True) for key, token in zip(ids, tokens, strict=True)]

    def _run(
        self,
        statement: Any,
        ids: Sequence[bytes],
        *,
        timestamps_ms: Sequence[int] = (),
        tokens: Sequence[int] = (),
        **given: Any,
    ) -> list[Any]:
        if not ids:
            return []
        whole = b"".join(ids)
        if len(whole) != ID_BYTES * len(ids):
            raise ValueError(f"{len(ids)} IDs have {len(whole)} bytes: each has {ID_BYTES}")
        columns = {
            "ids": whole,
            "timestamps_ms": list(timestamps_ms) or [0] * len(ids),
            "tokens": list(tokens) or [0] * len(ids),
            "attempt": secrets.token_bytes(ATTEMPT_BYTES),
        }
        named = {
            name: columns[name] for name in columns if name != "attempt" or statement is not self._release
        }

        def asked(connection: Connection) -> list[Any]:
            if not self._checked:
                self._check(connection)
                self._checked = True
            answer = connection.execute(statement, {**named, **given})
            return list(answer) if answer.returns_rows else []

        return self._ask(asked)

    def _ask(self, asked: Callable[[Connection], _Answer]) -> _Answer:
        """Run a transaction and return its result; retry once if the connection was lost."""
        with self._timeout.query() as query, self._answers(query):
            try:
                with self._begin(query) as connection:
                    return asked(connection)
            except DBAPIError as error:
                if query.overdue or not error.connection_invalidated:
                    raise
                with self._begin(query) as connection:
                    return asked(connection)

    @contextmanager
    def _begin(self, query: Query | None = None) -> Iterator[Connection]:
        """Begin a transaction with a time limit for locks.

        With a query its connection is watched, and the server ends the transaction of a client that stops.
        """
        with self._engine.begin() as connection:
            if query is not None:
                query.watch(connection.connection.driver_connection)
            idle_ms = "0" if query is None else self._idle_ms
            connection.execute(statements.WAITS, {"lock_ms": self._lock_ms, "idle_ms": idle_ms})
            yield connection

    def _check(self, connection: Connection) -> None:
        name = self._table.fullname
        try:
            told = difference(connection, self._table)
        except NoSuchTableError:
            raise ConfigurationError(
                f"there is no table {name}: call create() of the shared store, or add the result of ddl() to a "
                "migration"
            ) from None
        if told:
            raise ConfigurationError(
                f"table {name} is not a shared memory of this version: {told}; name another one with table=, or "
                "move that one away"
            )

    @contextmanager
    def _answers(self, query: Query | None = None) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            where = self._engine.url.set(query={}).render_as_string(hide_password=True)
            if query is not None and query.overdue:
                cause = f"no answer within {self._timeout.seconds:g} s"
                passes, do = True, "check the server's load and locks, or raise answer_timeout="
            else:
                cause = " ".join(str(getattr(error, "orig", None) or error).split())
                passes = is_retryable(error)
                do = "start it, or correct the URL" if passes else "fix the cause, or correct the URL"
            raise SharedStoreError(
                f"the shared store at {where} failed: {cause}; {do}", passes=passes
            ) from error


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name}={shown(value)}: give seconds above 0, e.g. 2.0")
    return value


def _as_claim(token: int, is_ours: bool, claimed: bool, left_ms: int, seen_ms: int) -> Claim:  # noqa: FBT001 (a row)
    if is_ours:
        return Claim(ClaimKind.FRESH, token)
    if claimed:
        return Claim(ClaimKind.IN_FLIGHT, left_ms=max(1, left_ms))
    return Claim(ClaimKind.DUPLICATE, seen_ms=seen_ms)


def _storable(owner: str) -> str:
    """Return an owner without NUL characters, which PostgreSQL's text cannot contain."""
    return owner.replace("\0", "")
