"""The scenario in which messages are copied in transactions: each is there exactly once, whatever fails."""

from __future__ import annotations

from typing import Final

from tests.chaos.options import SESSION_MS
from tests.chaos.process_faults import FROZEN_S, kill_and_start, start_on_an_empty_disk
from tests.chaos.scenario import Scenario
from tests.chaos.sender import repeating
from tests.chaos.stage import Stage

_FAULTS: Final = (
    "kill", "freeze", "wipe", "cut", "leave", "kill", "broker", "stall", "wipe", "freeze", "kill", "cut", "pause",
)  # fmt: skip
_PAUSED_S: Final = 1.0 * SESSION_MS / 1000
_STALLED_S: Final = 2.0 * SESSION_MS / 1000
_AT_WORK_BYTES: Final = 1_000
"""Bytes written of some ten calls."""


def _exactly_once(stage: Stage) -> None:
    turn = stage.choice.seed
    while stage.left_s > 0:
        stage.await_work(_AT_WORK_BYTES)
        stage.about(0.2)
        fault, run = _FAULTS[turn % len(_FAULTS)], stage.some_run(at_work=True)
        turn += 1
        if fault == "broker":
            # Also the coordinators of the group and of the transactions: they load their logs again.
            stage.restart_broker(0.5)
        elif fault == "pause":
            # A coordinator that hangs, for all workers.
            stage.pause_broker(_PAUSED_S)
        elif run is None:
            continue
        elif fault == "kill" and stage.choice.seed % 2:
            kill_and_start(stage, run, 0.2)
        elif fault in {"kill", "wipe"}:
            start_on_an_empty_disk(stage, run)
        elif fault == "freeze":
            stage.freeze(run, FROZEN_S)
        elif fault == "cut":
            stage.cut(run)
        elif fault == "stall":
            stage.stall(run, "requests" if turn % 2 else "responses", _STALLED_S)
        else:
            stage.leave(run)
            stage.start(run.host)


EXACTLY_ONCE: Final = Scenario(
    name="exactly-once",
    summary="messages are copied in transactions; workers are killed, stopped, cut off, stalled, and lose their disks "
    "(where the seed is even at every kill), the broker is killed and stopped",
    play=_exactly_once,
    broken="mark-before-the-transaction",
    also_broken=("offsets-outside-the-transaction", "late-group-metadata"),
    mode="transactions",
    output=True,
    proxied=True,
    recipe=repeating,
    per_second=150.0,
    work_ms=4.0,
    short_s=25.0,
)
