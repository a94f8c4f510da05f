"""``dedup snapshots load`` into PostgreSQL: by the same rules as into Redis, in whatever state its table is."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url, text

from dedup_adapters.sql import SharedStore
from dedup_sdk._cli import snapshot_load
from dedup_sdk._cli.shared_servers import SharedServer
from dedup_sdk._cli.snapshot_load import Place, load_snapshot
from dedup_sdk._cli.snapshots import only_one
from dedup_sdk.shared import ClaimKind
from tests.cli.test_snapshots_load import Interrupted, loaded_into
from tests.support.databases import PostgreSQL, database_of, postgresql
from tests.support.shared_history import (
    BASE_MS,
    DAY_MS,
    HANDLED,
    HOUR_MS,
    NEWEST_MS,
    expected,
    keys,
    write_history,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Dedup

pytestmark = pytest.mark.container

PASSWORD = "hunter2"


class Memory:
    """An empty database that a role of its own owns."""

    def __init__(self, url: str) -> None:
        self.role = f"app_{uuid.uuid4().hex[:8]}"
        self.server = create_engine(url, isolation_level="AUTOCOMMIT")
        self.execute(f"CREATE ROLE {self.role} LOGIN PASSWORD '{PASSWORD}'")
        self.execute(f"GRANT ALL ON SCHEMA public TO {self.role}")
        self.url = str(make_url(url).set(username=self.role, password=PASSWORD).render_as_string(False))

    def execute(self, statement: str) -> None:
        """Do something as the server's owner."""
        with self.server.connect() as connection:
            connection.execute(text(statement))

    def known(self, *names: bytes, table: str = "dedup_shared", **scope: Any) -> dict[bytes, int | None]:
        """When IDs were seen last, None for those that a consumer would handle; nothing is changed in the store."""
        live = (
            f"SELECT id, seen_ms FROM {table} "  # noqa: S608
            "WHERE NOT claimed AND until_ms > extract(epoch FROM now()) * 1000"
        )
        with self.server.connect() as connection:
            found = {bytes(key): seen_ms for key, seen_ms in connection.execute(text(live))}
        return {name: found.get(key) for name, key in zip(names, keys(*names, **scope), strict=True)}

    def rows(self) -> dict[bytes, tuple[Any, ...]]:
        """Everything that is stored, but when it ends."""
        with self.server.connect() as connection:
            rows = connection.execute(text("SELECT id, claimed, token, owner, seen_ms FROM dedup_shared"))
            return {bytes(row[0]): tuple(row[1:]) for row in rows}


@pytest.fixture(scope="module")
def postgresql_server() -> Iterator[str]:
    """The URL of a database server for all tests."""
    with postgresql() as url:
        yield url


@pytest.fixture
def memory(postgresql_server: str) -> Iterator[Memory]:
    """A store that is loaded."""
    with database_of(postgresql_server, f"memory_{uuid.uuid4().hex[:8]}") as url:
        made = Memory(url)
        yield made
        made.execute(f"DROP OWNED BY {made.role} CASCADE")
        made.execute(f"DROP ROLE {made.role}")
        made.server.dispose()


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """What the group handled."""
    return str(write_history(tmp_path / "snapshot"))


def test_what_the_group_handled_is_known_and_nothing_else(
    dedup: Dedup, memory: Memory, snapshot: str
) -> None:
    """Into a database that has no table. Once more: nothing changes, and no life is shortened."""
    done = dedup("snapshots", "load", snapshot, memory.url, "--json")
    assert done.status == 0
    known = {**expected(), b"old": None}
    assert memory.known(*HANDLED, b"old") == known
    once = memory.rows()
    assert len(once) == len(HANDLED)
    shown = f"postgresql+psycopg://{make_url(memory.url).host}:"
    told = json.loads(done.stdout)
    assert told["marks"] == 5
    assert told["store"].startswith(shown)
    assert done.stderr.startswith(f"dedup: made the table dedup_shared in {shown}")
    again = dedup("snapshots", "load", snapshot, memory.url)
    assert (again.status, memory.rows()) == (0, once)
    assert "made the table" not in again.stderr
    assert PASSWORD not in done.stdout + done.stderr + again.stderr


