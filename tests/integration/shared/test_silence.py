"""A PostgreSQL that stands still, and consumers that do in the middle of a question: nobody waits for them for ever."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from sqlalchemy import create_engine, event

from dedup_adapters.sql import SharedStore
from dedup_sdk.shared import Claim, ClaimKind, SharedStoreError
from tests.support.claiming import PATIENCE_S, WINDOW_MS, shared_ids

if TYPE_CHECKING:
    from tests.support.databases import PostgreSQL

pytestmark = pytest.mark.container

_ANSWER_S = 2.0
_Result = TypeVar("_Result")


def claim(store: SharedStore, owner: str = "a") -> Claim:
    """Claim the first of the IDs that all tests share."""
    [answer] = store.claim(shared_ids(1), owner, 600_000, timestamps_ms=[0], window_ms=WINDOW_MS)
    return answer


def complete(store: SharedStore, token: int) -> bool:
    """Complete it."""
    [taken] = store.complete(shared_ids(1), [token], "a", timestamps_ms=[0], window_ms=WINDOW_MS)
    return taken


def patiently(ask: Callable[[], _Result]) -> _Result:
    """Ask until there is an answer: a busy machine may be as slow as one that stands still."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except SharedStoreError as error:
            if not error.passes or time.monotonic() > until:
                raise


@contextmanager
def standing_still(server: PostgreSQL) -> Iterator[None]:
    """Stop it where it is for the block."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@pytest.fixture
def table(postgresql_server: str) -> str:
    """A table of the test's own."""
    name = f"silent_{uuid.uuid4().hex[:8]}"
    store = SharedStore(postgresql_server, table=name, timeout=30.0)
    store.create()
    store.close()
    return name


@pytest.mark.parametrize("kind", ["url", "engine"])
def test_a_server_that_stands_still_is_an_outage(database_server: PostgreSQL, table: str, kind: str) -> None:
    """It keeps its connections and says nothing. When it goes on, the same may be asked again."""
    engine: Any = create_engine(database_server.url) if kind == "engine" else database_server.url
    store = SharedStore(engine, table=table, answer_timeout=_ANSWER_S)
    token = patiently(lambda: claim(store)).token
    with ThreadPoolExecutor(1) as pool, standing_still(database_server):
        asked = pool.submit(complete, store, token)
        with pytest.raises(
            SharedStoreError, match=r"no answer within 2 s; check the server's load and locks"
        ) as caught:
            asked.result(PATIENCE_S)
        assert caught.value.passes
        if kind == "url":
            # This one has to connect first.
            with pytest.raises(SharedStoreError, match=r"the shared store .+ failed: "):
                pool.submit(complete, store, token).result(PATIENCE_S)
    assert patiently(lambda: complete(store, token))
    assert patiently(lambda: claim(store, "b")).kind is ClaimKind.DUPLICATE
    store.close()
    if kind == "engine":
        engine.dispose()


def test_a_server_that_stands_still_from_its_first_word_on_is_an_outage(
    database_server: PostgreSQL, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy asks it for its version, before anybody has the connection."""
    store = SharedStore(database_server.url, table=table, timeout=30.0, answer_timeout=_ANSWER_S)
    connect, made = psycopg.connect, []

    def connect_and_stop(*given: Any, **named: Any) -> Any:
        made.append(connect(*given, **named))
        database_server.pause()
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", connect_and_stop)
    try:
        with ThreadPoolExecutor(1) as pool:
            try:
                with pytest.raises(SharedStoreError, match="no answer within 2 s"):
                    pool.submit(claim, store).result(PATIENCE_S)
            finally:
                database_server.resume()
    finally:
        monkeypatch.undo()
        # SQLAlchemy leaves one that it could not begin with to the garbage collector.
        made.pop().close()
    assert patiently(lambda: claim(store)).kind is ClaimKind.FRESH
    store.close()


def test_a_consumer_that_stands_still_in_a_question_keeps_nobody_waiting(
    postgresql_server: str, table: str
) -> None:
    """Its locks come free. When it goes on, it asks again, and learns that another one has the ID."""
    engine = create_engine(postgresql_server)
    stopped, go_on = Event(), Event()

    def stop(_connection: object) -> None:
        if not stopped.is_set():
            stopped.set()
            assert go_on.wait(2 * PATIENCE_S)

    slow = SharedStore(engine, table=table, answer_timeout=2 * PATIENCE_S)
    event.listen(engine, "commit", stop)
    other = SharedStore(postgresql_server, table=table, timeout=1.0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(claim, slow)
        try:
            assert stopped.wait(PATIENCE_S)
            assert patiently(lambda: claim(other, "b")).kind is ClaimKind.FRESH
        finally:
            go_on.set()
        assert asked.result(PATIENCE_S).kind is ClaimKind.IN_FLIGHT
    other.close()
    slow.close()
    engine.dispose()
