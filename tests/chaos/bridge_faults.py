"""The scenario in which the workers' messages come by bridges, and these die."""

from __future__ import annotations

import signal
from typing import Final

from tests.chaos.bridged_sender import BRIDGES, BridgedSender, half_nameless
from tests.chaos.options import SESSION_MS
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

_FROZEN_S: Final = 1.5 * SESSION_MS / 1_000
_FAULTS: Final = ("kill", "kill", "cut", "freeze", "kill", "cut")
_AT_WORK_S: Final = 15.0


def _bridge(stage: Stage) -> None:
    sender = stage.sender
    if not isinstance(sender, BridgedSender):
        raise TypeError("this scenario is about bridges of its sender")
    turn = 0
    while stage.left_s > 0:
        _await_work(stage, sender)
        stage.about(0.2)
        fault, number = _FAULTS[turn % len(_FAULTS)], stage.random.randrange(BRIDGES)
        turn += 1
        if fault == "cut":
            stage.bed.consumers[number].cut_now()
        elif fault == "freeze":
            sender.signal_bridge(number, signal.SIGSTOP)
            stage.sleep(_FROZEN_S)
            sender.signal_bridge(number, signal.SIGCONT)
        else:
            sender.kill_bridge(number)
            stage.about(0.1)
            sender.start_bridge(number)
        stage.faults[f"bridge-{fault}"] += 1
        stage.faults["bridge-ended"] += sender.lift_fallen()


def _await_work(stage: Stage, sender: BridgedSender) -> None:
    """Let the bridges copy something; go on after a while also when they do not."""
    before, waited_s = sender.copied(), 0.0
    while sender.copied() <= before and waited_s < _AT_WORK_S:
        stage.sleep(0.1)
        waited_s += 0.1


BRIDGE: Final = Scenario(
    name="bridge",
    summary="messages come by two bridges, which are killed (SIGKILL), stopped and cut off",
    play=_bridge,
    broken="offsets-before-the-copy",
    bridged=True,
    recipe=half_nameless,
    short_s=20.0,
)
