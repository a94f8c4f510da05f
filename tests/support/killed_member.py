"""A member of a group in a process of its own that completes some messages and is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.worlds import World

_PATIENCE_S = 120
_PROGRAM = """
    import os, signal, sys
    from dedup_adapters import artemis, hornetq, solace
    from dedup_sdk import DedupConsumer, LastId, Lookup, Window, header

    bootstrap, group, topic, store, completion, count, commits, failing = sys.argv[1:]
    consumer = DedupConsumer(
        {{"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "session.timeout.ms": 2000, "heartbeat.interval.ms": 200, "auto.commit.interval.ms": 60000}},
        dedup={dedup}, store=store, completion=completion,
    )
    consumer.subscribe([topic])
    for _ in range(int(count)):
        message = None
        while message is None or message.error() is not None:
            message = consumer.poll(1)
        if message.value().decode() != failing:
            consumer.complete(message)
        print(message.value().decode(), flush=True)
    if commits == "yes":
        consumer.commit(asynchronous=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def completed_before_a_kill(
    world: World,
    dedup: str,
    count: int,
    *,
    commits: str = "no",
    completion: str = "explicit",
    failing: str = "",
) -> list[str]:
    """Have a member on the disk "same" get so many messages, complete them, and be killed; return their values.

    Args:
        world: where it is.
        dedup: its strategy, as source text over `LastId`, `Lookup`, `Window`, `header` and the adapters.
        count: of messages.
        commits: "yes" has it commit before the kill.
        completion: as of `DedupConsumer`.
        failing: the value of the message that it does not complete.
    """
    program = textwrap.dedent(_PROGRAM.format(dedup=dedup))
    where = [world.bootstrap, world.group, world.topic, str(world.disk("same"))]
    ended = subprocess.run(
        [sys.executable, "-c", program, *where, completion, str(count), commits, failing],
        check=False,
        timeout=_PATIENCE_S,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return ended.stdout.split()
