"""A group that stands beyond what is decided of the log: a transaction is open there.

A reset tool sets offsets up to the log's very end, and a member that reads at ``read_uncommitted`` commits up to there. At ``read_committed``
a plain client gets nothing then until the transaction has ended, and so do we: only then it is known which records the group passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator

from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.reader import TailReader

logger = logging.getLogger("dedup_sdk")

LOOK_S = 0.5
"""Seconds between two looks whether the transaction has ended."""


def wait_until_decided(
    assigned: Assigned, offset: int, reader: TailReader, *, until: float | None
) -> Generator[None, None, None]:
    """Wait until all of the log before ``offset``, which is not beyond its end, is decided for ``reader``, or until a time (monotonic seconds).

    Raises `KafkaException` when the broker does not say.
    """
    told = False
    try:
        while until is None or time.monotonic() < until:
            decided = reader.bounds()[1]
            if decided >= offset or reader.log_end() < offset:
                return
            if not told:
                logger.warning(
                    "%s[%d]: the group stands at %d, and a transaction that began at %d is open: waiting for its end, which "
                    "tells what the group has passed", assigned.topic, assigned.partition, offset, decided,
                )  # fmt: skip
                told = True
            assigned.undecided = True
            assigned.ask_at = time.monotonic() + LOOK_S
            yield
    finally:
        assigned.undecided = False
