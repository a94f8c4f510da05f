"""A consumer of a topic of many partitions, in a process that may open few files.

``python -m tests.support.crowded_store BOOTSTRAP TOPIC PARTITIONS STORE SOFT HARD`` polls until all partitions are
active, or wait for their store, and prints a JSON object: how many are active, and the log lines of each level.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from pathlib import Path

LONGEST_S = 90.0


class Lines(logging.Handler):
    """Keeps the lines of each level."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.setdefault(record.levelname, []).append(record.getMessage())


def main(bootstrap: str, topic: str, partitions: int, store: str, soft: int, hard: int) -> None:
    """Run the consumer, and print what it tells."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    from dedup_sdk import DedupConsumer, Lookup

    kept = Lines()
    log = logging.getLogger("dedup_sdk")
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    with DedupConsumer(config, dedup=Lookup(id="header:dedup-id", window="7d"), store=store) as consumer:
        consumer.subscribe([topic])
        active = waiting = 0
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            consumer.poll(0.1)
            statuses = consumer.partition_statuses
            waiting = sum("store" in status.hindrances for status in statuses)
            active = sum(status.state == "active" for status in statuses)
            if active + waiting == partitions:
                break
        # The partitions that wait try again.
        again = time.monotonic() + 1.5
        while waiting and time.monotonic() < again:
            consumer.poll(0.1)
        # The program can still open files of its own.
        Path(store, "spare").write_bytes(b"")
        print(json.dumps({"active": active, "waiting": waiting, "lines": kept.lines}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
