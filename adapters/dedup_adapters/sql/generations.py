"""An inbox in time partitions of PostgreSQL: what is over is dropped by the table, not by the row.

A unique key of a partitioned table holds inside one partition only. So all transactions store into the
newest one, a *generation*, and look the ID up in the older ones first. That is as good as one key while
nobody stores into an older one any more: each transaction holds a shared lock to its end, and a new
generation is begun under the same lock alone.
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

from dedup_adapters.sql.errors import InboxError

PARTS: Final = 8
"""Generations of a window: an ID lives an eighth longer at most."""
_LOCK_TIMEOUT: Final = "2s"
"""How long a new generation waits for transactions that are open, while others wait for it."""
_LOCK_BYTES: Final = 8


class Generations:
    """The partitions of one inbox's table; ``window_ms`` is that of all groups that share it."""

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
        """Return the condition that an ID is in an older generation, and its window not over."""
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
        """Have no generation begin before the end of this transaction.

        It has to be a statement of its own: the next one sees what was committed before the lock was given.
        At a higher level of isolation it would not.
        """
        level = connection.execute(self._hold).one()[1]
        if level != "read committed":
            raise InboxError(
                f"the transaction is at {level.upper()}, where an ID of an older partition may be unseen; "
                "take READ COMMITTED, or an inbox that is not "
                "partitioned"
            )

    def check(self, connection: Connection) -> None:
        """Raise where there is no generation, or they are of another window."""
        found = connection.execute(
            select(func.min(self.table.c.window_ms), func.max(self.table.c.window_ms))
        ).one()
        if found[0] is None:
            raise InboxError(
                f"table {self._ids.fullname} has no partition yet: call inbox.create(), or inbox.expire()"
            )
        if set(found) != {self._window_ms}:
            raise InboxError(
                f"table {self._ids.fullname} forgets after {found[0]} ms, not {self._window_ms}: groups "
                "that share a partitioned table have one "
                "window; give that one, or name another table with table="
            )

    def begin_first(self, engine: Engine, now: Callable[[Connection], int]) -> None:
        """Begin a generation where there is none."""
        with engine.connect() as connection:
            begun = connection.execute(select(self.table.c.generation).limit(1)).one_or_none()
        if begun is None:
            self.turn(engine, now)
        with engine.connect() as connection:
            self.check(connection)

    def turn(self, engine: Engine, now: Callable[[Connection], int]) -> int:
        """Begin a generation where the newest is old enough at the time (ms) that ``now`` says, and drop those that are over; return how many were dropped.

        It waits two seconds at most for transactions that are open; then the database's error is raised,
        which passes (`is_retryable`).
        """
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.execute(select(func.pg_advisory_xact_lock(cast(literal(self._lock), BigInteger))))
            column, now_ms = self.table.c.generation, now(connection)
            begun = list(connection.execute(select(column).order_by(column)).scalars())
            if not begun or now_ms - begun[-1] >= self._window_ms // PARTS:
                begun.append(self._begin(connection, now_ms))
            # The last one that began before the window did still has IDs of it.
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
