"""``dedup snapshots load`` into Redis: as often as it is done, beside living claims, and through an outage.

That it loads what a group handled: `tests/spark/test_rebuilt_equals_lived.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from dedup_adapters.redis import RedisStore
from dedup_sdk import LastId, Lookup, Unit
from dedup_sdk._cli import snapshot_load
from dedup_sdk._cli.shared_servers import OpenServer
from dedup_sdk._cli.snapshot_load import BATCH_IDS, LOADS, STEPS, Place, left_ms, load_marks, patiently
from dedup_sdk._marks import Marks
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk.orders import integer
from dedup_sdk.shared import ClaimKind, MemoryClaimStore, SharedStoreError
from dedup_sdk.shared._scope import scoped_ids
from tests.support.redis_servers import HAS_REDIS, redis_cluster, redis_server
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
    from collections.abc import Callable, Iterator, Sequence

    from dedup_sdk.shared import ClaimStore
    from tests.cli.conftest import Dedup
    from tests.support.redis_servers import RedisServer

ANY_REDIS = "installed" if HAS_REDIS else pytest.param("container", marks=pytest.mark.container)
PASSWORD = "hunter2"
COUNT = 3 * BATCH_IDS


@pytest.fixture(params=[ANY_REDIS])
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, which may be asked by ``app`` with a password, too, and keeps nothing when killed."""
    with redis_server(request.param, tmp_path) as server:
        with Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "+@all")
        yield server


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """What the group handled."""
    return str(write_history(tmp_path / "snapshot"))


def secret(server: RedisServer) -> str:
    """The server's URL with a password."""
    return server.url.replace("redis://", f"redis://app:{PASSWORD}@")


def known(server: RedisServer, *names: bytes, **scope: Any) -> dict[bytes, int | None]:
    """When IDs were seen last, None for those that a consumer would handle, -2 for another entry.

    Nothing is changed in the store.
    """
    with Redis.from_url(server.url) as client:
        values: list[Any] = client.mget([b"dedup:{0}" + key for key in keys(*names, **scope)])
    return {
        name: None if value is None else int(value[1:].partition(b":")[0]) if value[:1] == b"d" else -2
        for name, value in zip(names, values, strict=True)
    }


def test_what_the_group_handled_is_known_and_nothing_else(
    dedup: Dedup, redis: RedisServer, snapshot: str
) -> None:
    """Last sightings over all partitions; not IDs that are old.

    Marks last as if they had been written when their records came; a sixteenth of the window, and the width of a
    batch, are added. A second load changes nothing. No line has the password.
    """
    done = dedup("snapshots", "load", snapshot, secret(redis), "--json")
    assert done.status == 0
    assert json.loads(done.stdout) == {"marks": 5, "store": redis.url}
    assert known(redis, *HANDLED, b"old") == {**expected(), b"old": None}
    warned, told = done.stderr.splitlines()
    assert warned.startswith("dedup: warning: Redis at")
    assert "appendonly=no" in warned
    assert told == f"dedup: 5 IDs of group 'billing' are in the shared store at {redis.url}"
    assert PASSWORD not in done.stdout + done.stderr
    with Redis.from_url(redis.url) as client:
        once: dict[bytes, Any] = {key: client.get(key) for key in client.scan_iter()}
        oldest, newest = keys(b"c", b"a")
        # In partition 1 history ends at hour 39, nineteen hours after the ID.
        left = 5 * HOUR_MS + DAY_MS // 16
        lives: Any = client.pttl(b"dedup:{0}" + oldest), client.pttl(b"dedup:{0}" + newest)
        assert left - 10 * 60_000 < lives[0] <= left + DAY_MS // STEPS
        assert DAY_MS - 10 * 60_000 < lives[1] <= DAY_MS
        assert len(once) == len(HANDLED)
        again = dedup("snapshots", "load", snapshot, redis.url, "-q")
        assert (again.status, again.stdout, again.stderr) == (0, "", "")
        assert {key: client.get(key) for key in client.scan_iter()} == once