def test_what_is_claimed_or_newer_stays_and_what_is_over_is_replaced(
    dedup: Dedup, memory: Memory, snapshot: str
) -> None:
    """A living claim is its owner's, a newer mark keeps its time, an older one gets the loaded one's.

    A dead claim is no claim.
    """
    store = SharedStore(memory.url, timeout=30.0)
    store.create()
    a, b, c, d = keys(b"a", b"b", b"c", b"d")
    newer = NEWEST_MS + HOUR_MS
    [claim] = store.claim([a], "alive", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.claim([d], "dead", 1, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.load([b, c], timestamps_ms=[newer, BASE_MS], window_ms=10 * DAY_MS)
    lives = text("SELECT until_ms FROM dedup_shared WHERE id IN (:b, :c) ORDER BY id")
    with memory.server.connect() as connection:
        before = connection.scalars(lives, {"b": b, "c": c}).all()
        assert dedup("snapshots", "load", snapshot, memory.url).status == 0
        assert connection.scalars(lives, {"b": b, "c": c}).all() == before
    assert memory.known(*HANDLED) == {**expected(), b"a": None, b"b": newer}
    assert memory.rows()[a] == (True, claim.token, "alive", NEWEST_MS)
    assert store.complete([a], [claim.token], "alive", timestamps_ms=[NEWEST_MS], window_ms=DAY_MS) == [True]
    [after] = store.claim([d], "next", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    assert after.kind is ClaimKind.DUPLICATE
    store.close()


def test_a_table_of_another_name_and_schema(dedup: Dedup, memory: Memory, snapshot: str) -> None:
    """Found where the consumers look, by the scope that they have; the one that is there already is left as it is."""
    memory.execute(f"CREATE SCHEMA apps AUTHORIZATION {memory.role}")
    memory.execute("CREATE TABLE dedup_shared (id int)")
    where = ("--table", "Mixed case", "--schema", "apps", "--scope", "partition", "--prefix", "test")
    assert dedup("snapshots", "load", snapshot, memory.url, *where).status == 0
    inside: dict[str, Any] = {"table": 'apps."Mixed case"', "scope": "partition", "prefix": "test"}
    assert memory.known(b"a", b"c", **inside) == {b"a": NEWEST_MS, b"c": None}
    assert memory.known(b"c", partition=1, **inside) == {b"c": BASE_MS + 20 * HOUR_MS}
    with memory.server.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dedup_shared")) == 0


def test_what_cannot_be_loaded_into_is_told_in_one_line(dedup: Dedup, memory: Memory, snapshot: str) -> None:
    """A table that is another one, one that may not be made or written, a role that may not come in, no server."""

    def refused(*more: str, url: str = memory.url) -> str:
        done = dedup("snapshots", "load", snapshot, url, *more)
        assert done.status in (1, 2)
        assert PASSWORD not in done.stderr
        (line,) = done.stderr.splitlines()
        return line.removeprefix("dedup: ")

    memory.execute("CREATE TABLE another (id int)")
    assert refused("--table", "another").startswith(
        "table another is not a shared memory of this version: it has id (int), key none, but needs id (bytes), "
    )
    assert "schema" in refused("--schema", "nowhere")
    memory.execute("CREATE SCHEMA foreign_one")
    line = refused("--schema", "foreign_one")
    assert "permission denied for schema foreign_one; fix the cause, or correct the URL" in line
    url = make_url(memory.url)
    wrong = url.set(password=f"{PASSWORD}x").render_as_string(False)
    assert "password authentication failed" in refused(url=wrong)
    assert "start it, or correct the URL" in refused(url=url.set(port=1).render_as_string(False))
    SharedStore(memory.server).create()
    memory.execute(f"GRANT SELECT ON dedup_shared TO {memory.role}")
    line = refused()
    assert line.startswith("the shared store at postgresql+psycopg://")
    assert "permission denied for table dedup_shared" in line


def test_a_table_that_is_gone_meanwhile_is_told(
    dedup: Dedup, memory: Memory, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the load began."""
    load_files = snapshot_load.load_files

    def load(*given: Any) -> int:
        memory.execute("DROP TABLE dedup_shared")
        return load_files(*given)

    monkeypatch.setattr(snapshot_load, "load_files", load)
    done = dedup("snapshots", "load", snapshot, memory.url)
    assert done.status != 0
    assert "there is no table dedup_shared: call create()" in done.stderr


def test_two_loads_at_once_are_one(memory: Memory, tmp_path: Path) -> None:
    """Of two groups that have one scope; both make the table."""
    places = [str(write_history(tmp_path / group, group=group)) for group in ("audit", "billing")]

    def load(place: str) -> int:
        server = SharedServer(url=memory.url).connect()
        with closing(server.store):
            server.prepare()
            return load_snapshot(only_one(place), server, Place("global", "", None, "", None), print)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(load, places)) == [5, 5]
    assert memory.known(*HANDLED, scope="global") == expected()
    assert len(memory.rows()) == len(HANDLED)


@pytest.mark.slow
def test_a_postgresql_that_is_away_is_waited_for() -> None:
    """And it has forgotten nothing."""
    with PostgreSQL() as server:
        made = SharedStore(server.url, timeout=30.0)
        made.create()
        before = made.incarnation()
        store = Interrupted(made, server.kill, server.start_again)
        assert set(loaded_into(store)) == {ClaimKind.DUPLICATE}
        assert store.refused
        assert all(store.refused)
        assert made.incarnation() != before
        made.close()
