"""Scenarios in which the work lives in the user's database, by the inbox: exactly once, whatever dies."""

from __future__ import annotations

import random
from typing import Final

from tests.chaos.process_faults import FROZEN_S, kill_and_start
from tests.chaos.scenario import Scenario
from tests.chaos.sender import plain
from tests.chaos.stage import Stage
from tests.support.producing import Outgoing

_DOWN_S: Final = 1.0
_FAULTS: Final = ("kill", "cut", "restart", "freeze", "kill", "cut")
_NAMELESS: Final = 10
_AT_WORK_BYTES: Final = 500
"""Bytes written of some five calls."""


def sometimes_nameless(number: int, chosen: random.Random) -> Outgoing:
    """Every tenth message without an ID: only its offset tells that it was handled."""
    message = plain(number, chosen)
    return Outgoing(key=message.key, value=message.value) if number % _NAMELESS == 0 else message


def _inbox(stage: Stage) -> None:
    turn = 0
    while stage.left_s > 0:
        stage.await_work(_AT_WORK_BYTES)
        stage.about(0.2)
        fault, run = _FAULTS[turn % len(_FAULTS)], stage.some_run()
        turn += 1
        if fault == "cut":
            stage.cut_database()
        elif fault == "restart":
            stage.restart_database(_DOWN_S)
        elif run is not None and fault == "freeze":
            stage.freeze(run, FROZEN_S)
        elif run is not None:
            kill_and_start(stage, run, 0.3)


INBOX: Final = Scenario(
    name="inbox",
    summary="work in PostgreSQL with `Inbox`; workers are killed and stopped, the database is killed, "
    "connections are cut",
    play=_inbox,
    broken="id-apart",
    mode="inbox",
    database=True,
    per_second=60.0,
    work_ms=25.0,
    short_s=15.0,
)
INBOX_OFFSETS: Final = Scenario(
    name="inbox-offsets",
    summary="the same with `KeptOffsets`, and messages without an ID",
    play=_inbox,
    broken="id-apart",
    mode="inbox",
    database=True,
    kept_offsets=True,
    recipe=sometimes_nameless,
    per_second=60.0,
    work_ms=25.0,
    short_s=15.0,
)
