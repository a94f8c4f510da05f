"""One comparison: the same topic, every contender, some rounds, one result."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from benchmarks import report
from benchmarks.contender import DEDUP, FIRST_SIGHTINGS, Run, strategy
from benchmarks.preload import commit_beginning, preload
from benchmarks.rounds import ContenderError, orders, run
from benchmarks.store_size import compacted_size
from benchmarks.workload import PARTITIONS, Workload, ensure_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.measure import Reading


class Comparison:
    """Fills the topic, runs the contenders, and adds their readings up.

    ``folder`` is for the key stores: the preloaded one, and that of the run at hand.
    """

    def __init__(self, bootstrap: str, workload: Workload, folder: Path, ids: int = 0) -> None:
        """Prepare the common part of the runs; `ids` other IDs are in the key store beforehand."""
        self._bootstrap = bootstrap
        self._workload = workload
        self._ids = ids
        self._store = folder / "store"
        self._preloaded = folder / "preloaded"
        self._seen = folder / "seen.npy"
        self._topic = f"dedup-benchmark-{workload.records}-{workload.seed}"
        self._firsts = workload.first_sightings()
        self._distinct = sum(map(len, self._firsts))
        self._bytes_per_id: float | None = None
        self._group = f"benchmark-preloaded-{uuid4().hex}"

    def run(self, names: Sequence[str], rounds: int) -> dict[str, Any]:
        """Return the object that ``--json`` prints.

        Raises:
            ContenderError: a contender ended with an error or read something else than the workload.
            WorkloadError: the topic could not be filled.
        """
        self._produce()
        preload_seconds = self._preload() if self._ids and DEDUP.intersection(names) else None
        exact = {name: self._check(name) for name in names if name in DEDUP}
        readings: dict[str, list[Reading]] = {name: [] for name in names}
        for number, order in enumerate(orders(names, rounds), 1):
            for name in order:
                reading = self._measure(self._spec(name))
                readings[name].append(reading)
                speed = self._workload.records / reading.seconds
                _say(f"round {number}/{rounds} {name}: {speed:,.0f} msgs/s")
        contenders = {name: report.figures(readings[name], self._workload.records) for name in names}
        return {
            **report.summary(contenders, exact=exact.get("dedup_consume"), bytes_per_id=self._bytes_per_id),
            "poll_exact": exact.get("dedup_poll"),
            "records": self._workload.records,
            "distinct_ids": self._distinct,
            "ids": self._ids,
            "preload_seconds": preload_seconds,
            "rounds": rounds,
        }

    def _produce(self) -> None:
        seconds = ensure_topic(self._bootstrap, self._topic, self._workload)
        how = "were there" if seconds is None else f"sent in {seconds:.1f} s"
        _say(f"{self._workload.records} records {how}")

    def _preload(self) -> float:
        seconds = preload(
            self._preloaded, self._ids, bootstrap=self._bootstrap, group=self._group, topic=self._topic
        )
        _say(f"{self._ids} other IDs stored in {seconds:.1f} s")
        return round(seconds, 1)

    def _spec(self, name: str) -> Run:
        group = f"benchmark-{name}-{uuid4().hex}"
        if name in DEDUP:
            shutil.rmtree(self._store, ignore_errors=True)
            if self._ids:
                group = self._group
                shutil.copytree(self._preloaded, self._store)
                commit_beginning(self._bootstrap, group, self._topic)
        return Run(
            name=name,
            bootstrap=self._bootstrap,
            topic=self._topic,
            group=group,
            expected=self._distinct if name in DEDUP else self._workload.records,
            store=str(self._store) if name in DEDUP else "",
        )

    def _measure(self, spec: Run) -> Reading:
        reading = run(spec, self._workload.records)
        handled = self._distinct if spec.name in FIRST_SIGHTINGS else self._workload.records
        if reading.handled != handled:
            raise ContenderError(f"{spec.name} handled {reading.handled} records instead of {handled}")
        return reading

    def _check(self, name: str) -> bool:
        """Whether exactly the first sightings are handled, each once, in a run whose time does not count.

        Sizes its store.
        """
        self._measure(replace(self._spec(name), seen=str(self._seen)))
        seen: NDArray[np.int64] = np.load(self._seen, allow_pickle=False)
        exact = all(
            np.array_equal(np.sort(seen[seen[:, 0] == partition, 1]), self._firsts[partition])
            for partition in range(PARTITIONS)
        )
        size = compacted_size(self._store, strategy().window_of("bench"))
        stored = self._distinct + self._ids
        if size.marks < stored:
            raise ContenderError(
                f"{name} left {size.marks} marks instead of {stored}: it gave up the store it was given"
            )
        if name == "dedup_consume":
            self._bytes_per_id = round(size.bytes / stored, 2)
        verdict = "exact" if exact else "NOT exact"
        _say(f"check {name}: {verdict}, {len(seen)} of {self._workload.records} handled")
        return exact


def _say(text: str) -> None:
    print(text, file=sys.stderr)
