"""The statement that stores the IDs of a batch and returns the new ones.

An ID is found to be new by inserting it: two transactions that only looked it up could both find it new.
The IDs of a batch are inserted in ascending order, so that two batches cannot deadlock.
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

from dedup_adapters.sql._tables import ATTEMPT_BYTES, KEY_BYTES, Tables

Take = Callable[[Connection, str, Sequence[bytes]], set[bytes]]
"""Stores a group's IDs (16 bytes each, distinct, ascending); returns those that were absent or expired.

If another open transaction has stored an ID, the call waits for its end: the ID is new if that one is rolled back.
"""

_READ_BACK: Final = 5_000
"""The most IDs in one query."""


def taking(tables: Tables, dialect: str, window_ms: int | None, clock: Any) -> Take:
    """Return the function for a dialect.

    ``window_ms`` None: IDs never expire; ``clock`` is the expression for the time in ms.
    """
    if dialect == "postgresql":
        return _by_bytes(tables, window_ms, clock)
    if dialect == "sqlite":
        return _by_substrings(tables.ids, window_ms, clock)
    return _by_attempt(tables.ids, window_ms, clock)


def _by_bytes(tables: Tables, window_ms: int | None, clock: Any) -> Take:
    """Send and return all IDs as one value, so that no work is done for each ID between here and the database.

    With an array, and one row for each stored ID, it took one and a half times as long.
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
    """Send all IDs as one value, as above: with a row of values for each it took nearly twice as long.

    The statement must begin with INSERT, and contains its source as a subquery: with any other first word
    Python's driver does not begin a transaction.
    """
    place = select(literal_column("0", Integer).label("place")).cte("places", recursive=True, nesting=True)
    place = place.union_all(select(place.c.place + 1).where(place.c.place < bindparam("last", type_=Integer)))
    given = bindparam("ids", type_=LargeBinary)
    key = func.substr(given, place.c.place * KEY_BYTES + 1, KEY_BYTES)
    group, seen = bindparam("consumer_group", type_=String), select(clock).scalar_subquery()
    # Without a condition SQLite parses the following ON as that of a join.
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
    """Insert with this attempt's number, and read back the rows that have it.

    ``INSERT IGNORE`` would ignore other errors as well, and MySQL has no ``RETURNING``.
    """
    insert = mysql.insert(table)
    over: Any = literal_column("FALSE")
    if window_ms is not None:
        over = table.c.seen_ms < insert.inserted.seen_ms - literal_column(str(window_ms))
    # Assigned from left to right: the time last, because the first condition reads its old value.
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
        # A query of its own: with expressions among the values, drivers send row by row.
        now_ms = connection.execute(select(clock)).scalar_one()
        connection.execute(store, [{**common, "id": key, "seen_ms": now_ms} for key in keys])
        taken: set[bytes] = set()
        for begin in range(0, len(keys), _READ_BACK):
            asked = {**common, "ids": list(keys[begin : begin + _READ_BACK])}
            taken.update(bytes(key) for key in connection.execute(ours, asked).scalars())
        return taken

    return take
