"""Exactly once, for work that lives in the database, under SIGKILL; and two ways that look like it and are not."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from dedup_adapters.sql import Inbox
from dedup_sdk.testing import MockKafka
from tests.integration.sql.conftest import BY_ASYNC_DRIVERS
from tests.support import inbox_coroutines, inbox_worker
from tests.support.forks import FORKS
from tests.support.inbox_worker import GROUP, WORK
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import URL, Engine

    Main = Callable[..., None]

KILLS = 12
MESSAGES = 90
_PATIENCE_S = 60.0


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A topic of two partitions; a third of its records come twice."""
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        yield kafka.bootstrap


def send(bootstrap: str, *, keyed: bool) -> set[str]:
    """Send messages, with IDs and some of them twice, or without; return the work to do once."""
    numbers = [*range(MESSAGES), *range(0, MESSAGES, 3)] if keyed else range(MESSAGES)
    records = [
        Outgoing(
            value=b"%d" % number, partition=number % 2,
            headers={"dedup-id": b"%d" % number} if keyed else {},
        )
        for number in numbers
    ]  # fmt: skip
    produce(bootstrap, "orders", records)
    return {str(number) for number in numbers}


def live(main: Main, arguments: tuple[str, ...], steps: int | None, delay_s: float) -> bool:
    """Have a worker go so many steps and kill it, a little later; or to its end. Whether it was killed."""
    ours, theirs = FORKS.Pipe()
    worker = FORKS.Process(target=main, args=(theirs, *arguments))
    worker.start()
    theirs.close()
    taken = 0
    with suppress(EOFError):
        while True:
            ours.recv()
            if taken == steps:
                if delay_s:
                    for _ in range(5):
                        ours.send(None)
                    time.sleep(delay_s)
                worker.kill()
                break
            ours.send(None)
            taken += 1
    worker.join(_PATIENCE_S)
    killed = worker.exitcode == -signal.SIGKILL
    assert killed or worker.exitcode == 0
    worker.close()
    ours.close()
    return killed


def lives(
    way: str,
    bootstrap: str,
    engine: Engine,
    folder: Path,
    *,
    main: Main = inbox_worker.main,
    url: URL | None = None,
) -> Counter[str]:
    """Kill a worker many times, let the last one come to its end, and return how often each message was handled."""
    Inbox(engine, group=GROUP).create()
    WORK.metadata.create_all(engine)
    of_worker = (url or engine.url).render_as_string(hide_password=False)
    arguments = (way, bootstrap, of_worker, str(folder / "store"))
    draw = random.Random(way + of_worker.partition(":")[0])
    killed = sum(
        live(main, arguments, draw.randint(0, 14), draw.choice((0.0, draw.uniform(0, 0.01))))
        for _ in range(KILLS)
    )
    assert killed == KILLS, "it had come to its end before"
    assert not live(main, arguments, None, 0.0)
    with engine.connect() as connection:
        return Counter(connection.execute(select(WORK.c.body)).scalars())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ids", "batches", "dedup", "offsets"])
def test_each_message_once_under_sigkill(way: str, bootstrap: str, engine: Engine, tmp_path: Path) -> None:
    """With IDs, and without them where the offset is in the database, though Kafka's is committed too early there."""
    sent = send(bootstrap, keyed=way != "offsets")
    done = lives(way, bootstrap, engine, tmp_path)
    assert sent - set(done) == set(), "lost"
    assert {body: times for body, times in done.items() if times > 1} == {}, "doubled"


@pytest.mark.slow
@BY_ASYNC_DRIVERS
@pytest.mark.parametrize("way", ["run", "once", "offsets"])
def test_each_message_once_under_sigkill_of_coroutines(
    way: str, bootstrap: str, engine: Engine, async_url: URL, tmp_path: Path
) -> None:
    """With an `AsyncDedupConsumer` and an `AsyncSession`, four handlers at a time, or one."""
    sent = send(bootstrap, keyed=way != "offsets")
    done = lives(way, bootstrap, engine, tmp_path, main=inbox_coroutines.main, url=async_url)
    assert sent - set(done) == set(), "lost"
    assert {body: times for body, times in done.items() if times > 1} == {}, "doubled"


@pytest.mark.slow
@pytest.mark.parametrize(("server", "driver"), [("sqlite", "sqlite+aiosqlite")], indirect=["server"])
def test_the_broken_coroutine_is_found_out(
    bootstrap: str, engine: Engine, async_url: URL, tmp_path: Path
) -> None:
    """The ID outside of the transaction of the work loses messages."""
    sent = send(bootstrap, keyed=True)
    done = lives("id-apart", bootstrap, engine, tmp_path, main=inbox_coroutines.main, url=async_url)
    assert sent - set(done) != set()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.parametrize("way", ["offset-first", "id-apart"])
def test_the_broken_twin_is_found_out(way: str, bootstrap: str, engine: Engine, tmp_path: Path) -> None:
    """The offset before the transaction, and the ID outside of it, lose messages: the count above would tell."""
    sent = send(bootstrap, keyed=True)
    done = lives(way, bootstrap, engine, tmp_path)
    assert sent - set(done) != set()
