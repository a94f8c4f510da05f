"""The scenario in which the producer dies, and the next one sends again the messages on its disk."""

from __future__ import annotations

from typing import Final

from tests.chaos.outbox_sender import OutboxSender
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage

_KILL_SHARE: Final = 0.75


def _outbox(stage: Stage) -> None:
    sender = stage.sender
    if not isinstance(sender, OutboxSender):
        raise TypeError("this scenario is about the outbox of its sender")
    while stage.left_s > 0:
        sender.await_work()
        stage.about(0.5)
        if not stage.faults or stage.random.random() < _KILL_SHARE:
            sender.kill()
            stage.faults["producer-kill"] += 1
            stage.about(0.1)
            sender.start()
        else:
            sender.freeze()
            stage.faults["producer-freeze"] += 1
            stage.about(0.5)
            sender.thaw()


OUTBOX: Final = Scenario(
    name="outbox",
    summary="the producer is killed (SIGKILL) and stopped, and started again on its outbox",
    play=_outbox,
    broken="send-before-persist",
    outbox=True,
)
