"""One consumer process of the demo: the loop that a user writes, and a file with the handled messages.

Run as ``python -m dedup_sdk._demo.worker``; ends in order on SIGTERM. Its handler appends one line
``partition offset id`` to a file, unbuffered: written lines survive a SIGKILL of this process, so that the
file lists exactly the calls of the handler that were finished.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from dedup_sdk import DedupConsumer, DedupError, Lookup, Recovery, Window, header
from dedup_sdk._demo.flights import ID_HEADER
from dedup_sdk._demo.oracle import dedup_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message

SESSION_TIMEOUT_MS = 3_000
"""How long the group waits for a killed member; Kafka's default is 45 s."""

COMMIT_INTERVAL_MS = 500


def main(argv: Sequence[str] | None = None) -> int:
    """Handle messages until SIGTERM; return the exit status."""
    options = _parser().parse_args(argv)
    handled = os.open(options.handled, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    consumer = DedupConsumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 10,
            "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
        },
        dedup=Lookup(id=header(ID_HEADER), window=Window.parse(options.window)),
        store=options.store,
        recovery=Recovery(snapshot=options.snapshot),
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    with consumer:
        consumer.subscribe([options.topic])
        for message in consumer:  # each logical message once
            _handle(message, handled, options.work_us / 1_000_000)
    return 0


def _handle(message: Message, file: int, work_s: float) -> None:
    if work_s:
        time.sleep(work_s)
    os.write(file, f"{message.partition()} {message.offset()} {dedup_id_of(message)}\n".encode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dedup_sdk._demo.worker", description="one worker of the demo"
    )
    for name in ("bootstrap", "group", "topic", "store", "handled", "window"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--snapshot", help="a snapshot folder to begin with where the store is missing")
    parser.add_argument("--work-us", type=int, default=0, help="time to handle one message, microseconds")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DedupError as failure:
        sys.exit(str(failure))