def test_what_is_claimed_or_newer_stays(dedup: Dedup, redis: RedisServer, snapshot: str) -> None:
    """A living claim is its owner's, a newer mark keeps its time, an older one gets the loaded one's.

    Foreign keys stay.
    """
    store = RedisStore(redis.url, timeout=30.0)
    a, b, c, d = keys(b"a", b"b", b"c", b"d")
    newer = NEWEST_MS + HOUR_MS
    (claim,) = store.claim([a], "alive", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.load([b, c], timestamps_ms=[newer, BASE_MS], window_ms=DAY_MS)
    with Redis.from_url(redis.url) as client:
        client.rpush(b"dedup:{0}" + d, "a list of somebody's")
        assert dedup("snapshots", "load", snapshot, redis.url).status == 0
        assert client.type(b"dedup:{0}" + d) == b"list"
    assert known(redis, b"a", b"b", b"c") == {b"a": -2, b"b": newer, b"c": BASE_MS + 20 * HOUR_MS}
    assert store.complete([a], [claim.token], "alive", timestamps_ms=[NEWEST_MS], window_ms=DAY_MS) == [True]
    store.close()


def test_scopes_and_groups(dedup: Dedup, redis: RedisServer, snapshot: str, tmp_path: Path) -> None:
    """An ID is found where its group's consumers look: by scope, prefix, cluster, origin, and of whom vouches."""
    assert (
        dedup("snapshots", "load", snapshot, redis.url, "--scope", "partition", "--prefix", "test").status
        == 0
    )
    inside: dict[str, Any] = {"scope": "partition", "prefix": "test"}
    assert known(redis, b"a", b"c", **inside) == {b"a": NEWEST_MS, b"c": None}
    assert known(redis, b"a", b"c", partition=1, **inside) == {
        b"a": BASE_MS + 19 * HOUR_MS, b"c": BASE_MS + 20 * HOUR_MS,
    }  # fmt: skip
    assert known(redis, b"a", prefix="test") == {b"a": None}
    vouched = str(write_history(tmp_path / "vouched", group=None))
    assert dedup("snapshots", "load", vouched, redis.url, "--group", "audit").status == 0
    assert known(redis, b"a", group="audit") == {b"a": NEWEST_MS}
    manifest = read_manifest(Path(snapshot))
    write_manifest(Path(snapshot), replace(manifest, cluster="c2", topic="retries"))
    assert (
        dedup("snapshots", "load", snapshot, redis.url, "--cluster", "c1", "--origin", "orders").status == 0
    )
    assert known(redis, b"a") == {b"a": NEWEST_MS}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["mysql://app:hunter2@h/0"], "mysql://h/0 is no URL of a shared store"),
        (["hunter2"], "*** is no URL of a shared store"),
        (["redis://:hunter2/x@h:1/0"], "is no URL of a shared store"),
        ([""], "is no URL of a shared store"),
        (["redis://:1/hunter2@h/0"], "*** is no URL of a shared store"),
        (["redis+sentinel://app:hunter2@h:1/3"], "is no URL of a shared store"),
        (["redis+cluster://app:hunter2@h:1/3"], "names database 3, and a cluster has one only"),
        (["redis://app:hunter2@h:1/3?socket_timeout=abc"], "the option socket_timeout='abc'"),
        (["redis://h:1/3?passwrod=hunter2"], "the option passwrod=***"),
        (["redis://h:1/0", "--buckets", "0"], "buckets=0: give a whole number"),
        (["redis://h:1/0", "--keys", "{x}"], "give text without braces"),
        (["redis://h:1/0", "--origin", ""], "--origin is empty"),
        (["redis://h:1/0", "--keys", "\udcff"], "--keys '\\udcff' is not UTF-8"),
        (["redis://h:1/0", "--prefix", "\udcff"], "--prefix '\\udcff' is not UTF-8"),
        (["redis://h:1/0", "--scope", "all"], "'all' is not one of"),
        (["redis://h:1/0", "--table", "t"], "--table does not go with redis://: Redis has keys"),
        (["redis://h:1/0", "--schema", "s"], "--schema does not go with redis://: Redis has keys"),
        (["redis://h:1/0", "--group", "audit"], "is of group 'billing', not of 'audit'"),
        (["postgresql+psycopg://app:hunter2@h:5432/work", "--keys", "k"],
         "--keys does not go with postgresql+psycopg://: PostgreSQL has a table"),
        (["postgresql+psycopg://app:hunter2@h:5432/work", "--buckets", "3"],
         "--buckets does not go with postgresql+psycopg://: PostgreSQL has a table"),
        (["postgresql+psycopg://app:hunter2@h:5432/work", "--table", "a'b"], "give a name without quotes"),
        (["postgres://app:hunter2@h/db"], "SQLAlchemy calls it postgresql+psycopg://"),
        (["postgresql+asyncpg://app:hunter2@h/db"], "names a driver"),
        (["postgresql+nothing://app:hunter2@h/db"], "names a driver that SQLAlchemy does not know"),
        (["postgresql+psycopg2://app:hunter2@h/db"],
         "needs a driver that is not installed (No module named 'psycopg2')"),
        (["postgresql+psycopg://app:hunter2@h:port/db"], "is not a URL of SQLAlchemy"),
        (["postgresql+psycopg://app:1/hunter2@h:port/db"], "is not a URL of SQLAlchemy"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_without_a_password(
    dedup: Dedup, snapshot: str, more: list[str], told: str
) -> None:
    """Before anything is asked."""
    done = dedup("snapshots", "load", snapshot, *more)
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert told in line
    assert PASSWORD not in line


UNITS = Lookup(id="header:dedup-id", window="7d", unit=Unit()).keys
COMPARED = LastId(id="header:sequence", order=integer()).keys


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"window": "7d+20000n"}, "a shared store forgets by time alone"),
        ({"window": "20000n"}, "a shared store forgets by time alone"),
        ({"id_spec": str(COMPARED)}, "is of LastId"),
        ({"id_spec": str(UNITS)}, "has marks of units"),
    ],
)
def test_a_snapshot_that_cannot_be_shared_is_refused(
    dedup: Dedup, snapshot: str, change: dict[str, Any], told: str
) -> None:
    """A window by count, states of sources, and marks of units."""
    write_manifest(Path(snapshot), replace(read_manifest(Path(snapshot)), **change))
    done = dedup("snapshots", "load", snapshot, "redis://h:1/0")
    assert done.status == 1
    assert told in done.stderr


