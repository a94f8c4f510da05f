"""One comparison: the same topic, every contender, some rounds, one result."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from benchmarks import report
from benchmarks.contender import DEDUP, FIRST_SIGHTINGS, Run
from benchmarks.rounds import ContenderError, orders, run
from benchmarks.workload import PARTITIONS, Workload, ensure_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.measure import Reading


class Comparison:
    """Fills the topic, runs the contenders, and adds their readings up.

    ``folder`` is for the key stores, of which one is there at a time.
    """

    def __init__(self, bootstrap: str, workload: Workload, folder: Path) -> None:
        """Prepare what the runs have in common."""
        self._bootstrap = bootstrap
        self._workload = workload
        self._folder = folder
        self._topic = f"dedup-benchmark-{workload.records}-{workload.seed}"
        self._firsts = workload.first_sightings()
        self._distinct = sum(map(len, self._firsts))

    def run(self, names: Sequence[str], rounds: int) -> dict[str, Any]:
        """Return the object that ``--json`` prints.

        Raises:
            ContenderError: a contender ended with an error or read something else than the workload.
            WorkloadError: the topic could not be filled.
        """
        seconds = ensure_topic(self._bootstrap, self._topic, self._workload)
        _say(
            "the topic was there"
            if seconds is None
            else f"{self._workload.records} records sent in {seconds:.1f} s"
        )
        exact: dict[str, bool] = {name: self._check(name) for name in names if name in DEDUP}
        readings: dict[str, list[Reading]] = {name: [] for name in names}
        for number, order in enumerate(orders(names, rounds), 1):
            for name in order:
                reading = self._measure(self._spec(name))
                readings[name].append(reading)
                _say(
                    f"round {number}/{rounds} {name}: {self._workload.records / reading.seconds:,.0f} msgs/s"
                )
        contenders = {name: report.figures(readings[name], self._workload.records) for name in names}
        return {
            **report.summary(contenders, exact=exact.get("dedup_consume"), bytes_per_id=None),
            "poll_exact": exact.get("dedup_poll"),
            "records": self._workload.records,
            "distinct_ids": self._distinct,
            "rounds": rounds,
        }

    def _spec(self, name: str) -> Run:
        store = self._folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        return Run(
            name=name,
            bootstrap=self._bootstrap,
            topic=self._topic,
            group=f"benchmark-{name}-{uuid4().hex}",
            expected=self._distinct if name in DEDUP else self._workload.records,
            store=str(store) if name in DEDUP else "",
        )

    def _measure(self, spec: Run) -> Reading:
        reading = run(spec, self._workload.records)
        handled = self._distinct if spec.name in FIRST_SIGHTINGS else self._workload.records
        if reading.handled != handled:
            raise ContenderError(f"{spec.name} handled {reading.handled} records instead of {handled}")
        return reading

    def _check(self, name: str) -> bool:
        """Whether exactly the first sightings are handled, each once, in a run of its own whose time does not count."""
        path = self._folder / "seen.npy"
        self._measure(replace(self._spec(name), seen=str(path)))
        seen: NDArray[np.int64] = np.load(path, allow_pickle=False)
        path.unlink()
        exact = all(
            np.array_equal(np.sort(seen[seen[:, 0] == partition, 1]), self._firsts[partition])
            for partition in range(PARTITIONS)
        )
        _say(
            f"check {name}: {'exact' if exact else 'NOT exact'}, {len(seen)} of {self._workload.records} handled"
        )
        return exact


def _say(text: str) -> None:
    print(text, file=sys.stderr)
