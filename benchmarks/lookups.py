"""The cost of a look-up in a key store: IDs that are stored and IDs that are not, one at a time and by batches.

    python benchmarks/lookups.py --ids 1000000
    python benchmarks/lookups.py --ids 200000 --json

A store is filled by flushes of ``--flush`` random marks, spread over a window, and asked. So do two versions: run
it in each checkout in turn, and compare medians. Times are CPU time, in microseconds: of a flush that of all
threads, a mark; of a look-up that of the thread that asks, a digest. The result goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.arguments import at_least
from benchmarks.measure import cpu_seconds
from dedup_sdk._marks import DIGEST_BYTES, Marks, Progress
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import DedupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk._store.protocol import PartitionStore

BATCH: Final = 1000
DUPLICATES: Final = 50
"""Of a batch as the engine asks: most IDs are new."""
ROUNDS: Final = 5
WINDOW: Final = Window(days=7)

_IDENTITY: Final = Identity(cluster="bench", group="lookups", topic="lookups", partition=0)
_MICROSECONDS: Final = 1e6


class Filled:
    """A store that was filled, and the IDs to ask it for."""

    def __init__(self, store: PartitionStore, ids: int, flush: int) -> None:
        self._store = store
        self._random = np.random.default_rng(7)
        self._digests = np.frombuffer(self._random.bytes(DIGEST_BYTES * ids), f"V{DIGEST_BYTES}")
        spread = (WINDOW.time_ms or 0) / ids
        began = cpu_seconds()
        for start in range(0, ids, flush):
            offsets = np.arange(start, min(start + flush, ids), dtype=np.int64)
            marks = Marks(
                self._digests[start : start + flush].tobytes(), offsets, (offsets * spread).astype(np.int64)
            )
            store.flush(Progress(low=0, high=start + len(offsets)), marks)
        self.flush_us = (cpu_seconds() - began) * _MICROSECONDS / ids
        self.bytes_per_id = store.stats().disk_bytes / ids

    def stored(self, count: int) -> bytes:
        """Random digests that are stored."""
        return self._digests[self._random.integers(0, len(self._digests), count)].tobytes()

    def strange(self, count: int) -> bytes:
        """Random digests that are not."""
        return self._random.bytes(DIGEST_BYTES * count)

    def cost_us(self, make: Callable[[], bytes], each: int, questions: int) -> float:
        """Return the microseconds a digest of so many questions, ``each`` digests long."""
        asked = [make() for _ in range(questions)]
        began = time.thread_time()
        for digests in asked:
            self._store.find(digests, each)
        return (time.thread_time() - began) * _MICROSECONDS / (questions * each)

    def measure(self) -> dict[str, float]:
        """Return the medians of `ROUNDS` rounds."""
        kinds: dict[str, tuple[Callable[[], bytes], int, int]] = {
            "single stored": (lambda: self.stored(1), 1, 2000),
            "single new": (lambda: self.strange(1), 1, 2000),
            "50 stored": (lambda: self.stored(DUPLICATES), DUPLICATES, 100),
            "batch, 50 of 1000 stored": (
                lambda: self.stored(DUPLICATES) + self.strange(BATCH - DUPLICATES),
                BATCH,
                50,
            ),
            "batch, all stored": (lambda: self.stored(BATCH), BATCH, 10),
            "batch, all new": (lambda: self.strange(BATCH), BATCH, 50),
        }
        rounds = [{name: self.cost_us(*kind) for name, kind in kinds.items()} for _ in range(ROUNDS)]
        told = {name: median(each[name] for each in rounds) for name in kinds}
        return {"flush": self.flush_us, "bytes an ID": self.bytes_per_id, **told}


def main() -> int:
    """Measure in a temporary folder, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="What look-ups cost in a key store.")
    parser.add_argument("--ids", type=at_least(1), default=1_000_000, help="IDs in the store")
    parser.add_argument("--flush", type=at_least(1), default=60_000, help="marks of one flush")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="dedup-lookups-") as folder:
            store = RocksStore(Path(folder))
            told = Filled(store.open(_IDENTITY, WINDOW), options.ids, options.flush).measure()
            store.close()
    except (DedupError, OSError) as error:
        print(f"lookups: {error}", file=sys.stderr)
        return 1
    rounded = {name: round(value, 3) for name, value in told.items()}
    if options.json:
        print(json.dumps(rounded))
    else:
        for name, value in rounded.items():
            print(f"{name:26} {value:9.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
