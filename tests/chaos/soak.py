"""All of it at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.chaos.crew import Run
from tests.chaos.options import SESSION_MS
from tests.chaos.process_faults import again_and_again, freeze_one, kill_one, on_some_run
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

_SESSION_S: Final = SESSION_MS / 1000
_HOSTS: Final = 4


def _leave(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None:
        stage.leave(run)
        stage.about(1.0)
        stage.start(run.host)


def _stall(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None:
        stage.stall(
            run, stage.random.choice(["requests", "responses"]), stage.random.uniform(0.5, 2.5) * _SESSION_S
        )


def _lose_disk(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None and stage.disks == "own":
        stage.lose_disk(run)
        _start_again(stage, run)


def _start_again(stage: Stage, run: Run) -> None:
    if run.host not in {other.host for other in stage.crew.alive}:
        stage.start(run.host)


def _lose_partition(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None and stage.disks == "own":
        stage.lose_partition(run)
        _start_again(stage, run)


def _interrupt(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None and run.at_work:
        stage.interrupt(run, stage.random.uniform(0, 3.0))
        _start_again(stage, run)


def _damage(stage: Stage) -> None:
    run = stage.some_run()
    if run is not None and stage.disks == "own":
        stage.kill(run)
        stage.damage(run)
        stage.start(run.host)


def _restart_broker(stage: Stage) -> None:
    stage.restart_broker(stage.random.uniform(0, 2.0))


def _pause_broker(stage: Stage) -> None:
    stage.pause_broker(stage.random.uniform(1.0, 8.0))


_WEIGHTED: Final[dict[Callable[[Stage], None], int]] = {
    kill_one: 6,
    freeze_one: 3,
    _leave: 4,
    on_some_run(Stage.cut): 4,
    _stall: 2,
    _lose_disk: 2,
    _lose_partition: 2,
    _damage: 2,
    _interrupt: 3,
    _restart_broker: 1,
    _pause_broker: 1,
}


def _any_fault(stage: Stage) -> None:
    [fault] = stage.random.choices(list(_WEIGHTED), list(_WEIGHTED.values()))
    fault(stage)


SOAK: Final = Scenario(
    name="soak",
    summary="kills, interruptions, stops, rebalances, cuts, stalls, lost and damaged disks and broker failures "
    "at random",
    play=again_and_again(_any_fault, 1.5),
    broken="commit-past-a-gap",
    disks=None,
    proxied=True,
    hosts=_HOSTS,
    per_second=150.0,
    work_ms=8.0,
    recent_marks=1_000,
    short_s=30.0,
)
