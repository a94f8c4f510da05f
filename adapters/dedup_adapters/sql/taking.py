"""The one statement of a batch: which IDs are new in the database, stored by the same step.

An ID is found to be new by storing it: two transactions that first asked could both be told "new". The IDs
of a batch are stored in ascending order, so that two batches wait for each other without a deadlock.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Integer,
    LargeBinary,
    String,
    Table,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite

from dedup_adapters.sql.tables import ATTEMPT_BYTES, KEY_BYTES, Tables

Take = Callable[[Connection, str, Sequence[bytes]], set[bytes]]
"""Stores IDs (16 bytes each, none twice, ascending) of a group; returns those that were not there, or whose window was over.

An ID that another open transaction has stored is waited for: it is new if that one is rolled back.
"""

_READ_BACK: Final = 5_000
"""IDs that one question names at most."""


def taking(tables: Tables, dialect: str, window_ms: int | None, clock: Any) -> Take:
    """Return the statement of a database; a window of None never ends, and ``clock`` is the expression for the time in ms."""
    if dialect == "postgresql":
        return _by_bytes(tables, window_ms, clock)
    if dialect == "sqlite":
        return _by_substrings(tables.ids, window_ms, clock)
    return _by_attempt(tables.ids, window_ms, clock)


def _by_bytes(tables: Tables, window_ms: int | None, clock: Any) -> Take:
    """All IDs are one value, there and back, so that nothing is done for each of them between here and the database.

    As an array, and a row for each that was stored, they took half as long again.
    """
    table, generations = tables.ids, tables.generations
    place = func.generate_series(0, cast(bindparam("last"), Integer)).column_valued("place")
    given: Any = cast(bindparam("ids", type_=LargeBinary), LargeBinary)
    key = func.substring(given, place * KEY_BYTES + 1, KEY_BYTES)
    seen: Any = select(clock).scalar_subquery()
    group: Any = cast(bindparam("consumer_group"), String)
    columns = ["consumer_group", "id", "seen_ms"]
    rows = select(group, key, seen)
    if generations is not None:
        columns.append("generation")
        rows = rows.add_columns(generations.newest).where(~generations.known(key, group, seen))
    insert = postgresql.insert(table).from_select(columns, rows)
    taken = _unless_known(insert, table, window_ms).returning(table.c.id).cte("taken")
    statement = select(func.string_agg(taken.c.id, cast(literal(b"", LargeBinary), LargeBinary)))

    def take(connection: Connection, group: str, keys: Sequence[bytes]) -> set[bytes]:
        if generations is not None:
            generations.hold(connection)
        asked = {"consumer_group": group, "ids": b"".join(keys), "last": len(keys) - 1}
        stored = bytes(connection.execute(statement, asked).scalar() or b"")
        return {stored[begin : begin + KEY_BYTES] for begin in range(0, len(stored), KEY_BYTES)}

    return take


def _by_substrings(table: Table, window_ms: int | None, clock: Any) -> Take:
    """All IDs are one value, as above: a row of values for each took nearly twice as long.

    The statement begins with INSERT, and what it selects from stands inside: before any other first word
    Python's driver begins no transaction.
    """
    place = select(literal_column("0", Integer).label("place")).cte("places", recursive=True, nesting=True)
    place = place.union_all(select(place.c.place + 1).where(place.c.place < bindparam("last", type_=Integer)))
    given = bindparam("ids", type_=LargeBinary)
    key = func.substr(given, place.c.place * KEY_BYTES + 1, KEY_BYTES)
    group, seen = bindparam("consumer_group", type_=String), select(clock).scalar_subquery()
    # Without a condition SQLite takes the ON of what follows for that of a join.
    rows = (
        select(group.label("consumer_group"), key.label("id"), seen.label("seen_ms"))
        .select_from(place)
        .subquery()
    )
    insert = sqlite.insert(table).from_select(["consumer_group", "id", "seen_ms"], select(rows).where(true()))
    statement = _unless_known(insert, table, window_ms).returning(table.c.id)

    def take(connection: Connection, group: str, keys: Sequence[bytes]) -> set[bytes]:
        asked = {"consumer_group": group, "ids": b"".join(keys), "last": len(keys) - 1}
        return {bytes(key) for key in connection.execute(statement, asked).scalars()}

    return take


def _unless_known(insert: Any, table: Table, window_ms: int | None) -> Any:
    key = list(table.primary_key.columns)
    if window_ms is None:
        return insert.on_conflict_do_nothing(index_elements=key)
    new = insert.excluded.seen_ms
    return insert.on_conflict_do_update(
        index_elements=key,
        set_={"seen_ms": new},
        where=table.c.seen_ms < new - literal_column(str(window_ms)),
    )


def _by_attempt(table: Table, window_ms: int | None, clock: Any) -> Take:
    """Two statements: rows that this attempt stored bear its number.

    ``INSERT IGNORE`` would ignore other errors as well, and MySQL has no ``RETURNING``.
    """
    insert = mysql.insert(table)
    over: Any = literal_column("FALSE")
    if window_ms is not None:
        over = table.c.seen_ms < insert.inserted.seen_ms - literal_column(str(window_ms))
    # Assigned from left to right: the time last, because the other asks for it.
    update = [
        ("attempt", func.if_(over, insert.inserted.attempt, table.c.attempt)),
        ("seen_ms", func.if_(over, insert.inserted.seen_ms, table.c.seen_ms)),
    ]
    store = insert.on_duplicate_key_update(update)
    ours = select(table.c.id).where(
        table.c.consumer_group == bindparam("consumer_group"),
        table.c.id.in_(bindparam("ids", expanding=True)),
        table.c.attempt == bindparam("attempt"),
    )

    def take(connection: Connection, group: str, keys: Sequence[bytes]) -> set[bytes]:
        attempt = secrets.token_bytes(ATTEMPT_BYTES)
        common = {"consumer_group": group, "attempt": attempt}
        # Asked by itself: among values that are no parameters, drivers send row by row.
        now_ms = connection.execute(select(clock)).scalar_one()
        connection.execute(store, [{**common, "id": key, "seen_ms": now_ms} for key in keys])
        taken: set[bytes] = set()
        for begin in range(0, len(keys), _READ_BACK):
            asked = {**common, "ids": list(keys[begin : begin + _READ_BACK])}
            taken.update(bytes(key) for key in connection.execute(ours, asked).scalars())
        return taken

    return take
