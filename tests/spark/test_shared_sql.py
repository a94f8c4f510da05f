"""A memory in PostgreSQL, rebuilt: by the same rules as one in Redis, in whatever state its table is."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url, text

from dedup_adapters.sql import SharedStore
from dedup_sdk import ConfigurationError
from dedup_sdk.shared import ClaimKind
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.options import parse_options
from spark_backfill.shared_rebuild import SharedLoader
from tests.spark.test_fold_files import AlwaysFails, FailsFirst
from tests.support.databases import database_of
from tests.support.shared_history import BASE_MS, DAY_MS, HANDLED, HOUR_MS, NEWEST_MS, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from spark_backfill.fold import Task
    from tests.support.shared_history import SharedHistory

pytestmark = pytest.mark.container

PASSWORD = "hunter2"


class Rebuilt:
    """A history, and an empty database that a role of its own owns."""

    def __init__(self, make: Callable[[str], SharedHistory], url: str) -> None:
        self.role = f"app_{uuid.uuid4().hex[:8]}"
        self.server = create_engine(url, isolation_level="AUTOCOMMIT")
        self.execute(f"CREATE ROLE {self.role} LOGIN PASSWORD '{PASSWORD}'")
        self.execute(f"GRANT ALL ON SCHEMA public TO {self.role}")
        self.url = str(make_url(url).set(username=self.role, password=PASSWORD).render_as_string(False))
        self.history = make(self.url)
        self.run, self.keys = self.history.run, self.history.keys

    def execute(self, statement: str) -> None:
        """Do something as the server's owner."""
        with self.server.connect() as connection:
            connection.execute(text(statement))

    def known(self, *names: bytes, table: str = "dedup_shared", **scope: Any) -> dict[bytes, int | None]:
        """When IDs were seen last, None for those that a consumer would handle; nothing is changed in the memory."""
        live = (
            f"SELECT id, seen_ms FROM {table} "  # noqa: S608
            "WHERE NOT claimed AND until_ms > extract(epoch FROM now()) * 1000"
        )
        with self.server.connect() as connection:
            found = {bytes(key): seen_ms for key, seen_ms in connection.execute(text(live))}
        return {name: found.get(key) for name, key in zip(names, self.keys(*names, **scope), strict=True)}

    def rows(self, table: str = "dedup_shared") -> dict[bytes, tuple[Any, ...]]:
        """Everything that is stored, but when it ends."""
        with self.server.connect() as connection:
            rows = connection.execute(text(f"SELECT id, claimed, token, owner, seen_ms FROM {table}"))  # noqa: S608
            return {bytes(row[0]): tuple(row[1:]) for row in rows}


@pytest.fixture
def rebuilt(shared_history: Callable[[str], SharedHistory], postgresql_server: str) -> Iterator[Rebuilt]:
    """A history whose memory is rebuilt."""
    with database_of(postgresql_server, f"memory_{uuid.uuid4().hex[:8]}") as url:
        made = Rebuilt(shared_history, url)
        yield made
        made.execute(f"DROP OWNED BY {made.role} CASCADE")
        made.execute(f"DROP ROLE {made.role}")
        made.server.dispose()


@pytest.mark.slow
def test_what_the_group_handled_is_known_and_nothing_else(rebuilt: Rebuilt) -> None:
    """Into a database that has no table.

    Once more, by tasks that fail at first: nothing changes, and no life is shortened.
    """
    said: list[str] = []
    report = rebuilt.run(say=said.append)
    names = (*HANDLED, b"old", b"beyond")
    known = {**expected(), b"old": None, b"beyond": None}
    assert rebuilt.known(*names) == known
    once = rebuilt.rows()
    assert len(once) == len(HANDLED)
    assert report["shared_marks"] == 5
    shown = f"postgresql+psycopg://{make_url(rebuilt.url).host}:"
    assert report["shared"].startswith(shown)
    assert any(line.startswith(f"made the table dedup_shared in {shown}") for line in said)
    said.clear()
    again = rebuilt.run(say=said.append, around=FailsFirst)
    assert (rebuilt.rows(), again["shared_marks"]) == (once, 5)
    assert not any("made the table" in line for line in said)
    assert PASSWORD not in f"{said} {report} {again}"


