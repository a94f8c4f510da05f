"""Messages that are delivered first and judged later, together: the way of messages that come alone, or a few at once.

At a thousand messages a second each comes alone, and to judge each by itself costs more than its look-up: chunks and
columns of one row, and a completion with its step for the journal. So if the first of a few fetched messages has an
unknown ID, it is delivered at once, and judged with those that follow it, as one batch that was delivered already. An
ID is unknown if it is neither in memory, nor in the store, nor on another early message: whatever comes before its
record is judged, the record is fresh, or unverified, and delivered. All other messages go the usual way.

early message
    delivered in this way, and not judged yet. Early messages are judged as soon as anyone takes the consumer's lock to
    look at messages or partitions (`dedup_sdk._kafka.guards.ClientLock.catch_up`), and nobody finds them unjudged.
asked
    The call for more, which completes all early messages, has begun. While it waits for the next message, the judged
    ones are completed at once: a rebalance in that call must not give them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assignment import Coordinates
from dedup_sdk._kafka.delivery import BatchClassifier, CompletedBy, Delivery
from dedup_sdk._kafka.fields import MessageFields, headers_of
from dedup_sdk._kafka.guards import is_inside
from dedup_sdk._marks import Find
from dedup_sdk._observe import PartitionCounters
from dedup_sdk.ids import Ids


@dataclass(slots=True)
class _Open:
    """A partition of which messages may be delivered early, from the offset ``position`` on."""

    memory: LookupMemory
    find: Find
    counters: PartitionCounters
    position: int


@dataclass(slots=True)
class EarlyBatch:
    """The early messages by their digests, in the order of their delivery, and the partitions that they are of.

    One value, which ends as one: an interruption between two would leave partitions that are closed.
    """

    messages: dict[bytes, Any] = field(default_factory=dict)
    open: dict[Coordinates, _Open] = field(default_factory=dict)


class EarlyDelivery:
    """The early messages, in ``batch``; everything with the consumer's lock."""

    def __init__(
        self, engine: Deduplicator, classifier: BatchClassifier, delivery: Delivery, *, in_batches: bool
    ) -> None:
        """Prepare. ``in_batches``: completed records may be written together (``durability="batch"``)."""
        self.asked = False
        self.batch = EarlyBatch()
        self._keys = engine.keys
        self._read_digest = engine.keys.digest_reader()
        self._classifier, self._delivery = classifier, delivery
        # A function of the application is called once for each message.
        calls = "record" in engine.keys.needs
        judges_first = classifier.observing or engine.is_observed or engine.gatekeeper is not None or calls
        self._is_possible = in_batches and not judges_first

    @property
    def is_under_way(self) -> bool:
        """Whether this thread is taking or judging a message: a signal's handler that calls the consumer then waits."""
        return is_inside(EarlyDelivery.take, self) or is_inside(EarlyDelivery.judge, self)

    def ask(self) -> None:
        """Note that the call for more has begun."""
        self.asked = True

    def take(self, message: Any) -> bool:
        """Make a fetched message an early one; False if it must be judged first, or is an event.

        No message may be ready, or delivered and not finished, but early ones.
        """
        if not self._is_possible or message.error() is not None:
            return False
        coordinates, offset = (message.topic(), message.partition()), message.offset()
        early = self.batch
        known = early.open.get(coordinates) or self._opened(coordinates)
        if known is None or offset < known.position:
            return False
        digest = self._digest_of(message)
        if digest is None or digest in early.messages or not known.memory.is_unknown(digest, known.find):
            return False
        known.position = offset + 1
        # First: whoever judges between these lines must not complete a message that nobody has got.
        self.asked = False
        early.open[coordinates] = known
        # Only with an early message is a partition kept: before one changes, they are judged, and it is forgotten.
        early.messages[digest] = message
        known.counters.delivered += 1
        return True

    def _digest_of(self, message: Any) -> bytes | None:
        if self._read_digest is not None:
            headers = headers_of(message)[0]
            digest = self._read_digest(headers) if headers else None
            if digest is not None:
                return digest
        return self._keys.digests(MessageFields([message])).digests[0]

    def _opened(self, coordinates: Coordinates) -> _Open | None:
        delivery = self._delivery
        if delivery.completed_by is not CompletedBy.NEXT_CALL or not (
            self.batch.messages or delivery.is_over
        ):
            return None
        partition = delivery.partition_of(*coordinates)
        if partition is None or not partition.is_plain:
            return None
        memory = partition.memory
        if not isinstance(memory, LookupMemory) or memory.count_window is not None:
            return None
        return _Open(memory, partition.store.find, partition.own_counters, partition.flight.position)

    def judge(self) -> int:
        """Judge the early messages, and add them to the delivered batch; return how many they were."""
        judged_now, self.batch = self.batch, EarlyBatch()
        if not judged_now.messages:
            # A signal's handler has called the consumer right before, so that they are judged.
            return 0
        early = list(judged_now.messages.values())
        digest_of = {id(message): digest for digest, message in judged_now.messages.items()}
        # One chunk for each partition; that of the message which was delivered last comes last.
        by_partition: dict[Coordinates, list[Any]] = {}
        for message in reversed(early):
            by_partition.setdefault((message.topic(), message.partition()), []).append(message)
        batch = [message for each in by_partition.values() for message in each][::-1]
        judged = self._classifier.classify(batch, Ids([digest_of[id(message)] for message in batch], {}))
        self._delivery.add_delivered(judged)
        if judged.error is not None:
            raise judged.error
        return len(early)
