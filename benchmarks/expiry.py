"""How old marks leave the disk, and at which cost: by generations, by RocksDB's TTL, by its FIFO compaction.

    python benchmarks/expiry.py
    python benchmarks/expiry.py --window-ids 1000000 --windows 4 --json

One database without Kafka: ``--windows`` times ``--window-ids`` random IDs, each window ``--seconds`` long, an
eighth of a window a step. After every step a thousand IDs of the last window and a thousand new ones are looked
up. `generations` is a column family an eighth, dropped as a whole; `ttl` one family opened with a time to live;
`fifo` one family that drops its oldest files above the size of a window and an eighth. The result goes to stdout,
progress to stderr. Exit status 1: something failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rocksdict import (
    AccessType,
    DBCompactionStyle,
    FifoCompactOptions,
    IngestExternalFileOptions,
    Rdict,
    SstFileWriter,
    WriteBatch,
)

from benchmarks.arguments import at_least
from benchmarks.measure import cpu_seconds
from dedup_sdk._marks import DIGEST_BYTES, Marks, cut_digests
from dedup_sdk._store.database import (
    database_options,
    generation_options,
    get_values,
    shared_memory,
    sorted_file_options,
)
from dedup_sdk._store.pages import newest_per_digest

SHARES = 8
BURST = 4
BATCH_MARKS = 1_000
ASKED = 1_000
CACHE_BYTES = 32 * 2**20
BYTES_PER_MARK = 34

_MIB = 2**20
_MICROSECONDS = 1e6


class Keeper(ABC):
    """One way to forget. ``families``: where a look-up asks, newest first."""

    name: str

    def __init__(self, folder: Path, window_ids: int, seconds: float) -> None:
        self.folder = folder
        self.window_ids = window_ids
        self.seconds = seconds
        self.memory = shared_memory(CACHE_BYTES)
        self.families: list[Rdict] = []

    @abstractmethod
    def take(self, marks: Marks) -> None:
        """Take in the marks of an eighth of the window, and forget marks older than one."""

    def find(self, keys: list[bytes]) -> int:
        """Return how many of the keys are there."""
        found = 0
        for family in self.families:
            values = get_values(family, keys)
            found += len(keys) - values.count(None)
            keys = [key for key, value in zip(keys, values, strict=True) if value is None]
        return found

    def close(self) -> None:
        """Close the database."""
        self.families.clear()


class Generations(Keeper):
    """A column family an eighth of the window; nine of them at most."""

    name = "generations"

    def __init__(self, folder: Path, window_ids: int, seconds: float) -> None:
        super().__init__(folder, window_ids, seconds)
        self._database = Rdict(str(folder / self.name), database_options(self.memory))
        self._names: list[str] = []
        self._step = 0

    def take(self, marks: Marks) -> None:
        """Make a family, take a file into it, drop the oldest."""
        self._step += 1
        self._names.insert(0, f"g{self._step}")
        self.families.insert(
            0, self._database.create_column_family(self._names[0], generation_options(self.memory))
        )
        ingest(self.families[0], self.folder / f"{self._step}.sst", marks)
        if len(self.families) > SHARES + 1:
            self.families.pop()
            self._database.drop_column_family(self._names.pop())

    def close(self) -> None:
        """See `Keeper.close`."""
        super().close()
        self._database.close()


class TimeToLive(Keeper):
    """One family whose values carry the time of their writing; a merge leaves out those too old."""

    name = "ttl"

    def __init__(self, folder: Path, window_ids: int, seconds: float) -> None:
        super().__init__(folder, window_ids, seconds)
        options = generation_options(self.memory)
        options.create_if_missing(True)
        options.set_write_buffer_size(8 * _MIB)
        access = AccessType.with_ttl(max(1, round(seconds)))
        self.families = [Rdict(str(folder / self.name), options, access_type=access)]

    def take(self, marks: Marks) -> None:
        """Write batches; sorted files made elsewhere would lack the time."""
        items = entries(marks)
        for start in range(0, marks.count, BATCH_MARKS):
            batch = WriteBatch(raw_mode=True)
            for key, value in items[start : start + BATCH_MARKS]:
                batch.put(key, value)
            self.families[0].write(batch)

    def close(self) -> None:
        """See `Keeper.close`."""
        self.families[0].close()
        super().close()


class FirstOut(Keeper):
    """One family that drops whole files, the oldest, above a size."""

    name = "fifo"

    def __init__(self, folder: Path, window_ids: int, seconds: float) -> None:
        super().__init__(folder, window_ids, seconds)
        options = generation_options(self.memory)
        options.create_if_missing(True)
        options.set_compaction_style(DBCompactionStyle.fifo())
        limit = FifoCompactOptions()
        limit.max_table_files_size = BYTES_PER_MARK * window_ids * (SHARES + 1) // SHARES
        options.set_fifo_compaction_options(limit)
        self.families = [Rdict(str(folder / self.name), options)]
        self._step = 0

    def take(self, marks: Marks) -> None:
        """Take a file in; RocksDB drops the excess."""
        self._step += 1
        ingest(self.families[0], self.folder / f"{self._step}.sst", marks)

    def close(self) -> None:
        """See `Keeper.close`."""
        self.families[0].close()
        super().close()


def entries(marks: Marks) -> list[tuple[bytes, bytes]]:
    """Return each mark as a key and a value of its own, so that the three ways of forgetting have the same to do."""
    values = np.stack((marks.offsets, marks.timestamps), axis=1).view("V16").ravel().tolist()
    return list(zip(cut_digests(marks.digests), values, strict=True))


def ingest(family: Rdict, path: Path, marks: Marks) -> None:
    """Take marks into a family as one sorted file."""
    writer = SstFileWriter(sorted_file_options(compressed=False))
    writer.open(str(path))
    for key, value in entries(marks):
        writer[key] = value
    writer.finish()
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    family.ingest_external_file([str(path)], options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The cost of one way.

    ``cpu_us``: microseconds of all threads a mark, look-ups not included. ``hit_us`` and ``miss_us``: a look-up of
    an ID that is there, and of one that is not; medians of the last window. ``live_found``: share of IDs inside
    the window that were found (1.0 or it loses). ``burst_found``: the same in one window more, in which four times
    as many come. ``dead_found``: share of IDs from one to two windows before that were still there.
    ``disk_ratio``: the disk at the end over that after the first window, the burst left out.
    """

    way: str
    cpu_us: float
    hit_us: float
    miss_us: float
    live_found: float
    burst_found: float
    dead_found: float
    disk_mib: float
    disk_ratio: float


