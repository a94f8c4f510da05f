"""Scenarios in which workers die, freeze, come and go, or take too long."""

from __future__ import annotations

from typing import Final

from tests.chaos.crew import Run
from tests.chaos.options import SESSION_MS
from tests.chaos.scenario import Scenario
from tests.chaos.sender import repeating
from tests.chaos.stage import Stage

_SESSION_S: Final = SESSION_MS / 1000
_MAX_POLL_S: Final = 3.0


def kill_and_start(stage: Stage, run: Run, down_s: float) -> None:
    """SIGKILL, and another one on the same host after about so many seconds."""
    stage.kill(run)
    stage.about(down_s)
    stage.start(run.host)


def _kill(stage: Stage) -> None:
    while stage.left_s > 0:
        run = stage.some_run()
        if run is not None:
            kill_and_start(stage, run, 0.5)
        stage.about(1.0)


def _zombie(stage: Stage) -> None:
    while stage.left_s > 0:
        run = stage.some_run()
        if run is not None:
            stage.freeze(run, 1.5 * _SESSION_S + 1.0)
        stage.about(1.5)


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


def _slow(stage: Stage) -> None:
    while stage.left_s > 0:
        run = stage.some_run(at_work=True)
        if run is not None:
            stage.slow(run, 2.0 * _MAX_POLL_S)
        stage.about(1.0)


KILL: Final = Scenario(
    name="kill",
    summary="workers are killed (SIGKILL) at random moments and started again",
    play=_kill,
    broken="mark-before-complete",
    disks=None,
)
ZOMBIE: Final = Scenario(
    name="zombie",
    summary="workers are stopped (SIGSTOP) for longer than the group waits, then go on",
    play=_zombie,
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
    play=_slow,
    broken="ignore-lost",
    slow_s=1.6 * _MAX_POLL_S,
    max_poll_ms=round(_MAX_POLL_S * 1000),
)