def test_a_snapshot_of_nobody_needs_a_group(dedup: Dedup, tmp_path: Path) -> None:
    """Consumers would take all of it for handled."""
    done = dedup("snapshots", "load", str(write_history(tmp_path / "all", group=None)), "redis://h:1/0")
    assert done.status == 2
    assert "names no group" in done.stderr


def test_a_store_that_is_away_or_refuses_ends_it_in_one_line(
    dedup: Dedup, redis: RedisServer, snapshot: str
) -> None:
    """Without the password; away is who does not answer the first time."""
    away = dedup("snapshots", "load", snapshot, f"redis://app:{PASSWORD}@127.0.0.1:1/0")
    assert away.status == 1
    assert away.stderr.startswith("dedup: the shared store in Redis at 127.0.0.1:1 failed:")
    with Redis.from_url(redis.url) as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "+@all", "-set")
    refused = dedup("snapshots", "load", snapshot, secret(redis).replace("app:", "reader:"))
    assert refused.status == 1
    assert refused.stderr.splitlines()[-1].startswith("dedup: the shared store in Redis at")
    assert PASSWORD not in away.stderr + refused.stderr


@pytest.mark.parametrize("kind", ["installed"] if HAS_REDIS else [])
def test_a_node_that_is_taken_for_a_server_is_told_before_anything_is_loaded(
    dedup: Dedup, kind: str, snapshot: str, tmp_path: Path
) -> None:
    """By any bucket that lies elsewhere; as a cluster it is asked without a word."""
    assert kind
    with redis_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            done = dedup("snapshots", "load", snapshot, node.url, "--buckets", "16")
            assert done.status == 1
            assert "one node of a cluster" in done.stderr
            assert "give redis+cluster://" in done.stderr
        assert dedup("snapshots", "load", snapshot, cluster.url, "--buckets", "16").status == 0


class Interrupted:
    """A store whose server is killed before the second batch, and started again when that was not taken."""

    def __init__(self, store: ClaimStore, kill: Callable[[], None], start: Callable[[], None]) -> None:
        self.store, self._kill, self._start = store, kill, start
        self.refused: list[bool] = []
        self._calls = 0

    def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
        """Load, or not."""
        self._calls += 1
        if self._calls == 2:
            self._kill()
        try:
            self.store.load(ids, timestamps_ms=timestamps_ms, window_ms=window_ms)
        except SharedStoreError as error:
            if not self.refused:
                self._start()
            self.refused.append(error.passes)
            raise


def marks() -> Marks:
    """Some batches of marks."""
    digests = b"".join(number.to_bytes(16) for number in range(COUNT))
    return Marks(digests, np.arange(COUNT), np.full(COUNT, 1_000, np.int64))


def loaded_into(store: Interrupted) -> list[ClaimKind]:
    """Load them, and return the store's answers for them."""
    times: dict[str, int] = {"newest_ms": 1_000, "window_ms": 3_600_000}
    asked: Any = store
    assert load_marks(asked, marks(), b"scope", **times, patience_s=60.0) == COUNT
    ids = scoped_ids(b"scope", [number.to_bytes(16) for number in range(COUNT)])
    claims = store.store.claim(ids, "next", 60_000, timestamps_ms=[1_000] * COUNT, window_ms=3_600_000)
    return [claim.kind for claim in claims]


def test_a_redis_that_is_away_is_waited_for(redis: RedisServer) -> None:
    """The batch that it did not take is loaded when it is back. Marks forgotten meanwhile are another matter."""
    store = Interrupted(RedisStore(redis.url, timeout=30.0), redis.kill, redis.start)
    kinds = loaded_into(store)
    assert set(kinds[BATCH_IDS:]) == {ClaimKind.DUPLICATE}
    assert store.refused
    assert all(store.refused)
    store.store.close()


