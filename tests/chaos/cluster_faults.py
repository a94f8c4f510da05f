"""Scenarios in which the broker, the network or the disks fail."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from tests.chaos.bad_disk import DISK_FAULTS
from tests.chaos.crew import Run
from tests.chaos.options import SESSION_MS
from tests.chaos.process_faults import again_and_again, kill_and_start, on_some_run
from tests.chaos.scenario import Scenario
from tests.chaos.sender import repeating
from tests.chaos.stage import Stage

_SESSION_S: Final = SESSION_MS / 1000
_LONGEST_PAUSE_S: Final = 20.0
_LEAST_ROUNDS: Final = 2
_SHARE_OF_ALL: Final = 0.3
_SHARE_KILLED: Final = 0.4
_REFUSED: Final = ("stay in memory until", "waits for its store")


def _broker(stage: Stage) -> None:
    pauses = False
    while stage.left_s > 0:
        if pauses:
            stage.pause_broker(min(_LONGEST_PAUSE_S, max(2.0, stage.choice.seconds / 3)))
        else:
            stage.restart_broker(stage.random.uniform(0, 1.5))
        pauses = not pauses
        stage.about(1.0)


def _network(stage: Stage) -> None:
    stalls = 0
    while stage.left_s > 0:
        run = stage.some_run()
        if run is not None:
            for _ in range(stage.random.randint(1, 3)):
                stage.cut(run)
                stage.about(0.3)
            stage.stall(run, "responses" if stalls % 2 else "requests", 2.0 * _SESSION_S)
            stalls += 1
        stage.about(1.0)


def _store_deleted(stage: Stage) -> None:
    alive = False
    while stage.left_s > 0:
        run = stage.some_run()
        if run is not None:
            if alive:
                stage.lose_disk(run)
            else:
                stage.kill(run)
                stage.delete_store(run)
            alive = not alive
            if run.host not in {other.host for other in stage.crew.alive}:
                stage.start(run.host)
        stage.about(2.0)


def _corruption(stage: Stage) -> None:
    stage.await_work()
    rounds = 0
    while rounds < _LEAST_ROUNDS or stage.left_s > 0:
        # All of them, so that most partitions come to a disk that has a damaged store of theirs.
        fallen = stage.crew.alive
        for run in fallen:
            stage.kill(run)
            stage.damage_all(run)
        for run in fallen:
            stage.start(run.host)
        stage.await_work()
        stage.about(1.0)
        rounds += 1


def _fill_the_disk(stage: Stage, run: Run) -> None:
    with stage.full_disk(run):
        stage.about(3.0)


def _bad_disk(stage: Stage) -> None:
    faults = stage.random.sample(DISK_FAULTS, len(DISK_FAULTS))
    rounds = 0
    while rounds < _LEAST_ROUNDS or stage.left_s > 0:
        stage.await_work()
        at_work = [run for run in stage.crew.alive if run.at_work] or stage.crew.alive
        chosen = at_work if stage.random.random() < _SHARE_OF_ALL else [stage.random.choice(at_work)]
        failing = list({run.store: run for run in chosen}.values())
        with ExitStack() as bad:
            for run in failing:
                bad.enter_context(stage.bad_disk(run, faults[rounds % len(faults)]))
            stage.about(1.5)
            if stage.random.random() < _SHARE_KILLED:
                # Its successor begins on a disk that fails.
                kill_and_start(stage, failing[0], 0.1)
                stage.about(2.0)
        if not failing[0].over:
            stage.about(0.5)
            # It had unwritten marks in memory, and should have written them by now.
            kill_and_start(stage, failing[0], 0.1)
        rounds += 1
    told = [line.text for run in stage.crew.runs for line in run.lines()]
    stage.faults["store-refused"] += sum(any(sign in text for sign in _REFUSED) for text in told)


BROKER: Final = Scenario(
    name="broker",
    summary="the broker is killed (SIGKILL) and started again, and stopped (SIGSTOP) for a while",
    play=_broker,
    broken="commit-past-a-gap",
    mode="workers",
    short_s=18.0,
)
NETWORK: Final = Scenario(
    name="network",
    summary="connections of single workers are cut, or stalled one way for longer than the group waits",
    play=_network,
    broken="go-on-where-it-was",
    mode="run",
    proxied=True,
)
STORE_DELETED: Final = Scenario(
    name="store-deleted",
    summary="the stores of a worker are deleted, while it runs or when it is dead",
    play=_store_deleted,
    broken="skip-tail-replay",
    mode="consume",
    recent_marks=300,
)
CORRUPTION: Final = Scenario(
    name="corruption",
    summary="all workers are killed, and bytes are flipped in the files of each of their stores",
    play=_corruption,
    broken="empty-after-damage",
    hosts=2,
    per_second=200.0,
    recent_marks=150,
    recipe=repeating,
)
BAD_DISK: Final = Scenario(
    name="bad-disk",
    summary="disks fail for a while, some or all calls, with EIO or EROFS; workers are killed then, and after it",
    play=_bad_disk,
    broken="believe-a-failed-write",
    disks=None,
    recent_marks=600,
    bad_disks=True,
    enduring=True,
    per_second=250.0,
    work_ms=6.0,
    short_s=20.0,
    recipe=repeating,
)
DISK_FULL: Final = Scenario(
    name="disk-full",
    summary="the disk of a worker has no room for a while",
    play=again_and_again(on_some_run(_fill_the_disk), 2.0),
    broken="forget-what-was-refused",
    recent_marks=600,
    mode="workers",
    small_disks=True,
)
DISK_FULL_UNVERIFIED: Final = Scenario(
    name="disk-full-unverified",
    summary='the same with `Recovery(on_full_disk="unverified")`: messages go on meanwhile',
    play=again_and_again(on_some_run(_fill_the_disk), 2.0),
    broken="trim-without-room",
    recent_marks=300,
    mode="workers",
    small_disks=True,
    on_full_disk="unverified",
)
