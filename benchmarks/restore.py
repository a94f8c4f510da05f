"""How long until a partition's store is ready that is made of a snapshot? Beside a plain copy of the same bytes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.arguments import at_least
from dedup_sdk._marks import Known, Marks
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import Manifest, PartitionManifest, SortedFile, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._store.snapshot import SORTED_SUFFIX, SortedFileWriter
from dedup_sdk._window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEP_MS = 10
_PAGE_MARKS = 100_000
_ASKED = 100_000
_RANKS = 2**64


def main() -> None:
    """Make the snapshot, restore it `--rounds` times, print the result on stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=at_least(1), default=25_000_000, help="IDs in the one partition")
    parser.add_argument("--files", type=at_least(1), default=8, help="sorted files that they lie in")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="restores, after each a plain copy")
    parser.add_argument("--folder", type=Path, help="where to write [default: the temporary folder]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dedup-restore-", dir=arguments.folder) as scratch:
        result = _measure(Path(scratch), arguments.ids, arguments.files, arguments.rounds)
    if arguments.json:
        print(json.dumps(result, sort_keys=True))
        return
    for name, value in result.items():
        print(f"{name:24} {value:,}")


def _measure(scratch: Path, ids: int, files: int, rounds: int) -> dict[str, float]:
    began = perf_counter()
    manifest = _write_snapshot(scratch / "snapshot", ids, files)
    made_seconds = perf_counter() - began
    restores, copies, opens = [], [], []
    for number in range(rounds):
        restores.append(_restored(scratch, number))
        opens.append(_opened(scratch / f"store{number}", manifest))
        shutil.rmtree(scratch / f"store{number}")
        copies.append(_copied(scratch))
        print(f"round {number + 1}: {restores[-1]:.1f} s, copy {copies[-1]:.1f} s", file=sys.stderr)
    return {
        "ids": ids,
        "snapshot_bytes": manifest.bytes,
        "bytes_per_id": round(manifest.bytes / ids, 1),
        "make_seconds": round(made_seconds, 2),
        "restore_seconds": round(median(restores), 2),
        "copy_seconds": round(median(copies), 2),
        "ratio_to_copy": round(median(restores) / median(copies), 2),
        "open_seconds": round(median(opens), 2),
    }


def _restored(scratch: Path, number: int) -> float:
    began = perf_counter()
    restore_snapshot(scratch / "snapshot", scratch / f"store{number}")
    return perf_counter() - began


def _copied(scratch: Path) -> float:
    """Copy the snapshot's files and flush them to the disk, as a restore does."""
    began = perf_counter()
    shutil.copytree(scratch / "snapshot", scratch / "copy")
    for path in (scratch / "copy").rglob("*.*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    seconds = perf_counter() - began
    shutil.rmtree(scratch / "copy")
    return seconds


def _opened(folder: Path, manifest: Manifest) -> float:
    """Open the store as a consumer does, and see that it has every ID, and says so of no other."""
    entry = manifest.partitions[0]
    marks = next(_pages(entry.high, len(entry.files), 0))
    began = perf_counter()
    store = RocksStore(folder)
    try:
        opened = store.open(_identity(), Window.parse(manifest.window))
        seconds = perf_counter() - began
        asked = marks.digests[: 16 * _ASKED]
        assert opened.find(asked, len(asked) // 16).offsets == marks.offsets[:_ASKED].tolist()
        assert not opened.find(np.random.default_rng(2).bytes(16 * _ASKED), _ASKED).indexes
        assert opened.stats().marks == entry.marks
    finally:
        store.close()
    return seconds


def _identity() -> Identity:
    return Identity(
        cluster="c1", group="billing", topic="orders", partition=0, topic_id="", id_spec="header:dedup-id"
    )


def _write_snapshot(folder: Path, ids: int, files: int) -> Manifest:
    (folder / "0").mkdir(parents=True)
    written = [_write_file(folder, ids, files, number) for number in range(files)]
    marks = sum(file.marks for file in written)
    part = PartitionManifest(
        partition=0,
        low=0,
        high=ids,
        known=Known(newest_ms=ids * _STEP_MS),
        marks=marks,
        files=tuple(written),
        committed=ids,
    )
    manifest = Manifest.of_store(_identity(), "7d", 0, (part,))
    write_manifest(folder, manifest)
    return manifest


def _write_file(folder: Path, ids: int, files: int, number: int) -> SortedFile:
    with SortedFileWriter(folder / "0" / f"{number:05d}{SORTED_SUFFIX}") as writer:
        for page in _pages(ids, files, number):
            writer.add(page)
        return writer.finish()


def _pages(ids: int, files: int, number: int) -> Iterator[Marks]:
    """Yield the marks of a file, ascending; digests are uniform over its share, offsets over all."""
    count = ids * (number + 1) // files - ids * number // files
    source = np.random.default_rng(number)
    pages = -(-count // _PAGE_MARKS)
    for page in range(pages):
        rows = count * (page + 1) // pages - count * page // pages
        low = _RANKS * (number * pages + page) // (files * pages)
        high = _RANKS * (number * pages + page + 1) // (files * pages) - 1
        words = np.empty((rows, 2), ">u8")
        words[:, 0] = source.integers(low, high, rows, dtype=np.uint64, endpoint=True)
        words[:, 1] = source.integers(0, _RANKS - 1, rows, dtype=np.uint64, endpoint=True)
        offsets = source.integers(0, ids, rows)
        yield newest_per_digest(Marks(words.tobytes(), offsets, offsets * _STEP_MS))


if __name__ == "__main__":
    main()
