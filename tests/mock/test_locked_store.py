"""A store that its previous owner on this host keeps open: a stopped process, which the group has given up."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import ConfigurationError
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.errors import StoreLockedError
from tests.support.consuming import PATIENCE_S, active, committed, poll_quiet, poll_some, values, wait_for
from tests.support.events import Events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk._engine.partition import Partition
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

OWNER = textwrap.dedent(
    """
    import sys
    from dedup_sdk import DedupConsumer, Lookup, Window, header
    config = {"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest", \
"auto.commit.interval.ms": 50,
              "session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50, "log_level": 0}
    with DedupConsumer(config, dedup=Lookup(id=header("dedup-id"), window=Window(days=7)), \
store=sys.argv[2]) as consumer:
        consumer.subscribe(["orders"])
        while not sys.stdin.closed:
            consumer.poll(0.1)
    """
)


@pytest.fixture
def owner(kafka: MockKafka, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process of the group, with its store in the test's folder."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, kafka.bootstrap, str(tmp_path)])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_the_store_of_a_stopped_owner_is_waited_for(
    make: Make,
    send: Send,
    kafka: MockKafka,
    owner: subprocess.Popen[bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Beyond `lock_wait` too, with one event, one warning and a hindrance.

    No second store is made, nothing is lost or seen twice.
    """
    send("a", "b", "c")
    until = time.monotonic() + PATIENCE_S
    while committed(kafka.bootstrap, "g", "orders").offset != 3:
        assert time.monotonic() < until, "the owner did not commit"
        time.sleep(0.05)
    os.kill(owner.pid, signal.SIGSTOP)
    (own,) = list_partitions(tmp_path)

    events = Events()
    heir = make("orders", store=RocksStore(tmp_path, lock_wait=1.5), observers=[events])
    send("b", "d", "a")
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        assert wait_for(heir, lambda: bool(events.seen), "the event") == []
        assert heir.poll(2.5) is None
    assert [(event.name, event.topic, event.partition) for event in events.seen] == [
        ("store-locked", "orders", 0)
    ]
    assert heir.counters.events == {"store-locked": 1}
    assert [status.hindrances for status in heir.partition_statuses] == [("lock",)]
    told = [
        (record.levelname, str(own.path) in record.message)
        for record in caplog.records
        if "store" in record.message
    ]
    assert told == [("INFO", True), ("WARNING", True)]
    assert [path.name for path in own.path.parent.iterdir()] == ["0"]

    owner.kill()
    owner.wait()
    assert values(poll_some(heir, 1)) == ["d"]
    assert values(poll_quiet(heir)) == []
    assert heir.counters.verdicts["duplicate"] == 2
    assert heir.partition_statuses[0].hindrances == ()
    assert [path.name for path in own.path.parent.iterdir()] == ["0"]


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True])
def test_a_wait_is_a_length_of_time(tmp_path: Path, wrong: float) -> None:
    """Anything else is refused in one line that names it."""
    with pytest.raises(ConfigurationError, match="lock_wait="):
        RocksStore(tmp_path, lock_wait=wrong)


def test_others_do_not_wait_for_a_lock(make: Make, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the stores of some partitions are kept open elsewhere the rest come up to date.

    They do, too, when the stores are free.
    """
    kafka.create_topic("four", partitions=4)
    locked = {0, 1}
    attach = Deduplicator.attach

    def attach_if_free(engine: Deduplicator, topic: str, partition: int, **options: Any) -> Partition:
        if partition in locked:
            raise StoreLockedError("open in another consumer")
        return attach(engine, topic, partition, **options)

    monkeypatch.setattr(Deduplicator, "attach", attach_if_free)
    consumer = make("four")
    wait_for(consumer, lambda: active(consumer) == [2, 3], "those that nobody keeps open")
    locked.clear()
    wait_for(consumer, lambda: active(consumer) == [0, 1, 2, 3], "all of them")
