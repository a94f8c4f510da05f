"""The marks of a topic.

By a consumer that lived through it, by one that lost its store and replayed it, by a snapshot. Only marks inside
the window count, seen from the newest of their partition: a store drops older ones when it is convenient.
"""

from __future__ import annotations

import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contender import strategy
from benchmarks.recovery import commit_end, recover
from benchmarks.rounds import ContenderError
from dedup_sdk import DedupConsumer
from dedup_sdk._marks import select_marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.snapshot import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dedup_sdk import Window
    from dedup_sdk._marks import Marks

_STALL_S = 60.0


def fingerprint_of_lived(bootstrap: str, topic: str, records: int, window: Window) -> str:
    """Live through a topic with a consumer; return the fingerprint of its marks then."""
    with tempfile.TemporaryDirectory(prefix="dedup-lived-") as folder:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": f"lived-{time.time_ns()}",
            "auto.offset.reset": "earliest",
        }
        with DedupConsumer(config, dedup=strategy(window), store=folder) as consumer:
            consumer.subscribe([topic])
            heard = time.monotonic()
            while sum(consumer.counters.verdicts.values()) < records:
                if consumer.consume(1000, 1.0):
                    heard = time.monotonic()
                elif time.monotonic() - heard > _STALL_S:
                    raise ContenderError(
                        f"the consumer saw {consumer.counters.verdicts} of {records} records, then none"
                    )
        return _fingerprint(Path(folder), window)


def fingerprint_of_replayed(bootstrap: str, topic: str, records: int, window: Window) -> str:
    """Recover a group that stands at the end of the topic without its store.

    Return the fingerprint of its marks.
    """
    del topic
    group = f"replayed-{time.time_ns()}"
    commit_end(bootstrap, group, records)
    with tempfile.TemporaryDirectory(prefix="dedup-replayed-") as folder:
        recover(bootstrap, group, Path(folder), records, window)
        return _fingerprint(Path(folder), window)


def fingerprint_of_snapshot(folder: Path, window: Window) -> str:
    """Return the fingerprint of a snapshot's marks."""
    partitions = read_manifest(folder).partitions
    return fingerprint(
        chain.from_iterable(_inside(read_snapshot(folder, each), window) for each in partitions)
    )


def _fingerprint(folder: Path, window: Window) -> str:
    return fingerprint(
        chain.from_iterable(_of_store(entry.path, window) for entry in list_partitions(folder))
    )


def _of_store(path: Path, window: Window) -> Iterator[Marks]:
    with read_partition(path) as opened:
        yield from _inside(opened.scan_all(), window)


def _inside(pages: Iterable[Marks], window: Window) -> Iterator[Marks]:
    kept = list(pages)
    if window.time_ms is None or not kept:
        yield from kept
        return
    from_ms = max(int(page.timestamps.max()) for page in kept) - window.time_ms
    for page in kept:
        yield select_marks(page, (page.timestamps >= from_ms).nonzero()[0])
