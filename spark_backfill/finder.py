"""What tasks find out about duplicates on the way, where a report was asked for: all that the job knows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from spark_backfill.duplicate_offsets import is_watched
from spark_backfill.findings.digest_sample import SIZE, DigestSample, is_sampled, sampled_limit
from spark_backfill.findings.findings import Findings, total
from spark_backfill.findings.producer_codes import Producers
from spark_backfill.findings.sightings import SIGHTINGS, Sightings, fold_run, merge_runs, sightings_of
from spark_backfill.runs import PIECE_BYTES, Rows
from spark_backfill.slots import Slot, SlotPlan

SAMPLING: Final = 64
"""Of a history of more than `SAMPLED_ABOVE` records the findings are about one ID in so many.

Else each of thousands of slots would have some 100 kB to tell. The IDs are those of the smallest digests, so that only
the first slots of a partition have any.
"""
SAMPLED_ABOVE: Final = 100_000_000

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
        sightings, found = self._fold(partition, rows)
        limit = DigestSample(limit=sampled_limit(self.sampling))
        found = replace(found, sampling=self.sampling, sample=limit)
        yield plan.ranges(partition).start, f"{found}\n".encode()
        for slot, start, end in plan.cut(partition, sightings["digest"].tobytes(), _PIECE_SIGHTINGS):
            yield slot, b"\n" + sightings[start:end].tobytes()

    def merged(self, slot: Slot, told: Sequence[bytes]) -> Findings:
        """Return the findings of a slot, of all that it was told."""
        parts = [each.partition(b"\n") for each in told]
        runs = [np.frombuffer(sightings, SIGHTINGS) for _, _, sightings in parts]
        lower_ids = slot.range * sum(map(len, runs))
        # So many smaller digests leave none of this slot's in the sample.
        sampled = 0 if lower_ids > _CERTAIN_TIMES * SIZE else SIZE
        texts = [text for text, _, _ in parts if text]
        # One at a time: a partition may have hundreds of runs, and each of them a thousand producers.
        found = total(Findings.from_json(json.loads(text)) for text in texts)
        return found + merge_runs(slot.partition, runs, now_ms=self.now_ms, sampled=sampled)

    def _fold(self, partition: int, rows: Sequence[Rows]) -> tuple[Sightings, Findings]:
        keyed = np.concatenate(
            [np.ones(len(each.offsets), np.bool_) if each.keyed is None else each.keyed for each in rows]
        )
        producers = [each.producers or Producers(np.zeros(len(each.offsets), np.uint64), {}) for each in rows]
        digests = b"".join(each.digests for each in rows)
        offsets = np.concatenate([each.offsets for each in rows])
        timestamps = np.concatenate([each.timestamps for each in rows])
        codes = np.concatenate([each.codes for each in producers])
        records = sightings_of(digests, keyed, offsets, timestamps, codes)
        taken = is_watched(offsets, self.sampling.bit_length() - 1)
        taken[keyed] = is_sampled(digests, self.sampling)
        names = {code: name for each in producers for code, name in each.names.items()}
        return fold_run(partition, records.take(np.flatnonzero(taken)), keyed[taken], names)
