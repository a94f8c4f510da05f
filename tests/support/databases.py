"""Databases for the tests: SQLite in a file, PostgreSQL in a container, MariaDB where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool
from testcontainers.community.postgres import PostgresContainer

from dedup_sdk.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine

HAS_MARIADB = shutil.which("mariadbd") is not None
"""Whether its server is installed: nothing may be skipped, so that its tests are there only where it is."""
_PATIENCE_S = 60.0


class PostgreSQL:
    """One in a container, on 127.0.0.1, under the same address from its start to its end; a context manager.

    ``url`` is of SQLAlchemy's kind.
    """

    def __init__(self) -> None:
        port = free_port()
        made = PostgresContainer(os.environ.get("DEDUP_TEST_POSTGRES_IMAGE", "postgres:15"), driver=None)
        # with_bind_ports would publish on all addresses; the engine's client takes pairs, the annotation does not know.
        made.ports["5432/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
        self.url = f"postgresql+psycopg://{made.username}:{made.password}@127.0.0.1:{port}/{made.dbname}"
        self._container = made

    def __enter__(self) -> Self:
        self._container.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()

    def kill(self) -> None:
        """End it with SIGKILL; its data stays."""
        self._container.get_wrapped_container().kill()

    def start_again(self) -> None:
        """Start a killed one and wait until it answers."""
        self._container.get_wrapped_container().start()
        _wait(self.url)

    def pause(self) -> None:
        """Stop it where it is: its machine goes on taking bytes."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """Let a paused one go on."""
        self._container.get_wrapped_container().unpause()


@contextmanager
def postgresql() -> Iterator[str]:
    """Start one in a container; yield its URL."""
    with PostgreSQL() as started:
        yield started.url


@contextmanager
def mariadb(folder: Path) -> Iterator[str]:
    """Start the installed server in a folder; yield its URL."""
    data, port, socket = folder / "data", free_port(), folder / "socket"
    common = ["--no-defaults", f"--datadir={data}", "--user=root"]
    subprocess.run(
        [_program("mariadb-install-db"), *common, "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
    )
    log = (folder / "log").open("wb")
    options = [
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--socket={socket}",
        "--innodb-lock-wait-timeout=5",
    ]
    server = subprocess.Popen([_program("mariadbd"), *common, *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"mysql+pymysql://root@localhost/mysql?unix_socket={socket}"
        _wait(url)
        yield url
    finally:
        server.terminate()
        server.wait()
        log.close()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


def _wait(url: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    engine = create_engine(url)
    while True:
        try:
            with engine.connect():
                break
        except OperationalError:
            assert time.monotonic() < until, f"{url} does not answer"
            time.sleep(0.1)
    engine.dispose()


@contextmanager
def database_of(url: str, name: str) -> Iterator[str]:
    """Make a database of that name in a server; yield its URL, and remove it afterwards."""
    # Without connections that are kept: the server may be started anew meanwhile.
    server = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    force = " WITH (FORCE)" if server.dialect.name == "postgresql" else ""
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield server.url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}{force}"))
        server.dispose()


def cut_connections(engine: Engine) -> None:
    """End all connections to a database of PostgreSQL but the one that asks, wherever their transactions are."""
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid "
        "<> pg_backend_pid()"
    )
    with engine.connect() as connection:
        connection.execute(text(others))


class Statements:
    """The statements that an engine has sent since."""

    def __init__(self, engine: Engine) -> None:
        self.sent: list[str] = []
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.sent.append(statement)

    def clear(self) -> None:
        """Forget them."""
        self.sent.clear()
