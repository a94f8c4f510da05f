"""What the user says about offsets: committing, storing, and handing them to a transaction."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.kafka.running import Running

logger = logging.getLogger("dedup_sdk")


class Offsets(Running):
    """The plain client's methods for offsets; they complete what they name, and commit only what is completed."""

    def commit(  # type: ignore[override]  # the stub's overloads cannot be repeated on one implementation
        self,
        message: Any = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002 (the plain client's signature)
    ) -> list[TopicPartition] | None:
        """Commit what is completed, with metadata; never past an unfinished message, never back.

        Completes what was handed out first: of the message's partition up to it, or below the given offsets, or all of
        it (with ``enable.auto.offset.store=false`` only what is named); with ``completion="explicit"`` nothing. While a message that
        was released waits to be handed out again, only what lies below it in its partition is completed: what was handed out above
        it is, once that has come again, by the next commit or call for more. Synchronous,
        it raises `KafkaException` (``_NO_OFFSET``) when there is nothing to commit. By another thread while a rebalance
        callback runs, which may wait for that thread, it is noted and goes out when the callback is over; what it will
        commit is returned.
        """
        with self._turns.alone_or_noting() as alone, self._steady():
            below = _below(message, offsets)
            self._complete_below(below)
            ready = self._session.commits.below(below, asynchronous=asynchronous)
            if ready and not alone:
                self._session.commits.note(ready)
                self._tidy_at = 0.0
                return None if asynchronous else ready
            if ready:
                return self._session.commits.exactly(ready, asynchronous=asynchronous)
            if asynchronous:
                return None
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))  # noqa: SLF001 (that is its public name)

    def store_offsets(self, message: Any = None, offsets: list[TopicPartition] | None = None) -> None:
        """Complete what was handed out up to a message or below offsets; the next commit takes it along."""
        with self._steady():
            below = _below(message, offsets)
            if below is None:
                raise ValueError("expected either message or offsets")
            # A loop calls this for each message: the store is told by the batch, unless every message counts.
            self._complete_below(below, write=self._durability == "record" or not self._by_commit)

    def consumer_group_metadata(self) -> Any:
        """Return what a transactional producer needs to commit offsets; what it commits completes nothing here.

        Call `store_offsets` when the transaction is committed. The group's offset then has no text beside it, so that what came
        before is unverified after a restart.
        """
        if not self._session.commits.by_transactions:
            self._session.commits.by_transactions = True
            logger.warning(
                "consumer_group_metadata(): offsets that a transaction commits complete nothing, and vouch for no history; call "
                "store_offsets() when the transaction is committed, and expect unverified messages after a restart"
            )
        return super().consumer_group_metadata()

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        theirs = self._session.commits.answered(error, partitions)
        if self._settings.on_commit is not None and (theirs or not partitions):
            self._guard.run(self._settings.on_commit, error, theirs)


def _below(message: Any, offsets: list[TopicPartition] | None) -> dict[tuple[str, int], int] | None:
    """Return the offset below which each partition is meant; None: all of them. What is no offset means nothing."""
    if message is not None and offsets is not None:
        raise ValueError("message and offsets are mutually exclusive")
    if message is not None:
        if message.error() is not None:
            raise KafkaException(message.error())
        return {(message.topic(), message.partition()): message.offset() + 1}
    if offsets is None:
        return None
    return {(tp.topic, tp.partition): tp.offset for tp in offsets if tp.offset >= 0}
