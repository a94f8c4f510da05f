"""The commits of a run for a partition when it could commit no more: the rest may be handled again elsewhere."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping

from tests.chaos.history import History, Notice, Sample


class Safety:
    """Commits and assignments of a history, by partition."""

    def __init__(self, history: History) -> None:
        self._samples: dict[int, list[Sample]] = defaultdict(list)
        for sample in sorted(history.samples):
            self._samples[sample.partition].append(sample)
        self._taken: dict[int, list[Notice]] = defaultdict(list)
        for notice in sorted(history.notices, key=lambda each: each.at_ns):
            if notice.kind == "assigned":
                for partition in notice.partitions:
                    self._taken[partition].append(notice)

    def safe(self, run: str, partition: int, at_ns: int) -> int:
        """Return the offset up to which a partition was safe, of a run that ended, or was put out, at ``at_ns``.

        A run may have been put out long before it hears of it, or is killed. Then the group has given the
        partition to another, and commits of that one say nothing of this one: only commits
        before that count.
        """
        taken_ns = self._taken_ns(run, partition, at_ns)
        return self._committed(partition, at_ns if taken_ns is None else taken_ns)

    def at_most(self, known: Mapping[int, int], run: str, partition: int, at_ns: int) -> int:
        """Return the same where the commits at ``at_ns`` are known by themselves."""
        taken_ns, offset = self._taken_ns(run, partition, at_ns), known.get(partition, 0)
        return offset if taken_ns is None else min(offset, self._committed(partition, taken_ns))

    def _taken_ns(self, run: str, partition: int, at_ns: int) -> int | None:
        """Return when another was told first that it has the partition, since the run was told so last."""
        taken = [notice for notice in self._taken[partition] if notice.at_ns <= at_ns]
        since_ns = max((notice.at_ns for notice in taken if notice.run == run), default=0)
        others = (notice.at_ns for notice in taken if notice.run != run and notice.at_ns > since_ns)
        return min(others, default=None)

    def _committed(self, partition: int, at_ns: int) -> int:
        samples = self._samples[partition]
        known = bisect_right(samples, at_ns, key=lambda sample: sample.at_ns)
        return samples[known - 1].offset if known else 0
