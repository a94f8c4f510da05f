"""The tables of an inbox: their columns, their DDL, and the check of existing tables.

Times come from the clock of the database server. A host whose clock is ahead would call IDs first that
other hosts know, and would drop time partitions that they need.

Names are compared byte by byte, because two groups whose names the database takes for one would hide each other's
messages. PostgreSQL and SQLite compare text so. In MySQL and MariaDB every collation that all their versions have
pads names with blanks (`utf8mb4_bin` too), most ignore case, and `ALTER TABLE ... CONVERT TO CHARACTER SET` replaces
it by the default one: there names are `VARBINARY`, which has no collation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BINARY,
    VARBINARY,
    BigInteger,
    Column,
    Connection,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    TypeDecorator,
    bindparam,
    inspect,
    literal_column,
)
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex, CreateTable

from dedup_adapters.sql._errors import InboxError
from dedup_adapters.sql._generations import Generations

_SERVERS: Final = {  # in UTC: local time is ambiguous in the hour that repeats in autumn
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
}


def clock_of(dialect: str) -> Any:
    """Return the expression for the time in ms; SQLite uses the clock of this process."""
    if dialect == "sqlite":
        return bindparam("now_ms", callable_=_now_ms, type_=BigInteger)
    return literal_column(_SERVERS["mysql" if dialect == "mariadb" else dialect], BigInteger)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Name(TypeDecorator[str]):
    """Text that MySQL and MariaDB keep as bytes of UTF-8; the length is in bytes."""

    impl = VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        """Return the bytes of a name."""
        return None if value is None else value.encode()

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002 (SQLAlchemy gives it)
        """Return the name that bytes stand for."""
        return None if value is None else bytes(value).decode()


DIALECTS: Final = ("postgresql", "sqlite", "mysql", "mariadb")
KEY_BYTES: Final = 16
ATTEMPT_BYTES: Final = 8
GROUP_CHARACTERS: Final = 255
_TOPIC_CHARACTERS: Final = 249
_UUID_CHARACTERS: Final = 36
_CHARACTER_BYTES: Final = 4
"""The most bytes of a character in UTF-8."""


@dataclass(frozen=True, slots=True)
class Tables:
    """An inbox's tables; ``ids`` has a row for each ID, ``offsets`` a row for each partition."""

    metadata: MetaData
    ids: Table
    offsets: Table
    generations: Generations | None

    @property
    def all(self) -> list[Table]:
        """All tables."""
        return [self.ids, self.offsets, *([] if self.generations is None else [self.generations.table])]


