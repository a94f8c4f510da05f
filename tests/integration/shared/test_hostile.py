"""A server that goes away, forgets, is full or in other hands."""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.cluster import RedisCluster
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk import ConfigurationError
from dedup_sdk.shared import Claim, ClaimKind, SharedStoreError
from tests.support.claiming import shared_ids
from tests.support.databases import cut_connections
from tests.support.redis_servers import HAS_REDIS, HAS_VALKEY, redis_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk.shared import ClaimStore
    from tests.support.redis_servers import RedisServer

FOREVER_MS = 3_600_000
INSTALLED = [*(["installed"] if HAS_REDIS else []), *(["valkey"] if HAS_VALKEY else [])]


def claim(store: ClaimStore, count: int = 1, owner: str = "a") -> list[Claim]:
    """Claim the first of the IDs that all tests share."""
    return store.claim(shared_ids(count), owner, FOREVER_MS, timestamps_ms=[0] * count, window_ms=FOREVER_MS)


def complete(store: ClaimStore, token: int) -> bool:
    """Complete the first one."""
    [taken] = store.complete(shared_ids(1), [token], "a", timestamps_ms=[0], window_ms=FOREVER_MS)
    return taken


@pytest.fixture
def prefix() -> str:
    """A prefix that nobody else has."""
    return f"{uuid.uuid4()}:"


@pytest.fixture
def plain(any_redis: RedisServer) -> Iterator[Redis]:
    """A client of the user's own."""
    with Redis.from_url(any_redis.url) as client:
        yield client


def one_line(error: BaseException) -> str:
    """The text of an error, which is one line."""
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    "foreign",
    [
        "list",
        "hash",
        b"",
        b"hello",
        b"c12",
        b"cx:y",
        b"c1:a",
        b"c1:" + b"9" * 400 + b":a",
        b"d5",
        b"d5:",
        b"\xff\x00",
        b"D1:1",
        b"x" * 100_000,
    ],
)
def test_something_foreign_under_our_key_is_told_and_left(
    any_redis: RedisServer, plain: Redis, prefix: str, foreign: str | bytes
) -> None:
    """It is neither read as a claim nor written over; the other IDs of the batch are answered."""
    store = RedisStore(any_redis.url, prefix=prefix)
    key = f"{prefix}{{0}}".encode() + shared_ids(1)[0]
    if foreign == "list":
        plain.rpush(key, "a")
    elif foreign == "hash":
        plain.hset(key, "a", "b")
    else:
        plain.set(key, foreign)
    before = plain.dump(key)
    answers = claim(store, 3)
    assert [answer.kind for answer in answers] == [ClaimKind.FOREIGN, ClaimKind.FRESH, ClaimKind.FRESH]
    assert not complete(store, 7)
    assert store.renew(shared_ids(1), [7], "a", FOREVER_MS) == store.release(shared_ids(1), [7]) == [False]
    store.load(shared_ids(1), timestamps_ms=[0], window_ms=FOREVER_MS)
    assert plain.dump(key) == before
    store.close()


@pytest.mark.parametrize("foreign", ["list", "hello"])
def test_a_foreign_counter_is_an_error(
    any_redis: RedisServer, plain: Redis, prefix: str, foreign: str
) -> None:
    """Where tokens come from nothing can be put right."""
    key = f"{prefix}{{0}}token"
    plain.rpush(key, "a") if foreign == "list" else plain.set(key, foreign)
    with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: ") as caught:
        claim(RedisStore(any_redis.url, prefix=prefix))
    one_line(caught.value)


def test_scripts_that_the_server_lost_are_sent_again(
    any_redis: RedisServer, plain: Redis, prefix: str
) -> None:
    """SCRIPT FLUSH, a fail-over: nobody notices."""
    store = RedisStore(any_redis.url, prefix=prefix)
    [given] = claim(store)
    plain.script_flush()
    assert complete(store, given.token)
    plain.script_flush()
    assert claim(store)[0].kind is ClaimKind.DUPLICATE
    store.close()


