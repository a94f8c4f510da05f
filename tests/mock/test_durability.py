from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import ConfigurationError
from dedup_sdk._kafka.deliver import write_policy
from dedup_sdk._store.memory import MemoryPartition
from tests.support.consuming import poll_quiet, poll_some, progress, values

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._marks import Marks, Progress
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

KILLED = """
    import os, signal, sys, time
    from dedup_sdk import DedupConsumer, Lookup, Window, header

    bootstrap, store, durability = sys.argv[1:]
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
         "session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 60000, "log_level": 0},
        dedup=Lookup(id=header("dedup-id"), window=Window(days=7)), store=store, durability=durability,
    )
    consumer.subscribe(["orders"])
    handled = []
    while True:
        message = consumer.poll(1)
        if message is None or message.error() is not None:
            continue
        handled.append(message.value())
        if handled[-1] == b"03":
            consumer.commit(asynchronous=False)
        if handled[-1] == b"06":
            time.sleep(0.15)        # so long that the next call writes the batch so far
        if handled[-1] == b"09":
            print(b" ".join(handled).decode(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
"""
"""Handles 00 to 09, one by one: a commit while it has 03, a pause while it has 06, SIGKILL while it has 09."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("durability", "repeated"),
    [("record", ["09"]), ("batch", ["07", "08", "09"]), ("commit", ["04", "05", "06", "07", "08", "09"])],
)
def test_a_kill_repeats_what_was_not_written(
    make: Make, send: Send, kafka: MockKafka, tmp_path: Path, durability: str, repeated: list[str]
) -> None:
    """After SIGKILL on the same disk comes again: the message in hand; the last 100 ms; messages since the commit."""
    send(*(f"{number:02}" for number in range(10)))
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), kafka.bootstrap, str(tmp_path), durability],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout.split()) == (-9, [f"{number:02}" for number in range(10)])
    send("04", "09", "10")

    again = values(poll_quiet(make("orders", store=tmp_path)))

    assert again[-1] == "10"
    if durability == "batch":
        # A machine that is slow between two calls has more of the batch written.
        assert again[:-1] in (repeated, repeated[1:], repeated[2:])
    else:
        assert again[:-1] == repeated


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many marks each write of a store in memory brought."""
    real, counts = MemoryPartition.append, list[int]()

    def append(store: MemoryPartition, progress: Progress, marks: Marks) -> None:
        real(store, progress, marks)
        counts.append(marks.count)

    monkeypatch.setattr(MemoryPartition, "append", append)
    return counts


def test_a_write_amid_a_batch_leaves_the_rest_to_the_count(
    make: Make, send: Send, written: list[int]
) -> None:
    """At most 1,000 delivered messages are not in the store, also if a batch is written in two parts."""
    send(*map(str, range(3_000)))
    unwritten = 0
    for count, _ in enumerate(islice(make("orders"), 2_900), 1):
        unwritten = max(unwritten, count - sum(written))
        if count in (500, 1_400):
            time.sleep(0.15)  # so long that the next call writes the batch so far
    assert unwritten <= 1_000


def test_what_a_call_names_is_in_the_store_when_it_returns(
    make: Make, send: Send, written: list[int]
) -> None:
    """A few messages, and many in a row."""
    send(*map(str, range(100)))
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 100)
    for named, known in ((messages[:3], 3), (messages[3:], 100)):
        consumer.complete(*named)
        assert sum(written) == known


def test_with_commit_the_store_is_written_by_the_commit(make: Make, send: Send, written: list[int]) -> None:
    """Completed messages are in the store after a commit and not before; then a restart knows them."""
    send("a", "b", "c")
    consumer = make("orders", durability="commit", completion="explicit")
    for message in poll_some(consumer, 3):
        consumer.complete(message)
    before = sum(written)
    consumer.commit(asynchronous=False)

    assert (before, sum(written)) == (0, 3)


def test_with_commit_memory_is_bounded(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, written: list[int]
) -> None:
    """Marks that wait for a commit that does not come are written when they have become too many."""
    monkeypatch.setattr(write_policy, "MOST_UNWRITTEN", 10)
    send(*map(str, range(25)))
    consumer = make("orders", durability="commit", config={"auto.commit.interval.ms": 600_000})
    most, position = 0, None
    for _ in range(6):
        got: list[object] = []
        while len(got) < 5:
            got += consumer.consume(5 - len(got), 1)
            position, in_flight = progress(consumer)
            most = max(most, (position or 0) - in_flight - sum(written))
        if position == 25:
            break

    assert 5 <= most < 10


def test_another_durability_is_refused(make: Make) -> None:
    """The message names the value and the choices."""
    with pytest.raises(ConfigurationError, match="durability='fsync': choose record, batch or commit"):
        make("orders", durability="fsync")
