"""Whether remembering stays as cheap while the store grows: judge, journal and flush in one partition, without Kafka.

    python benchmarks/growth.py --ids 1000000,10000000
    python benchmarks/growth.py --ids 4000000,8000000,16000000 --window-ids 2000000
    python benchmarks/growth.py --windows 3 --window-ids 4000000

Synthetic digests go through the engine's columns by batches of 1000; one record in twenty repeats an ID of the last
50,000. Timestamps advance so that ``--window-ids`` records fill the window (by default the largest of ``--ids``:
nothing expires); ``--windows N`` feeds so many windows, one a line. A line has the cost of the records *since the
line before*. The result goes to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.arguments import at_least
from benchmarks.measure import cpu_seconds, peak_rss_mib
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.deliver.maintenance import Collector
from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import Ids, header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._marks import Int64s

BATCH_RECORDS = 1000
DUPLICATE_SHARE = 0.05
REACH_RECORDS = 50_000
WINDOW = Window(days=7)

_TOPIC = "growth"
_MICROSECONDS = 1e6
_MIB = 2**20
_TITLES = (
    "ids",
    "us/record",
    "judge",
    "journal",
    "flush",
    "CPU us",
    "slowest ms",
    "bytes/id",
    "disk MiB",
    "windows kept",
    "files",
    "peak MiB",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The cost of the records between two sizes of the store, in microseconds each.

    ``judge_us`` and ``journal_us`` come with every batch, ``flush_us`` with some, and is spread over all.
    ``cpu_us`` is the time of all threads, RocksDB's included: steadier than the others where the machine has other
    work. ``slowest_ms`` is the longest that one batch took, its flush included. ``bytes_per_id`` counts all files
    of the store per mark in it, ``disk_mib`` all of them. ``windows_kept``: how far back the marks reach, in
    windows (one, and those that expiry leaves for later).
    """

    ids: int
    us_per_record: float
    judge_us: float
    journal_us: float
    flush_us: float
    cpu_us: float
    slowest_ms: float
    bytes_per_id: float
    disk_mib: float
    windows_kept: float
    files: int
    peak_rss_mib: float


class Traffic:
    """Batches of new and repeated digests, offsets and timestamps, the same for the same arguments."""

    def __init__(self, window_ids: int) -> None:
        """Spread `window_ids` records over the window."""
        self._rng = np.random.default_rng(3)
        self._ms_per_record = (WINDOW.time_ms or 0) / window_ids
        self._recent: list[bytes] = []
        self._offset = 0
        self.now_ms = 0

    def batches(self, records: int) -> Iterator[tuple[list[int], Int64s, list[bytes | None]]]:
        """Yield offsets, timestamps and digests of the next records, 1000 at a time."""
        for _ in range(0, records, BATCH_RECORDS):
            offsets = list(range(self._offset, self._offset + BATCH_RECORDS))
            timestamps = (np.asarray(offsets, np.float64) * self._ms_per_record).astype(np.int64)
            data = self._rng.bytes(DIGEST_BYTES * BATCH_RECORDS)
            digests = [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]
            if self._recent:
                rows = np.flatnonzero(self._rng.random(BATCH_RECORDS) < DUPLICATE_SHARE)
                for row, back in zip(rows, self._rng.integers(0, len(self._recent), len(rows)), strict=True):
                    digests[row] = self._recent[back]
            self._recent = [*self._recent[BATCH_RECORDS - REACH_RECORDS :], *digests]
            self._offset += BATCH_RECORDS
            self.now_ms = int(timestamps[-1])
            yield offsets, timestamps, list(digests)


