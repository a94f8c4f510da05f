"""A last commit while the group still takes it.

In the middle of a rebalance the group takes commits only from members that have joined it again, and a client on its way out
does not join any more. So what is completed is committed before: the rebalance is gone along with until the group
has taken it. Partitions that it takes away meanwhile are handed over as in any other.
"""

from __future__ import annotations

import logging
import time
from threading import RLock
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.errors import DedupError
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.session import Session

logger = logging.getLogger("dedup_sdk")

PATIENCE_S: Final = 10.0
"""Seconds that a rebalance is waited for, at most, and not longer than the revoke deadline."""
_ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.05

_REBALANCING: Final = frozenset({
    KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH,
})  # fmt: skip
"""What the group answers to a commit of a member that has to join again first."""


def commit_in_group(session: Session, client: Client, lock: RLock, patience_s: float) -> None:
    """Commit what is completed, if need be after the rebalance under way; what is refused for another reason is left to the end.

    Nothing is delivered any more from here on.
    """
    until = time.monotonic() + min(PATIENCE_S, patience_s)
    with lock:
        for assigned in session.assigned.values():
            client.pause(assigned.topic, assigned.partition)
    while not _committed(session, lock, until) and time.monotonic() < until:
        # The client joins again while it is polled, and says so to the callbacks.
        client.listen(_LOOK_S)


def _committed(session: Session, lock: RLock, until: float) -> bool:
    """Try once; False when another try makes sense."""
    with lock:
        answer_by = min(until, time.monotonic() + _ANSWER_S)
        try:
            session.commits.completed(session.assigned.values(), asynchronous=False, until=answer_by)
        except KafkaException as error:
            if error.args[0].code() in _REBALANCING:
                return False
            logger.info("commit before leaving failed (%s)", error)
        except DedupError as error:
            logger.info("commit before leaving failed (%s)", error)
    return True
