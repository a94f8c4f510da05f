"""Running the contenders: one process a run, in an order that changes from round to round."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.measure import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.contender import Run

_SCRIPT = Path(__file__).with_name("contender.py")

Item = TypeVar("Item")


class ContenderError(Exception):
    """A contender failed, or handled a wrong record; one line that names it."""


def orders(items: Sequence[Item], rounds: int) -> list[list[Item]]:
    """The items once a round, each round beginning with another one, so that none always runs first."""
    return [[*items[turn % len(items) :], *items[: turn % len(items)]] for turn in range(rounds)]


def run(spec: Run, records: int) -> Reading:
    """Run one contender to its end; raises `ContenderError` when it fails or its numbers are not the expected ones."""
    arguments = json.dumps(asdict(spec))
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise ContenderError(f"{spec.name} ended with status {done.returncode}: what it said is above")
    values = json.loads(done.stdout.splitlines()[-1])
    read, reading = values.pop("read"), Reading(**values)
    if read != records:
        raise ContenderError(
            f"{spec.name} stands at {read} of {records} records: an event was taken for a record"
        )
    return reading
