"""A fork: the child may not touch its parent's client or outbox, and harms neither, also when it ends in order."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.producer import DedupProducer, OutboxError
from tests.support.outboxes import make_producer, records, stored

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Collect the garbage of other tests where that may be done: clients of theirs may not be taken down in a child."""
    gc.collect()


def tried(producer: DedupProducer) -> str:
    """The errors that a child gets; it must send nothing."""
    told = []
    for call in (
        lambda: producer.produce("orders", b"child"),
        producer.persist,
        lambda: producer.poll(0),
        producer.flush,
    ):
        try:
            call()
        except OutboxError as error:
            told.append("before the fork" in str(error))
    producer.close()
    return f"{told}"


def test_a_child_is_refused_and_its_parent_goes_on(kafka: MockKafka, tmp_path: Path) -> None:
    """Every call says why; the child's end, with everything taken down, leaves the outbox as it is."""
    producer = make_producer(kafka.bootstrap, tmp_path / "outbox")
    kafka.set_broker_down()
    producer.produce("orders", b"1", dedup_id="a")
    producer.persist()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = "failed"
        try:
            told = tried(producer)
            # All that an interpreter does at its end with objects nobody needs any more.
            del producer
            gc.collect()
        finally:
            os.write(writing, told.encode())
            sys.stdout.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "[True, True, True, True]"
    assert os.waitpid(child, 0)[1] == 0
    producer.produce("orders", b"2", dedup_id="b")
    producer.persist()
    kafka.set_broker_up()
    assert producer.flush() == 0
    producer.close()
    # In any order: without a key the first one may wait for a topic that is not known yet.
    assert sorted(each.dedup_id or b"" for each in records(kafka.bootstrap, "orders")) == [b"a", b"b"]
    assert stored(tmp_path / "outbox") == []


def test_a_child_that_ends_as_programs_end_leaves_the_outbox_alone(kafka: MockKafka, tmp_path: Path) -> None:
    """With the interpreter's own end, in a program of its own.

    A message that the parent persists afterwards is still there when it is killed.
    """
    program = f"""
import os, sys
from dedup_sdk.producer import DedupProducer
producer = DedupProducer({{"bootstrap.servers": "127.0.0.1:9", "log_level": 0}}, outbox={str(tmp_path / "outbox")!r})
producer.produce("orders", b"1", dedup_id="a")
producer.persist()
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
producer.produce("orders", b"2", dedup_id="b")
producer.persist()
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert ended.returncode == -9
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        assert producer.counters.recovered == 2
        assert producer.flush() == 0
    assert [each.dedup_id for each in records(kafka.bootstrap, "orders")] == [b"a", b"b"]