def make_tables(name: str, schema: str | None, dialect: str, *, partitioned_ms: int | None = None) -> Tables:
    """Return the tables for a dialect; ``partitioned_ms`` is the window in ms of a partitioned inbox."""
    metadata = MetaData(schema=schema)
    by_mysql = dialect in ("mysql", "mariadb")
    group = _Name(GROUP_CHARACTERS * _CHARACTER_BYTES) if by_mysql else String(GROUP_CHARACTERS)
    topic, topic_id = map(_Name if by_mysql else String, (_TOPIC_CHARACTERS, _UUID_CHARACTERS))
    columns: list[Any] = [
        Column("consumer_group", group, nullable=False),
        Column("id", BINARY(KEY_BYTES) if by_mysql else LargeBinary(KEY_BYTES), nullable=False),
        Column("seen_ms", BigInteger, nullable=False),
    ]
    if by_mysql:
        # Not every version has RETURNING: the rows of this attempt are read back.
        columns.append(Column("attempt", BINARY(ATTEMPT_BYTES), nullable=False))
    # The ID first: it distinguishes most keys, and comparing bytes costs less than comparing names.
    key = ["id", "consumer_group"]
    options: dict[str, Any] = {}
    if partitioned_ms is not None:
        columns.append(Column("generation", BigInteger, nullable=False))
        key.append("generation")
        options["postgresql_partition_by"] = "LIST (generation)"
    ids = Table(
        name, metadata, *columns, PrimaryKeyConstraint(*key, name=f"{name}_key"),
        sqlite_with_rowid=False, mysql_engine="InnoDB", mariadb_engine="InnoDB", **options,
    )  # fmt: skip
    # Rows are added in the order of their times: a block range index suffices, and costs nearly nothing.
    Index(f"{name}_seen", ids.c.seen_ms, postgresql_using="brin")
    offsets = Table(
        f"{name}_offsets", metadata,
        Column("consumer_group", group, nullable=False),
        Column("topic", topic, nullable=False),
        Column("partition_number", Integer, autoincrement=False, nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("topic_id", topic_id, nullable=False),
        PrimaryKeyConstraint("consumer_group", "topic", "partition_number", name=f"{name}_offsets_key"),
        sqlite_with_rowid=False, mysql_engine="InnoDB", mariadb_engine="InnoDB",
    )  # fmt: skip
    generations = None if partitioned_ms is None else Generations(ids, metadata, partitioned_ms)
    return Tables(metadata, ids, offsets, generations)


def ddl(tables: Tables, dialect: Dialect) -> list[str]:
    """Return the statements that create the tables."""
    statements = []
    for table in tables.all:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        statements += [str(CreateIndex(index).compile(dialect=dialect)).strip() for index in table.indexes]
    return statements


def check(connection: Connection, table: Table) -> None:
    """Raise `InboxError`, in one line, if the table is missing or has another layout."""
    try:
        told = difference(connection, table)
    except NoSuchTableError:
        raise InboxError(
            f"there is no table {table.fullname}: call inbox.create(), or add the result of inbox.ddl() to a migration"
        ) from None
    if told:
        columns = _names_with_collation(connection, table)
        if columns:
            raise InboxError(
                f"table {table.fullname} was made by an earlier version, and compares names by a collation, which can "
                "take two groups for one; run: "
                f"{_migration(connection.dialect, table, columns)}"
            )
        raise InboxError(
            f"table {table.fullname} is not an inbox of this version: {told}; name another one with table=, or "
            "move that one away"
        )


def difference(connection: Connection, table: Table) -> str:
    """Return how a table's columns and key differ from the wanted ones, "" if they do not.

    Raises `NoSuchTableError`.
    """
    inspector = inspect(connection)
    found = {column["name"]: column["type"] for column in inspector.get_columns(table.name, table.schema)}
    key = inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]
    wanted_key = [column.name for column in table.primary_key.columns]
    wanted = {column.name: _python_type(column.type) for column in table.columns}
    given = {name: _python_type(found[name]) for name in found}
    if given == wanted and sorted(key) == sorted(wanted_key):
        return ""
    return f"it has {_told(given, key)}, but needs {_told(wanted, wanted_key)}"


def _names_with_collation(connection: Connection, table: Table) -> list[Column[Any]]:
    """Return the columns of names that are text and must be bytes, where nothing else differs; else none."""
    inspector = inspect(connection)
    found = {
        each["name"]: _python_type(each["type"]) for each in inspector.get_columns(table.name, table.schema)
    }
    key = inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"]
    names = [each for each in table.columns if isinstance(each.type, _Name)]
    wanted = {each.name: _python_type(each.type) for each in table.columns}
    if found != wanted | {each.name: str for each in names}:
        return []
    return names if sorted(key) == sorted(each.name for each in table.primary_key.columns) else []


def _migration(dialect: Dialect, table: Table, columns: list[Column[Any]]) -> str:
    changes = ", ".join(f"MODIFY {each.name} {each.type.compile(dialect)} NOT NULL" for each in columns)
    return f"ALTER TABLE {dialect.identifier_preparer.format_table(table)} {changes}"


def _python_type(given: Any) -> type:
    """Return the type of the values that the database stores in a column."""
    if isinstance(given, _Name):
        return bytes
    try:
        return given.python_type  # type: ignore[no-any-return]
    except NotImplementedError:
        return object


def _told(columns: dict[str, type], key: list[str]) -> str:
    listed = ", ".join(f"{name} ({kind.__name__})" for name, kind in columns.items())
    return f"{listed or 'no columns'}, key {', '.join(key) or 'none'}"
