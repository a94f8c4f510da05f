"""Fetched messages become delivered ones: judged together, or one by one; the client's events keep their place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import compress, repeat
from operator import is_not
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._core.flight import SINGLE
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.gates import Gatekeeper
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.deliver.classifier import BatchClassifier
from dedup_sdk._kafka.deliver.handover import Handover
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk.errors import StoreError

logger = logging.getLogger("dedup_sdk")

MOST_ALONE: Final = 12
"""So many fetched messages are judged one by one; more cost less if they are judged together."""

_error: Final[Callable[[Any], Any]] = Message.error


class Judge:
    """Takes the messages of the fetcher, and gives the delivery what the application is to see; with the lock."""

    def __init__(
        self,
        engine: Deduplicator,
        classifier: BatchClassifier,
        handover: Handover,
        upkeep: Upkeep,
        steps: Steps,
    ) -> None:
        self.engine, self.classifier, self.handover = engine, classifier, handover
        self._session, self.fetcher, self.delivery = handover.session, handover.fetcher, handover.delivery
        self.upkeep, self._steps = upkeep, steps
        self.judged = 0
        """Records that were judged in this life."""

    def judge_one(self) -> list[Any]:
        """Judge the first of few fetched messages by itself, and deliver it; none if it is to be judged with others."""
        messages, delivery = self.fetcher.messages, self.delivery
        few = len(messages) <= MOST_ALONE and self._steps.errors.kept is None
        if not (few and delivery.is_over) or self._steps.interruption.happened:
            return []
        judged = self.classifier.judge_one(messages[0])
        if judged is None:
            return []
        self.judged += 1
        self.fetcher.rest(messages[1:])
        return delivery.deliver_one(messages[0], judged)

    def judge(self) -> None:
        """Judge the messages before the client's first event; if the event is first, handle it instead."""
        batch = self.fetcher.messages
        first = next(compress(range(len(batch)), map(is_not, map(_error, batch), repeat(None))), len(batch))
        if first == 0:
            self._take_event(batch)
            return
        judged = self.classifier.classify(batch[:first] if first < len(batch) else batch)
        if isinstance(judged.error, StoreError):
            raise judged.error
        self.judged += first
        self.delivery.fill(judged)
        for partition in self.engine.partitions.values():
            if partition.due:
                self.offer_due()
                break
        self.fetcher.rest(judged.rest + batch[first:])
        if judged.doubted:
            self.handover.forget(judged.doubted)
        if judged.error is not None:
            self._steps.errors.keep(judged.error)

    def _take_event(self, batch: list[Any]) -> None:
        """Handle the event in front, or queue it for the application; keep it if a broker does not answer now."""
        event = batch[0]
        try:
            absorbed = self.upkeep.handle_offset_reset(event)
        except KafkaException as error:
            if not is_retriable(error):
                raise
            logger.warning(
                "%s[%d]: %s; asking again",
                event.topic(),
                event.partition(),
                error,
                extra={"event": "broker-asked-again"},
            )
            self.upkeep.answer_later(event)
            absorbed = True
        self.fetcher.rest(batch[1:])
        if not absorbed:
            self.delivery.waiting.put_event(event)
        else:
            self.handover.forget_if_it_recovers((event.topic(), event.partition()))
        if event.error().code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
            self._session.note_end(event.error())
            # The group has removed this member, and the client calls no callback. The next owner may need the stores.
            self.handover.lose([TopicPartition(*coordinates) for coordinates in self._session.assigned])

    # --- what gates hold back ------------------------------------------------------------------------------------

    def offer_due(self) -> None:
        """Queue messages of earlier batches that gates let through since."""
        for partition in self.engine.partitions.values():
            if partition.due:
                self.delivery.offer(
                    place for place in partition.take_due() if place.chunk.states[place.row] == SINGLE
                )
                self._steps.interruption.request_maintenance()

    def tick_gates(self) -> None:
        """Tell gates that wait for records the time, and whether their partition is read to its end."""
        self.fetcher.pass_holes()
        for assigned in self._session.assigned.values():
            partition = assigned.engine_partition
            if partition is not None and partition.waits:
                self.upkeep.log_ends.tick(
                    assigned, partition, partition.flight.position, dry=self.fetcher.ran_dry
                )
        self.offer_due()

    def ask(self, gatekeeper: Gatekeeper) -> None:
        """Have the gatekeeper renew its hold, and queue the messages that it lets through now."""
        gatekeeper.keep(self.delivery.take_back)
        gatekeeper.retry([partition for partition in self.engine.partitions.values() if partition.started])
        self.offer_due()
