from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._demo import DemoError
from dedup_sdk._demo.flights import Flight, RetryingProducer
from dedup_sdk._demo.oracle import read_handled
from dedup_sdk._demo.workers import Workers
from dedup_sdk.testing import MockKafka
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLIGHTS = [Flight(f"id-{number}", b"key", b"{}") for number in range(200)]


def options(bootstrap: str, store: Path, **changed: str) -> dict[str, str]:
    """The options of a worker."""
    return {
        "bootstrap": bootstrap,
        "group": "billing",
        "topic": "flights",
        "store": str(store),
        "window": "7d",
        **changed,
    }


def wait_for(done: Callable[[], bool]) -> None:
    """Return when it is done, at most a minute later."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def watch(crew: Workers) -> None:
    """Check the workers for a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        crew.check()
        time.sleep(0.02)


def test_workers_write_what_they_handle_and_end_in_order(tmp_path: Path) -> None:
    """Each flight is one line of a file, though all were sent twice; SIGTERM ends the worker with status 0."""
    with MockKafka() as kafka:
        kafka.create_topic("flights")
        for _ in range(2):
            list(RetryingProducer(kafka.bootstrap, "flights").send(FLIGHTS))
        with Workers(tmp_path, options(kafka.bootstrap, tmp_path / "store")) as crew:
            run = crew.start("worker-1")
            wait_for(lambda: crew.handled_count() >= len(FLIGHTS))
            crew.end()
        handled = read_handled(run.handled_file)
    assert [each.dedup_id for each in handled] == [flight.dedup_id for flight in FLIGHTS]
    assert [each.offset for each in handled] == list(range(len(FLIGHTS)))


def test_a_killed_worker_leaves_its_file(tmp_path: Path) -> None:
    """After SIGKILL the file holds every finished call, and the run is no longer among those that must live."""
    with MockKafka() as kafka:
        kafka.create_topic("flights")
        list(RetryingProducer(kafka.bootstrap, "flights").send(FLIGHTS))
        slow = options(kafka.bootstrap, tmp_path / "store", **{"work-us": "10000"})
        with Workers(tmp_path, slow) as crew:
            crew.start("worker-1")
            wait_for(lambda: crew.handled_count() >= 20)
            run = crew.kill_busiest()
            crew.check()
            crew.end()
    assert 20 <= len(read_handled(run.handled_file)) < len(FLIGHTS)


def test_a_worker_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    """A worker that cannot start is one line with its status and its own last words."""
    with Workers(tmp_path, options("127.0.0.1:1", tmp_path / "store", window="0d")) as crew:
        crew.start("worker-1")
        with pytest.raises(DemoError, match=r"worker-1 ended by itself with status 1: .*window") as caught:
            watch(crew)
    assert "\n" not in str(caught.value)


def test_leaving_the_block_kills_what_still_runs(tmp_path: Path) -> None:
    """However the block is left, no worker outlives it."""
    with MockKafka() as kafka:
        kafka.create_topic("flights")
        with Workers(tmp_path, options(kafka.bootstrap, tmp_path / "store")) as crew:
            run = crew.start("worker-1")
            crew.check()
    with pytest.raises(DemoError, match="status -9"):
        run.check()
