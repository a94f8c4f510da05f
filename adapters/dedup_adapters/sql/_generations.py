"""An inbox in time partitions of PostgreSQL: expired IDs are removed by dropping tables, not by deleting rows.

A unique key of a partitioned table is enforced inside one partition only. So all transactions insert into
the newest partition, the current *generation*, and first look the ID up in the older ones. That is as
strict as one unique key as long as no transaction still inserts into an older generation: each transaction
holds a shared lock until it ends, and a new generation needs the exclusive lock.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    bindparam,
    cast,
    func,
    insert,
    literal,
    select,
    text,
)

from dedup_adapters.sql._errors import InboxError
from dedup_sdk import Window

PARTS: Final = 8
"""Generations per window: an ID is kept at most an eighth longer than the window."""
_LOCK_TIMEOUT: Final = "2s"
"""How long a new generation waits for open transactions; new transactions wait for it meanwhile."""
_LOCK_BYTES: Final = 8


class Generations:
    """The partitions of one inbox's table; ``window_ms`` is the window of all groups that share the table."""

    def __init__(self, ids: Table, metadata: MetaData, window_ms: int) -> None:
        self._ids, self._window_ms = ids, window_ms
        self.table = Table(
            f"{ids.name}_generations", metadata,
            Column("generation", BigInteger, primary_key=True, autoincrement=False),
            Column("window_ms", BigInteger, nullable=False),
        )  # fmt: skip
        self._lock = int.from_bytes(sha256(ids.fullname.encode()).digest()[:_LOCK_BYTES], signed=True)
        self.newest = select(func.max(self.table.c.generation)).scalar_subquery()
        self._hold = select(
            func.pg_advisory_xact_lock_shared(cast(literal(self._lock), BigInteger)),
            func.current_setting("transaction_isolation"),
        )

    def known(self, key: Any, group: Any, seen_ms: Any) -> Any:
        """Return the condition that an ID is in an older generation, and inside the window."""
        old = self._ids.alias("old")
        return (
            select(literal(1))
            .where(
                old.c.id == key,
                old.c.consumer_group == group,
                old.c.generation < self.newest,
                old.c.seen_ms >= seen_ms - self._window_ms,
            )
            .exists()
        )

    def hold(self, connection: Connection) -> None:
        """Prevent a new generation until the end of this transaction.

        It must be a statement of its own: the next statement sees all rows that were committed before the
        lock was granted. At an isolation level above READ COMMITTED it would not.
        """
        level = connection.execute(self._hold).one()[1]
        if level != "read committed":
            raise InboxError(
                f"the transaction is at {level.upper()}, where an ID of an older partition may be invisible; "
                "use READ COMMITTED, or an inbox that is not partitioned"
            )

    def check(self, connection: Connection) -> None:
        """Raise where there is no generation, or the generations have another window."""
        found = connection.execute(
            select(func.min(self.table.c.window_ms), func.max(self.table.c.window_ms))
        ).one()
        if found[0] is None:
            raise InboxError(
                f"table {self._ids.fullname} has no partition yet: call inbox.create(), or inbox.expire()"
            )
        if set(found) != {self._window_ms}:
            raise InboxError(
                f"table {self._ids.fullname} has the window {Window(milliseconds=found[0])}, not "
                f"{Window(milliseconds=self._window_ms)}: groups that share a partitioned table must have the same "
                "window; give that one, or another table with table="
            )

    def begin_first(self, engine: Engine, now: Callable[[Connection], int]) -> None:
        """Begin a generation if there is none."""
        with engine.connect() as connection:
            begun = connection.execute(select(self.table.c.generation).limit(1)).one_or_none()
        if begun is None:
            self.turn(engine, now)
        with engine.connect() as connection:
            self.check(connection)

    def turn(self, engine: Engine, now: Callable[[Connection], int]) -> int:
        """Begin a generation if the newest is old enough, and drop expired ones; return how many were dropped.

        ``now`` returns the time in ms. Waits at most two seconds for open transactions; then raises the
        database's error, which is retriable (`is_retryable`).
        """
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.execute(select(func.pg_advisory_xact_lock(cast(literal(self._lock), BigInteger))))
            column, now_ms = self.table.c.generation, now(connection)
            begun = list(connection.execute(select(column).order_by(column)).scalars())
            if not begun or now_ms - begun[-1] >= self._window_ms // PARTS:
                begun.append(self._begin(connection, now_ms))
            # The last generation that began before the window still has IDs inside it.
            over = [each for each, after in pairwise(begun) if after < now_ms - self._window_ms]
            for each in over:
                connection.execute(text(f"DROP TABLE {self._name(connection, each)}"))
            connection.execute(
                self.table.delete().where(column.in_(bindparam("over", expanding=True))), {"over": over}
            )
        return len(over)

    def _begin(self, connection: Connection, now_ms: int) -> int:
        whole = connection.dialect.identifier_preparer.format_table(self._ids)
        part = self._name(connection, now_ms)
        connection.execute(text(f"CREATE TABLE {part} PARTITION OF {whole} FOR VALUES IN ({now_ms:d})"))
        connection.execute(insert(self.table), {"generation": now_ms, "window_ms": self._window_ms})
        return now_ms

    def _name(self, connection: Connection, generation: int) -> str:
        part = Table(f"{self._ids.name}_{generation:d}", MetaData(), schema=self._ids.schema)
        return connection.dialect.identifier_preparer.format_table(part)
