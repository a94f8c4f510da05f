"""What the log says of partitions that come, begin to deliver, and go: one line each time, with everything in it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.status import status_of

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]


class RebalanceLog:
    """Writes the lines, and counts the verdicts between them."""

    def __init__(self, engine: Deduplicator) -> None:
        self._engine = engine
        self._counted: Counter[str] = Counter()

    def came(self, partitions: Iterable[Coordinates]) -> None:
        """Partitions were assigned; each delivers when it is up to date."""
        names = sorted(partitions)
        self._write("assigned", len(names), ", ".join(_in_short(names)))

    def ready(self, partitions: list[Assigned], behind: list[Assigned]) -> None:
        """Partitions begin to deliver, while those ``behind`` still recover."""
        line = "ready %d partitions: %s"
        arguments = [len(partitions), "; ".join(map(self._told, partitions))]
        if behind:
            line += "; %d still recover: %s"
            arguments += [len(behind), "; ".join(map(self._told, behind))]
        logger.info(line, *arguments)

    def went(self, how: str, partitions: list[Assigned]) -> None:
        """Partitions have another owner, or none."""
        self._write(how, len(partitions), "; ".join(map(self._told, partitions)))

    def _write(self, what: str, count: int, names: str) -> None:
        counted = Counter(self._engine.counters.as_dict())
        since = {name: count for name, count in (counted - self._counted).items() if count}
        self._counted = counted
        logger.info(
            "%s %d partitions: %s; verdicts since the last rebalance: %s", what, count, names or "-", since or "none"
        )  # fmt: skip

    def _told(self, assigned: Assigned) -> str:
        name = f"{assigned.topic}[{assigned.partition}]"
        if assigned.start is not None:
            name += f"@{assigned.start.offset}"
        notes = [assigned.note] if assigned.note else []
        notes += status_of(assigned, self._engine).hindrances
        if assigned.held is None:
            notes.append("not up to date")
        else:
            notes.append(f"{assigned.seconds:.2f} s")
        return f"{name} ({', '.join(notes)})"


def _in_short(partitions: list[Coordinates]) -> Iterator[str]:
    """Name partitions, in ascending order, by topic and ranges: ``orders[0-63]``, ``pairs[1,3-4]``."""
    for topic, group in groupby(partitions, key=lambda each: each[0]):
        numbers = [number for _, number in group]
        runs = groupby(enumerate(numbers), key=lambda each: each[1] - each[0])
        ranges = [[number for _, number in run] for _, run in runs]
        texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ranges]
        yield f"{topic}[{','.join(texts)}]"
