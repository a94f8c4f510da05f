"""The scenario in which an operator moves the group with every tool's habits."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, Literal

from dedup_sdk._admin.group_offsets import GroupOffsets
from dedup_sdk._admin.rewind import Target, commits_of, plan_moves
from dedup_sdk.errors import RecoveryError
from tests.chaos.group_offsets import (
    PATIENCE_S,
    Stand,
    await_committed,
    ends,
    send_apart,
    set_stands,
    stands,
    start_all,
)
from tests.chaos.history import Forget, Rewind, Skip
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

logger = logging.getLogger("chaos")

_APART: Final = 60
_BACK: Final = 60
_SENT_S: Final = 1.0
_WAIT_S: Final = 3.0
_LEAST_ROUNDS: Final = 3

Habit = Literal["forward-text-kept", "forward", "back-text-kept", "back", "older-commit", "dedup-rewind"]
_HABITS: Final[tuple[Habit, ...]] = (
    "forward-text-kept", "forward", "back-text-kept", "back", "older-commit", "dedup-rewind"
)  # fmt: skip


def _operator(stage: Stage) -> None:
    """Stop all, move every partition in another way, and start all; then the messages jumped over are sent again."""
    stage.await_work()
    while len(older := stands(stage)) < stage.watch.partitions:
        stage.sleep(0.2)
    rounds = 0
    while rounds < _LEAST_ROUNDS or stage.left_s > 0:
        noted = stands(stage)
        stop_somehow(stage)
        idents = [b"operator-%d-%d" % (rounds, number) for number in range(_APART)]
        send_apart(stage, idents)
        stage.sleep(_SENT_S)
        _move(stage, older)
        start_all(stage)
        # Their partitions are taken, and the first messages behind a jump are handled by then.
        stage.sleep(_WAIT_S)
        send_apart(stage, idents)
        per_second = stage.sender.pause()
        await_committed(stage)
        stage.sender.resume(per_second)
        older, rounds = noted, rounds + 1


def stop_somehow(stage: Stage) -> None:
    """End all workers, in order or by SIGKILL, which leaves more in their stores than the group has committed.

    Some lose their disk.
    """
    if stage.random.random() < 0.5:
        stage.stop_all()
        return
    for run in stage.crew.alive:
        stage.kill(run)
    if stage.disks == "own" and stage.random.random() < 0.5:
        stage.delete_store(stage.random.choice(stage.crew.runs[-3:]))


def _move(stage: Stage, older: Mapping[int, Stand]) -> None:
    """Move each partition by one of the habits; ``older``: commits that somebody has noted a while ago."""
    now, to = stands(stage), ends(stage)
    habits = stage.random.sample(_HABITS, len(_HABITS))
    wanted: dict[int, Stand] = {}
    by_tool: dict[int, int] = {}
    for partition, (offset, text) in now.items():
        habit = habits[partition % len(habits)]
        ahead, behind = to[partition], offset - stage.random.randint(0, min(offset, _BACK))
        if habit == "dedup-rewind":
            by_tool[partition] = stage.random.choice([ahead, behind])
        else:
            wanted[partition] = {
                "forward-text-kept": (ahead, text),
                "forward": (ahead, ""),
                "back-text-kept": (behind, text),
                "back": (behind, ""),
                "older-commit": older.get(partition, (behind, text)),
            }[habit]
        logger.info("%s: partition %d at %d, the log ends at %d", habit, partition, offset, ahead)
        stage.faults[habit] += 1
    set_stands(stage, wanted)
    for partition, offset in by_tool.items():
        _rewind(stage, partition, offset)
    logger.info("moved to %s", stands(stage))
    for partition, offset in {**{each: stand[0] for each, stand in wanted.items()}, **by_tool}.items():
        _note(stage, partition, now[partition][0], offset, end=to[partition])


def _rewind(stage: Stage, partition: int, offset: int) -> None:
    """Rewind like ``dedup rewind``, once it sees that no member is left."""
    deadline = time.monotonic() + PATIENCE_S
    with closing(GroupOffsets(stage.bed.kafka.bootstrap, stage.topic, stage.topic)) as tool:
        while True:
            try:
                tool.commit(commits_of(plan_moves(tool, Target(offset=offset), [partition])))
            except RecoveryError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


def _note(stage: Stage, partition: int, before: int, offset: int, *, end: int) -> None:
    """Tell the oracle of a move: the messages that need not be handled, and those that may be handled again."""
    stage.excuses.append(Forget(partition=partition, offset=offset))
    if offset > before:
        stage.skips.append(Skip(partition=partition, low=before, high=offset))
        return
    stage.excuses.append(Rewind(partition=partition, low=offset, high=end))
    for skip in [each for each in stage.skips if each.partition == partition and offset < each.high]:
        stage.skips.remove(skip)
        if skip.low < offset:
            stage.skips.append(replace(skip, high=offset))
        stage.skips.append(replace(skip, low=max(skip.low, offset), taken_back=True))


OPERATOR: Final = Scenario(
    name="operator",
    summary="the group is moved back and forward by every tool's habits: texts kept, lost, of an older commit; "
    "dedup rewind",
    play=_operator,
    broken="believe-any-text",
    disks=None,
    per_second=60.0,
    work_ms=2.0,
    short_s=25.0,
)
