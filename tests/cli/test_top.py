"""``dedup top``: the store of a consumer, seen from another process."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk.testing import MockKafka
from tests.support.consuming import PATIENCE_S, make_consumer, poll_some

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup, WriteStore


def test_once_prints_a_line_a_partition(dedup: Dedup, write_store: WriteStore) -> None:
    """Offsets, size and time, without a broker; a rate needs two looks."""
    write_store("a", "b")
    store = write_store("c", partition=1)
    done = dedup("top", "--store", str(store), "--once")
    assert (done.status, done.stderr) == (0, "")
    head, first, second = (line.split() for line in done.stdout.splitlines())
    assert head[:3] == ["partition", "group", "completed"]
    assert first[:7] == ["orders[0]", "billing", "2", "0", "-", "2", "-"]
    assert second[:3] == ["orders[1]", "billing", "1"]
    assert first[-2:] == ["2023-11-14", "22:13:20Z"]


def test_beside_a_running_consumer_the_lag_is_that_of_the_group(dedup: Dedup, tmp_path: Path) -> None:
    """The consumer goes on; nothing of it is changed."""
    with MockKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for each in "abcde":
            producer.produce("orders", each, headers={"dedup-id": each}, partition=0)
        assert producer.flush(30) == 0
        with make_consumer(kafka.bootstrap, "billing", tmp_path / "dedup", completion="explicit") as consumer:
            consumer.subscribe(["orders"])
            for message in poll_some(consumer, 5)[:2]:
                consumer.complete(message)
            consumer.commit(asynchronous=False)
            where = ("--store", str(tmp_path / "dedup"), "--bootstrap", kafka.bootstrap)
            done = dedup("top", *where, "--json")
            assert (done.status, done.stderr) == (0, "")
            [found] = json.loads(done.stdout)["partitions"]
            assert [found[name] for name in ("group", "topic", "partition")] == ["billing", "orders", 0]
            assert [found[name] for name in ("completed", "above", "committed", "lag")] == [2, 0, 2, 3]
            assert consumer.health().ready


def test_a_broker_that_is_away_is_one_line(dedup: Dedup, write_store: WriteStore) -> None:
    """With the next step."""
    store = write_store("a")
    done = dedup("top", "--store", str(store), "--once", "--bootstrap", "127.0.0.1:1")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_store_is_refused(dedup: Dedup, tmp_path: Path) -> None:
    """As by the other commands."""
    done = dedup("top", "--store", str(tmp_path))
    assert done.status == 1
    assert "holds no key store" in done.stderr


@pytest.mark.slow
def test_the_screen_is_renewed_until_ctrl_c(write_store: WriteStore) -> None:
    """On a terminal; the rate follows with the second look."""
    store = write_store("a", "b")
    own, other = pty.openpty()
    command = [sys.executable, "-m", "dedup_sdk._cli", "top", "--store", str(store), "--every", "0.2"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
    os.close(other)
    seen, until = "", time.monotonic() + PATIENCE_S
    try:
        # The third look, of which the second has a rate.
        while len(re.findall(r"orders\[0\]", seen)) < 3:
            assert time.monotonic() < until, seen
            seen += os.read(own, 65_536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(own)
    assert re.search(r"orders\[0\] +billing +2 +0 +0 ", seen)
    assert "Traceback" not in seen
