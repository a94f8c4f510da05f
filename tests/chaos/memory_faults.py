"""The scenario of a memory that consumers of different partitions share.

They die and freeze, and so does the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.chaos.history import Away
from tests.chaos.memory import ANSWER_S, LEASE_S, Memory
from tests.chaos.process_faults import kill_one, on_some_run
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

ASKED_AGAIN_S: Final = 11.0
"""Within so many seconds every consumer has asked a memory again that answers."""
_FROZEN_S: Final = LEASE_S + 1.5
_SLOW_S: Final = LEASE_S + 1.5
_SILENT_S: Final = 2 * ANSWER_S
"""How long a memory stands still: every worker gives an answer up, and the last renewed lease is over."""


Fault = Callable[[Stage, Memory], None]


def _shared(stage: Stage) -> None:
    memory = stage.memory
    if memory is None:
        raise TypeError("this scenario is about a memory that workers share")
    faults: list[Fault] = [_kill, _zombie, _dawdle, _cut, _kill, _restart, _silence]
    while True:
        # Each of them comes in every round, however short the play is.
        for fault in stage.random.sample(faults, len(faults)):
            stage.await_work()
            fault(stage, memory)
            stage.about(1.0)
        if stage.left_s <= 0:
            return


def _kill(stage: Stage, _: Memory) -> None:
    kill_one(stage)


def _zombie(stage: Stage, _: Memory) -> None:
    on_some_run(lambda stage, run: stage.freeze(run, _FROZEN_S))(stage)


def _dawdle(stage: Stage, _: Memory) -> None:
    # One that has just been started knows no signals yet, and would die of this one.
    on_some_run(lambda stage, run: stage.dawdle(run, _SLOW_S), at_work=True)(stage)


def _cut(stage: Stage, memory: Memory) -> None:
    memory.cut()
    stage.faults["memory-cut"] += 1


def _restart(stage: Stage, memory: Memory) -> None:
    at_ns = time.monotonic_ns()
    memory.kill()
    stage.about(1.0)
    memory.start()
    stage.faults["memory-restart"] += 1
    _excuse(stage, at_ns)


def _silence(stage: Stage, memory: Memory) -> None:
    at_ns = time.monotonic_ns()
    memory.pause()
    try:
        stage.sleep(_SILENT_S)
    finally:
        # PostgreSQL is that of other scenarios, too.
        memory.resume()
    stage.faults["memory-silent"] += 1
    _excuse(stage, at_ns)


def _excuse(stage: Stage, at_ns: int) -> None:
    """Note that the memory was away since then, and is back."""
    until_ns = time.monotonic_ns() + round(ASKED_AGAIN_S * 1e9)
    stage.excuses.append(Away(at_ns=at_ns, until_ns=until_ns))


SHARED: Final = Scenario(
    name="shared",
    summary="partitions share a memory in Redis: workers are killed, stopped, and busy for longer than a lease; "
    "Redis is killed and stopped, connections to it are cut",
    play=_shared,
    broken="mark-at-claim",
    memory="redis",
    per_second=240.0,
    slow_s=_SLOW_S,
    short_s=30.0,
)

SHARED_SQL: Final = replace(
    SHARED,
    name="shared-sql",
    summary="`shared` with a memory in PostgreSQL",
    memory="postgresql",
    per_second=150.0,
    work_ms=12.0,
)
