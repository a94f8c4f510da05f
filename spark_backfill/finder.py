"""What tasks find out about duplicates on the way, where a report was asked for: all that the job knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_backfill.duplicate_offsets import is_watched
from spark_backfill.findings.digest_sample import SAMPLED_ABOVE, SAMPLING, SIZE, is_sampled
from spark_backfill.findings.findings import Findings
from spark_backfill.findings.sightings import SIGHTINGS, Run, fold_run, merge_runs, sightings_of
from spark_backfill.runs import PIECE_BYTES, Rows
from spark_backfill.slots import Slot, SlotPlan

_PIECE_SIGHTINGS: Final = PIECE_BYTES // SIGHTINGS.itemsize
_CERTAIN_TIMES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Finder:
    """Makes `Findings` of the rows of runs; rows have to come by offset, each offset once.

    ``sampling``: about one ID in so many; ``producer_header``: the header by which producers are told apart, None: they
    are not; ``now_ms``: a last sighting beyond it counts as one at that time.
    """

    sampling: int = 1
    producer_header: str | None = None
    now_ms: int

    @classmethod
    def of(cls, offsets: int, *, producer_header: str | None, now_ms: int) -> Finder:
        """Return the one for a history of so many offsets."""
        sampling = SAMPLING if offsets > SAMPLED_ABOVE else 1
        return cls(sampling=sampling, producer_header=producer_header, now_ms=now_ms)

    def told(self, partition: int, rows: Sequence[Rows], plan: SlotPlan) -> Iterator[tuple[int, bytes]]:
        """Yield what a run of these rows tells its slots, for `merged`."""
        sightings, findings = fold_run(self._run(partition, rows))
        yield plan.ranges(partition).start, f"{findings}\n".encode()
        for slot, start, end in plan.cut(partition, sightings["digest"].tobytes(), _PIECE_SIGHTINGS):
            yield slot, b"\n" + sightings[start:end].tobytes()

    def merged(self, slot: Slot, told: Sequence[bytes]) -> Findings:
        """Return the findings of a slot, of all that it was told."""
        found, runs = Findings(), list[np.ndarray[tuple[int], np.dtype[np.void]]]()
        for each in told:
            text, _, sightings = each.partition(b"\n")
            if text:
                found += Findings.from_json(json.loads(text))
            runs.append(np.frombuffer(sightings, SIGHTINGS))
        lower_ids = slot.range * sum(map(len, runs))
        return found + merge_runs(
            slot.partition,
            runs,
            now_ms=self.now_ms,
            with_producers=self.producer_header is not None,
            # So many smaller digests leave none of this slot's in the sample.
            sampled=0 if lower_ids > _CERTAIN_TIMES * SIZE else SIZE,
        )

    def _run(self, partition: int, rows: Sequence[Rows]) -> Run:
        offsets = np.concatenate([each.offsets for each in rows])
        timestamps = np.concatenate([each.timestamps for each in rows])
        keyed = np.concatenate(
            [np.ones(len(each.offsets), np.bool_) if each.keyed is None else each.keyed for each in rows]
        )
        codes, names = np.zeros(len(offsets), np.uint64), dict[int, str]()
        producers = [each.producers for each in rows if each.producers is not None]
        if producers:
            codes = np.concatenate([each.codes for each in producers])
            names = {code: name for each in producers for code, name in each.names.items()}
        digests = b"".join(each.digests for each in rows)
        sightings = sightings_of(digests, offsets[keyed], timestamps[keyed], codes[keyed])
        unkeyed = ~keyed & is_watched(offsets, self.sampling.bit_length() - 1)
        return Run(
            partition,
            sightings.take(np.flatnonzero(is_sampled(digests, self.sampling))),
            timestamps[unkeyed],
            codes[unkeyed],
            names,
            self.sampling,
        )