class Growth:
    """One partition's state over one store, fed until it has seen enough."""

    def __init__(self, folder: Path, window_ids: int) -> None:
        """Open a new store in `folder`."""
        self._folder = folder
        self._traffic = Traffic(window_ids)
        self._engine = Deduplicator(
            Lookup(id=header("id"), window=WINDOW),
            store=RocksStore(folder),
            group="growth",
            clock=lambda: self._traffic.now_ms / 1000,
        )
        self._engine.open(_TOPIC, 0, low=0)
        self._seen = 0

    def close(self) -> None:
        """Close the store."""
        self._engine.shut()

    def grow_to(self, records: int) -> Stretch:
        """Feed records until `records` in all have come, and return their cost."""
        held = self._engine.partitions[_TOPIC, 0]
        began, generating = cpu_seconds(), 0.0
        costs: list[tuple[float, float, float]] = []
        batches = self._traffic.batches(records - self._seen)
        for _ in range(0, records - self._seen, BATCH_RECORDS):
            asked = time.thread_time()
            batch = next(batches)
            generating += time.thread_time() - asked
            costs.append(self._batch(held, *batch))
        cpu_us = (cpu_seconds() - began - generating) * _MICROSECONDS / (records - self._seen)
        self._seen = records
        judge, journal, flush = (
            fmean(column) * _MICROSECONDS / BATCH_RECORDS for column in zip(*costs, strict=True)
        )
        stats = held.store.stats()
        return Stretch(
            ids=stats.marks + stats.recent,
            us_per_record=round(judge + journal + flush, 3),
            judge_us=round(judge, 3),
            journal_us=round(journal, 3),
            flush_us=round(flush, 3),
            cpu_us=round(cpu_us, 3),
            slowest_ms=round(max(map(sum, costs)) * 1000, 1),
            bytes_per_id=round(stats.disk_bytes / max(stats.marks + stats.recent, 1), 1),
            disk_mib=round(stats.disk_bytes / _MIB, 1),
            windows_kept=round(
                (self._traffic.now_ms - (held.store.oldest_ms or 0)) / (WINDOW.time_ms or 1), 2
            ),
            files=stats.files,
            peak_rss_mib=round(peak_rss_mib()),
        )

    def _batch(
        self, held: Partition, offsets: list[int], timestamps: Int64s, digests: list[bytes | None]
    ) -> tuple[float, float, float]:
        began = time.perf_counter()
        collector = Collector()
        collector.pause()
        chunks = held.admit(offsets, timestamps, Ids(digests, {}), (), discard_unkeyed=False)
        collector.resume()
        for chunk in chunks:
            held.complete_chunk(chunk)
        judged = time.perf_counter()
        held.persist()
        written = time.perf_counter()
        self._engine.trim()
        return judged - began, written - judged, time.perf_counter() - written


def main() -> int:
    """Grow a store in a temporary folder, print its cost, and return the exit status."""
    options = _options()
    window_ids = options.window_ids or options.ids[-1]
    ids = [window_ids * (number + 1) for number in range(options.windows)] or options.ids
    stretches: list[Stretch] = []
    try:
        with tempfile.TemporaryDirectory(prefix="dedup-growth-") as folder:
            growth = Growth(Path(folder), window_ids)
            for records in ids:
                stretches.append(growth.grow_to(records))
                print(f"{records} records: {stretches[-1].us_per_record} us a record", file=sys.stderr)
            growth.close()
    except (DedupError, OSError) as error:
        print(f"growth: {error}", file=sys.stderr)
        return 1
    ratio = round(stretches[-1].us_per_record / stretches[0].us_per_record, 2)
    disk_ratio = round(stretches[-1].disk_mib / stretches[0].disk_mib, 2)
    if options.json:
        print(
            json.dumps(
                {
                    "stretches": [asdict(each) for each in stretches],
                    "last_to_first": ratio,
                    "disk_last_to_first": disk_ratio,
                }
            )
        )
    else:
        print(_table(stretches))
        print(f"the last stretch cost {ratio} times the first; the disk holds {disk_ratio} times as much")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of remembering against the size of the store.")
    parser.add_argument(
        "--ids", type=_sizes, default=[1_000_000, 10_000_000], help="records seen, ascending, by commas"
    )
    parser.add_argument(
        "--window-ids", type=at_least(1), default=None, help="records that fill the window (default: all)"
    )
    parser.add_argument(
        "--windows",
        type=at_least(1),
        default=0,
        help="feed so many windows of --window-ids, instead of --ids",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.windows and (options.window_ids is None or options.window_ids % BATCH_RECORDS):
        parser.error(f"--windows wants --window-ids, a multiple of {BATCH_RECORDS}")
    return options


def _sizes(text: str) -> list[int]:
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if sizes != sorted(set(sizes)) or any(size == 0 or size % BATCH_RECORDS for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ascending multiples of {BATCH_RECORDS}")
    return sizes


def _table(stretches: list[Stretch]) -> str:
    rows = [_TITLES, *(tuple(f"{value:,}" for value in asdict(each).values()) for each in stretches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
