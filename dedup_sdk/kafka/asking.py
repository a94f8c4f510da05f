"""How long a poll may wait for a broker, and which partitions may have it wait.

Recovery asks brokers, and a poll waits for the answers. Where one was not given in time, the next recoveries begin only when
the leader of their partition has answered a question that nobody waits for: a broker that hangs costs the others one short wait,
and a slow one is given the time that it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.errors import DedupError, RecoveryError
from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.questions import Knock, Questions
from dedup_sdk.kafka.readers import Readers

ANSWER_S: Final = 0.5
"""Seconds that a poll waits for an answer, as long as brokers give them."""
MOST_ANSWER_S: Final = 4.0
"""The most of it, for a broker that takes long."""
WARY_S: Final = 60.0
"""Seconds for which brokers are asked with care after one has not answered."""
AGAIN_S: Final = 0.5
"""Seconds until a partition asks again after its first failure; each further one doubles them."""
MOST_AGAIN_S: Final = 8.0
"""The most of it."""
LOOK_S: Final = 0.02
"""Seconds between two looks for an answer that nobody waits for."""
_TIMES: Final = 4.0
"""What a question may take, in times of what the last one took."""
_LONG_S: Final = 0.1
_REST_TIMES: Final = 3.0
_MOST_REST_S: Final = 2.0

Clock = Callable[[], float]


class Asking:
    """One consumer's care for brokers that do not answer."""

    def __init__(self, questions: Questions, readers: Readers, clock: Clock = time.monotonic) -> None:
        self._questions, self._readers, self._clock = questions, readers, clock
        self._wary_until = self._rest_until = 0.0
        self._knocks: dict[tuple[str, int], Knock] = {}
        readers.answer_s = ANSWER_S

    @property
    def is_wary(self) -> bool:
        """Whether some broker did not answer lately."""
        return self._clock() < self._wary_until

    def be_wary(self) -> None:
        """Note that some broker did not answer."""
        self._wary_until = self._clock() + WARY_S

    @property
    def rests(self) -> bool:
        """Whether polls have waited enough for now, so that active partitions have their turn."""
        return self._clock() < self._rest_until

    def may_begin(self, assigned: Assigned) -> bool:
        """Whether a recovery may ask brokers now, and how long for; false while its leader does not answer."""
        now = self._clock()
        self._readers.answer_s = assigned.answer_s or ANSWER_S
        if assigned.recovery is not None or not self.is_wary:
            return True
        coordinates = assigned.topic, assigned.partition
        knock = self._knocks.get(coordinates)
        if knock is None:
            knock = self._knocks[coordinates] = self._questions.knock(*coordinates)
        if not knock.is_over:
            assigned.silent = now - knock.began > ANSWER_S
            assigned.ask_at = now + LOOK_S
            return False
        del self._knocks[coordinates]
        if not knock.is_answered:
            assigned.silent = True
            self._put_off(assigned, now)
            return False
        assigned.silent = False
        assigned.answer_s = min(max(ANSWER_S, _TIMES * (knock.took_s or 0.0)), MOST_ANSWER_S)
        self._readers.answer_s = assigned.answer_s
        return True

    def took(self, seconds: float) -> None:
        """Note what a step of a recovery took: while brokers are slow, others have several times as much."""
        self._readers.answer_s = ANSWER_S
        if self.is_wary and seconds > _LONG_S:
            self._rest_until = self._clock() + min(_REST_TIMES * seconds, _MOST_REST_S)

    def failed(self, assigned: Assigned) -> None:
        """Note that a question was not answered."""
        self.be_wary()
        self._put_off(assigned, self._clock())

    def put_off(self, partitions: Iterable[Assigned]) -> None:
        """Have these not ask before a while, because what they would ask was not answered to another."""
        again = self._clock() + AGAIN_S
        for assigned in partitions:
            assigned.ask_at = max(assigned.ask_at, again)

    def forget(self, topic: str, partition: int) -> None:
        """Take no answer any more for a partition that went."""
        self._knocks.pop((topic, partition), None)

    def _put_off(self, assigned: Assigned, now: float) -> None:
        assigned.failures += 1
        assigned.ask_at = now + min(AGAIN_S * 2 ** min(assigned.failures - 1, 8), MOST_AGAIN_S)
        self._questions.renew()


def is_unheard_of(assigned: Assigned, error: KafkaException, within_s: float) -> bool:
    """Whether a broker that does not know the topic may just not have heard of it yet: it is asked about for no longer than that."""
    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return False
    now = time.monotonic()
    assigned.asked_from = assigned.asked_from or now
    return now - assigned.asked_from <= within_s


def explained(assigned: Assigned, error: DedupError | KafkaException) -> DedupError | KafkaException:
    """Return the error that the user gets."""
    if not isinstance(error, KafkaException) or error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return error
    return RecoveryError(
        f"topic {assigned.topic!r} is unknown to the broker: {error}; does it exist, and may the group read it?"
    )
