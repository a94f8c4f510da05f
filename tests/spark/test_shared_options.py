"""The options of a shared memory: those refused, in one line, and the values no line shows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dedup_adapters.sql import SharedStore
from spark_backfill.client_config import without_secrets
from spark_backfill.errors import BackfillError
from spark_backfill.options import parse_options
from spark_backfill.shared_options import SharedOptions
from spark_backfill.shared_rebuild import check_store
from spark_backfill.shared_servers import SqlServer
from tests.support.redis_servers import HAS_REDIS, redis_cluster

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "hunter2"
SHARED = [
    "--bootstrap",
    "b:9092",
    "--topic",
    "orders",
    "--id",
    "key",
    "--shared",
    "redis://app:hunter2@h:6379/0",
]
SQL = ["--window", "7d", "--group", "g", "--shared", "postgresql+psycopg://app:hunter2@h:5432/work"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--window", "7d", "--whole-topic"], "--whole-topic and --shared do not go together"),
        (["--window", "7d+20000n", "--group", "g"], "a shared memory forgets by time alone"),
        (["--window", "20000n", "--group", "g"], "cannot be rebuilt for a window by count"),
        (["--window", "7d", "--group", "g", "--order", "integer"], "--order and --shared do not go together"),
        (["--window", "7d", "--group", "g", "--unit", "header:u"], "--unit and --shared do not go together"),
        (["--window", "7d", "--group", "g", "--partitions", "9", "--partitioner", "murmur2"],
         "--partitions and --shared"),
        (["--window", "7d", "--group", "g", "--overwrite"], "--overwrite and --shared without --output"),
        (["--window", "7d", "--group", "g", "--report", "page"], "--report and --shared without --output"),
        (["--window", "7d", "--group", "g", "--shared", "mysql://app:hunter2@h/0"],
         "--shared mysql://h/0 is no URL of a shared memory"),
        (["--window", "7d", "--group", "g", "--shared", "hunter2"], "--shared *** is no URL of a shared memory"),
        (["--window", "7d", "--group", "g", "--shared", "redis://:hunter2/x@h:1/0"], "is no URL of a shared memory"),
        (["--window", "7d", "--group", "g", "--shared", ""], "is no URL of a shared memory"),
        (["--window", "7d", "--group", "g", "--shared-buckets", "0"], "buckets=0: give a whole number"),
        (["--window", "7d", "--group", "g", "--shared-keys", "{x}"], "give text without braces"),
        (["--window", "7d", "--group", "g", "--shared-origin", ""], "--shared-origin is empty"),
        (["--window", "7d", "--group", "g", "--shared-scope", "all"], "invalid choice: 'all'"),
        (["--window", "7d", "--group", "g", "--shared-table", "t"],
         "--shared-table does not go with --shared redis://: Redis has keys"),
        (["--window", "7d", "--group", "g", "--shared-schema", "s"],
         "--shared-schema does not go with --shared redis://: Redis has keys"),
        (["--window", "7d", "--group", "g", "--shared-table", ""], "--shared-table is empty"),
        (["--window", "7d", "--group", "g", "--shared", "redis://:1/hunter2@h/0"],
         "--shared *** is no URL of a shared memory"),
        (["--window", "7d", "--group", "g", "--shared", "redis+cluster://app:hunter2@h:1/3"],
         "names database 3, and a cluster has one only"),
        (["--window", "7d", "--group", "g", "--shared", "redis://app:hunter2@h:1/3?socket_timeout=abc"],
         "the option socket_timeout='abc'"),
        (["--window", "7d", "--group", "g", "--shared", "redis://h:1/3?passwrod=hunter2"], "the option passwrod=***"),
        (["--window", "7d", "--group", "g", "--shared", "redis+sentinel://app:hunter2@h:1/3"],
         "is no URL of a shared memory"),
        ([*SQL, "--shared-keys", "k"],
         "--shared-keys does not go with --shared postgresql+psycopg://: PostgreSQL has a table"),
        ([*SQL, "--shared-buckets", "3"],
         "--shared-buckets does not go with --shared postgresql+psycopg://: PostgreSQL has a table"),
        ([*SQL, "--shared-table", "a'b"], "give a name without quotes"),
        ([*SQL, "--shared-schema", ""], "--shared-schema is empty"),
        ([*SQL[:2], *SQL[4:], "--whole-topic"], "--whole-topic and --shared do not go together"),
        ([*SQL, "--shared", "postgres://app:hunter2@h/db"], "SQLAlchemy calls it postgresql+psycopg://"),
        ([*SQL, "--shared", "postgresql+asyncpg://app:hunter2@h/db"], "names a driver"),
        ([*SQL, "--shared", "postgresql+nothing://app:hunter2@h/db"], "names a driver that SQLAlchemy does not know"),
        ([*SQL, "--shared", "postgresql+psycopg2://app:hunter2@h/db"],
         "needs a driver that is not installed (No module named 'psycopg2')"),
        ([*SQL, "--shared", "postgresql+psycopg://app:hunter2@h:port/db"], "is not a URL of SQLAlchemy"),
        ([*SQL, "--shared", "postgresql+psycopg://app:1/hunter2@h:port/db"], "is not a URL of SQLAlchemy"),
    ],
)  # fmt: skip
def test_what_cannot_be_rebuilt_is_refused(more: list[str], told: str) -> None:
    """With one line, which has no password."""
    said: list[str] = []
    with pytest.raises(SystemExit) as caught:
        parse_options([*SHARED, *more], said.append)
    assert caught.value.code == 2
    assert len(said) == 1
    assert told in said[0]
    assert PASSWORD not in said[0]


def test_its_options_need_a_memory() -> None:
    """An option that says where in the memory needs to know which one; and without one there has to be an output."""
    said: list[str] = []
    for option in (
        "--shared-scope=group",
        "--shared-prefix=x",
        "--shared-origin=x",
        "--shared-keys=x",
        "--shared-buckets=2",
        "--shared-table=x",
        "--shared-schema=x",
    ):
        said.clear()
        with pytest.raises(SystemExit):
            parse_options(
                [*SHARED[:6], "--window", "7d", "--group", "g", "--output", "out", option], said.append
            )
        assert said == [
            f"error: {option.partition('=')[0]} needs --shared: name the memory, e.g. --shared redis://localhost:6379/0"
        ]
    with pytest.raises(SystemExit):
        parse_options([*SHARED[:6], "--window", "7d", "--group", "g"], said.append)
    assert (
        said[-1]
        == "error: the following arguments are required: --output or --shared; see dedup backfill --help"
    )


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("redis://app:hunter2@h:6379/0", "redis://h:6379/0", PASSWORD),
        ("rediss+cluster://app:hunter2@h:6379", "rediss+cluster://h:6379", PASSWORD),
        ("unix://app:hunter2@/run/redis.sock?password=hunter2", "unix:///run/redis.sock", PASSWORD),
        ("postgresql+psycopg://app:hunter2@h:5432/work", "postgresql+psycopg://h:5432/work", PASSWORD),
        ("postgresql+psycopg://app:1/hunter2@h/work", "postgresql+psycopg://h/work", "1/hunter2"),
        ("postgresql+psycopg://app:a?hunter2@h/work", "postgresql+psycopg://h/work", "a?hunter2"),
        ("postgresql+psycopg://app:%68unter2@h/work", "postgresql+psycopg://h/work", PASSWORD),
        ("postgresql://h/work?password=hunter2&sslmode=require", "postgresql://h/work", PASSWORD),
        (
            "postgresql+psycopg:///work?host=a:1&host=b:2&password=hunter2",
            "postgresql+psycopg:///work",
            PASSWORD,
        ),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str, password: str) -> None:
    """Wherever it stands in the URL, and whatever a driver says of it."""
    options = parse_options([*SHARED[:6], *SQL[:4], "--shared", url], print)
    assert options.shared is not None
    assert options.shared.server.shown == shown
    said = without_secrets(f"the password {password} is not the one of app", options.secrets)
    assert password not in said


def test_a_postgresql_server_is_asked_by_its_own_options() -> None:
    """The store is the one that consumers make with the same names, and its driver is told not to wait for ever."""
    url = f"{SQL[5]}?connect_timeout=7"
    given = [*SHARED[:6], *SQL[:4], "--shared", url, "--shared-table", "memory", "--shared-schema", "apps"]
    options = parse_options(given, print)
    assert options.shared == SharedOptions(
        server=SqlServer(url=url, table="memory", schema="apps"),
        scope="topic",
        cluster=None,
        prefix="",
        origin=None,
    )
    with closing(options.shared.server.connect()) as store:
        assert isinstance(store, SharedStore)
        assert list(store.metadata.tables) == ["apps.memory"]


@pytest.mark.parametrize("kind", ["installed"] if HAS_REDIS else [])
def test_a_node_that_is_taken_for_a_server_is_told_before_a_history_is_read(
    kind: str, tmp_path: Path
) -> None:
    """By any bucket that lies elsewhere; as a cluster it is asked without a word."""
    assert kind
    more = [*SHARED[:6], *SQL[:4], "--shared-buckets", "16", "--shared"]
    with redis_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            options = parse_options([*more, node.url], print)
            with pytest.raises(BackfillError, match=r"one node of a cluster.*give redis\+cluster://"):
                check_store(options.shared, print)
        said: list[str] = []
        check_store(parse_options([*more, cluster.url], print).shared, said.append)
        assert all("appendonly=no" in line for line in said)
