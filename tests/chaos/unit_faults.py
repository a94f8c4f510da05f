"""The scenario in which records belong to units that stand or fall together."""

from __future__ import annotations

import random
from typing import Final

from tests.chaos.options import ID_HEADER, REJECTED_HEADER, UNIT_HEADER
from tests.chaos.process_faults import kill_one
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage
from tests.support.producing import Outgoing

_PARTITIONS: Final = 6
_SPAN: Final = 6
_FOURTH: Final = 3
"""A host beside those that are there from the beginning."""


def in_units(number: int, _chosen: random.Random) -> list[Outgoing]:
    """Two units that overlap, a record between them, and a unit that is rejected.

    Of its two IDs one is known, and the other comes by itself after it.
    """
    records = [
        ("x", "u"), ("p", "v"), ("s", ""), ("y", "u"), ("q", "v."), ("z", "u."), ("z", "w"), ("n", "w."), ("n", "")
    ]  # fmt: skip
    return [_record(number, ident, unit) for ident, unit in records]


def _record(number: int, ident: str, unit: str) -> Outgoing:
    name = b"%d-%s" % (number, ident.encode())
    headers: dict[str, bytes | None] = {ID_HEADER: b"id-" + name}
    if unit:
        headers[UNIT_HEADER] = b"%d-%s" % (number, unit[0].encode())
    if unit.endswith("."):
        headers[f"{UNIT_HEADER}-end"] = b""
    if unit.startswith("w"):
        headers[REJECTED_HEADER] = b""
    return Outgoing(value=name, headers=headers, partition=number % _PARTITIONS)


def _units(stage: Stage) -> None:
    while stage.left_s > 0:
        kill_one(stage)
        stage.about(0.5)
        fleeting = stage.start(_FOURTH)
        stage.faults["join"] += 1
        stage.about(1.0)
        stage.leave(fleeting)


UNITS: Final = Scenario(
    name="units",
    summary="records belong to units, some of which are rejected; workers are killed, and others join and leave",
    play=_units,
    broken="remember-what-was-rejected",
    disks="shared",
    partitions=_PARTITIONS,
    per_second=35.0,
    work_ms=4.0,
    recipe=in_units,
    unit_span=_SPAN,
)
