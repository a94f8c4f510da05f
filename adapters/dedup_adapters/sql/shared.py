"""A memory that consumers share, as a table of PostgreSQL.

    store = SharedStore(create_engine("postgresql+psycopg://localhost/work"))
    store.create()

A row is a claim, or a mark; which is live until ``until_ms``, by the database's clock. One that is over counts as none, and is deleted by `SharedStore.expire`.
A clock that is set back would keep a claim for as much longer. So who finds one that lives longer than its ``lease_ms`` has it end with that, from now.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

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
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable

from dedup_adapters.sql.engines import engine_of
from dedup_adapters.sql.errors import is_retryable
from dedup_adapters.sql.tables import difference
from dedup_sdk import Claim, ClaimKind, ConfigurationError, SharedStoreError

ATTEMPT_BYTES: Final = 8
ID_BYTES: Final = 16
OWNER_CHARACTERS: Final = 200
_EXPIRED_AT_ONCE: Final = 10_000

_NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
"""At that very moment, and not at the transaction's beginning: a row that was waited for is judged by when it came free."""
_ROWS: Final = """(
  SELECT substring(CAST(:ids AS bytea) FROM CAST(16 * place - 15 AS integer) FOR 16) AS id, timestamp_ms, token
  FROM unnest(CAST(:timestamps_ms AS bigint[]), CAST(:tokens AS bigint[])) WITH ORDINALITY AS u(timestamp_ms, token, place)
) AS g ORDER BY id"""
"""IDs come as one row of bytes, which costs half of what an array of them does. In one order for all, so that two batches wait for each other and not crosswise."""
_COLUMNS: Final = "id, token, owner, attempt, claimed, lease_ms, seen_ms, before_ms, until_ms"

