"""A memory whose server goes away while it is rebuilt: it is waited for, and the forgotten marks are loaded again."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from redis import Redis

from dedup_adapters.redis import RedisStore
from dedup_adapters.sql import SharedStore
from dedup_sdk._marks import Marks
from dedup_sdk.shared import ClaimKind, MemoryClaimStore, SharedStoreError
from dedup_sdk.shared._scope import scoped_ids
from spark_backfill import shared_rebuild
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.shared_rebuild import (
    BATCH_IDS,
    LOADS,
    SharedFile,
    SharedLoader,
    load_marks,
    load_snapshot,
    patiently,
)
from tests.support.databases import PostgreSQL
from tests.support.redis_servers import HAS_REDIS, redis_server
from tests.support.shared_history import HANDLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dedup_sdk.shared import ClaimStore
    from spark_backfill.fold import Task
    from tests.support.redis_servers import RedisServer
    from tests.support.shared_history import SharedHistory

CONTAINER = pytest.mark.container
ANY_REDIS = "installed" if HAS_REDIS else pytest.param("container", marks=CONTAINER)
COUNT = 3 * BATCH_IDS


@pytest.fixture(params=[ANY_REDIS])
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, which keeps nothing when it is killed."""
    with redis_server(request.param, tmp_path) as server:
        yield server


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


@pytest.mark.slow
@pytest.mark.container
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


class StartedAnew:
    """Starts a server anew before some loads (by their number, from 0)."""

    def __init__(self, server: RedisServer, before: Callable[[int], bool]) -> None:
        self._server, self._before = server, before
        self.loads = 0

    def __call__(self, task: Task) -> Task:
        """See `around` of a run; it is called in the driver."""
        if isinstance(task, SharedLoader):
            if self._before(self.loads):
                self._server.kill()
                self._server.start()
            self.loads += 1
        return task


@pytest.mark.slow
def test_what_a_server_forgot_in_the_middle_is_loaded_again(
    redis: RedisServer, shared_history: Callable[[str], SharedHistory]
) -> None:
    """All of it, once more, and it is said."""
    history = shared_history(redis.url)
    said: list[str] = []
    around = StartedAnew(redis, lambda load: load == 0)
    assert history.run(say=said.append, around=around)["shared_marks"] == 5
    assert around.loads == 2
    assert (
        sum(
            "was started anew, and may have forgotten what it was told: all is loaded again" in line
            for line in said
        )
        == 1
    )
    with Redis.from_url(redis.url) as client:
        known = client.mget([b"dedup:{0}" + key for key in history.keys(*HANDLED)])
    assert None not in known


def test_a_server_that_is_started_anew_each_time_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: nobody knows which marks it has forgotten."""
    lives, loads = count(), list[int]()

    class Server:
        """Is another one whenever it is asked."""

        shown = "redis://h:6379/0"

        def incarnation(self) -> str:
            """See `SharedServer`."""
            return str(next(lives))

    def load(_spark: object, _shared: object, files: Sequence[SharedFile], **_: object) -> int:
        loads.append(len(files))
        return 1

    monkeypatch.setattr(shared_rebuild, "load_files", load)
    said: list[str] = []
    shared: Any = SimpleNamespace(server=Server(), scope_of=lambda *_, **__: b"scope")
    session: Any = SimpleNamespace(get=lambda: None)
    entry = SimpleNamespace(partition=0, files=["a"], newest_ms=1)
    manifest: Any = SimpleNamespace(topic="t", cluster="c", id_spec="key", partitions=[entry])
    with pytest.raises(
        BackfillError, match=f"was started anew whenever it was loaded, {LOADS} times"
    ) as caught:
        load_snapshot(session, shared, Path(), manifest, "g", window_ms=1, now_ms=1, say=said.append)
    assert "run it again" in one_line(caught.value)
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