def measure(keeper: Keeper, windows: int) -> Outcome:
    """Feed windows at their pace, and look up after every eighth."""
    rng = np.random.default_rng(5)
    step_ids = keeper.window_ids // SHARES
    history: list[bytes] = []
    disks: list[float] = []
    hits: list[float] = []
    misses: list[float] = []
    live, dead, spent = [0, 0], [0, 0], 0.0
    due = time.perf_counter()

    def step_on(ids: int) -> None:
        nonlocal due
        digests = rng.bytes(DIGEST_BYTES * ids)
        offsets = np.arange(ids, dtype=np.int64)
        history.append(digests)
        keeper.take(newest_per_digest(Marks(digests, offsets, offsets)))
        due += keeper.seconds / SHARES
        time.sleep(max(0.0, due - time.perf_counter()))

    for step in range(windows * SHARES):
        began = cpu_seconds()
        step_on(step_ids)
        spent += cpu_seconds() - began
        alive = history[-SHARES + 1 :]
        found, hit_us = ask(keeper, [pick(rng, alive[each % len(alive)]) for each in range(ASKED)])
        live[0], live[1] = live[0] + found, live[1] + ASKED
        _, miss_us = ask(keeper, [rng.bytes(DIGEST_BYTES) for _ in range(ASKED)])
        old = history[-2 * SHARES - 1 : -SHARES - 1]
        if old:
            found, _ = ask(keeper, [pick(rng, old[each % len(old)]) for each in range(ASKED)])
            dead[0], dead[1] = dead[0] + found, dead[1] + ASKED
        if step >= (windows - 1) * SHARES:
            hits.append(hit_us)
            misses.append(miss_us)
        if (step + 1) % SHARES == 0:
            disks.append(disk_mib(keeper.folder))
            print(f"{keeper.name}: {(step + 1) // SHARES}/{windows} windows", file=sys.stderr)
    burst = 0
    for _ in range(SHARES):
        step_on(BURST * step_ids)
        alive = history[-SHARES + 1 :]
        burst += ask(keeper, [pick(rng, alive[each % len(alive)]) for each in range(ASKED)])[0]
    keeper.close()
    return Outcome(
        way=keeper.name,
        cpu_us=round(spent * _MICROSECONDS / (step_ids * SHARES * windows), 3),
        hit_us=round(median(hits), 2),
        miss_us=round(median(misses), 2),
        live_found=round(live[0] / live[1], 4),
        burst_found=round(burst / (SHARES * ASKED), 4),
        dead_found=round(dead[0] / max(dead[1], 1), 4),
        disk_mib=round(disks[-1], 1),
        disk_ratio=round(disks[-1] / disks[0], 2),
    )


def ask(keeper: Keeper, keys: list[bytes]) -> tuple[int, float]:
    """Look keys up; return how many are there, and the microseconds a key."""
    began = time.perf_counter()
    found = keeper.find(keys)
    return found, (time.perf_counter() - began) * _MICROSECONDS / len(keys)


def pick(rng: np.random.Generator, digests: bytes) -> bytes:
    """Return one of the digests."""
    row = int(rng.integers(len(digests) // DIGEST_BYTES))
    return digests[DIGEST_BYTES * row : DIGEST_BYTES * (row + 1)]


def disk_mib(folder: Path) -> float:
    """Return the size of all files below a folder, MiB; files that vanish meanwhile do not count."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return sum(sizes) / _MIB


def main() -> int:
    """Measure the three ways, one after the other, print their cost, and return the exit status."""
    parser = argparse.ArgumentParser(description="Ways to forget old marks, side by side.")
    parser.add_argument(
        "--window-ids", type=at_least(8_000), default=1_000_000, help="IDs that fill the window"
    )
    parser.add_argument("--windows", type=at_least(2), default=3, help="how many windows are fed")
    parser.add_argument("--seconds", type=at_least(1), default=10, help="how long a window is")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    outcomes = []
    try:
        for way in (Generations, TimeToLive, FirstOut):
            with tempfile.TemporaryDirectory(prefix="dedup-expiry-") as folder:
                outcomes.append(
                    measure(way(Path(folder), options.window_ids, options.seconds), options.windows)
                )
    except OSError as error:
        print(f"expiry: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"ways": [asdict(each) for each in outcomes]}))
        return 0
    rows = [
        tuple(asdict(outcomes[0])),
        *(tuple(str(value) for value in asdict(each).values()) for each in outcomes),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("\n".join("  ".join(map(str.rjust, row, widths)) for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
