"""What follows when a handler is over: a message is completed, released or dead-lettered; and partitions that go.

Only the thread that polls draws conclusions, the workers do nothing but call the handler. So a rebalance callback, which
runs on the polling thread, can still complete what they did, and no worker ever waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from threading import Condition
from typing import Any

from confluent_kafka import TopicPartition

from dedup_sdk.errors import DeadLetterError
from dedup_sdk.kafka.assigned import State
from dedup_sdk.kafka.completing import Completing
from dedup_sdk.kafka.crew import Crew
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.intake import Doubt
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.tasks import Coordinates, Task

logger = logging.getLogger("dedup_sdk")

LOOK_S = 0.02
"""Seconds between two looks for new messages while handlers are busy, and for handlers while a partition goes."""
WAITING_SHARE = 0.5
"""Share of the revoke deadline in which handlers are waited for; the rest is for writing and committing."""


class Settling(Completing):
    """How the messages of a crew end."""

    _settings: ClientSettings
    _crew: Crew | None

    def release(self, message: Any) -> None:
        """Hand a message back, as without `run`; one that it is handling is its own: what the handler returns or raises counts."""
        with self._lock:
            ours = self._crew is not None and self._crew.has(message)
            self._engine.counters.stale += ours
        if not ours:
            super().release(message)

    def _settle(self, crew: Crew, timeout_s: float) -> bool:
        """Draw the conclusions from what is over, after at most so many seconds; True when there was something."""
        over = crew.over(timeout_s)
        if not over and not crew.dead_lettered():
            return False
        with self._steady(bears_faults=True):
            done: dict[Coordinates, list[Any]] = {}
            for task in over:
                if not crew.taken(task):
                    # Let go while this thread waited for the lock: its handler's work comes again.
                    continue
                self._engine.counters.retried += max(0, task.attempts - 1)
                if task.error is not None:
                    self._give_up(crew, task, task.error)
                    continue
                crew.end(task)
                done.setdefault(task.coordinates, []).append(task.message)
            for coordinates, messages in done.items():
                self._end(coordinates, messages)
            for task, error in crew.dead_lettered():
                if error is None:
                    crew.end(task)
                    self._end(task.coordinates, [task.message], dead_lettered=True)
                else:
                    self._return(crew, task, _undeliverable(task, error))
        return True

    def _end(self, coordinates: Coordinates, messages: list[Any], *, dead_lettered: bool = False) -> None:
        partition = self._partition_of(*coordinates)
        ours = [message for message in messages if partition is not None and self._session.gave(message)]
        self._engine.counters.stale += len(messages) - len(ours)
        if partition is None or not ours:
            return
        offsets = [message.offset() for message in ours]
        offered = partition.complete(offsets, dead_lettered=dead_lettered)
        self._write([partition])
        if offered:
            self._hand.offer(offered)
            self._tidy_at = 0.0

    def _return(self, crew: Crew, task: Task, error: BaseException | None = None) -> None:
        """Release a task's message, to be delivered again after the run, which an error ends."""
        if error is not None:
            crew.fail(error)
        if task in crew:
            crew.end(task)
        partition = self._taken_out(task.message)
        if partition is not None:
            crew.returned += [place.chunk.items[place.row] for place in partition.release([task.offset])]

    def _give_up(self, crew: Crew, task: Task, error: BaseException) -> None:
        """Do what the user wants with a message whose handler failed for good."""
        if crew.settings.is_final(error):
            self._return(crew, task, error)
            return
        partition = self._partition_of(*task.coordinates)
        place = partition.lane.place(task.offset) if partition is not None else None
        if partition is None or place is None:
            crew.end(task)
            self._engine.counters.stale += 1
            return
        released = place.chunk.attempts.get(place.row, 1) - 1
        letter = DeadLetter.of(
            task.message, error, group=self._settings.group, attempts=released + task.attempts,
            digest=partition.keys.name_of(place.chunk.digests[place.row]),
        )  # fmt: skip
        logger.warning(
            "%s[%d]@%d goes to the dead-letter topic after %d attempts: %s",
            letter.topic, letter.partition, letter.offset, letter.attempts, letter.error_type,
        )  # fmt: skip
        crew.send_letter(task, letter)

    # --- partitions that go --------------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return self._settings.revoke_deadline_s * WAITING_SHARE

    def _abandon(self, crew: Crew, partitions: set[Coordinates] | None) -> list[Task]:
        """Let go of what is in flight, and count it: it is delivered again, although its handler may still come to its end."""
        abandoned = crew.abandon(partitions)
        for task in abandoned:
            self._engine.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d is still being handled, and is not waited for any more: it is delivered again",
                *task.coordinates,
                task.offset,
            )
        return abandoned

    def _mend(self) -> None:
        crew = self._crew
        if crew is not None and (self._doubtful or self._torn is not Doubt.NOTHING):
            # Partitions may be read again from what is completed: what is in flight then comes again.
            with self._lock:
                crew.withdraw()
                self._abandon(crew, None)
        super()._mend()

    def _give_back(self, partitions: list[TopicPartition]) -> None:
        # What handlers do of partitions that others have already is not written: they are not waited for.
        lost = {c for c, assigned in self._session.assigned.items() if assigned.state is State.LOST}
        self._leave([tp for tp in partitions if (tp.topic, tp.partition) not in lost], self._patience_s)
        super()._give_back(partitions)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        if self._crew is not None:
            # Others have them already: what their handlers did must not be written any more.
            going = {(tp.topic, tp.partition) for tp in partitions}
            self._crew.withdraw(going)
            self._abandon(self._crew, going)
        super()._lose(partitions)

    def _forget(self, gone: Collection[Coordinates]) -> None:
        self._leave([TopicPartition(*coordinates) for coordinates in gone], 0)
        super()._forget(gone)

    def _leave(self, partitions: Iterable[TopicPartition], patience_s: float) -> None:
        """Wait for the handlers of partitions that go, so many seconds at most; forget what waits."""
        crew = self._crew
        if crew is None:
            return
        going = {(tp.topic, tp.partition) for tp in partitions}
        crew.withdraw(going)
        # A handler that has them go would wait for itself.
        until = time.monotonic() + (0 if crew.is_handling_here else patience_s)
        # A handler may need the lock (to ask for a verdict, say), which the polling thread holds in a callback.
        unlocked = Condition(self._lock)
        while crew.of(going):
            self._settle(crew, 0)
            crew.withdraw(going)
            if not crew.of(going) or time.monotonic() >= until:
                break
            unlocked.wait(LOOK_S)
        self._abandon(crew, going)


def _undeliverable(task: Task, error: Any) -> DeadLetterError:
    topic, partition = task.coordinates
    return DeadLetterError(
        f"the dead letter of {topic}[{partition}]@{task.offset} was not delivered: {error}; the message comes again: see that the "
        "dead-letter topic takes it (max.message.bytes, access rights), then start again"
    )
