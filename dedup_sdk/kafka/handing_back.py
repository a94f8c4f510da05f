"""Handing back: a message that another consumer has in flight for too long goes to the retry topic, where it is judged again.

Its copy there is a dead letter like any other: only when the broker has it the message is over here, and it leaves no mark. Whatever happens in
between, the message is here, or there, or both, and in one scope whoever claims it first handles it. So nothing is lost by it, and nothing doubled.

young
    a message whose copy, for the local store of the retry topic, is about as old as the message itself: that goes by when the copy was sent. Of an ID
    that names two messages, more than a window apart, copies that were sent one after the other in a backlog would be one.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.engine.claiming import Waiting
from dedup_sdk.engine.claims import Claims
from dedup_sdk.engine.counted import Counted
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import InFlightElsewhereError
from dedup_sdk.ids import RecordFields
from dedup_sdk.kafka.dead_letter_producer import DeadLetterProducer
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.letter_chain import LetterChain
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.record import Record

logger = logging.getLogger("dedup_sdk")

MOST_UNDER_WAY: Final = 1_000
"""Copies that wait for their delivery reports at most."""
TRY_AGAIN_S: Final = 5.0
"""Seconds before a message whose copy was not taken is sent again, at the earliest."""

YOUNG_SHARE: Final = 100
"""A message is young up to this part of the window."""

_Report = tuple[Waiting, KafkaError | None]


class HandingBack:
    """Sends what waits for too long to one topic. Not thread-safe; nothing here waits for a broker."""

    def __init__(self, claims: Claims, settings: ClientSettings, topic: str, chain: LetterChain) -> None:
        self._claims = claims
        self._settings = settings
        self._topic = topic
        self._chain = chain
        self._letters: DeadLetterProducer | None = None
        self._under_way: set[Waiting] = set()
        self._reports: deque[_Report] = deque()
        self._told_of_failure = self._told_of_id = False

    def work(self, partitions: Iterable[Partition]) -> list[Counted]:
        """Send what is due, and end what arrived; return the partitions that have something to write."""
        for waiting in self._claims.take_overdue(partitions, max(0, MOST_UNDER_WAY - len(self._under_way))):
            if _is_young(waiting):
                self._send(waiting)
            else:
                self._claims.wait_on(waiting, math.inf)
        if self._letters is not None:
            self._hear(self._letters)
        ended: dict[Counted, None] = {}
        while self._reports:
            # One by one: where one cannot be ended (its store's disk is full), the others still have their reports.
            ended |= dict.fromkeys(self._end(*self._reports.popleft()))
        return list(ended)

    def _hear(self, letters: DeadLetterProducer) -> None:
        """Let reports come in; a client that has failed for good sends nothing any more, so that the next copy has another one made."""
        try:
            letters.poll()
        except KafkaException as error:
            self._letters = None
            for waiting in self._under_way - {waiting for waiting, _ in self._reports}:
                self._report(waiting, error.args[0])
            letters.close()

    def close(self) -> None:
        """Give up what is under way: its messages come again."""
        if self._letters is not None:
            self._letters.close()

    def _send(self, waiting: Waiting) -> None:
        message = waiting.chunk.items[waiting.row]
        held, digest = waiting.held, waiting.chunk.digests[waiting.row]
        coordinates = held.topic, held.partition
        letter = DeadLetter.of(
            message,
            InFlightElsewhereError("another consumer has a message with this ID in flight: handed back"),
            group=self._settings.group,
            attempts=0,
            digest=held.keys.name_of(digest),
            before=self._chain.before(coordinates, held.lane.buried),
        )
        if self._id_there(held, message, letter) != digest:
            self._keep_for_good(waiting)
            return
        self._under_way.add(waiting)
        self._chain.sent(coordinates, waiting.offset)
        try:
            if self._letters is None:
                self._letters = DeadLetterProducer(self._settings, self._topic, find=False)
            self._letters.offer(message, letter, partial(self._report, waiting))
        except BufferError:
            self._report(waiting, KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001 (that is its public name)
        except KafkaException as error:
            self._report(waiting, error.args[0])

    def _report(self, waiting: Waiting, error: KafkaError | None) -> None:
        self._reports.append((waiting, error))

    def _end(self, waiting: Waiting, error: KafkaError | None) -> list[Counted]:
        held = waiting.held
        self._under_way.discard(waiting)
        self._chain.ended((held.topic, held.partition), waiting.offset, arrived=error is None)
        if error is None:
            self._told_of_failure = False
            return [held] if self._claims.hand_back(waiting) else []
        self._claims.wait_on(waiting, TRY_AGAIN_S)
        if not self._told_of_failure:
            self._told_of_failure = True
            logger.warning(
                "%s[%d]@%d cannot be handed back to %s: %s; it waits here, as others do that follow, and is sent again now and then: see that the topic "
                "is there and takes it (max.message.bytes, access rights)", held.topic, held.partition, waiting.offset, self._topic, error,
            )  # fmt: skip
        return []

    def _id_there(self, held: Counted, message: Any, letter: DeadLetter) -> bytes | None:
        """Return the digest by which the copy will be known: a function of the user's may read where a record lies."""
        headers = [(name, value) for name, value in letter.headers(message) if not isinstance(value, str)]
        # No place that there is: a function that reads it must not find the message's own by chance.
        copy = Record(self._topic, -1, -1, key=message.key(), value=message.value(), headers=headers)
        [digest] = held.keys.digests(RecordFields([copy])).digests
        return digest

    def _keep_for_good(self, waiting: Waiting) -> None:
        self._claims.wait_on(waiting, math.inf)
        if not self._told_of_id:
            self._told_of_id = True
            logger.warning(
                "%s[%d]@%d is not handed back to %s: its ID would be another one there, so that it could be handled twice; it waits here, as others do "
                "that follow. Give an ID that does not hang on where a message lies", waiting.held.topic, waiting.held.partition, waiting.offset, self._topic,
            )  # fmt: skip


def _is_young(waiting: Waiting) -> bool:
    sent_ms = waiting.timestamp_ms
    return sent_ms < 0 or (time.time() * 1000 - sent_ms) * YOUNG_SHARE <= waiting.own.window_ms
