"""Databases of each test's own, on the servers of the run."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, make_url

from tests.support.databases import HAS_MARIADB, database_of, mariadb, postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import URL, Engine

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.container)
MYSQL = os.environ.get("DEDUP_TEST_MYSQL_URL", "")
"""A server of somebody's, e.g. ``mysql+pymysql://root@127.0.0.1:3306/mysql``: its tests are there where it is given."""
MYSQLS = [*(["mariadb"] if HAS_MARIADB else []), *(["mysql"] if MYSQL else [])]
DATABASES = ["sqlite", POSTGRESQL, *MYSQLS]
SERVERS = DATABASES[1:]
BY_ASYNC_DRIVERS = pytest.mark.parametrize(
    ("server", "driver"),
    [
        ("sqlite", "sqlite+aiosqlite"),
        pytest.param("postgresql", "postgresql+asyncpg", marks=pytest.mark.container),
        pytest.param("postgresql", "postgresql+psycopg", marks=pytest.mark.container),
    ],
    indirect=["server"],
    scope="session",
)
"""Tests in an `AsyncSession`: they ask for ``async_url``."""


@pytest.fixture(scope="session", params=DATABASES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server; empty for SQLite, which has none."""
    if request.param == "sqlite":
        yield ""
    elif request.param == "mysql":
        yield MYSQL
    elif request.param == "postgresql":
        with postgresql() as url:
            yield url
    else:
        with mariadb(tmp_path_factory.mktemp("mariadb")) as url:
            yield url


@pytest.fixture
def url(server: str, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if not server:
        yield f"sqlite:///{tmp_path}/work.db"
        return
    with database_of(server, f"test_{uuid.uuid4().hex[:8]}") as found:
        yield found


@pytest.fixture
def async_url(url: str, driver: str) -> URL:
    """The URL of an empty database, for a driver of asyncio."""
    return make_url(url).set(drivername=driver)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine of an empty database."""
    made = create_engine(url)
    yield made
    made.dispose()
