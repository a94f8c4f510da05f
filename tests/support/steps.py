"""Steps of a recovery, taken at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dedup_sdk._store.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from dedup_sdk._core.reach import StartPlan


def finish(steps: Iterable[object]) -> None:
    """Take all steps."""
    for _ in steps:
        pass


def installing(store: Any, folder: Path | str, begin: Any) -> Iterator[None]:
    """The steps in which a store, or a partition, begins with the snapshot in a folder."""
    steps: Iterator[None] = store.install_steps(str(folder), begin, manifest=read_manifest(folder))
    return steps


def outcome_of(steps: Generator[object, None, tuple[StartPlan, str]]) -> tuple[StartPlan, str]:
    """The result of a generator when it is over."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[StartPlan, str] = end.value
            return found
