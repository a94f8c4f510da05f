"""Recoveries side by side, in slices that fit between two polls: which of them goes on, which waits, and which partitions may deliver."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import DedupError, RecoveryError, StoreUnavailableError
from dedup_sdk.kafka.assignment import CATCHING_UP, RECOVERING, Assigned, Coordinates, Starts, State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.client_errors import passes
from dedup_sdk.kafka.commits import Beginning, Commits
from dedup_sdk.kafka.failures import CallbackErrors
from dedup_sdk.kafka.questions import LOOK_S, Backoff
from dedup_sdk.kafka.recovery import RecoverySettings, recover
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.observe import Hindrance

logger = logging.getLogger("dedup_sdk")

SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
TOGETHER_S = 0.5
"""Seconds that a partition which is up to date waits, at most, for others whose recovery goes on, to begin with them."""
ASK_AGAIN_S = 0.5
"""Seconds between two attempts to commit where a history begins, or to repeat a step that failed here."""
UNKNOWN_S = 10.0
"""Seconds after which a topic or partition that the client, or a broker, has not heard of does not exist."""
_UNKNOWN_PARTITION: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 (that is its public name)

_failures = attrgetter("failures")


class RecoveryLoop:
    """Brings the partitions in ``assigned`` that recover a little further, poll by poll. Errors are kept in ``callback_errors``, for `poll` to raise."""

    def __init__(
        self,
        assigned: Mapping[Coordinates, Assigned],
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        chosen: RecoverySettings,
        *,
        callback_errors: CallbackErrors,
        starts: Starts,
        backoff: Backoff,
        commits: Commits,
    ) -> None:
        self._assigned = assigned
        self._engine, self._client, self._settings, self._chosen = engine, client, settings, chosen
        self._callback_errors, self._starts, self._backoff, self._commits = (
            callback_errors,
            starts,
            backoff,
            commits,
        )
        self._begin_by = 0.0
        self.hurried = False
        """Whether some recovery could go on at once."""

    def work(self) -> list[Assigned]:
        """Go on with the recoveries, for at most `SLICE_S`; return the partitions that may deliver now."""
        until = time.monotonic() + SLICE_S
        while True:
            now = time.monotonic()
            # Those that are through make room for the next: many short recoveries fit into one poll.
            busy = [
                each for each in self._assigned.values() if each.state in CATCHING_UP and each.ask_at <= now
            ]
            self.hurried = bool(busy) and not self._backoff.rests
            if now >= until or not self.hurried:
                break
            # Those that failed ask last: a broker that does not answer holds up no others.
            for assigned in sorted(busy, key=_failures)[:AT_ONCE]:
                self._step(assigned)
                if time.monotonic() >= until:
                    break
        finished = [each for each in self._assigned.values() if each.state is State.ANNOUNCING]
        return self._together(self._announced(finished)) if finished else []

    def _together(self, begun: list[Assigned]) -> list[Assigned]:
        """Have partitions deliver in few groups: a fetch that waits for records of the first holds up that of the next."""
        now = time.monotonic()
        self._begin_by = self._begin_by or now + TOGETHER_S
        if not begun or (self.hurried and now < self._begin_by):
            return []
        self._begin_by = 0.0
        return begun

    def _step(self, assigned: Assigned) -> None:
        """Bring a partition a little further."""
        began = time.monotonic()
        try:
            if not self._backoff.may_begin(assigned):
                return
            if assigned.start is None:
                self._find_start(assigned)
                return
            if assigned.recovery is None:
                if not self._client.is_described(assigned.topic) and not self._describe(assigned):
                    return
                steps = recover(assigned, self._engine, self._client, self._settings, self._chosen)
                assigned.begin_recovery(steps)
            else:
                steps = assigned.recovery
            wait = next(steps)
            if wait is None:
                assigned.wait_until(assigned.ask_at, None)
            else:
                assigned.wait_until(time.monotonic() + wait.seconds, wait.hindrance)
        except StopIteration:
            assigned.end_recovery()
        except BaseException as error:
            assigned.recover_anew()
            self._engine.lose(assigned.topic, assigned.partition)
            if not isinstance(error, DedupError | KafkaException):
                if isinstance(error, Exception) and assigned.start is not None:
                    assigned.blame(assigned.start.offset)
                raise
            self._note_failure(assigned, error)
        finally:
            self._backoff.took(time.monotonic() - began)

    def _note_failure(self, assigned: Assigned, error: DedupError | KafkaException) -> None:
        """Have a recovery begin again later, or the error raised."""
        now = time.monotonic()
        hindrance: Hindrance | None = assigned.waits_for
        if isinstance(error, StoreUnavailableError):
            if hindrance != "store":
                logger.warning("%s[%d] waits for its store: %s", assigned.topic, assigned.partition, error)
            hindrance = "store"
        assigned.wait_until(now + ASK_AGAIN_S, hindrance)
        if isinstance(error, StoreUnavailableError):
            return
        if isinstance(error, KafkaException) and (
            passes(error) or (_is_unknown_topic(error) and assigned.silent_s(now) <= UNKNOWN_S)
        ):
            self._backoff.failed(assigned)
            logger.warning("%s[%d]: recovery goes on later: %s", assigned.topic, assigned.partition, error)
        elif isinstance(error, KafkaException) and _is_unknown_topic(error):
            what = f"topic {assigned.topic!r} is unknown to the broker: {error}"
            self._callback_errors.keep(RecoveryError(f"{what}; does it exist, and may the group read it?"))
        else:
            self._callback_errors.keep(error)

    def _describe(self, assigned: Assigned) -> bool:
        """Ask which topic this is, and about all that recover in one request; return whether it is known at once."""
        self._client.describe({each.topic for each in self._assigned.values() if each.state in RECOVERING})
        if self._client.is_described(assigned.topic):
            return True
        assigned.wait_until(time.monotonic() + LOOK_S, assigned.waits_for)
        return False

    def _find_start(self, assigned: Assigned) -> None:
        """Ask where the group stands; a broker that does not answer now is asked again later."""
        wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
        try:
            [committed] = self._client.committed([wanted], self._client.readers.answer_s).values()
            assigned.starts_at(self._starts.start(wanted, committed))
            assigned.note_answer()
        except KafkaException as error:
            self._backoff.failed(assigned)
            self._backoff.put_off(each for each in self._assigned.values() if each.start is None)
            now = time.monotonic()
            if assigned.silent_s(now) > UNKNOWN_S and error.args[0].code() == _UNKNOWN_PARTITION:
                if self._client.knows_of(assigned.topic, assigned.partition):
                    # It has no leader for now, so that there is nobody to ask.
                    assigned.note_answer(now)
                    return
                raise RecoveryError(
                    f"{assigned.topic}[{assigned.partition}] is unknown to the broker: {error}; does the topic exist?"
                ) from error
            if not passes(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s)",
                assigned.topic, assigned.partition, error,
            )  # fmt: skip

    def _announced(self, finished: list[Assigned]) -> list[Assigned]:
        """Return the partitions of which the group knows where their history begins; of others that is committed, again and again."""
        now = time.monotonic()
        known, due = [], []
        for assigned in finished:
            if (
                assigned.start is None
                or not assigned.start.at_once
                or assigned.commits.beginning is Beginning.KNOWN
            ):
                known.append(assigned)
            elif assigned.commits.beginning is Beginning.TO_ASK and assigned.ask_at <= now:
                assigned.wait_until(now + ASK_AGAIN_S, assigned.waits_for)
                due.append(assigned)
        if due:
            try:
                self._commits.beginnings(due)
            except KafkaException as error:
                logger.warning("the beginning of the history cannot be committed (%s); asking again", error)
        return known


def _is_unknown_topic(error: KafkaException) -> bool:
    """Whether a broker does not know the topic; it may just not have heard of it yet."""
    return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
