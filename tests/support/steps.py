"""Steps of a recovery, taken at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from dedup_sdk._core.reach import StartPlan


def finish(steps: Iterable[object]) -> None:
    """Take all steps."""
    for _ in steps:
        pass


def outcome_of(steps: Generator[object, None, tuple[StartPlan, str]]) -> tuple[StartPlan, str]:
    """The result of a generator when it is over."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[StartPlan, str] = end.value
            return found
