"""SIGKILL of who writes into the transactional outbox and of who sends from it.

Committed messages arrive, and nothing else.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from dedup_adapters.sql_outbox import SqlOutbox
from dedup_sdk.testing import MockKafka
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS
from tests.support import outbox_coroutines, sql_outbox_worker
from tests.support.consuming import make_consumer, poll_through, values
from tests.support.forks import FORKS
from tests.support.outboxes import Seen, make_producer, poll_until, records
from tests.support.sql_outbox_worker import PATIENCE_S, TOPIC, WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import URL, Engine

    Main = Callable[..., None]

LIVES = 8
_MOST_LIFE_S = 0.2


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """An empty topic of one partition."""
    with MockKafka() as kafka:
        kafka.create_topic(TOPIC)
        yield kafka.bootstrap


def live(
    kind: str,
    bootstrap: str,
    at: URL,
    first: int,
    delay_s: float = 0.0,
    *,
    main: Main = sql_outbox_worker.main,
) -> None:
    """Have a worker go until it is where it is to be killed, or at work for so many seconds, and kill it."""
    ours, theirs = FORKS.Pipe()
    url = at.render_as_string(hide_password=False)
    worker = FORKS.Process(target=main, args=(theirs, kind, bootstrap, url, first))
    worker.start()
    theirs.close()
    assert ours.poll(PATIENCE_S), "it does not come to that"
    ours.recv()
    time.sleep(delay_s)
    worker.kill()
    worker.join(PATIENCE_S)
    assert worker.exitcode == -signal.SIGKILL
    worker.close()
    ours.close()


def done(engine: Engine) -> dict[bytes, bytes | None]:
    """The committed work: dedup key by message."""
    with engine.connect() as connection:
        rows = connection.execute(select(WORK.c.body, WORK.c.dedup_id)).all()
    return {body.encode(): key and bytes(key) for body, key in rows}


def finished(bootstrap: str, engine: Engine) -> list[Seen]:
    """Send the rest; return all that the topic has."""
    outbox = SqlOutbox(engine)
    with make_producer(bootstrap, outbox, lock_wait=PATIENCE_S) as producer:
        poll_until(producer, lambda: outbox.count() == 0, "the delivery of what was left")
    return records(bootstrap, TOPIC)


@pytest.mark.slow
def test_what_was_committed_is_handled_once_under_sigkill(
    bootstrap: str, engine: Engine, tmp_path: Path
) -> None:
    """Killed anywhere, and between the confirmation and the removal.

    Messages sent again bear the key of the first time.
    """
    SqlOutbox(engine).create()
    WORK.metadata.create_all(engine)
    draw = random.Random(engine.dialect.name)
    for number in range(LIVES):
        kind = ("anywhere", "at-removal")[number % 2]
        live(kind, bootstrap, engine.url, 1_000_000 * number, draw.uniform(0, _MOST_LIFE_S))
    check(bootstrap, engine, tmp_path)


@pytest.mark.slow
@BY_ASYNC_DRIVERS
def test_what_coroutines_committed_is_handled_once_under_sigkill(
    bootstrap: str, engine: Engine, async_url: URL, tmp_path: Path
) -> None:
    """Added in an `AsyncSession`; killed before and after the commit, and around the sending."""
    SqlOutbox(engine).create()
    WORK.metadata.create_all(engine)
    for number, place in enumerate(2 * outbox_coroutines.PLACES):
        live(place, bootstrap, async_url, 1_000_000 * number, main=outbox_coroutines.main)
    check(bootstrap, engine, tmp_path)


def check(bootstrap: str, engine: Engine, folder: Path) -> None:
    """Have the rest sent and all handled; what was committed was handled once, and nothing else."""
    seen, committed = finished(bootstrap, engine), done(engine)
    sent = {each.value for each in seen}
    assert set(committed) - sent == set(), "lost"
    # Of its own messages a producer may have persisted one more than it came to say.
    assert {body for body in sent - set(committed) if not body.startswith(b"p")} == set(), "never committed"
    keys = {(each.value, each.dedup_id) for each in seen}
    assert len(keys) == len(sent), "sent again with another key"
    assert {body: key for body, key in keys if committed.get(body)} == {
        body: key for body, key in committed.items() if key
    }
    assert len(seen) > len(sent), "nothing was sent again"
    with make_consumer(bootstrap, "handling", folder / "store") as consumer:
        consumer.subscribe([TOPIC])
        handled = Counter(values(poll_through(consumer, TOPIC)))
    assert handled == Counter(body.decode() for body in sent)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_an_outbox_that_removes_before_it_sends_is_found_out(bootstrap: str, engine: Engine) -> None:
    """The count above can fail."""
    SqlOutbox(engine).create()
    WORK.metadata.create_all(engine)
    live("hasty", bootstrap, engine.url, 0)
    assert set(done(engine)) - {each.value for each in finished(bootstrap, engine)} != set()


@pytest.mark.slow
@pytest.mark.parametrize(("server", "driver"), [("sqlite", "sqlite+aiosqlite")], indirect=["server"])
def test_a_message_in_a_transaction_of_its_own_is_found_out(
    bootstrap: str, engine: Engine, async_url: URL
) -> None:
    """As above: work was committed of which no message tells."""
    SqlOutbox(engine).create()
    WORK.metadata.create_all(engine)
    live(outbox_coroutines.APART, bootstrap, async_url, 0, main=outbox_coroutines.main)
    assert set(done(engine)) - {each.value for each in finished(bootstrap, engine)} != set()
