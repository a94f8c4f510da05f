"""Scenarios in which workers die, freeze, come and go, or take too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.chaos.crew import Run
from tests.chaos.options import SESSION_MS
from tests.chaos.scenario import Scenario
from tests.chaos.sender import repeating
from tests.chaos.stage import Stage

FROZEN_S: Final = 1.5 * SESSION_MS / 1000 + 1.0
"""The group has given a worker up that stood still for so long."""
Fault = Callable[[Stage], None]
_MAX_POLL_S: Final = 3.0


def kill_and_start(stage: Stage, run: Run, down_s: float) -> None:
    """SIGKILL, and another one on the same host after about so many seconds."""
    stage.kill(run)
    stage.about(down_s)
    stage.start(run.host)


def start_on_an_empty_disk(stage: Stage, run: Run) -> None:
    """SIGKILL, and another one on the same host at once, whose disk is lost."""
    stage.kill(run)
    stage.delete_store(run)
    stage.start(run.host)


def on_some_run(fault: Callable[[Stage, Run], None], *, at_work: bool = False) -> Fault:
    """Return a fault that meets one of the living workers, if there is one; ``at_work``: that has partitions."""

    def strike(stage: Stage) -> None:
        run = stage.some_run(at_work=at_work)
        if run is not None:
            fault(stage, run)

    return strike


kill_one: Final = on_some_run(lambda stage, run: kill_and_start(stage, run, 0.5))
freeze_one: Final = on_some_run(lambda stage, run: stage.freeze(run, FROZEN_S))
_slow_one: Final = on_some_run(lambda stage, run: stage.slow(run, 2.0 * _MAX_POLL_S), at_work=True)


def again_and_again(fault: Fault, pause_s: float) -> Callable[[Stage], None]:
    """Return a play: the fault, and about so many seconds without, until the time is up."""

    def play(stage: Stage) -> None:
        while stage.left_s > 0:
            fault(stage)
            stage.about(pause_s)

    return play


def _storm(stage: Stage) -> None:
    # Beside one that stays.
    fleeting = [run for run in stage.crew.alive if run.host > 0]
    while stage.left_s > 0:
        stage.leave(fleeting.pop(0))
        stage.about(0.5)
        host = (fleeting[-1].host if fleeting else 0) % 4 + 1
        fleeting.append(stage.start(host))
        stage.faults["join"] += 1
        stage.about(1.0)


KILL: Final = Scenario(
    name="kill",
    summary="workers are killed (SIGKILL) at random moments and started again",
    play=again_and_again(kill_one, 1.0),
    broken="mark-before-complete",
    disks=None,
)
ZOMBIE: Final = Scenario(
    name="zombie",
    summary="workers are stopped (SIGSTOP) for longer than the group waits, then go on",
    play=again_and_again(freeze_one, 1.5),
    broken="skip-tail-replay",
    recipe=repeating,
)
STORM: Final = Scenario(
    name="storm",
    summary="members join and leave all the time, in order: that doubles nothing",
    play=_storm,
    broken="revoke-without-commit",
)
SLOW_HANDLER: Final = Scenario(
    name="slow-handler",
    summary="a handler takes longer than max.poll.interval.ms",
    play=again_and_again(_slow_one, 1.0),
    broken="ignore-lost",
    slow_s=1.6 * _MAX_POLL_S,
    max_poll_ms=round(_MAX_POLL_S * 1000),
)
