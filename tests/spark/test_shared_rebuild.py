"""A memory that consumers share, loaded by the job: into Redis, as often as it is done, and beside living claims.

That it loads the group's marks: `tests/spark/test_rebuilt_equals_lived.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from dedup_adapters.redis import RedisStore
from dedup_sdk._marks import Marks
from dedup_sdk._store.manifest import MANIFEST_NAME
from dedup_sdk.shared import ClaimKind, MemoryClaimStore
from dedup_sdk.shared._scope import scoped_ids
from spark_backfill.backfill import backfill
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.options import parse_options
from spark_backfill.shared_rebuild import STEPS, left_ms, load_marks
from tests.spark.test_fold_files import FailsFirst
from tests.support.redis_servers import HAS_REDIS, RedisServer, redis_server
from tests.support.shared_history import (
    BASE_MS,
    DAY_MS,
    HANDLED,
    HOUR_MS,
    NEWEST_MS,
    SharedHistory,
    expected,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


PASSWORD = "hunter2"


@pytest.fixture(
    scope="module",
    params=["installed"] if HAS_REDIS else [pytest.param("container", marks=pytest.mark.container)],
)
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of these tests, which may be asked by ``app`` with a password, too."""
    with redis_server(request.param, tmp_path_factory.mktemp("redis")) as server:
        with Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "app", "on", f">{PASSWORD}", "~*", "+@all")
        yield server


class Rebuilt:
    """A history, and an empty memory in Redis, which is asked with a password."""

    def __init__(self, make: Callable[[str], SharedHistory], url: str) -> None:
        self.history = make(url.replace("redis://", f"redis://app:{PASSWORD}@"))
        self.url, self.group, self.folder = self.history.url, self.history.group, self.history.folder
        self.run, self.keys, self.arguments = self.history.run, self.history.keys, self.history.arguments
        self.spark = self.history.spark
        self.client: Any = Redis.from_url(url)
        self.client.flushall()

    def known(self, *names: bytes, **scope: Any) -> dict[bytes, int | None]:
        """When IDs were seen last, None for those that a consumer would handle, -2 for another entry.

        Nothing is changed in the memory.
        """
        found = {}
        for name, key in zip(names, self.keys(*names, **scope), strict=True):
            value = self.client.get(b"dedup:{0}" + key)
            found[name] = (
                None if value is None else int(value[1:].partition(b":")[0]) if value[:1] == b"d" else -2
            )
        return found

    def all(self) -> dict[bytes, bytes | None]:
        """Everything that is stored."""
        return {key: self.client.get(key) for key in self.client.scan_iter()}


@pytest.fixture
def rebuilt(shared_history: Callable[[str], SharedHistory], redis: RedisServer) -> Iterator[Rebuilt]:
    """A history whose memory is rebuilt."""
    made = Rebuilt(shared_history, redis.url)
    yield made
    made.client.close()


def test_what_the_group_handled_is_known_and_nothing_else(rebuilt: Rebuilt) -> None:
    """Last sightings over all partitions; not IDs that are old, given up, or not committed. Beside it lies a snapshot.

    Marks last as if they had been written when their records came; a sixteenth of the window, and the width of a
    batch, are added. Every task of a second run fails after it has loaded everything, and is tried again: that
    changes nothing. Without an output no snapshot stays.
    """
    said: list[str] = []
    report = rebuilt.run("--output", str(rebuilt.folder / "snapshot"), say=said.append)
    names = (*HANDLED, b"old", b"beyond")
    assert rebuilt.known(*names) == {**expected(), b"old": None, b"beyond": None}
    assert len(rebuilt.all()) == len(HANDLED)
    assert (report["shared_marks"], report["marks"]) == (5, 5)
    assert (rebuilt.folder / "snapshot" / MANIFEST_NAME).exists()
    assert any(
        f"5 IDs of group {rebuilt.group!r} are in the shared memory at redis://" in line for line in said
    )
    assert any(line.startswith("warning: Redis at") and "appendonly=no" in line for line in said)
    told = [
        *said,
        str(report),
        *(path.read_text("latin-1") for path in (rebuilt.folder / "snapshot").glob("*.*")),
    ]
    assert PASSWORD not in " ".join(told)
    assert report["shared"] == rebuilt.url.replace(f"app:{PASSWORD}@", "")

    once, (oldest, newest) = rebuilt.all(), rebuilt.keys(b"c", b"a")
    # In partition 1 history ends at hour 39, nineteen hours after the ID.
    left = 5 * HOUR_MS + DAY_MS // 16
    assert left - 10 * 60_000 < rebuilt.client.pttl(b"dedup:{0}" + oldest) <= left + DAY_MS // STEPS
    assert DAY_MS - 10 * 60_000 < rebuilt.client.pttl(b"dedup:{0}" + newest) <= DAY_MS
    scratch = rebuilt.folder / "scratch"
    scratch.mkdir()
    again = rebuilt.run("--scratch", str(scratch), around=FailsFirst)
    assert rebuilt.all() == once
    assert (again["shared_marks"], again["output"]) == (5, "")
    assert list(scratch.iterdir()) == []