def test_a_clock_that_was_set_back_gives_no_token_twice(
    any_redis: RedisServer, plain: Redis, prefix: str
) -> None:
    """The last token counts, where it is beyond the time."""
    far = 2**52
    plain.set(f"{prefix}{{0}}token", far)
    store = RedisStore(any_redis.url, prefix=prefix)
    assert [answer.token for answer in claim(store, 2)] == [far + 1, far + 2]
    store.close()


def test_a_claim_that_never_ends_is_given_an_end(any_redis: RedisServer, plain: Redis, prefix: str) -> None:
    """Somebody made it persistent: its owner may be dead, and others would wait for ever."""
    store = RedisStore(any_redis.url, prefix=prefix)
    claim(store)
    key = f"{prefix}{{0}}".encode() + shared_ids(1)[0]
    plain.persist(key)
    [other] = claim(store, owner="b")
    assert (other.kind, other.left_ms) == (ClaimKind.IN_FLIGHT, FOREVER_MS)
    assert plain.pttl(key) > 0
    store.close()


def test_a_client_that_decodes_does_as_well(any_redis: RedisServer, prefix: str) -> None:
    """And a client that was given stays open."""
    with Redis.from_url(any_redis.url, decode_responses=True) as client:
        store = RedisStore(client, prefix=prefix)
        [given] = claim(store)
        assert claim(store, owner="b")[0].kind is ClaimKind.IN_FLIGHT
        assert complete(store, given.token)
        assert claim(store)[0].kind is ClaimKind.DUPLICATE
        store.close()
        assert client.ping()


def test_a_restart_without_persistence_forgets_and_refuses_no_one(
    own_redis: RedisServer, prefix: str
) -> None:
    """Completed IDs are new again; the tokens of before are older than those of after."""
    store = RedisStore(own_redis.url, prefix=prefix, timeout=30.0)
    [before] = claim(store)
    own_redis.kill()
    with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: ") as caught:
        claim(store, owner="b")
    one_line(caught.value)
    own_redis.start()
    [after] = claim(store, owner="b")
    assert after.kind is ClaimKind.FRESH
    assert after.token > before.token
    assert not complete(store, before.token)
    assert complete(store, after.token)
    store.close()


def test_a_connection_that_was_cut_is_made_anew(any_redis: RedisServer, plain: Redis, prefix: str) -> None:
    """One that broke while nobody used it is no outage."""
    store = RedisStore(any_redis.url, prefix=prefix, timeout=30.0)
    [given] = claim(store)
    assert plain.client_kill_filter(_type="normal", skipme=True) > 0
    assert complete(store, given.token)
    store.close()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock"])
def test_a_server_that_is_not_there_is_named(url: str) -> None:
    """Without a password that the URL may have."""
    secret = url.replace("redis://", "redis://user:secret@")
    with pytest.raises(SharedStoreError, match="start it, or correct the URL") as caught:
        claim(RedisStore(secret))
    assert "secret" not in one_line(caught.value)


@pytest.mark.parametrize("server", ["http://nowhere", "", 7, "redis://h:port/"])
def test_a_server_that_cannot_be_meant_is_refused(server: Any) -> None:
    """At once, in one line."""
    with pytest.raises(ConfigurationError) as caught:
        RedisStore(server)
    one_line(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix": ""},
        {"prefix": "a{b}"},
        {"prefix": 3},
        {"buckets": 0},
        {"buckets": True},
        {"timeout": 0},
        {"timeout": "1"},
    ],
)
def test_careless_settings_are_refused(settings: dict[str, Any]) -> None:
    """In one line that has the value."""
    with pytest.raises(ConfigurationError, match="give") as caught:
        RedisStore("redis://localhost", **settings)
    one_line(caught.value)


