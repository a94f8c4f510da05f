"""What consumers remember of a topic: one that lived through it, and one that lost its store and replayed it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contender import strategy
from benchmarks.recovery import commit_end, recover
from benchmarks.rounds import ContenderError
from dedup_sdk import DedupConsumer
from dedup_sdk.store.fingerprint import fingerprint
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.read_only import read_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.marks import Marks

_STALL_S = 60.0


def fingerprint_of_lived(bootstrap: str, topic: str, records: int) -> str:
    """Live through a topic with a consumer; return the fingerprint of what it remembers then."""
    with tempfile.TemporaryDirectory(prefix="dedup-lived-") as folder:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": f"lived-{time.time_ns()}",
            "auto.offset.reset": "earliest",
        }
        with DedupConsumer(config, dedup=strategy(), store=folder) as consumer:
            consumer.subscribe([topic])
            heard = time.monotonic()
            while sum(consumer.counters.verdicts.values()) < records:
                if consumer.consume(1000, 1.0):
                    heard = time.monotonic()
                elif time.monotonic() - heard > _STALL_S:
                    raise ContenderError(
                        f"the consumer saw {consumer.counters.verdicts} of {records} records, then none"
                    )
        return _fingerprint(Path(folder))


def fingerprint_of_replayed(bootstrap: str, topic: str, records: int) -> str:
    """Recover a group that stands at the end of the topic without its store; return the fingerprint of what it remembers."""
    del topic
    group = f"replayed-{time.time_ns()}"
    commit_end(bootstrap, group, records)
    with tempfile.TemporaryDirectory(prefix="dedup-replayed-") as folder:
        recover(bootstrap, group, Path(folder), records)
        return _fingerprint(Path(folder))


def _fingerprint(folder: Path) -> str:
    return fingerprint(_pages(folder))


def _pages(folder: Path) -> Iterator[Marks]:
    for entry in list_partitions(folder):
        with read_partition(entry.path) as opened:
            yield from opened.scan_all()