def test_what_is_claimed_or_newer_stays(rebuilt: Rebuilt, redis: RedisServer) -> None:
    """A living claim is its owner's, a newer mark keeps its time, an older one gets the rebuilt one's.

    Foreign keys stay.
    """
    store = RedisStore(redis.url, timeout=30.0)
    a, b, c, d = rebuilt.keys(b"a", b"b", b"c", b"d")
    newer = NEWEST_MS + HOUR_MS
    (claim,) = store.claim([a], "alive", 600_000, timestamps_ms=[NEWEST_MS], window_ms=DAY_MS)
    store.load([b, c], timestamps_ms=[newer, BASE_MS], window_ms=DAY_MS)
    rebuilt.client.rpush(b"dedup:{0}" + d, "a list of somebody's")
    rebuilt.run()
    assert rebuilt.client.type(b"dedup:{0}" + d) == b"list"
    known = rebuilt.known(b"a", b"b", b"c")
    assert known == {b"a": -2, b"b": newer, b"c": BASE_MS + 20 * HOUR_MS}
    assert store.complete([a], [claim.token], "alive", timestamps_ms=[NEWEST_MS], window_ms=DAY_MS) == [True]
    store.close()


def test_scopes_and_groups(rebuilt: Rebuilt) -> None:
    """Each group's history is found where its consumers look: by scope, prefix and origin."""
    other = f"{rebuilt.group}/other"
    rebuilt.history.commit(other, {0: 4})
    where = ("--shared-scope", "partition", "--shared-prefix", "test")
    assert rebuilt.run(*where)["shared_marks"] == 5
    rebuilt.history.group = other
    assert rebuilt.run(*where)["shared_marks"] == 1
    rebuilt.history.group = rebuilt.group
    inside: dict[str, Any] = {"scope": "partition", "prefix": "test"}
    assert rebuilt.known(b"a", b"c", **inside) == {b"a": NEWEST_MS, b"c": None}
    assert rebuilt.known(b"a", b"c", partition=1, **inside) == {
        b"a": BASE_MS + 19 * HOUR_MS, b"c": BASE_MS + 20 * HOUR_MS,
    }  # fmt: skip
    assert rebuilt.known(b"a", b"b", group=other, **inside) == {b"a": None, b"b": BASE_MS + 30 * HOUR_MS}
    assert rebuilt.known(b"a", prefix="test", group=other) == {b"a": None}


def test_a_store_that_is_away_ends_the_run_before_it_reads(rebuilt: Rebuilt) -> None:
    """In one line, without the password; nothing is left at the output."""
    output = rebuilt.folder / "snapshot"
    away = f"redis://app:{PASSWORD}@127.0.0.1:1/0"
    options = parse_options([*rebuilt.arguments("--output", str(output)), "--shared", away], print)

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    with pytest.raises(BackfillError) as caught:
        backfill(options, no_session)
    line = one_line(caught.value)
    assert line.startswith("the shared store in Redis at 127.0.0.1:1 failed:")
    assert PASSWORD not in line
    assert not output.exists()


@pytest.mark.slow
def test_a_store_that_refuses_ends_the_run_in_one_line(rebuilt: Rebuilt) -> None:
    """An error of a task comes out of Spark as a line with the remedy; the snapshot is not put in its place."""
    rebuilt.client.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "+@all", "-set")
    url = rebuilt.url.replace("app:", "reader:")
    output = rebuilt.folder / "snapshot"
    options = parse_options([*rebuilt.arguments("--output", str(output)), "--shared", url], print)
    with pytest.raises(Exception, match="shared store") as caught:
        backfill(options, lambda: rebuilt.spark)
    line = one_line(caught.value)
    assert line.startswith("the shared store in Redis at")
    assert "run it again" in line
    assert PASSWORD not in line
    assert not output.exists()


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