def test_who_refuses_is_not_asked_again() -> None:
    """Nor is who was away for as long as one waits."""
    asked: list[bool] = []

    def refuse(passes: bool) -> None:  # noqa: FBT001 (as raised)
        asked.append(passes)
        raise SharedStoreError("no", passes=passes)

    with pytest.raises(SharedStoreError):
        patiently(lambda: refuse(False))
    assert asked == [False]
    with pytest.raises(SharedStoreError):
        patiently(lambda: refuse(True), patience_s=0.01)
    assert len(asked) == 3


def test_what_a_server_forgot_in_the_middle_is_loaded_again(
    dedup: Dedup, redis: RedisServer, snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, once more, and it is said."""
    loads, load_files = list[int](), snapshot_load.load_files

    def load(*given: Any) -> int:
        loads.append(load_files(*given))
        if len(loads) == 1:
            redis.kill()
            redis.start()
        return loads[-1]

    monkeypatch.setattr(snapshot_load, "load_files", load)
    done = dedup("snapshots", "load", snapshot, redis.url)
    assert done.status == 0
    assert (
        done.stderr.count("was started anew, and may have forgotten what it was told: all is loaded again")
        == 1
    )
    assert loads == [5, 5]
    assert None not in known(redis, *HANDLED).values()


def test_a_server_that_is_started_anew_each_time_ends_it(
    snapshot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line: nobody knows which marks it has forgotten."""
    lives, loads = count(), list[int]()

    class Store(MemoryClaimStore):
        """Is another one whenever it is asked."""

        def incarnation(self) -> str:
            """See `RedisStore`."""
            return str(next(lives))

    def load(*_: object) -> int:
        loads.append(1)
        return 1

    monkeypatch.setattr(snapshot_load, "load_files", load)
    said: list[str] = []
    store: Any = Store()
    source = SnapshotSource(place=snapshot, manifest=read_manifest(Path(snapshot)))
    with pytest.raises(SharedStoreError, match=f"was started anew whenever it was loaded, {LOADS} times"):
        snapshot_load.load_snapshot(
            source,
            OpenServer(store, "redis://h:6379/0", lambda: None),
            Place("topic", "g", None, "", None),
            said.append,
        )
    assert loads == [1] * LOADS
    assert len(said) == LOADS - 1


def test_a_store_of_ones_own_is_waited_for_too() -> None:
    """An error without a word of its kind may pass."""
    away = iter([True, False])

    class Away(MemoryClaimStore):
        """Is away once."""

        def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
            """Load, or not."""
            if next(away, False):
                raise SharedStoreError("away")
            super().load(ids, timestamps_ms=timestamps_ms, window_ms=window_ms)

    times: dict[str, int] = {"newest_ms": 1_000, "window_ms": 3_600_000}
    with pytest.raises(SharedStoreError):
        load_marks(Away(), marks(), b"scope", **times)
    away = iter([True, False])
    assert load_marks(Away(), marks(), b"scope", **times, patience_s=60.0) == COUNT


timestamps = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(BASE_MS - 2 * DAY_MS, BASE_MS + DAY_MS) | st.just(-1)
)


@given(
    st.dictionaries(st.binary(min_size=16, max_size=16), timestamps, max_size=30),
    st.integers(1, 10 * DAY_MS),
    st.integers(-1, BASE_MS + DAY_MS),
)
def test_any_marks_are_loaded_once_and_again(seen: dict[bytes, int], window_ms: int, newest_ms: int) -> None:
    """Whatever their timestamps are.

    The rest of a window is never more than it, nor nothing for an ID that is not over.
    """
    marks = Marks(b"".join(seen), np.arange(len(seen)), np.array(list(seen.values()), np.int64))
    left = left_ms(marks.timestamps, newest_ms=newest_ms, window_ms=window_ms)
    assert ((left >= 0) & (left <= window_ms)).all()
    inside = (marks.timestamps < 0) | (marks.timestamps > newest_ms - window_ms)
    assert (left[inside] > 0).all()
    store = MemoryClaimStore(clock=lambda: 0.0)
    for _ in range(2):
        assert (
            load_marks(store, marks, b"scope", newest_ms=newest_ms, window_ms=window_ms) == (left > 0).sum()
        )
    ids = scoped_ids(b"scope", seen)
    times = np.clip(marks.timestamps, -(2**52), 2**52).tolist()
    claims = store.claim(ids, "next", 1, timestamps_ms=times, window_ms=window_ms)
    assert [claim.kind is ClaimKind.DUPLICATE for claim in claims] == (left > 0).tolist()
    assert [claim.seen_ms for claim in claims if claim.kind is ClaimKind.DUPLICATE] == [
        time for time, lasts in zip(times, (left > 0).tolist(), strict=True) if lasts
    ]