_CLAIM: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, nextval('{numbers}'), :owner, :attempt, true, :lease_ms, timestamp_ms, timestamp_ms, {now} + :lease_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, owner, attempt, claimed, lease_ms, seen_ms, before_ms, until_ms) = (
  SELECT
    CASE WHEN free THEN nextval('{numbers}') ELSE t.token END,
    CASE WHEN free THEN EXCLUDED.owner ELSE t.owner END,
    CASE WHEN free THEN EXCLUDED.attempt ELSE t.attempt END,
    free OR t.claimed,
    CASE WHEN free THEN EXCLUDED.lease_ms ELSE t.lease_ms END,
    CASE WHEN free THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    t.seen_ms,
    CASE WHEN free THEN {now} + :lease_ms WHEN t.claimed THEN {now} + least(t.until_ms - {now}, t.lease_ms) ELSE {now} + :window_ms END
  FROM (SELECT t.until_ms <= {now} OR CASE WHEN t.claimed THEN t.owner = EXCLUDED.owner ELSE abs(EXCLUDED.seen_ms - t.seen_ms) > :window_ms END AS free) AS f
)
RETURNING id, token, attempt = :attempt AND claimed, claimed, until_ms - {now}, before_ms
"""
_RENEW: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, :owner, :attempt, true, :lease_ms, timestamp_ms, timestamp_ms, {now} + :lease_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, owner, claimed, lease_ms, until_ms) = (
  SELECT
    CASE WHEN ours THEN EXCLUDED.token ELSE t.token END,
    CASE WHEN ours THEN EXCLUDED.owner ELSE t.owner END,
    ours OR t.claimed,
    CASE WHEN ours THEN EXCLUDED.lease_ms ELSE t.lease_ms END,
    CASE WHEN ours THEN EXCLUDED.until_ms ELSE t.until_ms END
  FROM (SELECT t.until_ms <= {now} OR (t.claimed AND t.token = EXCLUDED.token) AS ours) AS f
)
RETURNING id, token, claimed
"""
_COMPLETE: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, '', :attempt, false, 0, timestamp_ms, timestamp_ms, {now} + :window_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, claimed, seen_ms, until_ms) = (
  SELECT
    CASE WHEN ends THEN EXCLUDED.token ELSE t.token END,
    NOT ends AND t.claimed,
    CASE WHEN ends THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    CASE WHEN ends OR NOT t.claimed THEN EXCLUDED.until_ms ELSE t.until_ms END
  FROM (SELECT t.until_ms <= {now} OR (t.claimed AND (t.token = EXCLUDED.token OR (EXCLUDED.token = 0 AND t.owner = :owner))) AS ends) AS f
)
RETURNING id, token, NOT claimed
"""
_LOAD: Final = """
INSERT INTO {table} AS t ({columns})
SELECT id, token, '', :attempt, false, 0, timestamp_ms, timestamp_ms, {now} + :window_ms FROM {rows}
ON CONFLICT (id) DO UPDATE SET (token, claimed, seen_ms, until_ms) = (
  SELECT
    CASE WHEN over THEN 0 ELSE t.token END,
    NOT over AND t.claimed,
    CASE WHEN over THEN EXCLUDED.seen_ms WHEN t.claimed THEN t.seen_ms ELSE greatest(t.seen_ms, EXCLUDED.seen_ms) END,
    CASE WHEN t.claimed AND NOT over THEN t.until_ms ELSE greatest(t.until_ms, EXCLUDED.until_ms) END
  FROM (SELECT t.until_ms <= {now} AS over) AS f
)
"""
_RELEASE: Final = """
WITH mine AS (
  SELECT held.id, held.token FROM (SELECT * FROM {rows}) AS g CROSS JOIN LATERAL (
    SELECT id, token FROM {table} AS t WHERE t.id = g.id AND t.claimed AND t.token = g.token AND t.until_ms > {now} FOR UPDATE
  ) AS held
)
DELETE FROM {table} AS t USING mine WHERE t.id = mine.id
RETURNING t.id, t.token, true
"""
"""One by one, in the order of all others; as a plain join the claims would be looked for in the whole table, where it has hardly any but many marks."""
_EXPIRE: Final = """
DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE until_ms <= :horizon_ms LIMIT {at_once} FOR UPDATE SKIP LOCKED))
"""
"""The time is asked before: no index serves a condition that may change from row to row."""


_STARTED: Final = text(
    "SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text) || ' ' || coalesce(CAST(inet_server_addr() AS text), '')"
)
_ONE_AFTER_THE_OTHER: Final = text("SELECT pg_advisory_xact_lock(hashtext(:name), 1)")


class SharedStore:
    """A `dedup_sdk.ClaimStore` in a table of PostgreSQL (9.5 or newer); a call is one statement.

    Args:
        engine: SQLAlchemy's, or the URL that one is made of (``postgresql+psycopg://...``). How long an answer may take is an engine's own business
            (``connect_args``): the consumer waits meanwhile.
        table: the table's name; with ``_tokens`` behind it that of its sequence.
        schema: where they are, where that is not the connection's default.
        timeout: seconds that a connection may take, or a lock, or a sign of life of the server's machine, for an engine that is made of a URL.

    Raises `ConfigurationError` for settings that make no sense. Connects with the first call.
    """

    def __init__(
        self,
        engine: Engine | str,
        *,
        table: str = "dedup_shared",
        schema: str | None = None,
        timeout: float = 2.0,
    ) -> None:
        for name, value in (("table", table), ("schema", schema)):
            word: object = value
            if not (word is None and name == "schema") and (
                not isinstance(word, str) or not word or set(word) & set("':\\\0")
            ):
                raise ConfigurationError(
                    f"{name}={value!r}: give a name without quotes, colons and backslashes, e.g. 'dedup_shared'"
                )
        self._ours = _engine_of(engine, timeout) if isinstance(engine, str) else None
        given: object = self._ours or engine  # what callers without a type checker pass
        if not isinstance(given, Engine) or given.dialect.name != "postgresql":
            raise ConfigurationError(
                f"engine={engine!r}: give SQLAlchemy's Engine of PostgreSQL, e.g. create_engine('postgresql+psycopg://...'), or its URL"
            )
        # Each statement is a transaction, and has to see what was committed before it.
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
        # Of rows that come in the order of their times a block range index knows enough, and costs nothing to keep.
        Index(f"{table}_until", self._table.c.until_ms, postgresql_using="brin")
        quote = given.dialect.identifier_preparer
        names = {
            "table": quote.format_table(self._table),
            "numbers": quote.format_sequence(self._numbers),
            "now": _NOW,
            "rows": _ROWS,
            "columns": _COLUMNS,
            "at_once": _EXPIRED_AT_ONCE,
        }
        self._claim, self._renew, self._complete, self._release, self._load, self._expire = (
            text(statement.format(**names))
            for statement in (_CLAIM, _RENEW, _COMPLETE, _RELEASE, _LOAD, _EXPIRE)
        )
        self._checked = False

    # --- the protocol --------------------------------------------------------------------------------------------

    def claim(
        self, ids: Sequence[bytes], owner: str, lease_ms: int, *, timestamps_ms: Sequence[int], window_ms: int
    ) -> list[Claim]:
        """See `dedup_sdk.ClaimStore`."""
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
        """See `dedup_sdk.ClaimStore`."""
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
        """See `dedup_sdk.ClaimStore`."""
        return self._flags(
            self._complete,
            ids,
            tokens,
            timestamps_ms=timestamps_ms,
            owner=_storable(owner),
            window_ms=window_ms,
        )

    def release(self, ids: Sequence[bytes], tokens: Sequence[int]) -> list[bool]:
        """See `dedup_sdk.ClaimStore`."""
        return self._flags(self._release, ids, tokens)

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """See `dedup_sdk.ClaimStore`."""
        self._run(self._load, ids, timestamps_ms=timestamps_ms, window_ms=window_ms)

    def close(self) -> None:
        """See `dedup_sdk.ClaimStore`; an engine that was given stays as it is."""
        if self._ours is not None:
            self._ours.dispose()

    # --- the table -----------------------------------------------------------------------------------------------

    def ddl(self) -> str:
        """Return the statements that make table and sequence, for a migration; a semicolon behind each."""
        made: list[Any] = [
            CreateSequence(self._numbers),
            CreateTable(self._table),
            *map(CreateIndex, self._table.indexes),
        ]
        return ";\n\n".join(str(each.compile(dialect=self._engine.dialect)).strip() for each in made) + ";\n"

    def create(self) -> bool:
        """Make what is not there, and return whether the table was not; raises `ConfigurationError` where one of the name is another one.

        Several may do it at once.
        """
        with self._answers(), self._engine.begin() as connection:
            # What a second one made is seen by who waited for it.
            connection.execute(_ONE_AFTER_THE_OTHER, {"name": self._table.fullname})
            made = not inspect(connection).has_table(self._table.name, self._table.schema)
            self.metadata.create_all(connection)
            self._check(connection)
            return made

    def expire(self) -> int:
        """Delete rows whose lease or window is over, 10,000 a transaction; return how many. Without it they count as none all the same."""
        total = 0
        with self._answers():
            with self._engine.begin() as connection:
                horizon_ms = connection.execute(text(f"SELECT {_NOW}")).scalar_one()
            while True:
                with self._engine.begin() as connection:
                    gone = connection.execute(self._expire, {"horizon_ms": horizon_ms}).rowcount
                total += gone
                if gone < _EXPIRED_AT_ONCE:
                    return total

    def incarnation(self) -> str:
        """Return what changes when the server is started anew, or another one takes over."""
        with self._answers(), self._engine.begin() as connection:
            return str(connection.scalar(_STARTED))

    # --- how -----------------------------------------------------------------------------------------------------

    def _flags(self, statement: Any, ids: Sequence[bytes], tokens: Sequence[int], **given: Any) -> list[bool]:
        """Run a statement that returns, for some IDs, the token that they have now, and whether they are as they were to be."""
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
        with self._answers(), self._engine.begin() as connection:
            if not self._checked:
                self._check(connection)
                self._checked = True
            answer = connection.execute(statement, {**named, **given})
            return list(answer) if answer.returns_rows else []

    def _check(self, connection: Connection) -> None:
        name = self._table.fullname
        try:
            told = difference(connection, self._table)
        except NoSuchTableError:
            raise ConfigurationError(
                f"there is no table {name}: call create() of the shared store, or put what ddl() returns into a migration"
            ) from None
        if told:
            raise ConfigurationError(
                f"table {name} is no shared memory of this version: {told}; name another one with table=, or move that one away"
            )

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            where = self._engine.url.set(query={}).render_as_string(hide_password=True)
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            passes = is_retryable(error)
            do = "start it, or correct the URL" if passes else "see to that, or correct the URL"
            raise SharedStoreError(
                f"the shared store at {where} cannot be asked: {cause}; {do}", passes=passes
            ) from error


def _engine_of(url: str, timeout: object) -> Engine:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise ConfigurationError(f"timeout={timeout!r}: give seconds above 0, e.g. 2.0")
    return engine_of(url, timeout)


def _as_claim(token: int, is_ours: bool, claimed: bool, left_ms: int, seen_ms: int) -> Claim:  # noqa: FBT001 (columns of a row)
    if is_ours:
        return Claim(ClaimKind.FRESH, token)
    if claimed:
        return Claim(ClaimKind.IN_FLIGHT, left_ms=max(1, left_ms))
    return Claim(ClaimKind.DUPLICATE, seen_ms=seen_ms)


def _storable(owner: str) -> str:
    """Return an owner as PostgreSQL takes text: without the one character that it has not."""
    return owner.replace("\0", "")
