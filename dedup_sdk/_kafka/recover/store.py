"""The first step of a recovery: its local store is opened, or set aside if it is damaged or another partition's."""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Steps, Wait
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._metrics import EventName
from dedup_sdk.errors import ForeignStoreError, RecoveryError, StoreCorruptError, StoreError, StoreLockedError

logger = logging.getLogger("dedup_sdk")

LOCK_LOG_AFTER_S = 1.0
"""Seconds after which the log says that a partition waits for the lock of its store: a hand-over takes less."""
LOCK_RETRY_S = 0.01
"""Seconds between two attempts to open a locked store, at first."""
MAX_LOCK_RETRY_S = 1.0
"""The same after a long wait."""
_RULE_FIELDS: Final = ("format", "id_spec", "digest", "isolation", "window")
"""Fields of a store's identity that name the rule and the format it was made with."""


class Opened(NamedTuple):
    """An open store, and whether it takes the place of a damaged one, which had marks that it lacks."""

    partition: Partition
    was_damaged: bool


def open_store(attempt: Attempt) -> Steps[Opened]:
    """Open the partition's store; wait while it is locked, and set it aside if damaged or of another topic or rule."""
    assigned, engine = attempt.assigned, attempt.engine
    began, waited_s, was_damaged = time.monotonic(), -1.0, False
    while True:
        try:
            opened = engine.attach(
                assigned.topic, assigned.partition, topic_id=attempt.topic_id, cluster=attempt.cluster
            )
            return Opened(opened, was_damaged)
        except StoreLockedError as error:
            before_s, waited_s = waited_s, time.monotonic() - began
            _report_lock_wait(attempt, error, waited_s, before_s)
            yield Wait(min(MAX_LOCK_RETRY_S, max(LOCK_RETRY_S, waited_s / 10)), "lock")
        except StoreCorruptError as damage:
            was_damaged |= _quarantine_damaged_store(attempt, damage)
            yield None
        except ForeignStoreError as error:
            recreated = error.field == "topic_id" and bool(attempt.topic_id)
            if not recreated and error.field not in _RULE_FIELDS:
                raise
            kept = _quarantine_store(attempt)
            if kept is not None:
                name: EventName = "topic-recreated" if recreated else "rule-changed"
                engine.tell(attempt.event(name, f"{error}; it is kept as {kept}"))
            yield None


def _quarantine_damaged_store(attempt: Attempt, damage: StoreCorruptError) -> bool:
    """Set the damaged store aside and report it; its marks are rebuilt from a snapshot or the topic.

    Return False if another process has opened the store meanwhile.
    """
    try:
        kept = _quarantine_store(attempt)
    except StoreError as error:
        raise RecoveryError(str(error)) from damage
    if kept is not None:
        attempt.engine.count(attempt.event("store-damaged", f"{damage}; it is kept as {kept}"))
        logger.error(
            "%s[%d]: its damaged store is kept as %s, and recovery begins with an empty one: %s",
            attempt.assigned.topic, attempt.assigned.partition, kept, damage,
            extra={"event": "store-damaged"},
        )  # fmt: skip
    return kept is not None


def _quarantine_store(attempt: Attempt) -> str | None:
    """Set the partition's store aside and return its new path; None where another process has opened it meanwhile."""
    topic, partition = attempt.assigned.topic, attempt.assigned.partition
    try:
        return attempt.engine.set_aside(topic, partition, topic_id=attempt.topic_id, cluster=attempt.cluster)
    except StoreLockedError:
        return None


def _report_lock_wait(attempt: Attempt, error: StoreLockedError, waited_s: float, before_s: float) -> None:
    """Log that a partition waits for its store's lock: after `LOCK_LOG_AFTER_S` at INFO, after ``lock_wait`` a warning.

    ``waited_s`` and ``before_s``: the seconds waited so far, now and at the previous attempt.
    """
    topic, partition = attempt.assigned.topic, attempt.assigned.partition
    limit_s = attempt.engine.lock_wait_s
    if before_s < limit_s <= waited_s:
        detail = f"waited {limit_s:g} s and goes on waiting; nothing is delivered meanwhile: {error}"
        logger.warning("%s[%d]: store-locked: %s", topic, partition, detail, extra={"event": "store-locked"})
        attempt.engine.count(attempt.event("store-locked", detail))
    elif before_s < LOCK_LOG_AFTER_S <= waited_s < limit_s:
        logger.info(
            "%s[%d] waits for its store: %s", topic, partition, error, extra={"event": "store-waited-for"}
        )