def test_a_forgetful_server_is_told_of(
    own_redis: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: that a restart forgets, and that it drops keys where it is full."""
    with Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("save", "")
    store = RedisStore(own_redis.url, prefix=prefix, timeout=30.0)
    claim(store)
    claim(store)
    lines = [record.message for record in caplog.records if record.name == "dedup_adapters"]
    assert len(lines) == 2
    assert "appendonly=no, save='': a restart loses all IDs" in lines[0]
    assert "maxmemory-policy=allkeys-lru" in lines[1]
    store.close()


@pytest.mark.parametrize("kind", INSTALLED)
def test_a_server_that_keeps_what_it_is_told_is_no_news(
    kind: str, tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And it does: after a kill completed IDs are known."""
    with redis_server(kind, tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url, prefix=prefix, timeout=30.0)
        [given] = claim(store)
        assert complete(store, given.token)
        server.kill()
        server.start()
        assert claim(store)[0].kind is ClaimKind.DUPLICATE
        store.close()
    assert [record for record in caplog.records if record.name == "dedup_adapters"] == []


def test_a_server_that_does_not_tell_its_settings_is_used(
    own_redis: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where CONFIG is forbidden, as in the cloud."""
    with Redis.from_url(own_redis.url) as client:
        client.acl_setuser(
            "app", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-config", "-info"]
        )
    caplog.set_level(logging.INFO, "dedup_adapters")
    store = RedisStore(own_redis.url.replace("redis://", "redis://app:word@"), prefix=prefix, timeout=30.0)
    assert claim(store)[0].kind is ClaimKind.FRESH
    [line] = [record.message for record in caplog.records if record.name == "dedup_adapters"]
    assert "refuses to return its settings" in line
    assert store.incarnation() == ""
    store.close()


def test_a_full_server_is_an_outage(own_redis: RedisServer, prefix: str) -> None:
    """It refuses, and nothing is taken for claimed."""
    store = RedisStore(own_redis.url, prefix=prefix, timeout=30.0)
    claim(store)
    with Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: "):
            claim(store, 3, owner="b")
        client.config_set("maxmemory", "0")
    assert [answer.kind for answer in claim(store, 3, owner="b")][1:] == [ClaimKind.FRESH, ClaimKind.FRESH]
    store.close()


@pytest.mark.parametrize("kind", INSTALLED)
def test_a_cluster_takes_each_script_in_one_slot(kind: str, tmp_path: Path, prefix: str) -> None:
    """Also where a batch is in several: no key is in another slot than its script's."""
    options = "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"
    with redis_server(kind, tmp_path, *options) as server:
        host, port = server.url.removeprefix("redis://").removesuffix("/0").split(":")
        with Redis(host=host, port=int(port)) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until = time.monotonic() + 60
            while b"cluster_state:ok" not in bytes(
                node.execute_command("CLUSTER", "INFO", NEVER_DECODE=True)
            ):
                assert time.monotonic() < until
                time.sleep(0.02)
        with RedisCluster(host=host, port=int(port)) as cluster:
            for buckets in (1, 8):
                store = RedisStore(cluster, prefix=f"{prefix}{buckets}:", buckets=buckets)
                answers = claim(store, 100)
                assert {answer.kind for answer in answers} == {ClaimKind.FRESH}
                tokens = [answer.token for answer in answers]
                assert store.renew(shared_ids(100), tokens, "a", FOREVER_MS) == [True] * 100
                taken = store.complete(
                    shared_ids(100), tokens, "a", timestamps_ms=[0] * 100, window_ms=FOREVER_MS
                )
                assert taken == [True] * 100
                assert {answer.kind for answer in claim(store, 100)} == {ClaimKind.DUPLICATE}
                store.close()
            lost = RedisStore(cluster, prefix=prefix)
            server.kill()
            for _ in range(2):
                # Where no node answers the client raises an error that is not Redis'.
                with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: "):
                    claim(lost, 1)


def test_a_client_that_waits_for_ever_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The consumer waits with it; one that has a bound is nothing to warn of."""
    RedisStore(Redis(socket_timeout=1.0))
    assert caplog.text == ""
    RedisStore(Redis(host="far", socket_timeout=None))
    assert "far:6379 has no socket_timeout" in caplog.text


@pytest.mark.container
def test_a_table_that_is_missing_or_another_one_is_an_error(postgresql_server: str) -> None:
    """In one line with the remedy; and the output of `ddl` makes the right one."""
    engine = create_engine(postgresql_server)
    with pytest.raises(ConfigurationError, match="there is no table nowhere: call create") as caught:
        claim(SharedStore(engine, table="nowhere"))
    one_line(caught.value)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE another (id int)"))
    other = SharedStore(engine, table="another")
    with pytest.raises(
        ConfigurationError,
        match=r"is not a shared memory of this version: it has id \(int\), key none, but needs id \(bytes\), "
        r"token \(int\)",
    ):
        claim(other)
    names = ("token", "owner", "attempt", "claimed", "lease_ms", "seen_ms", "before_ms", "until_ms")
    with engine.begin() as connection:
        columns = ", ".join(f"{name} text" for name in names)
        connection.execute(text(f"CREATE TABLE all_text (id text PRIMARY KEY, {columns})"))
    with pytest.raises(ConfigurationError, match=r"it has id \(str\), token \(str\)"):
        SharedStore(engine, table="all_text").create()
    with pytest.raises(ConfigurationError, match="name another one with table="):
        other.create()
    migrated = SharedStore(engine, table="Mixed case; drop")
    with engine.begin() as connection:
        for statement in migrated.ddl().strip().removesuffix(";").split(";\n\n"):
            connection.execute(text(statement))
    assert claim(migrated)[0].kind is ClaimKind.FRESH
    engine.dispose()


@pytest.mark.container
def test_what_is_over_is_deleted_in_bulk(postgresql_server: str) -> None:
    """And nothing else."""
    engine = create_engine(postgresql_server)
    store = SharedStore(engine, table=f"expiring_{uuid.uuid4().hex[:8]}", timeout=30.0, answer_timeout=60.0)
    store.create()
    store.create()
    claim(store, 3)
    old = shared_ids(20_005)[5:]
    for start in range(0, len(old), 5_000):
        part = old[start : start + 5_000]
        store.load(part, timestamps_ms=[0] * len(part), window_ms=1)
    until = time.monotonic() + 60
    gone = 0
    while gone < len(old):
        gone += store.expire()
        assert time.monotonic() < until
    assert gone == len(old)
    assert claim(store, 3, owner="b")[0].kind is ClaimKind.IN_FLIGHT
    engine.dispose()


@pytest.mark.container
def test_connections_that_are_cut_are_no_outage(postgresql_server: str) -> None:
    """Also of an engine of the user's, and in the middle of a question: it is asked once more.

    One that is cut each time is an outage, told without the password.
    """
    engine = create_engine(postgresql_server)
    store = SharedStore(engine, table=f"cut_{uuid.uuid4().hex[:8]}", timeout=30.0, answer_timeout=60.0)
    store.create()
    other = create_engine(postgresql_server, poolclass=NullPool)
    [given] = claim(store)
    cut_connections(other)
    assert complete(store, given.token)
    cuts = 1

    def cut_some(*_: object) -> None:
        nonlocal cuts
        if cuts:
            cuts -= 1
            cut_connections(other)

    event.listen(engine, "commit", cut_some)
    [again] = store.claim(shared_ids(2)[1:], "a", FOREVER_MS, timestamps_ms=[0], window_ms=FOREVER_MS)
    assert again.kind is ClaimKind.FRESH
    assert cuts == 0
    cuts = 2
    with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: ") as caught:
        complete(store, given.token)
    assert str(engine.url.password) + "@" not in one_line(caught.value)
    assert caught.value.passes
    engine.dispose()


@pytest.mark.parametrize("engine", [None, 7, create_engine("sqlite://")])
def test_an_engine_that_is_none_of_postgresql_is_refused(engine: Any) -> None:
    """In one line."""
    with pytest.raises(ConfigurationError, match="give SQLAlchemy's Engine of PostgreSQL") as caught:
        SharedStore(engine)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "not a URL of SQLAlchemy"),
        ("mysql+pymysql://app:secret@h/db", "one of 'mysql', and not of PostgreSQL"),
        ("postgresql+nothing://app:secret@h/db", "names a driver that SQLAlchemy does not know"),
        ("postgresql+psycopg2://app:secret@h/db", "needs a driver that is not installed"),
        ("postgresql+psycopg_async://app:secret@h/db", "names a driver for asyncio"),
        ("postgresql+psycopg://app:secret@h:port/db", "not a URL of SQLAlchemy"),
    ],
)
def test_a_url_that_is_none_of_postgresql_is_refused(url: str, told: str) -> None:
    """In one line, without the password."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        SharedStore(url)
    assert "secret" not in one_line(caught.value)


@pytest.mark.parametrize("name", ["timeout", "answer_timeout"])
@pytest.mark.parametrize("value", [0, True, "1", float("inf"), float("nan")])
def test_a_timeout_that_is_none_is_refused(name: str, value: Any) -> None:
    """In one line that has the value."""
    with pytest.raises(ConfigurationError, match=rf"^{name}=.*: give seconds above 0"):
        SharedStore("postgresql+psycopg://h/db", **{name: value})


def test_a_driver_that_waits_for_ever_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer waits with it; of one whose connections can be cut there is nothing to warn."""
    engine = create_engine("postgresql+psycopg://h/db")
    SharedStore(engine)
    assert caplog.text == ""
    monkeypatch.setattr(engine.dialect, "driver", "another")
    SharedStore(engine)
    assert "the driver another does not expose its sockets" in caplog.text


def test_nothing_of_a_urls_query_is_told() -> None:
    """A password may be in it, too."""
    store = SharedStore("postgresql+psycopg://app:secret@127.0.0.1:1/db?password=secret&sslmode=disable")
    with pytest.raises(SharedStoreError, match="start it, or correct the URL") as caught:
        claim(store)
    assert "secret" not in one_line(caught.value)
    assert caught.value.passes
    store.close()


@pytest.mark.container
def test_a_store_of_a_url_has_an_engine_of_its_own(postgresql_server: str) -> None:
    """Connections that are cut while nobody uses them are made anew.

    A lock that somebody keeps is waited for as long as was said.
    """
    store = SharedStore(postgresql_server, table=f"own_{uuid.uuid4().hex[:8]}", timeout=0.1)
    assert store.create()
    assert not store.create()
    assert claim(store)[0].kind is ClaimKind.FRESH
    other = create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    cut_connections(other)
    [given] = claim(store)
    with other.connect() as connection, connection.begin():
        connection.execute(text("BEGIN"))
        connection.execute(text(f"LOCK TABLE {next(iter(store.metadata.tables))}"))
        with pytest.raises(SharedStoreError, match="lock timeout") as caught:
            complete(store, given.token)
        assert caught.value.passes
        connection.execute(text("ROLLBACK"))
    assert complete(store, given.token)
    other.dispose()
    store.close()


@pytest.mark.container
def test_a_refusal_does_not_pass(postgresql_server: str) -> None:
    """Nobody needs to wait for a right that is not there."""
    role, engine = f"app_{uuid.uuid4().hex[:8]}", create_engine(postgresql_server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'"))
    table = f"refused_{uuid.uuid4().hex[:8]}"
    SharedStore(engine, table=table).create()
    store = SharedStore(engine.url.set(username=role, password=role).render_as_string(False), table=table)
    with pytest.raises(SharedStoreError, match="permission denied") as caught:
        claim(store)
    assert not caught.value.passes
    store.close()
    engine.dispose()


@pytest.mark.container
def test_several_make_the_table_at_once(postgresql_server: str) -> None:
    """Each finds it, and one of them made it: consumers are started together."""
    for _ in range(5):
        table, start = f"made_{uuid.uuid4().hex[:8]}", Barrier(4)
        stores = [SharedStore(postgresql_server, table=table, timeout=30.0) for _ in range(4)]

        def create(store: SharedStore, start: Barrier = start) -> bool:
            start.wait(60)
            return store.create()

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(create, stores)) == [False, False, False, True]
        for store in stores:
            store.close()
