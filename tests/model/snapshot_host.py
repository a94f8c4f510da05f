"""The engine as a host whose lost disks come back by a snapshot: the one that the Kafka side would take, or refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dedup_sdk._core.reach import StartPlan
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._marks import Known, Marks
from dedup_sdk._store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot import SortedFileWriter
from tests.model.engine_host import EngineHost
from tests.model.host import WINDOW_MS, Assignment


class SnapshotHost(EngineHost):
    """Is offered a snapshot whenever a whole window has to be known again; ``folder`` is for these.

    Its cut lies anywhere between the beginning of the group's history and the end of the log: whether it may be
    taken is for the code to say.
    """

    def __init__(self, recent_marks: int, folder: Path) -> None:
        self._folder = folder
        self._numbers: Iterator[int] = itertools.count()
        super().__init__(recent_marks)

    def _begin(self, plan: StartPlan, assignment: Assignment) -> StartPlan:
        if not plan.whole or assignment.new:
            return super()._begin(plan, assignment)
        place = self._write(plan, assignment)
        identity = self._engine.identity_of("t", 0, "", None, self._engine.terms_of("t"))
        steps = start_from_snapshot(self._held, plan, [str(place)], identity, None)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            plan, _ = end.value
        return plan

    def _write(self, plan: StartPlan, assignment: Assignment) -> Path:
        """Make a snapshot as the backfill does."""
        low = plan.progress.low
        cut = low + round(assignment.cut * (assignment.end - low))
        rows = list(range(low, cut))
        place = self._folder / str(next(self._numbers))
        (place / "0").mkdir(parents=True)
        files = []
        if rows:
            with SortedFileWriter(place / "0" / "000001.sst") as writer:
                writer.add(newest_per_digest(self._marks(rows)))
                files.append(writer.finish())
        part = PartitionManifest(
            partition=0,
            low=low,
            high=cut,
            known=Known(
                since_ms=plan.progress.known.since_ms,
                newest_ms=max((self._log[offset].timestamp_ms for offset in rows), default=-1),
            ),
            marks=sum(file.marks for file in files),
            files=tuple(files),
        )
        identity = self._engine.identity_of("t", 0, "", None, self._engine.terms_of("t"))
        write_manifest(place, Manifest.of_store(identity, f"{WINDOW_MS}ms", 0, (part,)))
        return place

    def _marks(self, rows: list[int]) -> Marks:
        return Marks(
            b"".join(map(self._digest, rows)),
            np.asarray(rows, np.int64),
            np.asarray([self._log[offset].timestamp_ms for offset in rows], np.int64),
        )
