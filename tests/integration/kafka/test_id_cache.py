"""The caches of Artemis and HornetQ on a real broker, through a kill and two starts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from dedup_adapters import artemis, hornetq
from dedup_sdk import header
from tests.support.consuming import poll_quiet, values

if TYPE_CHECKING:
    from types import ModuleType

    from tests.support.worlds import World

KILLED = """
    import os, signal, sys
    from dedup_adapters import artemis, hornetq
    from dedup_sdk import DedupConsumer, header

    bootstrap, group, topic, store, broker, count, commits = sys.argv[1:]
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "session.timeout.ms": 2000, "heartbeat.interval.ms": 200, "auto.commit.interval.ms": 60000},
        dedup={"artemis": artemis, "hornetq": hornetq}[broker].duplicate_detection(id_cache_size=3, id=header("dedup-id")),
        store=store, completion="explicit",
    )
    consumer.subscribe([topic])
    for _ in range(int(count)):
        message = None
        while message is None or message.error() is not None:
            message = consumer.poll(1)
        consumer.complete(message)
        print(message.value().decode(), flush=True)
    if commits == "yes":
        consumer.commit(asynchronous=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("system", [artemis, hornetq], ids=["artemis", "hornetq"])
@pytest.mark.parametrize(("disk", "commits"), [("same", "no"), ("lost", "no"), ("lost", "yes")])
def test_a_ring_outlives_a_kill(world: World, system: ModuleType, disk: str, commits: str) -> None:
    """On the same disk it is as the broker's would be, in order; without a disk it is folded from what was committed, and all else comes again.

    By hand, with a ring of three: a b c fill it, a and c are found, d takes the slot of a. Killed there, the ring is b c d: a is new and takes the slot
    of b, c is found, b is new and takes the slot of c, d is found, c is new and takes the slot of d.
    """
    world.send(*"abcacd")
    arguments = [
        world.bootstrap,
        world.group,
        world.topic,
        str(world.disk("same")),
        system.__name__.split(".")[1],
        "4",
        commits,
    ]
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), *arguments],
        check=False, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.stdout.split(), ended.returncode) == (["a", "b", "c", "d"], -9), ended.stderr
    assert world.committed().offset in ((6,) if commits == "yes" else (0, 6))

    world.send(*"acbdc")
    dedup = system.duplicate_detection(id_cache_size=3, id=header("dedup-id"))
    with world.consumer(disk, dedup=dedup) as consumer:
        got = values(poll_quiet(consumer))
        unverified = consumer.counters.verdicts["unverified"]
    # Where nothing was committed but where the history begins, the group handles all again without its disk.
    known = disk == "same" or commits == "yes"
    assert got == (["a", "b", "c"] if known else [*"abcd", "a", "b", "c"])
    assert unverified == 0
    world.send("b", "a", "c", "d")
    with world.consumer(disk, dedup=dedup) as consumer:
        assert values(poll_quiet(consumer)) == ["d"]
        assert consumer.counters.verdicts["duplicate"] == 3
