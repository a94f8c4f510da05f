"""How far a run is: a plain value, made from stages of tasks, and the line that a person reads.

Tasks are counted. A *reading* task is taken to have read an equal share of all offsets, since the job cuts
its reading into parts of about equal size; the figures are estimates, and exact only at the end. One that is at work
counts by its records where they are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Literal, NamedTuple

from dedup_sdk._window import length_text

Step = Literal["reading", "writing"]
_LEAST_SHARE: Final = 0.02


class StageCount(NamedTuple):
    """Spark's counts of a stage.

    Its number, its tasks, those that are over, and whether it is the last one of its job, which writes.
    """

    number: int
    tasks: int
    done: int
    writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a step is.

    - ``step``: ``reading`` (from the source, up to the shuffle) or ``writing`` (sorted files).
    - ``tasks``, ``done``: tasks of the step, and those that are over.
    - ``offsets``, ``read``: offsets to be read in all, and about how many of them are.
    - ``seconds``: since the step began; ``per_second``: offsets, while reading; ``seconds_left``: of this step,
      None while too little of it is over to tell.
    """

    step: Step
    tasks: int
    done: int
    offsets: int
    read: int
    seconds: float
    per_second: float
    seconds_left: float | None

    def __str__(self) -> str:
        """One line for a person."""
        parts = [f"{self.step}: {self.done:,} of {self.tasks:,} tasks"]
        if self.step == "reading" and self.read:
            parts.append(f"about {self.read:,} of {self.offsets:,} offsets, {self.per_second:,.0f}/s")
        if self.seconds_left is not None:
            parts.append(
                f"{length_text(round(self.seconds_left) * 1_000, most_units=2)} left to "
                f"{'read' if self.step == 'reading' else 'write'}"
            )
        return ", ".join(parts)

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Read the output of `to_json`."""
        return cls(**json.loads(text))


class Meter:
    """Makes a `Progress` of Spark's stages now; has no clock, the time (s) is given."""

    def __init__(self, offsets: int) -> None:
        self._offsets = offsets
        self._began: dict[int, float] = {}

    def look(self, active: Iterable[StageCount], now_s: float, *, records: int = 0) -> Progress | None:
        """Return how far the newest stage is; None when nothing is at work that tells.

        ``records``: those that are known to be read; they count where tasks that are over tell of less.
        """
        newest = max(active, default=None)
        if newest is None:
            return None
        self._began.setdefault(newest.number, now_s)
        return self._progress("writing" if newest.writes else "reading", newest, now_s, records)

    def _progress(self, step: Step, stage: StageCount, now_s: float, records: int) -> Progress:
        seconds = now_s - self._began[stage.number]
        share = stage.done / stage.tasks if stage.tasks else 0.0
        if step == "reading" and self._offsets:
            share = max(share, min(records / self._offsets, 1.0))
        read = round(self._offsets * share) if step == "reading" else self._offsets
        return Progress(
            step=step,
            tasks=stage.tasks,
            done=stage.done,
            offsets=self._offsets,
            read=read,
            seconds=seconds,
            per_second=read / seconds if step == "reading" and seconds > 0 else 0.0,
            seconds_left=seconds * (1 - share) / share if share >= _LEAST_SHARE else None,
        )
