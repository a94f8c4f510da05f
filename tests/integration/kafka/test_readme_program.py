"""README's own program, as it stands there, under SIGTERM."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.consuming import PATIENCE_S, numbers
from tests.support.producing import with_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.brokers import Broker
    from tests.support.producing import Outgoing

README = Path(__file__).parents[3] / "README.md"
HANDLED_FIRST = 1_000
MOST_PAUSE_S = 20.0
"""A limit on the time from the signal to the next message, without the start of an interpreter.

It takes a second; if the program does not leave its group, the next one waits for the end of a session, 45 s."""
CHARGE = """
import time

from dedup_sdk import DedupConsumer, Lookup

def charge(message):
    time.sleep(0.002)
    print(message.value().decode(), time.time(), flush=True)

print("begins", time.time(), flush=True)
"""


def test_the_program_of_the_readme_doubles_nothing_when_it_is_terminated(
    *,
    broker: Broker,
    topic: str,
    group: str,
    tmp_path: Path,
    produce: Callable[[str, Iterable[Outgoing]], int],
    record_property: Callable[[str, object], None],
) -> None:
    """SIGTERM in the middle of its loop: the next process goes on within seconds, and no message comes twice.

    The handler takes 2 ms, so that the signal comes while most of the messages are still to be handled.
    """
    sent = numbers(0, 3_000)
    for partition in range(4):
        produce(topic, with_ids(*sent[partition::4], partition=partition))
    program = program_of_readme(broker.bootstrap, topic, group, tmp_path / "store")
    first = run_until(program, HANDLED_FIRST)
    second = run_until(program, len(sent) - len(first.handled))
    assert sorted([*first.handled, *second.handled], key=int) == sent
    next_at = min(second.handled.values())
    pause_s = (first.ended_at - first.terminated_at) + (next_at - second.began_at)
    record_property("pause_s", pause_s)
    assert pause_s < MOST_PAUSE_S


class Run(NamedTuple):
    """A run of the program: value -> when its message was handled; when it began, was terminated, and ended."""

    handled: dict[str, float]
    began_at: float
    terminated_at: float
    ended_at: float


def program_of_readme(bootstrap: str, topic: str, group: str, store: Path) -> str:
    """Return the program, with a handler in front, and the names of this test in place of the example's."""
    found = re.search(
        r"```python\n(from dedup_sdk import DedupConsumer.*?)```", README.read_text(), re.DOTALL
    )
    assert found is not None
    program = found[1]
    for example, ours in (
        ("localhost:9092", bootstrap),
        ('"orders"', repr(topic)),
        ('"billing"', repr(group)),
        ("var/dedup", str(store)),
    ):
        assert program.count(example) == 1, example
        program = program.replace(example, ours)
    return CHARGE + program


def run_until(program: str, count: int) -> Run:
    """Run the program, and terminate it after so many messages, of which none may come twice."""
    handled: dict[str, float] = {}
    terminated_at = 0.0
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        began_at = float(running.stdout.readline().removeprefix("begins "))
        for line in running.stdout:
            if not line.endswith("\n"):
                break  # ended in the middle of a line, so not in order
            value, at = line.split()
            assert value not in handled
            handled[value] = float(at)
            if len(handled) >= count and not terminated_at:
                terminated_at = time.time()
                running.terminate()
        assert running.wait(PATIENCE_S) == 0, running.stderr and running.stderr.read()
    return Run(handled, began_at, terminated_at, time.time())
