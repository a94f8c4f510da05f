"""The recoveries of all partitions, side by side, in slices between polls: `RecoveryLoop`.

The loop decides which recoveries continue, which wait, and which partitions may deliver.
"""

from __future__ import annotations

import logging
import time
from operator import attrgetter
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.assignment import (
    CATCHING_UP,
    RECOVERING,
    Asking,
    Assigned,
    Recovered,
    Recovering,
    State,
    Steps,
)
from dedup_sdk._kafka.assign.commits import Beginning
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.reader import HistoryGoneError
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.recover.backoff import LOOK_S, silent_s
from dedup_sdk._kafka.recover.recovery import recover
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._masking import shown
from dedup_sdk.errors import DedupError, RecoveryError, StoreUnavailableError

logger = logging.getLogger("dedup_sdk")

SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
TOGETHER_S = 0.5
"""Seconds that a recovered partition waits, at most, for running recoveries, so that they start together."""
ASK_AGAIN_S = 0.5
"""Seconds between two commits of the beginning of a history, and before a failed step is repeated."""
UNKNOWN_S = 10.0
"""Seconds after which a topic or partition that is unknown to the client or the broker counts as missing."""
_UNKNOWN_PARTITION: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 (that is its public name)
_state, _failures = attrgetter("state"), attrgetter("retry.failures")


