"""How long polls may wait for brokers that are slow, or do not answer: `Backoff`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from dedup_sdk._kafka.assign.assignment import Assigned, Recovering, Retry
from dedup_sdk._kafka.client.client import ANSWER_S, EndProbe, MetadataRequests
from dedup_sdk._kafka.client.reader import Readers

MOST_ANSWER_S: Final = 4.0
"""The longest timeout in seconds of a request to a slow broker."""
BACKOFF_S: Final = 60.0
"""Seconds of backoff after a broker has not answered."""
AGAIN_S: Final = 0.5
"""Seconds before a partition repeats a failed request; doubled by each further failure."""
MOST_AGAIN_S: Final = 8.0
"""The longest such pause."""
LOOK_S: Final = 0.02
"""Seconds between two checks for the answer of a probe, which no poll waits for."""
_ANSWER_FACTOR: Final = 4.0
"""A request may take so many times as long as the last probe."""
_SLOW_STEP_S: Final = 0.1
"""A recovery step that took longer is followed by a rest."""
_REST_FACTOR: Final = 3.0
"""The rest lasts so many times as long as the step, at most `_MAX_REST_S`."""
_MAX_REST_S: Final = 2.0
Clock = Callable[[], float]


def silent_s(retry: Retry, now: float) -> float:
    """Return the seconds since the first request that was not answered; at a new silence it begins ``now``."""
    retry.silent_since = retry.silent_since or now
    return now - retry.silent_since


class Backoff:
    """Limits how long polls wait for brokers, and decides which recoveries may send requests.

    A poll waits for the answers to a recovery's requests. After a request was not answered in time, a recovery starts
    only when the leader of its partition has answered a probe, for which no poll waits. A hanging broker thus costs the
    other partitions one short wait, and a slow one gets the time that it needs.
    """

    def __init__(self, questions: MetadataRequests, readers: Readers, clock: Clock = time.monotonic) -> None:
        self._questions, self._readers, self._clock = questions, readers, clock
        self._active_until = self._rest_until = 0.0
        self._probes: dict[tuple[str, int], EndProbe] = {}
        readers.set_timeout(ANSWER_S)

    @property
    def is_active(self) -> bool:
        """Whether a broker did not answer within the last `BACKOFF_S` seconds."""
        return self._clock() < self._active_until

    def note_silence(self) -> None:
        """Record that a broker did not answer."""
        self._active_until = self._clock() + BACKOFF_S

    @property
    def rests(self) -> bool:
        """Whether recoveries must rest, because polls have waited long for them: active partitions have their turn."""
        return self._clock() < self._rest_until

    def may_begin(self, assigned: Assigned) -> bool:
        """Whether a recovery may send requests now, with its timeout set; false while its leader does not answer."""
        now = self._clock()
        if self._readers.timeout_s != (answer_s := assigned.retry.answer_s or ANSWER_S):
            self._readers.set_timeout(answer_s)
        phase, retry = assigned.phase, assigned.retry
        if (isinstance(phase, Recovering) and phase.steps is not None) or now >= self._active_until:
            return True
        coordinates = assigned.topic, assigned.partition
        probe = self._probes.get(coordinates)
        if probe is None:
            probe = self._probes[coordinates] = self._questions.probe(*coordinates)
        if not probe.is_over:
            retry.at, retry.hindrance = now + LOOK_S, "broker" if now - probe.began > ANSWER_S else None
            return False
        del self._probes[coordinates]
        if not probe.is_answered:
            retry.hindrance = "broker"
            self._put_off(retry)
            return False
        retry.hindrance = None
        retry.answer_s = min(max(ANSWER_S, _ANSWER_FACTOR * (probe.took_s or 0.0)), MOST_ANSWER_S)
        self._readers.set_timeout(retry.answer_s)
        return True

    def took(self, seconds: float) -> None:
        """Record how long a recovery step took; while brokers are slow, a rest of several times that follows."""
        if self._readers.timeout_s != ANSWER_S:
            self._readers.set_timeout(ANSWER_S)
        if seconds > _SLOW_STEP_S and self.is_active:
            self._rest_until = self._clock() + min(_REST_FACTOR * seconds, _MAX_REST_S)

    def failed(self, assigned: Assigned) -> None:
        """Record that a request of a partition was not answered."""
        self.note_silence()
        self._put_off(assigned.retry)

    def put_off(self, partitions: Iterable[Assigned]) -> None:
        """Delay these partitions, because the same request of another one was not answered."""
        again = self._clock() + AGAIN_S
        for assigned in partitions:
            assigned.retry.at = max(assigned.retry.at, again)

    def forget(self, topic: str, partition: int) -> None:
        """Drop the probe of a partition that was closed."""
        self._probes.pop((topic, partition), None)

    def _put_off(self, retry: Retry) -> None:
        retry.failures += 1
        pause_s = AGAIN_S * 2 ** min(retry.failures - 1, 8)
        retry.at = self._clock() + min(pause_s, MOST_AGAIN_S)
        self._questions.renew()
