"""The user's own database.

A table with a row for each message that was handled, written in the transaction of its ID.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.pool import NullPool

from dedup_adapters.sql import Inbox
from tests.chaos.history import Call
from tests.support.databases import PostgreSQL, cut_connections, database_of

WORK: Final = Table(
    "work",
    MetaData(),
    Column("number", BigInteger, primary_key=True, autoincrement=True),
    Column("run", String(100)),
    Column("partition_number", Integer),
    Column("record_offset", BigInteger),
    Column("began_ns", BigInteger),
    Column("ended_ns", BigInteger),
)


def note(connection: Connection, run: str, partition: int, offset: int, began_ns: int) -> None:
    """Do the work of a message: a row, in the caller's transaction."""
    connection.execute(
        insert(WORK).values(
            run=run,
            partition_number=partition,
            record_offset=offset,
            began_ns=began_ns,
            ended_ns=time.monotonic_ns(),
        )
    )


class WorkTable:
    """A database of one scenario's own, on a server that may be killed."""

    def __init__(self, server: PostgreSQL, url: str) -> None:
        self.url = url
        self._server = server
        # Its server may be started anew: no connection is kept.
        self._engine = create_engine(url, poolclass=NullPool)
        WORK.metadata.create_all(self._engine)
        Inbox(self._engine, group="any").create()

    def calls(self) -> list[Call]:
        """Return the rows, each as the call of a handler."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(*list(WORK.columns)[1:]).order_by(WORK.c.number)).all()
        return [Call(*row) for row in rows]

    def count(self) -> int:
        """Return how many rows there are."""
        with self._engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(WORK)).scalar_one())

    def cut(self) -> None:
        """End every connection, wherever its transaction is."""
        cut_connections(self._engine)

    def restart(self, seconds: float) -> None:
        """SIGKILL for the server, and a start after some time."""
        self._server.kill()
        time.sleep(seconds)
        self._server.start_again()


@contextmanager
def work_table(server: PostgreSQL) -> Iterator[WorkTable]:
    """Make a database on a server, and remove it afterwards."""
    with database_of(server.url, f"chaos_{uuid.uuid4().hex[:8]}") as url:
        yield WorkTable(server, url)
