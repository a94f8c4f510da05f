"""Partitions that end or move: what becomes of their messages, and of the handlers that work on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from confluent_kafka import TopicPartition

from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.deliver.classifier import BatchClassifier
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk._kafka.deliver.fetcher import Fetcher
from dedup_sdk._kafka.recover.session import Session, waiting_until


class Handlers(Protocol):
    """Handles messages on other threads, and is notified when partitions are revoked or lost (`dedup_sdk._runner`)."""

    def leave(self, partitions: Collection[Coordinates], *, until: float | None) -> None:
        """Apply the outcomes of finished handlers and drop the other messages; with the lock.

        Called before partitions are revoked, closed or restarted. Running handlers are waited for until ``until``
        (monotonic seconds; None: not at all).
        """

    def began(self, partitions: Collection[Coordinates]) -> set[int]:
        """Return the offsets of messages whose handler was called, of partitions; with the lock."""

    def withdraw(self, partitions: Collection[Coordinates]) -> set[int]:
        """Drop the messages of partitions whose handlers were never called; return their offsets. With the lock."""

    def lose(self, partitions: Collection[Coordinates] | None) -> None:
        """Drop all messages of partitions (None: of all) without applying outcomes; with the lock.

        This consumer, or the new owner, gets them again.
        """


class Handover:
    """Completes, writes and commits messages of partitions that go, and forgets the others; with the lock."""

    def __init__(
        self,
        session: Session,
        fetcher: Fetcher,
        classifier: BatchClassifier,
        delivery: Delivery,
        steps: Steps,
    ) -> None:
        self.session, self.fetcher, self.delivery = session, fetcher, delivery
        self._classifier, self._steps = classifier, steps
        self.handlers: Handlers | None = None
        self.noted_seeks: dict[Coordinates, TopicPartition] = {}
        """Seeks by other threads while a callback ran, which maintenance does."""

    def note_seek(self, target: TopicPartition) -> None:
        """Note a seek; the last one of a partition counts."""
        self.noted_seeks[target.topic, target.partition] = target

    def forget_seek(self, of: Coordinates) -> None:
        """Forget the noted seek of a partition."""
        self.noted_seeks.pop(of, None)

    def next_seek(self) -> TopicPartition | None:
        """Return a noted seek of a partition that is still assigned, None without one; forget it when it is done."""
        for of, target in list(self.noted_seeks.items()):
            if of in self.session.assigned:
                return target
            self.forget_seek(of)
        return None

    def attach(self, handlers: Handlers | None) -> None:
        """Set the handlers to notify when partitions are revoked or lost; None: no handlers."""
        self.handlers = handlers

    def give_back(self, partitions: list[TopicPartition]) -> None:
        """Write, commit and close revoked partitions; after an interruption all partitions are opened again before."""
        self.settle()
        until = self.session.deadline()
        if self.handlers is not None:
            # Outcomes for lost partitions cannot be written, so that their handlers are not waited for.
            lost = {c for c, assigned in self.session.assigned.items() if not assigned.is_ours}
            self.handlers.leave(coordinates_in(partitions) - lost, until=waiting_until(until))
        self._end(coordinates_in(partitions))
        self.session.give_back(partitions, until)

    def lose(self, partitions: list[TopicPartition]) -> None:
        """Close lost partitions, which another member may own already; nothing is committed."""
        if self.handlers is not None:
            self.handlers.lose(coordinates_in(partitions))
        if not self._steps.interruption.happened:
            self.write_completed(partitions)
        self._end(coordinates_in(partitions))
        self.session.lose(partitions)

    def write_completed(self, partitions: list[TopicPartition]) -> None:
        """Write the records completed before the loss was known; nothing is written for these partitions afterwards."""
        for coordinates in coordinates_in(partitions):
            partition = self.delivery.partition_of(*coordinates)
            if partition is not None:
                partition.persist()

    def _end(self, gone: Collection[Coordinates]) -> None:
        """Drop the fetched messages of partitions whose assignment ends, and their noted seeks, which are of it."""
        self.forget(gone)
        for coordinates in gone:
            self.forget_seek(coordinates)
        self._classifier.warn_of_missing_ids(gone)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Drop the fetched messages of partitions that are closed, moved or reopened; a noted seek is still done."""
        if self.handlers is not None:
            self.handlers.leave(gone, until=None)
        self.delivery.purge(set(gone))
        self.fetcher.forget(gone)
        self._steps.interruption.request_maintenance()

    def forget_if_it_recovers(self, coordinates: Coordinates) -> None:
        """Drop the fetched messages of a partition if it recovers: it is read again from its start."""
        assigned = self.session.assigned.get(coordinates)
        if assigned is not None and assigned.recovers:
            self.forget({coordinates})

    def reopen_all(self) -> None:
        """Reopen every partition from its store and its completed records, as after a crash; with the lock."""
        if self.handlers is not None:
            self.handlers.lose(None)
        self.fetcher.note_stops()
        self.session.reconcile()
        self.delivery.release_all(self.session.paused_by_user)
        self.session.reopen_all()
        self.fetcher.rest([])
        self._steps.interruption.end()

    def settle(self) -> None:
        """After an interruption reopen every partition, before any of them ends: the client says which there are."""
        if self._steps.interruption.happened and not self._steps.lock.ends:
            self.reopen_all()

    def reopen(self, coordinates: Coordinates) -> None:
        """Reopen a partition from its completed records: its messages in flight come again; with the lock."""
        self.forget({coordinates})
        self.session.reopen(*coordinates)

    def complete_all_but_last(self) -> None:
        """Complete the messages returned before the last call, unless an interruption left their state in doubt."""
        if not self._steps.interruption.happened:
            self._steps.run(self._complete_all_but_last)

    def _complete_all_but_last(self) -> None:
        self.write(self.delivery.policy.move())
        self.fetcher.pass_holes()

    @staticmethod
    def write(partitions: Iterable[Partition]) -> None:
        """Write the completed records of partitions, whatever the durability is: their next owner needs them."""
        for partition in partitions:
            partition.persist()


def coordinates_in(partitions: Iterable[TopicPartition]) -> set[Coordinates]:
    """Return topic and partition of each."""
    return {(tp.topic, tp.partition) for tp in partitions}