class RecoveryLoop:
    """Runs the recoveries of a session's partitions, a slice per poll.

    Errors are kept in ``callback_errors``, and `poll` raises them.
    """

    def __init__(
        self,
        session: Session,
        client: Client,
        settings: ClientSettings,
        policy: Recovery,
        callback_errors: CallbackErrors,
    ) -> None:
        self._session, self._client, self._settings, self._policy = session, client, settings, policy
        self._callback_errors = callback_errors
        self._begin_by = 0.0
        self.hurried = False
        """Whether a recovery can make progress at once, so that the poll must not wait."""

    def work(self) -> list[Assigned]:
        """Continue the recoveries for at most `SLICE_S`; return the partitions that may deliver now.

        The tail readers are closed when no partition recovers, and served until then.
        """
        if not any(map(RECOVERING.__contains__, map(_state, self._session.assigned.values()))):
            self.hurried = False
            self._client.readers.close()
            return []
        if self._client.readers.open:
            self._client.readers.serve()
        until = time.monotonic() + SLICE_S
        while True:
            now = time.monotonic()
            # Finished ones make room for others: many short recoveries fit into one poll.
            runnable = [
                each
                for each in self._session.assigned.values()
                if each.state in CATCHING_UP and each.retry.at <= now
            ]
            self.hurried = bool(runnable) and not self._session.backoff.rests
            if now >= until or not self.hurried:
                break
            # Partitions that failed come last: a broker that does not answer must not delay the others.
            for assigned in sorted(runnable, key=_failures)[:AT_ONCE]:
                self.step(assigned)
                if time.monotonic() >= until:
                    break
        finished = [each for each in self._session.assigned.values() if each.state is State.ANNOUNCING]
        if not finished:
            return []
        begun, now = self._with_known_beginning(finished), time.monotonic()
        # Start them in few groups: a fetch that waits for records of one group delays the fetch of the next.
        self._begin_by = self._begin_by or now + TOGETHER_S
        if not begun or (self.hurried and now < self._begin_by):
            return []
        self._begin_by = 0.0
        return begun

    def step(self, assigned: Assigned) -> None:
        """Run one step of a partition's recovery."""
        began, phase = time.monotonic(), assigned.phase
        try:
            if not self._session.backoff.may_begin(assigned):
                return
            if isinstance(phase, Asking):
                self._find_start(assigned)
            elif assigned.moves_to is not None:
                self._session.move(assigned.topic, assigned.partition, assigned.moves_to)
            elif isinstance(phase, Recovering) and (steps := phase.steps or self._begin(assigned, phase)):
                wait = next(steps, None)
                assigned.retry.hindrance = None if wait is None else wait.hindrance
                if wait is not None:
                    assigned.retry.at = time.monotonic() + wait.seconds
        except BaseException as error:
            assigned.recover_anew()
            self._session.engine.lose(assigned.topic, assigned.partition)
            if is_interruption(error) or not self._is_noted(assigned, error):
                raise
        finally:
            self._session.backoff.took(time.monotonic() - began)

    def _begin(self, assigned: Assigned, phase: Recovering) -> Steps[None] | None:
        """Begin an attempt, and return its steps; None as long as the topics are not described yet."""
        if not self._client.topics.is_described(assigned.topic) and not self._client.topics.describe(
            {each.topic for each in self._session.assigned.values() if each.state in RECOVERING}
        ):
            assigned.retry.at = time.monotonic() + LOOK_S
            return None
        phase.steps = recover(
            assigned, phase, self._session.engine, self._client, self._settings, self._policy
        )
        return phase.steps

    def _is_noted(self, assigned: Assigned, error: BaseException) -> bool:
        """Note an error; return False for an unexpected one, which is to be raised at once."""
        if isinstance(error, DedupError | KafkaException):
            self._note_failure(assigned, error)
            return True
        if assigned.start is not None:
            assigned.note_unexpected_error(assigned.start.offset)
        return False

    def _note_failure(self, assigned: Assigned, error: DedupError | KafkaException) -> None:
        """Schedule a retry of the recovery, or keep the error for `poll` to raise."""
        now = time.monotonic()
        assigned.retry.at = now + ASK_AGAIN_S
        if isinstance(error, StoreUnavailableError):
            self._tell_store_refused(assigned, error)
            assigned.retry.hindrance = "store"
            return
        if isinstance(error, HistoryGoneError):
            # As if the log had begun there when this attempt began: the next one has coverage begin later.
            assigned.retry.at = now
            self._warn_of_repetition(assigned, error)
            return
        if isinstance(error, KafkaException) and (
            is_retriable(error) or (_is_unknown_topic(error) and silent_s(assigned.retry, now) <= UNKNOWN_S)
        ):
            self._session.backoff.failed(assigned)
            self._warn_of_repetition(assigned, error)
        elif isinstance(error, KafkaException) and _is_unknown_topic(error):
            event = f"topic {shown(assigned.topic)} is unknown to the broker: {error}"
            self._callback_errors.keep(RecoveryError(f"{event}; does it exist, and may the group read it?"))
        else:
            self._callback_errors.keep(error)

    @staticmethod
    def _warn_of_repetition(assigned: Assigned, error: Exception) -> None:
        logger.warning(
            "%s[%d]: recovery is repeated later: %s",
            assigned.topic, assigned.partition, error,
            extra={"event": "recovery-repeated"},
        )  # fmt: skip

    def _tell_store_refused(self, assigned: Assigned, error: StoreUnavailableError) -> None:
        """Log that a store cannot be opened, unless a partition waits for its store already: the cause is the same."""
        partitions = self._session.assigned.values()
        if any(each.retry.hindrance == "store" for each in partitions):
            return
        logger.error(
            "%s[%d] waits for its store; %d of %d partitions have theirs, and later ones may wait as well: %s",
            assigned.topic, assigned.partition, sum(each.recovered is not None for each in partitions),
            len(partitions), error,
            extra={"event": "store-waited-for"},
        )  # fmt: skip

    def _find_start(self, assigned: Assigned) -> None:
        """Request the group's committed offset and set the start; a failed request is repeated later."""
        wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
        try:
            [committed] = self._client.committed([wanted], self._client.readers.timeout_s).values()
            assigned.starts_at(self._session.starts.start(wanted, committed))
            assigned.retry.silent_since = 0.0
        except KafkaException as error:
            self._session.backoff.failed(assigned)
            partitions = self._session.assigned.values()
            self._session.backoff.put_off(each for each in partitions if isinstance(each.phase, Asking))
            now = time.monotonic()
            if silent_s(assigned.retry, now) > UNKNOWN_S and error.args[0].code() == _UNKNOWN_PARTITION:
                if self._client.knows_of(assigned.topic, assigned.partition):
                    # The partition exists, but has no leader at present.
                    assigned.retry.silent_since = now
                    return
                raise RecoveryError(
                    f"{assigned.topic}[{assigned.partition}] is unknown to the broker: {error}; does the topic exist?"
                ) from error
            if not is_retriable(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s); the request is repeated",
                assigned.topic, assigned.partition, error,
                extra={"event": "group-offsets-unknown"},
            )  # fmt: skip

    def _with_known_beginning(self, finished: list[Assigned]) -> list[Assigned]:
        """Return the partitions whose beginning the group knows, or refuses; commit that of the others, repeatedly."""
        now = time.monotonic()
        known, due = [], []
        for assigned in finished:
            phase = assigned.phase
            is_told = isinstance(phase, Recovered) and not phase.start.must_commit_first
            if is_told or assigned.commits.beginning.may_deliver:
                known.append(assigned)
            elif assigned.commits.beginning is Beginning.TO_ASK and assigned.retry.at <= now:
                assigned.retry.at = now + ASK_AGAIN_S
                due.append(assigned)
        if due:
            try:
                self._session.commits.beginnings(due)
            except KafkaException as error:
                logger.warning(
                    "commit of where the history begins failed (%s); it is repeated",
                    error,
                    extra={"event": "beginning-commit-failed"},
                )
        return known


def _is_unknown_topic(error: KafkaException) -> bool:
    """Whether the broker does not know the topic, which may be new to it."""
    return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