def test_what_is_claimed_or_newer_stays_and_what_is_over_is_replaced(rebuilt: Rebuilt) -> None:
    """A living claim is its owner's, a newer mark keeps its time, an older one gets the rebuilt one's.

    A dead claim is no claim.
    """
    store = SharedStore(rebuilt.url, timeout=30.0)
    store.create()
    a, b, c, d = rebuilt.keys(b"a", b"b", b"c", b"d")
    newer = NEWEST_MS + HOUR_MS
    [claim] = store.claim([a], "alive", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.claim([d], "dead", 1, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.load([b, c], timestamps_ms=[newer, BASE_MS], window_ms=10 * DAY_MS)
    with rebuilt.server.connect() as connection:
        lives = text("SELECT until_ms FROM dedup_shared WHERE NOT claimed ORDER BY id")
        before = connection.scalars(lives).all()
    rebuilt.run()
    with rebuilt.server.connect() as connection:
        assert (
            connection.scalars(
                text("SELECT until_ms FROM dedup_shared WHERE id IN (:b, :c) ORDER BY id"), {"b": b, "c": c}
            ).all()
            == before
        )
    assert rebuilt.known(*HANDLED) == {**expected(), b"a": None, b"b": newer}
    assert rebuilt.rows()[a] == (True, claim.token, "alive", NEWEST_MS)
    assert store.complete([a], [claim.token], "alive", timestamps_ms=[NEWEST_MS], window_ms=DAY_MS) == [True]
    [after] = store.claim([d], "next", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    assert after.kind is ClaimKind.DUPLICATE
    store.close()


def test_a_table_of_another_name_and_schema(rebuilt: Rebuilt) -> None:
    """Found where the consumers look, by the scope that they have; the one that is there already is left as it is."""
    rebuilt.execute(f"CREATE SCHEMA apps AUTHORIZATION {rebuilt.role}")
    rebuilt.execute("CREATE TABLE dedup_shared (id int)")
    where = ("--shared-table", "Mixed case", "--shared-schema", "apps")
    rebuilt.run(*where, "--shared-scope", "partition", "--shared-prefix", "test")
    inside: dict[str, Any] = {"table": 'apps."Mixed case"', "scope": "partition", "prefix": "test"}
    assert rebuilt.known(b"a", b"c", **inside) == {b"a": NEWEST_MS, b"c": None}
    assert rebuilt.known(b"c", partition=1, **inside) == {b"c": BASE_MS + 20 * HOUR_MS}
    with rebuilt.server.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dedup_shared")) == 0


def refused(rebuilt: Rebuilt, *more: str) -> str:
    """The line with which a run ends before Spark is started, and which has no password."""

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    options = parse_options(rebuilt.history.arguments(*more), print)
    with pytest.raises((BackfillError, ConfigurationError)) as caught:
        backfill(options, no_session)
    line = one_line(caught.value)
    assert "\n" not in line
    assert PASSWORD not in line
    return line


def test_what_cannot_be_loaded_into_ends_the_run_before_it_reads(rebuilt: Rebuilt) -> None:
    """Each is refused in one line.

    There are a table that is another one, one that may not be made, a role that may not come in, a server that is
    not there.
    """
    rebuilt.execute("CREATE TABLE another (id int)")
    line = refused(rebuilt, "--shared-table", "another")
    assert line.startswith(
        "table another is not a shared memory of this version: it has id (int), key none, but needs id (bytes), "
    )
    assert "schema" in refused(rebuilt, "--shared-schema", "nowhere")
    rebuilt.execute("CREATE SCHEMA foreign_one")
    line = refused(rebuilt, "--shared-schema", "foreign_one")
    assert "permission denied for schema foreign_one; fix the cause, or correct the URL" in line
    url = make_url(rebuilt.url)
    wrong = url.set(password=f"{PASSWORD}x").render_as_string(False)
    assert "password authentication failed" in refused(rebuilt, "--shared", wrong)
    away = url.set(port=1).render_as_string(False)
    assert "start it, or correct the URL" in refused(rebuilt, "--shared", away)


@pytest.mark.slow
def test_a_right_that_is_missing_ends_the_run_in_one_line(rebuilt: Rebuilt) -> None:
    """An error of a task comes out of Spark as a line with the remedy; it is not asked again and again."""
    SharedStore(rebuilt.server).create()
    rebuilt.execute(f"GRANT SELECT ON dedup_shared TO {rebuilt.role}")
    options = parse_options(rebuilt.history.arguments(), print)
    with pytest.raises(Exception, match="shared store") as caught:
        backfill(options, lambda: rebuilt.history.spark)
    line = one_line(caught.value)
    assert line.startswith("the shared store at postgresql+psycopg://")
    assert "permission denied for table dedup_shared" in line
    assert "run it again" in line
    assert PASSWORD not in line


@pytest.mark.slow
def test_a_table_that_is_gone_meanwhile_ends_the_run_in_one_line(rebuilt: Rebuilt) -> None:
    """It was there when the run began."""

    def around(task: Task) -> Task:
        if isinstance(task, SharedLoader):
            rebuilt.execute("DROP TABLE dedup_shared")
        return task

    with pytest.raises(Exception, match="there is no table") as caught:
        rebuilt.run(around=around)
    assert one_line(caught.value).startswith("there is no table dedup_shared: call create()")


@pytest.mark.slow
def test_a_run_that_was_ended_in_the_middle_is_run_again(rebuilt: Rebuilt) -> None:
    """Its loaded marks are no harm, and nothing is missing afterwards."""

    def around(task: Task) -> Task:
        return AlwaysFails(task) if isinstance(task, SharedLoader) else task

    output = str(rebuilt.history.folder / "snapshot")
    with pytest.raises(Exception, match="the disk of every worker is gone"):
        rebuilt.run("--output", output, around=around)
    assert not list(rebuilt.history.folder.glob("snapshot/*"))
    assert rebuilt.rows()
    report = rebuilt.run("--output", output)
    assert report["shared_marks"] == 5
    assert rebuilt.known(*HANDLED) == expected()


def test_two_rebuilds_at_once_are_one(rebuilt: Rebuilt) -> None:
    """Of two groups that have one scope; both make the table."""
    mine, other = rebuilt.history, copy(rebuilt.history)
    other.group = f"{mine.group}/other"
    other.commit(other.group, {0: 4})
    with ThreadPoolExecutor(2) as pool:
        reports = [pool.submit(each.run, "--shared-scope", "global") for each in (other, mine)]
        assert [each.result(150)["shared_marks"] for each in reports] == [1, 5]
    assert rebuilt.known(*HANDLED, scope="global") == expected()
    assert len(rebuilt.rows()) == len(HANDLED)
